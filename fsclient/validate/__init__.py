"""The engine of `braidfs validate`: measures and checks a cluster through its mounts.

A suite is a sequence of phases (suites). Each node runs a worker (worker), which the driver (nodes,
run) controls over a pipe or ssh; all nodes do one phase together. Pure code sums up and judges the
outcomes (outcome, sizing), and makes a page of them (page, plots).
"""
