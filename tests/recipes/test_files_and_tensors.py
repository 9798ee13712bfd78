"""docs/train/files-and-tensors.md: models, small files, and images of them."""

import hashlib
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mounts import is_mounted
from tests.fuse.looks import lanes_counted
from tests.recipes.recipe import Node, Recipe, numbered_files, recipe

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(1500)]
PAGE = "files-and-tensors.md"
TENSOR = 512 * 512
SUM = float(TENSOR * sum(range(8)))


def on_another(nodes: list[Node], of: Recipe, file: str, load: str) -> str:
    """What a program prints on the second node, which loads the file that the first one wrote."""
    (nodes[1].scratch / "load.py").write_text(load.format(f"/mnt/train/{file}"))
    return nodes[1].run(of, "load.py").strip()


def test_safetensors(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "Tensors in safetensors files")
    said = two_nodes[0].run(of, "tensors.py")
    assert said.splitlines()[-1] == f"{SUM} torch.Size([128, 512]) 7.0"
    load = (
        "from safetensors.torch import load_file\n"
        "print(sum(float(one.sum()) for one in load_file('{}').values()))\n"
    )
    assert on_another(two_nodes, of, "model.safetensors", load) == str(SUM)


def test_a_mapped_file(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "A file of torch that is mapped")
    assert two_nodes[0].run(of, "mapped.py").splitlines()[-1] == f"7.0 {SUM}"
    load = (
        "import torch\n"
        "state = torch.load('{}', mmap=True, weights_only=True)\n"
        "print(sum(float(one.sum()) for one in state.values()))\n"
    )
    assert on_another(two_nodes, of, "state.pt", load) == str(SUM)


def test_announced_files(cluster: Cluster, two_nodes: list[Node]) -> None:
    reader, writer = two_nodes
    total = numbered_files(writer.folder / "files", 20_000)
    before = lanes_counted(cluster, "announced_reads")
    of = recipe(PAGE, "A DataLoader of plain files that are announced")
    said = reader.run(of, "loader.py")
    assert said.split() == [str(total)] * 2
    assert lanes_counted(cluster, "announced_reads") > before


def test_an_image(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "Millions of small files as one image")
    of.need_debian()
    whole = hashlib.sha256()
    for folder in range(20):
        (two_nodes[0].folder / "photos" / f"{folder:02}").mkdir(parents=True)
        for number in range(100):
            content = b"%d %d\n" % (folder, number) * (1 + 13 * number)
            whole.update(content)
            file = two_nodes[0].folder / "photos" / f"{folder:02}" / f"{number:03}"
            file.write_bytes(content)
    two_nodes[0].run(of, "pack.sh")
    for node in two_nodes:
        count, sha, _ = node.run(of, "read.sh").split()
        assert (int(count), sha) == (2000, whole.hexdigest())
        assert not is_mounted(Path("/mnt/photos")), "it was mounted in the node alone"
