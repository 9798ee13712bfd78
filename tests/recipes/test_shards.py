"""docs/train/shards.md: samples in large files, and tables."""

import pytest

from tests.recipes.recipe import Node, numbered_files, recipe

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(1800)]
PAGE = "shards.md"

# What mosaicml-streaming imports of torchvision, and does not use for shards of tokens: the release
# of torchvision that belongs to a torch is built with CUDA, and does not load without it.
TORCHVISION = {
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": "class VisionDataset: ...\nclass CIFAR10: ...\n",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(_): raise NotImplementedError\n",
}


def test_webdataset(node: Node) -> None:
    (node.folder / "shards").mkdir()
    said = node.run(recipe(PAGE, "WebDataset shards"), "webdataset_shards.py")
    assert said.splitlines()[-1] == "1000 True"
    assert len(list((node.folder / "shards").glob("*.tar"))) == 10


def test_mosaic_streaming(node: Node) -> None:
    for name, text in TORCHVISION.items():
        path = node.scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    said = node.run(recipe(PAGE, "Mosaic streaming without copies"), "streaming_shards.py")
    assert "1000 True" in said.splitlines(), said
    shards = sorted(path.name for path in (node.folder / "mds").iterdir())
    assert "index.json" in shards and len(shards) > 2


def test_grain(node: Node) -> None:
    total = numbered_files(node.folder / "files", 5_000)
    said = node.run(recipe(PAGE, "Grain over plain files"), "grain_files.py")
    assert str(total) in said.splitlines(), said


def test_parquet(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "Parquet by pyarrow")
    wanted = f"200000 50000 {sum(range(150_000, 200_000))}"
    assert two_nodes[0].run(of, "tables.py").splitlines()[-1] == wanted
    reading = of.programs["tables.py"].split("\n\n")
    (two_nodes[1].scratch / "read.py").write_text("\n".join([reading[0], reading[-1]]))
    assert two_nodes[1].run(of, "read.py").splitlines()[-1] == wanted
