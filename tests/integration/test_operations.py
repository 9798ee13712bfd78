"""docs/OPERATIONS.md: each command of `braidfs` in it runs, here or in the test that is named.

A command that is added there is run by this file as it stands, or needs a line in WORDS or
ELSEWHERE. It runs in this process, as `braidfs` does, against the shared cluster.
"""

import re
import shlex
from pathlib import Path

import pytest

from fsclient.cli.frame import EXIT_DONE, run_cli
from fsclient.cli.main import cli
from tests.cluster.cluster import Cluster
from tests.dev.steps import ROOT

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
GUIDE = (ROOT / "docs" / "OPERATIONS.md").read_text()
COMMANDS = sorted(set(re.findall(r"`braidfs ([^`]+)`", GUIDE)))

# The command's own end → the test that runs it.
ELSEWHERE = {
    "client abort": "tests/integration/test_restart.py::test_abort",
    "client restart": "tests/integration/test_restart.py::test_nobody_notices",
    "client evict": "tests/integration/test_cli.py::test_evicted_client_is_fenced_and_comes_back",
    "key revoke": "tests/integration/test_keys.py::test_key_verbs",
    "mount SOURCE": "tests/integration/test_mounting.py::test_foreground_until_a_signal",
    "validate": "tests/integration/test_validate.py::test_a_remote_node_and_text",
    "net check": "tests/rdma",
    "bench": "tests/integration/test_bench_verb.py::test_all_parts_on_two_nodes",
    "target add": "tests/integration/test_targets.py::test_a_target_is_added_and_drained",
    "target set-state": "tests/integration/test_targets.py::test_a_target_is_added_and_drained",
    "trash restore PATH": "tests/fuse/test_trash.py::test_rm_r_and_back",
    "seal PATH": "tests/integration/test_seal.py::test_a_sealed_tree_is_changed_by_nobody",
    "unseal PATH": "tests/integration/test_seal.py::test_a_sealed_tree_is_changed_by_nobody",
}
# What a word of the guide, or a whole command, is here.
WORDS = {
    "key check": "key check {key}",
    "tls issue": "tls --help",  # run by test_tls.py
    "tls check HOST": "tls --help",
    "PATH": "{folder}/sub",
    "FILE": "{configuration}",
    "cluster.key": "{local}/new.key",
    "gpu.key": "{local}/gpu.key",
    "bash|zsh|fish": "bash",
    "top": "top --count 1 --interval 0.2",
    "bundle": "bundle -o {local}/bundle.tar.gz",
}


def elsewhere(command: str) -> str | None:
    return next((test for start, test in ELSEWHERE.items() if command.startswith(start)), None)


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) > 20


def test_playbooks_of_the_guide_are_run_by_tests() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "deployment").glob("test_*.py"))
    named = set(re.findall(r"playbooks/([a-z-]+)\.yml", GUIDE))
    assert len(named) >= 5
    assert named == {path.stem for path in (ROOT / "ansible" / "playbooks").glob("*.yml")}
    assert [name for name in named if f'"{name}"' not in tests] == []


@pytest.mark.parametrize("command", [one for one in COMMANDS if elsewhere(one)])
def test_what_runs_elsewhere_does(command: str) -> None:
    path, _, name = str(elsewhere(command)).partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("command", [one for one in COMMANDS if not elsewhere(one)])
def test_command_runs(
    command: str, cluster: Cluster, workdir: Path, localdir: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BRAIDFS_METASERVER", f"127.0.0.1:{cluster.plan.metaserver.port}")
    monkeypatch.setenv("BRAIDFS_KEY_FILE", str(cluster.plan.key_file))
    monkeypatch.setenv("BRAIDFS_ADMIN_CONFIG", "/nonexistent")
    (workdir / "sub").mkdir()
    (workdir / "sub" / "file").write_bytes(b"bytes")
    configuration = localdir / "metaserver.toml"
    (localdir / "state").mkdir()
    configuration.write_text(
        f'state_directory = "{localdir}/state"\nkey_file = "{cluster.plan.key_file}"\n'
        'listen = "127.0.0.1:0"\n'
    )
    places = {"folder": workdir, "local": localdir, "configuration": configuration,
              "key": cluster.plan.key_file}  # fmt: skip
    if command.startswith("trash disable"):
        assert run_cli(cli, ["trash", "enable", f"{workdir}/sub"]) == EXIT_DONE
    words = WORDS.get(command) or " ".join(WORDS.get(word, word) for word in command.split())
    code = run_cli(cli, shlex.split(words.format(**places)))
    shown = capsys.readouterr()
    has_no_rdma = command == "net devices" and "no RDMA" in shown.err
    assert code == EXIT_DONE or has_no_rdma, shown
    if command.startswith("trash enable"):
        assert run_cli(cli, ["trash", "disable", f"{workdir}/sub"]) == EXIT_DONE
    if command.startswith("key create gpu"):
        assert run_cli(cli, ["key", "revoke", "gpu", "--yes"]) == EXIT_DONE
    if command.startswith("quota set"):
        assert run_cli(cli, ["quota", "remove", "--tree", f"{workdir}/sub"]) == EXIT_DONE
