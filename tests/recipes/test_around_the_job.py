"""docs/train/around-the-job.md: a job's prolog and epilog, copies."""

import pytest

from tests.recipes.recipe import Node, recipe

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(600)]
PAGE = "around-the-job.md"


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
