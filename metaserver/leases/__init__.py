"""Leases: who caches what, what an op must wait for, and what its reply grants.

table: the state machine, pure. footprints: what each op reads and changes. grants: lease fields in
the records of replies. gate: what joins them to the engine.
"""
