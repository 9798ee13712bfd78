"""docs/train/around-the-job.md: a job's prolog and epilog, copies, and a door for S3 tools."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from tests.cluster.ports import free_port
from tests.cluster.process import wait_until
from tests.recipes.recipe import Node, Recipe, recipe

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(600)]
PAGE = "around-the-job.md"
KEYS = {"DOOR_KEY": "train", "DOOR_SECRET": "known-to-this-test"}
LIST = """
found = s3.list_objects_v2(Bucket="models").get("Contents", [])
print(*(one["Key"] + one["ETag"] for one in found))
"""
REMOVE = """
s3.delete_object(Bucket="models", Key="run1/weights.bin")
"""


def test_prolog_and_epilog(node: Node) -> None:
    of = recipe(PAGE, "Prolog and epilog of Slurm")
    (node.folder / "result").write_bytes(b"r" * 100_000)
    for program in ("prolog.sh", "epilog.sh"):
        assert node.run(of, program, SLURM_JOB_ID="17") == ""
    assert [path.name for path in node.folder.iterdir()] == ["result"]


def test_a_prolog_refuses_a_node(node: Node) -> None:
    of = recipe(PAGE, "Prolog and epilog of Slurm")
    prolog = of.programs["prolog.sh"]
    for before, reason in (
        ("umount /mnt/train", "is not mounted"),
        ("mount -o remount,bind,ro /mnt/train", "does not answer"),
    ):
        (node.scratch / "refused.sh").write_text(f"{before}\n{prolog}")
        process = node.start(of, "refused.sh", SLURM_JOB_ID="17")
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1 and f"print /mnt/train {reason}" in said


def test_copies(node: Node) -> None:
    of = recipe(PAGE, "Copies by rclone")
    of.need_debian()
    for number in range(300):
        path = node.folder / "results" / f"{number % 7}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % number * (1 + 37 * number))
    said = node.run(of, "copy.sh")
    assert "0 differences found" in said and "300 matching files" in said, said


@contextlib.contextmanager
def door(node: Node, of: Recipe) -> Iterator[dict[str, str]]:
    """The page's server on that node, until the end of the block: what clients must know."""
    of.python()
    port = free_port()
    known = {**KEYS, "DOOR_PORT": str(port)}
    server = node.start(of, "door.sh", **known)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        assert server.poll() is None, server.communicate(timeout=10)[0]
        return False

    try:
        assert wait_until(answers, 30), "rclone serve s3 does not answer"
        yield known
    finally:
        server.terminate()
        server.communicate(timeout=30)


def by_s3(node: Node, of: Recipe, calls: str, known: dict[str, str]) -> str:
    """What a program prints that begins as the page's does and makes these calls."""
    client = of.programs["client.py"].partition("s3.create_bucket")[0]
    (node.scratch / "calls.py").write_text(client + calls)
    return node.run(of, "calls.py", **known).strip()


def test_s3_clients(two_nodes: list[Node]) -> None:
    """The server has one mount, and what clients wrote is looked at through the other."""
    of = recipe(PAGE, "A door for S3 tools")
    user = two_nodes[1]
    weights = os.urandom(20_000_003)
    (user.scratch / "weights.bin").write_bytes(weights)
    samples = {"large.bin": os.urandom(20_000_003), "small.bin": b"small"}
    (user.scratch / "samples").mkdir()
    for name, content in samples.items():
        (user.scratch / "samples" / name).write_bytes(content)
    with door(two_nodes[0], of) as known:
        printed = user.run(of, "client.py", **known).splitlines()
        assert printed == ["run1/config.json 2", f"run1/weights.bin {len(weights)}", "same True"]
        assert (user.folder / "models/run1/weights.bin").read_bytes() == weights
        assert not (user.folder / "models/run1/config.json").exists()
        said = user.run(of, "tools.sh", **known)
        assert "0 differences found" in said and "2 matching files" in said, said
        copied = user.folder / "results/samples"
        assert [path.name for path in copied.iterdir()] == ["large.bin"]
        assert (copied / "large.bin").read_bytes() == samples["large.bin"]
        assert (user.scratch / "piece").read_bytes() == samples["large.bin"][5_000_000:5_001_000]
        by_s3(user, of, REMOVE, known)
        assert not (user.folder / "models/run1").exists() and (user.folder / "models").exists()
    assert list(user.folder.rglob(".rclone*")) == []


def test_what_s3_clients_see(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "A door for S3 tools")
    models = two_nodes[1].folder / "models"
    (models / ".step-2.partial").mkdir(parents=True)
    for name in (".hidden", ".step-2.partial/part", "old"):
        (models / name).write_text(name)
    (models / "latest").symlink_to("old")
    with door(two_nodes[0], of) as known:
        assert by_s3(two_nodes[1], of, LIST, known) == "old"
        (models / "new").write_text("new")
        (models / "old").unlink()
        assert wait_until(lambda: by_s3(two_nodes[1], of, LIST, known) == "new", 30)
        read = 'print(s3.get_object(Bucket="models", Key="new")["Body"].read())'
        assert by_s3(two_nodes[1], of, read, known) == "b'new'"
        wrong = two_nodes[1].start(of, "calls.py", **{**known, "DOOR_SECRET": "guessed"})
        said, _ = wrong.communicate(timeout=60)
        assert wrong.returncode != 0 and "SignatureDoesNotMatch" in said, said
