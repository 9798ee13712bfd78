"""`./dev VERB --help` answers at once: nothing is installed, built or begun."""

import subprocess
from pathlib import Path

import pytest

from tests.dev.__main__ import asks_for_help, cli, help_of
from tests.dev.steps import ROOT


@pytest.mark.parametrize("verb", sorted(set(cli.commands) - {"help"}))
def test_each_verb_has_help(verb: str) -> None:
    said = help_of(verb)
    assert said.startswith(verb) and said.count("\n") < 14, said
    assert asks_for_help([verb, "--help"]) and asks_for_help([verb, "-h"])


def test_which_words_ask_for_it() -> None:
    assert asks_for_help(["--help"]) and asks_for_help(["test", "tests/unit", "--help"])
    assert not asks_for_help(["test"]) and not asks_for_help([])
    assert not asks_for_help(["rdma", "COMMAND", "--help"])
    assert help_of("--help").startswith("./dev COMMAND")


@pytest.mark.parametrize("words", [["test", "--help"], ["rdma", "-h"], ["up", "--targets", "-h"]])
def test_the_script_does_nothing_else(words: list[str], tmp_path: Path) -> None:
    """Here with a PATH in which no installed package can be looked up."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    command = ["/usr/bin/bash", str(ROOT / "dev"), *words]
    said = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert said.stdout.startswith((words[0], "# ", "./dev", '"""')) and said.stderr == ""
