"""Each command in the guide (docs/start, train, operate, reference) runs, here or in the test that
is named.

A command that is added there is run by this file as it stands, or needs a line in WORDS, ELSEWHERE
or OTHERS. It runs in this process, as `braidfs` does, against the shared cluster.
"""

import re
import shlex
from pathlib import Path

import pytest

from braidfs.checkpoint import Checkpoints
from fsclient.cli.frame import EXIT_DONE, run_cli
from fsclient.cli.main import cli
from tests.cluster.cluster import Cluster
from tests.dev import guide
from tests.dev.steps import ROOT

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
GUIDE = guide.text()
LINES = [command.strip() for line in guide.commands_in(GUIDE) for command in line.split("&&")]
OWN = {line.removeprefix("braidfs ") for line in LINES if line.startswith("braidfs ")}
COMMANDS = sorted(OWN.union(re.findall(r"`braidfs ([^`]+)`", GUIDE)))

# Pages that this test follows to the letter on hosts of their own, in the long form.
FOLLOWED_BY = "tests/deployment/test_start.py"
FOLLOWED = ("start/one-machine.md", "start/cluster.md")
# The command's own verb → the test that runs it.
ELSEWHERE = {
    "client abort": "tests/integration/test_restart.py::test_abort",
    "client restart": "tests/integration/test_restart.py::test_nobody_notices",
    "client evict": "tests/integration/test_cli.py::test_evicted_client_is_fenced_and_comes_back",
    "key revoke": "tests/integration/test_keys.py::test_key_verbs",
    "mount SOURCE": "tests/integration/test_mounting.py::test_foreground_until_a_signal",
    "validate /data --suite training": (
        "tests/integration/test_validate_training.py"
        "::test_gpus_on_the_mount_and_an_epoch_from_the_page_cache"
    ),
    "validate": "tests/integration/test_validate.py::test_a_remote_node_and_text",
    "net check": "tests/rdma",
    "bench": "tests/integration/test_bench_verb.py::test_all_parts_on_two_nodes",
    "target add": "tests/integration/test_targets.py::test_a_target_is_added_and_drained",
    "target drain": "tests/integration/test_disks.py::test_a_disk_is_replaced",
    "target remove": "tests/integration/test_disks.py::test_a_disk_dies",
    "job list --watch": "tests/integration/test_jobs.py::test_jobs_are_watched",
    "job pause": "tests/integration/test_jobs.py::test_jobs_are_listed_and_paused",
    "job resume": "tests/integration/test_jobs.py::test_jobs_are_listed_and_paused",
    "target set-state": "tests/integration/test_targets.py::test_a_target_is_added_and_drained",
    "meta switch": "tests/integration/test_meta_switch.py::test_a_hand_over_under_a_writer",
    "meta forget": "tests/integration/test_recovery_of_metaservers.py::test_one_that_is_gone",
    "meta restore": "tests/integration/test_meta_backup.py::test_names_come_back",
    "meta verify": "tests/integration/test_meta_backup.py::test_names_come_back",
    "trash restore PATH": "tests/fuse/test_trash.py::test_rm_r_and_back",
    "layout set /data/safe": f"{FOLLOWED_BY}::test_a_cluster",
    "layout set PATH --replicas": (
        "tests/integration/test_replicas.py::test_replicas_are_asked_for_and_shown"
    ),
    "seal PATH": "tests/integration/test_seal.py::test_a_sealed_tree_is_changed_by_nobody",
    "unseal PATH": "tests/integration/test_seal.py::test_a_sealed_tree_is_changed_by_nobody",
}
OF_OTHERS = {line for line in LINES if not line.startswith("braidfs ")} - {
    line for page in FOLLOWED for line in guide.commands_of(page)
}
# Commands of other programs → the test that runs them.
OTHERS = {
    **dict.fromkeys(
        (
            "./dev up",
            "./dev status",
            "./dev down",
            "mkdir .state/",
            ".venv/bin/braidfs layout set .state/",
            "cp -r /usr/share/doc .state/",
            "kill -9 $(cat .state/",
            "diff -r --no-dereference /usr/share/doc .state/",
            ".state/run/",
        ),
        "tests/integration/test_dev_up.py::test_a_cluster_for_people",
    ),
    "apt-get install": "tests/deployment/test_deb.py::test_the_installed_programs_work",
    "apt install ./braidfs": "tests/deployment/test_deb.py::test_the_installed_programs_work",
    "python3 -m venv": "tests/deployment/test_units.py::_install",
    "/opt/braidfs/bin/pip install": "tests/deployment/test_units.py::_install",
    "pip install --no-index --find-links dist braidfs": (
        "tests/deployment/test_users_package.py::test_it_works_where_nothing_else_is"
    ),
    "ln -s /opt/braidfs/bin/": "tests/deployment/test_units.py::_install",
    "useradd --system": "tests/deployment/test_units.py::_install",
    "mkdir -p /etc/braidfs": "tests/deployment/test_units.py::_install",
    "chown braidfs: /etc/": "tests/deployment/test_units.py::_install",
    "systemctl enable --now braidfs-metaserver": "tests/deployment/test_deb.py::host",
    "systemctl enable --now braidfs-storageserver": "tests/deployment/test_deb.py::host",
    **dict.fromkeys(
        (
            "systemctl stop braidfs-storageserver",
            "umount /srv/braidfs/nvme1",
            "mkfs.ext4 -q -b 4096 /dev/disk/by-id/",
            "mount /dev/disk/by-id/",
            "chown braidfs: /srv/braidfs/nvme1",
            "systemctl start braidfs-storageserver",
        ),
        "tests/deployment/test_disks.py::test_a_disk_is_replaced_by_hand",
    ),
    "systemctl disable --now braidfs-storageserver": (
        "tests/deployment/test_disks.py::test_a_server_is_taken_away_by_hand"
    ),
    "install -d /etc/braidfs/mounts": "tests/deployment/test_units.py::_install",
    "printf '%s": "tests/deployment/test_units.py::_install",
    "systemctl enable --now braidfs-mount@": (
        "tests/deployment/test_units.py::test_a_mount_that_is_a_service"
    ),
    "braidfs-metaserver --config": (
        "tests/integration/test_recovery_of_metaservers.py"
        "::test_a_new_journal_is_begun_from_the_store_of_one"
    ),
    "mount -t fuse.braidfs meta1:/train": "tests/integration/test_keys.py::mounted",
    "mount -t fuse.braidfs HOST": (
        "tests/integration/test_mounting.py::test_second_client_sees_the_files_of_the_first"
    ),
    "mount -t fuse.braidfs meta1:/imagenet /imagenet -o ro,sealed": (
        "tests/fuse/test_sealed.py::test_a_warm_epoch_asks_nothing"
    ),
    # That test looks for the files that a play copied.
    "scp ": "tests/deployment/test_playbooks.py::use",
}
# A word of the guide, or a whole command → what the test runs instead.
WORDS = {
    "key check": "key check {key}",
    "tls issue": "tls --help",  # test_tls.py runs it
    "tls check HOST": "tls --help",
    "tls issue gpu17": "tls --help",
    "PATH": "{folder}/sub",
    "FILE": "{configuration}",
    "cluster.key": "{local}/new.key",
    "gpu.key": "{local}/gpu.key",
    "/root/gpu.key": "{local}/gpu.key",
    "phys.key": "{local}/gpu.key",
    "kiosk.key": "{local}/gpu.key",
    "/etc/braidfs/cluster.key": "{local}/new.key",
    "/etc/braidfs/authority": "{local}/authority",
    "/var/lib/braidfs/backups": "{local}",
    "names.backup": "{local}/names.backup",
    "./stor1": "{local}/stor1",
    "/data/train": "{folder}/sub",
    "/data/first": "{folder}/sub/file",
    ":/safe/first": "{folder}/sub/file",
    "/data/imagenet": "{folder}/sub",
    "/data/train.index": "{local}/train.index",
    "/mnt/braid/run7": "{folder}/run7",
    "index": "index --help",
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


def test_the_first_pages_are_followed() -> None:
    tests = (ROOT / FOLLOWED_BY).read_text()
    assert [page for page in FOLLOWED if f'"{page}"' not in tests] == []


@pytest.mark.parametrize("line", sorted(OF_OTHERS))
def test_what_other_programs_do_is_tried_elsewhere(line: str) -> None:
    (test,) = [test for start, test in OTHERS.items() if line.startswith(start)]
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("command", [one for one in COMMANDS if elsewhere(one)])
def test_what_runs_elsewhere_does(command: str) -> None:
    path, _, name = str(elsewhere(command)).partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


def _make_checkpoints(root: Path) -> None:
    checkpoints = Checkpoints(root)
    for step in (1200, 1400):
        with checkpoints.begin(step, attempt="1") as part, part.file("rank0.pt") as file:
            file.write(b"weights")


@pytest.mark.parametrize("command", [one for one in COMMANDS if not elsewhere(one)])
def test_command_runs(
    command: str,
    cluster: Cluster,
    workdir: Path,
    localdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    places = {
        "folder": workdir,
        "local": localdir,
        "configuration": configuration,
        "key": cluster.plan.key_file,
    }
    if "/run7" in command:
        _make_checkpoints(workdir / "run7")
    if command.startswith("trash disable"):
        assert run_cli(cli, ["trash", "enable", f"{workdir}/sub"]) == EXIT_DONE
    if command.startswith("tls issue 10."):
        assert run_cli(cli, ["tls", "authority", f"{localdir}/authority"]) == EXIT_DONE
    words = WORDS.get(command) or " ".join(WORDS.get(word, word) for word in command.split())
    code = run_cli(cli, shlex.split(words.format(**places)))
    shown = capsys.readouterr()
    has_no_rdma = command == "net devices" and "no RDMA" in shown.err
    assert code == EXIT_DONE or has_no_rdma, shown
    if command.startswith("trash enable"):
        assert run_cli(cli, ["trash", "disable", f"{workdir}/sub"]) == EXIT_DONE
    if client := re.search(r"--client (\S+)", command):
        assert run_cli(cli, ["key", "revoke", client[1], "--yes"]) == EXIT_DONE
    if command.startswith("seal"):
        assert run_cli(cli, ["unseal", f"{workdir}/sub"]) == EXIT_DONE
    if command.startswith("quota set"):
        assert run_cli(cli, ["quota", "remove", "--tree", f"{workdir}/sub"]) == EXIT_DONE
