"""The files that `./dev up` leaves for people: an environment for `braidfs`, and scripts that start
programs.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import cluster as cluster_module
from tests.cluster.cluster import link_mount_helper
from tests.cluster.process import Program, is_gone, wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120), pytest.mark.expects_warnings]
BRAIDFS = Path(sys.prefix) / "bin" / "braidfs"


def shell(words: str) -> str:
    return subprocess.run(
        ("sh", "-c", words), capture_output=True, text=True, check=True, env={"PATH": "/bin:/sbin"}
    ).stdout


def _runs_anew(program: Program, before: int) -> bool:
    return program.pid() not in (None, before)


def test_the_environment_and_the_scripts(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    state = cluster.plan.state
    status = f"set -a; . {state}/cluster.env; {BRAIDFS} status --json"
    seen = json.loads(shell(status))
    assert seen["health"] == "healthy" and len(seen["clients"]) == 1
    for program in cluster.programs:
        before = program.pid()
        assert before is not None
        assert f"runs already (pid {before})" in shell(str(program.start_path))
        subprocess.run(("kill", "-9", str(before)), check=True)
        assert wait_until(partial(is_gone, before), 10)
        assert "was started" in shell(str(program.start_path))
        assert wait_until(partial(_runs_anew, program, before), 10), program.name
    (cluster.mount_path / "file").write_bytes(b"served")
    cluster.unmount()
    shell(str(state / "run" / "client.start"))
    assert (cluster.mount_path / "file").read_bytes() == b"served"


def test_another_checkouts_helper_is_taken_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, said = tmp_path / "mount.fuse.braidfs", list[str]()
    monkeypatch.setattr(cluster_module, "HELPER_LINK", link)
    link_mount_helper(said.append)
    assert said == [], "nobody had it"
    link.unlink()
    link.symlink_to("/elsewhere/bin/mount.fuse.braidfs")
    link_mount_helper(said.append)
    assert len(said) == 1 and "from /elsewhere/bin/mount.fuse.braidfs" in said[0]
    link_mount_helper(said.append)
    assert len(said) == 1
