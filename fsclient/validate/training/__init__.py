"""The suite `training` of `braidfs validate`: emulated GPUs read as public training benchmarks do.

A workload file (workload) says what a GPU reads and how long it computes. On each node a program
(replay) runs the emulated GPUs of the node as processes; the driver (drive) lets those of all nodes
begin together, and sums up what they tell (utilisation). Results are no MLPerf results.
"""
