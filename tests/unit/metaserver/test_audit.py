"""The audit log: the content of a line, and what is not logged."""

from typing import Any

import pytest

from fscommon.errors import Status
from fscommon.wire.admin import Evict, Place
from fscommon.wire.codec import encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign
from metaserver.audit import Audit
from metaserver.connection import Connection
from metaserver.ops.row import Access
from metaserver.ops.table import ROWS

from .bench import Bench, Client, parse


class Lines:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(fields)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    found = Lines()
    monkeypatch.setattr("metaserver.audit.Log", lambda part: found)
    return found


def end(audit: Audit, op: Op, message: Any, status: int = 0) -> None:
    connection = Connection("admin", lambda: None, lambda: None, node="ann@host", peer="10.0.0.7:5")
    frame = parse(encode_frame(op, body=message if isinstance(message, bytes) else encode(message)))
    audit.ended(connection, frame[0], status)


def test_a_line(lines: Lines) -> None:
    end(Audit(), Op.EVICT, Evict(77))
    assert lines.lines == [
        {
            "op": "EVICT",
            "outcome": "OK",
            "by": "ann@host",
            "peer": "10.0.0.7:5",
            "key": None,
            "request": "Evict(session=77)",
            "suppressed": None,
        }
    ]


def test_a_walk_is_one_line(lines: Lines) -> None:
    audit = Audit()
    for stack in ((Place(5, 0),), (Place(5, 9), Place(6, 0)), (Place(5, 9), Place(6, 7))):
        end(audit, Op.QUOTA_ASSIGN, QuotaAssign(5, 5, stack))
    assert len(lines.lines) == 1


def test_who_is_refused_does_not_fill_the_log(lines: Lines) -> None:
    audit = Audit()
    for _ in range(1000):
        end(audit, Op.EVICT, b"\xc1", Status.EPERM)
    assert [line["outcome"] for line in lines.lines] == ["EPERM"]
    end(audit, Op.EVICT, Evict(1))  # completed actions are logged in any case
    assert len(lines.lines) == 2


def test_the_engine_tells_of_every_op_that_changes_the_cluster() -> None:
    """An administrator's op that only reads is not logged."""
    looking = {
        Op.INSPECT,
        Op.INSPECT_LIST,
        Op.TREE_SUM,
        Op.LOCK_LIST,
        Op.QUOTA_LIST,
        Op.QUOTA_TELL,
        Op.KEY_LIST,
        Op.TRASH_TREES,
        Op.TRASH_LIST,
        Op.TRASH_BY_AGE,
        Op.JOB_LIST,
        Op.SCRUB_LIST,
        Op.BACKUP_NEXT,
        Op.BACKUP_END,
        Op.FSCK_NAMES,
        Op.FSCK_SLOTS,
    }
    of_administrators = {op for op, row in ROWS.items() if row.access is Access.ADMIN}
    audited = {op for op, row in ROWS.items() if row.audited is not None}
    assert of_administrators - looking == audited
    bench = Bench()
    told: list[int] = []
    bench.engine.audited = lambda connection, frame, status: told.append(status)
    for purpose in ("admin", "meta"):
        client = Client(bench, bench.connect(purpose))
        client.send(Op.EVICT, Evict(5))
    assert told == [Status.UNKNOWN_SESSION, Status.EPERM]
