"""The overlay against a model: ops, failures, freezes and commits in any order read like a dict."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fscommon.types import SessionId, Txn
from metaserver.overlay import Overlay
from metaserver.store.memory import MemoryStore
from metaserver.transaction import Transaction

_KEYS = st.sampled_from([b"a", b"b", b"c", b"ca", b"cb", b"d", b"e"])
_WRITES = st.dictionaries(_KEYS, st.none() | st.binary(max_size=2), max_size=4)
_OPS = st.tuples(st.just("op"), st.integers(1, 3), _WRITES, st.booleans(), _KEYS, _KEYS)
_STEPS = st.lists(_OPS | st.tuples(st.sampled_from(["freeze", "commit"])), max_size=30)


class Model:
    """One dict, and for each key the operation that wrote it and is not committed."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.writers: dict[bytes, tuple[int, int]] = {}
        self.frozen = 0

    def foreign(self, session: int, keys: list[bytes]) -> int:
        written = [self.writers[key] for key in keys if key in self.writers]
        return max([txn for writer, txn in written if writer != session], default=0)


@given(_STEPS)
def test_reads_and_foreign_transactions(steps: list[Any]) -> None:
    store = MemoryStore()
    overlay = Overlay(store)
    model, txn, frozen = Model(), 0, None
    for step in steps:
        if step[0] == "freeze" and frozen is None:
            frozen = overlay.freeze()
            model.frozen = txn
        elif step[0] == "commit" and frozen is not None:
            store.commit(frozen)
            overlay.committed()
            frozen = None
            model.writers = {k: w for k, w in model.writers.items() if w[1] > model.frozen}
        elif step[0] == "op":
            txn += 1
            run_op(overlay, model, txn, *step[1:])


def run_op(overlay: Overlay, model: Model, txn: int, *step: Any) -> None:
    session, writes, succeeds, start, end = step
    tx = Transaction(overlay, SessionId(session))
    values = dict(model.values)
    assert tx.get(start) == values.get(start)
    assert tx.foreign == model.foreign(session, [start])
    for key, value in writes.items():
        tx.delete(key) if value is None else tx.put(key, value)
        values.pop(key, None) if value is None else values.__setitem__(key, value)
    expected = [(k, values[k]) for k in sorted(values) if start <= k < end]
    assert list(tx.range(start, end)) == expected
    touched = [key for key in model.writers if start <= key < end and key not in writes]
    assert tx.foreign == model.foreign(session, [start, *touched])
    if succeeds:
        assert overlay.merge(tx.writes, tx.session, Txn(txn)) == model.foreign(
            session, list(writes)
        )
        model.values = values
        model.writers.update(dict.fromkeys(writes, (session, txn)))
