"""docs/train/locks-and-caches.md: two mounts, two processes on each."""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.recipes.recipe import Node, Recipe, recipe, result_of

pytestmark = [pytest.mark.full, pytest.mark.mount, pytest.mark.timeout(1500)]
PAGE = "locks-and-caches.md"
PROCESSES = 2  # on each node
MODEL = os.urandom(3_000_001)
COMMIT = "a" * 40


def on_all(nodes: list[Node], of: Recipe, program: str, **environment: str) -> list[str]:
    of.python()
    started = [node.start(of, program, **environment) for _ in range(PROCESSES) for node in nodes]
    return [result_of(one) for one in started]


def test_a_counter(two_nodes: list[Node]) -> None:
    on_all(two_nodes, recipe(PAGE, "A lock for the whole cluster"), "count.py")
    for node in two_nodes:
        assert (node.folder / "counter").read_text() == str(100 * PROCESSES * len(two_nodes))


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as is needed to fetch one file of one repository."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        Hub.asked[f"{self.command} {self.path}"] += 1
        known = self.path == "/braid/tiny/resolve/main/model.safetensors"
        body = MODEL if known else b"{}"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        if known:
            self.send_header("ETag", f'"{hashlib.sha256(MODEL).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def _file_of(node: Node, printed: str) -> Path:
    path = Path(printed.strip().splitlines()[-1])
    return node.folder / path.relative_to("/mnt/train")


def test_the_cache_of_the_hub(two_nodes: list[Node], hub: str) -> None:
    of = recipe(PAGE, "The cache of the Hugging Face Hub")
    fetched = on_all(two_nodes, of, "fetch.py", HF_ENDPOINT=hub, HF_HUB_DISABLE_XET="1")
    fetches = Hub.asked["GET /braid/tiny/resolve/main/model.safetensors"]
    assert fetches == 1, Hub.asked
    offline = on_all(two_nodes, of, "fetch.py", HF_HUB_OFFLINE="1")
    for node, printed in zip(two_nodes * (2 * PROCESSES), fetched + offline, strict=True):
        assert _file_of(node, printed).read_bytes() == MODEL


def test_the_cache_of_datasets(two_nodes: list[Node]) -> None:
    of = recipe(PAGE, "The cache of Hugging Face datasets")
    folder = two_nodes[0].folder
    (folder / "raw").mkdir()
    for number in range(4):
        rows = [json.dumps({"text": "x" * row}) for row in range(500)]
        (folder / "raw" / f"{number}.jsonl").write_text("\n".join(rows))
    wanted = f"{4 * 500} {4 * sum(range(500))}"
    for printed in on_all(two_nodes, of, "prepare.py"):
        assert printed.splitlines()[-1] == wanted
    cache = folder / "huggingface" / "datasets"
    assert len(list(cache.rglob("json-train*.arrow"))) == 1
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}
    assert len(before) == 2, "the converted rows, and the mapped ones"
    assert two_nodes[1].run(of, "prepare.py").splitlines()[-1] == wanted
    assert before == {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}
