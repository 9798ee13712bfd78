"""A fuzzer of running servers, derived from the tables with which the servers themselves check
requests.

`requests` makes bodies of every op from the types of its message; `attack` sends them as every kind
of peer. `python -m tests.hostile` is its command line, tests/integration/test_hostile.py its short
form in CI.
"""
