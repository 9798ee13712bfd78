"""docs/train/sharded-saves.md: ranks on two mounts, trainers that resume, swap files."""

import re

import pytest

from tests.bench.data.swap_files import compile_for, environment_of
from tests.cluster.ports import free_port
from tests.recipes.recipe import Node, Recipe, recipe, result_of

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(1800)]
PAGE = "sharded-saves.md"


def ranks(nodes: list[Node], of: Recipe) -> list[str]:
    """What one rank on each node printed."""
    of.python()
    port = str(free_port())
    started = [
        node.start(
            of,
            "run.sh",
            NODE_RANK=str(number),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            GLOO_SOCKET_IFNAME="lo",
        )
        for number, node in enumerate(nodes)
    ]
    return [result_of(one) for one in started]


def test_distributed_checkpoints(two_nodes: list[Node]) -> None:
    for said in ranks(two_nodes, recipe(PAGE, "Distributed checkpoints of torch")):
        assert "same True" in said.splitlines(), said
    for node in two_nodes:
        (saved,) = (node.folder / "saves").iterdir()
        assert {path.name for path in saved.iterdir()} == {
            ".metadata",
            "__0_0.distcp",
            "__1_0.distcp",
        }


def test_one_file_for_each_rank(two_nodes: list[Node]) -> None:
    for said in ranks(two_nodes, recipe(PAGE, "One file for each rank, as Megatron saves")):
        assert "same True" in said.splitlines(), said


def test_lightning(node: Node) -> None:
    said = node.run(recipe(PAGE, "Lightning"), "lit.py")
    assert re.findall(r"^epochs.*$", said, re.M) == ["epochs 2 steps 16", "epochs 4 steps 32"]


def test_trainer(node: Node) -> None:
    said = node.run(recipe(PAGE, "Trainer of Hugging Face"), "trainer.py")
    assert re.findall(r"^steps \d+$", said, re.M) == ["steps 10", "steps 20"]
    kept = {path.name for path in (node.folder / "trainer").glob("checkpoint-*")}
    assert kept == {"checkpoint-15", "checkpoint-20"}


def test_ds_io(node: Node) -> None:
    """28,824,000 bytes are no multiple of a disk's block: ext4 refuses to write them directly."""
    of = recipe(PAGE, "Swap files as DeepSpeed uses them")
    of.need_debian()
    compile_for(of.python())
    known = environment_of(of.python())
    only_write = of.programs["ds_io.sh"].replace('"" --read', '""')
    (node.scratch / "only_write.sh").write_text(only_write)
    for program, size, passes in (("ds_io.sh", 64 << 20, 2), ("only_write.sh", 28_824_000, 1)):
        started = node.start(
            of,
            program,
            *("--validate", "--loops", "1", "--warmup_loops", "0", "--use_accelerator_pin_memory"),
            SIZE=str(size),
            **known,
        )
        said = result_of(started)
        assert said.count("Pass: correctness") == passes and "Fail: correctness" not in said, said
    files = {path.name: path.stat().st_size for path in (node.folder / "swap").rglob("_aio_*")}
    assert files == {
        "_aio_write_67108864.pt.0_0": 64 << 20,
        "_aio_read_67108864.pt.0_0": 64 << 20,
        "_aio_write_28824000.pt.0_0": 28_824_000,
    }


def test_swap_files(node: Node) -> None:
    of = recipe(PAGE, "Swap files as DeepSpeed uses them")
    of.need_debian()
    node.run(of, "swap.sh")
    files = list((node.folder / "swap").rglob("swap.*"))
    assert [file.stat().st_size for file in files] == [64 << 20] * 2
