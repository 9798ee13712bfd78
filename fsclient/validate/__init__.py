"""The engine of `braidfs validate`: measures and checks a cluster through its mounts.

A suite is a row of phases (suites). Each node runs a worker (worker), which the driver (nodes, run)
tells over a pipe or ssh what to do; all nodes do one phase together. Outcomes are summed up and
judged by pure code (outcome, sizing), and written as a page (page, plots).
"""
