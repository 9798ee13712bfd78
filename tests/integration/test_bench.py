"""`./dev bench data` works: three of its cases in a tiny form, on BraidFS, on the disk and on null
FUSE.

The tests check that it reports speeds, not what they are.
"""

from pathlib import Path

import pytest

from tests.bench.data.amounts import TINY
from tests.bench.data.bars import BRAID, LOCAL, NULL
from tests.bench.data.case import Case
from tests.bench.data.places import BraidPlace, LocalPlace, NullPlace, Place
from tests.bench.data.small_files import SMALL_FILES
from tests.bench.data.streams import READS, WRITES
from tests.bench.data.suite import Measured, measure, results
from tests.bench.systems import NULLFS
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import ProcessError, Program

pytestmark = pytest.mark.mount
CASES = (SMALL_FILES, WRITES, READS)
# Null FUSE stores nothing: it creates no data set.
OURS = ("remount", "cache_dir", "sealed", "announced")  # these rows exist only for BraidFS
NOT_OF_NULL = {"create with data, 4 processes", "CPU per file created with data"}


def test_cases_measure_every_row(cluster: Cluster, localdir: Path) -> None:
    null = NullPlace(localdir, localdir / "null")
    (localdir / "disk").mkdir()
    braid = BraidPlace(cluster, "bench")
    measured = Measured()
    try:
        for place in (braid, LocalPlace(localdir / "disk"), null):
            for case in CASES:
                measure(measured, place, case, TINY, "tiny")
    finally:
        null.stop()
        braid.folder.rmdir()  # it is empty, because each case removes what it wrote
    assert measured.failures == []
    _check_rows(measured)
    _check_results(measured)


def _check_rows(measured: Measured) -> None:
    medians = measured.medians()
    for case in CASES:
        for row in (one for one in case.rows(TINY) if not one.lacking):
            assert medians[row.name, BRAID] > 0, row.name
            if row.unit in ("files/s", "MB/s") and not any(word in row.name for word in OURS):
                assert medians[row.name, LOCAL] > 0, row.name
                assert row.name in NOT_OF_NULL or medians[row.name, NULL] > 0, row.name


def _check_results(measured: Measured) -> None:
    rows = {case.title: list(case.rows(TINY)) for case in CASES}
    found = results(measured, rows, [BRAID, LOCAL, NULL])
    titles = [group["title"] for group in found["groups"]]
    assert titles == ["small files", "checkpoints", "restores"]
    assert {one.split(":")[0] for one in found["below"]} >= {
        row.name for row in SMALL_FILES.rows(TINY) if row.lacking
    }


def test_a_case_that_fails_does_not_stop_the_others(localdir: Path) -> None:
    def fail(place: Place, _: object) -> dict[str, float]:
        (place.folder / "left").write_text("")
        raise OSError(5, "no such luck")

    def work(_: Place, __: object) -> dict[str, float]:
        return {"row": 1.0}

    cases = [Case("x", "broken", lambda _: (), fail), Case("y", "whole", lambda _: (), work)]
    measured = Measured()
    for case in cases:
        measure(measured, LocalPlace(localdir), case, TINY, "tiny")
    assert measured.values == {"row": {LOCAL: [1.0]}}
    assert measured.failures == ["broken on ext4: [Errno 5] no such luck"]
    assert list(localdir.iterdir()) == []


def test_null_fuse_may_leave_reading_to_the_kernel(localdir: Path) -> None:
    """`braidfs-nullfs --passthrough` works; docs/decisions/0035-local-cache.md has what it
    measured."""
    backing, point = localdir / "backing", localdir / "null"
    for number, folder in enumerate((backing, point)):
        folder.mkdir()
        (backing / f"f{number}").write_bytes(b"%d" % number * 100_000)
    words = (str(NULLFS), "--files", "2", "--passthrough", str(backing), str(point))
    program = Program("nullfs", words, localdir)
    try:
        program.start()
    except ProcessError as error:
        pytest.skip(f"no FUSE passthrough before Linux 6.9: {error}")
    try:
        for name in ("f0", "f1", "f0"):
            assert (point / name).read_bytes() == (backing / name).read_bytes()
    finally:
        mounts.unmount(point, lazy=True)
        program.stop()
