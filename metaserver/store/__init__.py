"""Where the metaserver keeps its records: a narrow waist and its implementations.

`waist.py` is what a store promises, `lmdb.py` the embedded default, `memory.py` the one for tests.
tests/conformance/test_store.py runs one suite against all of them.
"""
