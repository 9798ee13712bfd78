"""`./dev up`, `./dev status` and `./dev down`, as the first page of the guide has them."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cluster.mounts import is_mounted
from tests.dev import cluster_commands
from tests.dev.__main__ import cli

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
    finally:
        down = dev("down", "--state", state)
    assert down.exit_code == 0, down.output
    assert not is_mounted(mount)
    assert dev("status", "--state", state).exit_code == 1
