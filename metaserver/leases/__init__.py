"""Leases: who caches what, and what others must return before it changes.

table: the state machine, pure. grants: lease fields in the records of replies. What each op reads
and changes is in its row (metaserver.ops.row); metaserver.lease_gate joins both to the engine.
"""
