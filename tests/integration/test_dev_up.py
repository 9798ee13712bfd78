"""`./dev up`, `./dev status` and `./dev down`, as the first page of the guide has them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cluster.mounts import is_mounted
from tests.dev import cluster_commands
from tests.dev.__main__ import cli
from tests.dev.steps import ROOT

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


def dev(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_a_cluster_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_commands, "build", lambda: None)  # whoever runs tests has built
    state, mount = tmp_path / "state", tmp_path / "mount"
    try:
        up = dev("up", "--state", state, "--mount", mount)
        assert up.exit_code == 0, up.output
        assert f"is mounted at   {mount}" in up.output
        (mount / "file").write_text("kept")
        assert dev("status", "--state", state).exit_code == 0
        _try_what_is_printed(up.output, tmp_path)
        assert dev("status", "--state", state).exit_code == 0
    finally:
        down = dev("down", "--state", state)
    assert down.exit_code == 0, down.output
    assert not is_mounted(mount)
    assert dev("status", "--state", state).exit_code == 1


def _try_what_is_printed(printed: str, tmp_path: Path) -> None:
    """With a smaller tree than /usr/share/doc, which has links to nowhere, too."""
    documents = tmp_path / "doc"
    shutil.copytree(ROOT / "docs", documents)
    (documents / "link").symlink_to("nowhere")
    printed = printed.replace("/usr/share/doc", str(documents))
    _, _, tried = printed.partition("Try:\n")
    _, _, with_replicas = tried.partition("Files that outlive a storage server")
    lines = with_replicas.partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in lines[:-1]] == ["mkdir", "cp", "kill", "diff"]
    for script in (tried.splitlines()[0], "\n".join(lines)):
        subprocess.run(["bash", "-exc", script], check=True, timeout=120)
