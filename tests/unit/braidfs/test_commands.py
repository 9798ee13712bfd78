"""`python -m braidfs.checkpoint` and `braidfs checkpoint`: the same answers and exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from braidfs.checkpoint import Checkpoints, commands
from braidfs.checkpoint.__main__ import main
from fsclient.cli.checkpoint import checkpoint

Run = Callable[..., tuple[int, str]]


@pytest.fixture(params=["python", "braidfs"])
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Run:
    def by_python(*words: object) -> tuple[int, str]:
        code = main([str(word) for word in words])
        return code, capsys.readouterr().out

    def by_braidfs(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(checkpoint, [str(w) for w in words], standalone_mode=False)
        assert result.exception is None
        return int(result.return_value), result.stdout

    return by_python if request.param == "python" else by_braidfs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    checkpoints = Checkpoints(tmp_path, sums=True)
    for step in (10, 20):
        with checkpoints.begin(step, attempt="a") as c, c.file("model.pt") as file:
            file.write(b"12345")
    checkpoints.begin(30, attempt="b")
    return tmp_path


def test_list(root: Path, run: Run) -> None:
    code, out = run("list", root, "--json")
    listed = json.loads(out)
    assert code == 0
    assert [(one["step"], one["bytes"]) for one in listed["steps"]] == [(10, 5), (20, 5)]
    assert listed["hidden"] == [".step-000000030.b.partial"]
    assert "5 bytes" in run("list", root)[1]


def test_verify_says_3_when_a_step_is_not_whole(root: Path, run: Run) -> None:
    code, out = run("verify", root)
    assert (code, out.count("is whole")) == (0, 2)
    (root / "step-000000020" / "model.pt").write_bytes(b"1234x")
    code, out = run("verify", root, "--json")
    assert code == 3
    assert json.loads(out)["steps"][1]["faults"] == [
        {"file": "model.pt", "text": "its bytes have another sum"}
    ]
    assert run("verify", root, 10)[0] == 0
    (root / "step-000000010" / "model.pt").write_bytes(b"1234")
    assert "it has 4 bytes, not 5" in run("verify", root, 10)[1]
    (root / "step-000000010" / "model.pt").unlink()
    assert "model.pt: it is missing" in run("verify", root, 10)[1]
    (root / "step-000000010" / "checkpoint.json").write_text("{")
    assert run("verify", root, 10)[0] == 3


def test_verify_goes_on_when_a_run_removes_a_step(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "chosen_steps", lambda root, steps: [*steps] or [5, 10])
    assert run("verify", root)[0] == 0
    assert run("verify", root, 5)[0] == 1


def test_remove_leaves_what_is_read(root: Path, run: Run) -> None:
    with Checkpoints(root).reading(10):
        code, out = run("remove", root, 10, 20)
    assert (code, out.splitlines()) == (
        1,
        ["step 20 is removed", "step 10 stays: somebody reads it"],
    )
    assert run("remove", root, 20)[0] == 1  # it is not there


def test_tidy(root: Path, run: Run) -> None:
    assert run("tidy", root)[1].strip() == "nothing to remove"
    (root / ".removed-step-000000001.x").mkdir()
    assert json.loads(run("tidy", root, "--json")[1])["removed"] == [".removed-step-000000001.x"]


def test_a_missing_root_is_an_error(tmp_path: Path) -> None:
    assert main(["list", str(tmp_path / "none")]) == 1
