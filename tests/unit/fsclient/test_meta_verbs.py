"""`braidfs meta backup` against metaservers that end, lie or change their minds, and the verbs that
need none.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fsclient.cli import meta
from fsclient.cli.frame import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, run_cli
from fsclient.cli.main import cli
from fsclient.daemon import EXIT_INTERRUPTED
from fscommon.archive import ArchiveReader, pack_record
from fscommon.errors import BraidError, ConfigError, FsError, Status, TransportError
from fscommon.wire.backup import BackupBegun, BackupEnded, BackupNext, BackupPart
from fscommon.wire.ops import Op

FIRST = BackupPart(b"c" * 16, 1, 7, 2, 1, pack_record(b"a", b"1"), False)
LAST = BackupPart(b"c" * 16, 1, 7, 2, 2, pack_record(b"b", b"2") + pack_record(b"c", b"3"), True)


@dataclass
class FakeMetaserver:
    """Answers BACKUP_NEXT with these parts, one after another; an exception is raised."""

    parts: list[BackupPart | BaseException]
    asked: list[bytes] = field(default_factory=list)
    ended: bool = False
    timeout_s: float = 1.0

    async def call(self, op: Op, message: Any, timeout_s: float) -> Any:
        if op is Op.BACKUP_BEGIN:
            return BackupBegun(5, 100)
        if op is Op.BACKUP_END:
            self.ended = True
            return BackupEnded()
        assert isinstance(message, BackupNext) and message.id == 5
        self.asked.append(message.after)
        answer = self.parts.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return trio.run(work, self)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "names.backup"
    assert list(tmp_path.glob("*.part")) == [], "nothing half is left"


def run(monkeypatch: pytest.MonkeyPatch, server: FakeMetaserver, *words: object) -> int:
    monkeypatch.setattr("fsclient.cli.frame.make_reach", lambda *given: server)
    return run_cli(cli, ["meta", "backup", *map(str, words)])


def test_parts_become_a_file(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    server = FakeMetaserver([FIRST, LAST])
    assert run(monkeypatch, server, file) == EXIT_DONE
    assert server.asked == [b"", b"a"] and server.ended
    with file.open("rb") as opened:
        reader = ArchiveReader(opened, str(file))
        assert [*reader.records()] == [[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]]
        assert (reader.head.txn, reader.head.inodes, reader.head.schema) == (7, 2, 1)


@pytest.mark.parametrize(
    ("second", "code", "said"),
    [
        (FIRST, EXIT_FAILED, "the keys are not in order"),
        (replace(LAST, count=3), EXIT_FAILED, "has 2 records, and says 3"),
        (replace(LAST, records=LAST.records[:-1]), EXIT_FAILED, "a record is cut off"),
        (replace(LAST, txn=8), EXIT_FAILED, "not of one snapshot"),
        (replace(LAST, cluster=b"d" * 16), EXIT_FAILED, "not of one snapshot"),
        (replace(LAST, cluster=b"short"), EXIT_FAILED, "names no cluster"),
        (replace(FIRST, count=0, records=b""), EXIT_FAILED, "has 0 records"),
        (FsError(Status.ENOENT, "given up"), EXIT_FAILED, "given up"),
        (TransportError("it was closed"), EXIT_FAILED, "it was closed"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "interrupted"),
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_what_goes_wrong_leaves_the_file_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    second: BackupPart | BaseException,
    code: int,
    said: str,
    is_there: bool,
) -> None:
    if is_there:
        file.write_bytes(b"of yesterday")
    words = (file, "--force") if is_there else (file,)
    assert run(monkeypatch, FakeMetaserver([FIRST, second]), *words) == code
    assert said in capsys.readouterr().err
    assert file.read_bytes() == b"of yesterday" if is_there else not file.exists()


def test_a_file_that_is_there_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_bytes(b"of yesterday")
    assert run(monkeypatch, FakeMetaserver([]), file) == EXIT_USAGE
    assert "exists: --force replaces it" in capsys.readouterr().err
    assert file.read_bytes() == b"of yesterday"


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (1, pytest.raises(BraidError, match=r"^why$")),
        (2, pytest.raises(ConfigError, match=r"^why$")),
        (130, pytest.raises(KeyboardInterrupt)),
        (0, nullcontext()),
    ],
)
def test_the_end_of_the_restoring_process_is_that_of_the_command(
    monkeypatch: pytest.MonkeyPatch, code: int, raised: AbstractContextManager[object]
) -> None:
    monkeypatch.setattr(meta, "_ended", lambda words: (code, '{"records": 1}', "why\n"))
    with raised:
        assert meta._restored(Path("b"), Path("d"), True) == {"records": 1}
