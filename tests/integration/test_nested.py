"""What lies on top of a mount stays there when another process goes on with it, and other clients'
work is seen afterwards."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.nested import nested

from .test_restart import restart
from .test_survival import kill

pytestmark = [pytest.mark.mount, pytest.mark.timeout(180), pytest.mark.expects_warnings]

WAYS = {"restart": restart, "kill": kill}


@pytest.mark.parametrize("way", WAYS)
def test_another_process_goes_on(
    cluster: Cluster, workdir: Path, localdir: Path, way: str
) -> None:
    go_on: Callable[[Cluster], int] = WAYS[way]
    names = [workdir / "looked" / name for name in ("stays", "goes", "moves", "comes", "later")]
    (workdir / "looked").mkdir()
    for path in names[:3]:
        path.write_bytes(b"before")
    with nested(workdir / "nested", localdir / "nested") as made:
        assert [path.exists() for path in names] == [True, True, True, False, False]
        assert made.faults() == []
        go_on(cluster)
        assert made.faults() == []
        with cluster.second_client(localdir / "beside") as other:
            there = other / (workdir / "looked").relative_to(cluster.mount_path)
            (there / "goes").unlink()
            (there / "moves").rename(there / "later")
            (there / "comes").touch()
            assert [path.exists() for path in names] == [True, False, False, True, True]
            (other / made.folder.relative_to(cluster.mount_path) / "new").touch()
            assert (made.folder / "new").exists()
        assert made.faults() == []
