"""The engines that can keep a metaserver's journal, each behind metaserver.store.journal.

`memory.py` is for tests. tests/conformance/test_journal.py runs one suite against all of them.
"""
