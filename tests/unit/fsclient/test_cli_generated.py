"""Files generated from the command line are up to date in the tree: `./dev man` writes them."""

from pathlib import Path

import click
import pytest

from fsclient.cli.frame import Command
from fsclient.cli.main import cli
from tests.dev.manual import generated, stale
from tests.dev.steps import ROOT


@pytest.mark.parametrize("path", sorted(generated()), ids=str)
def test_generated_files_are_current(path: Path) -> None:
    assert (ROOT / path).read_text() == generated()[path], "run ./dev man"


def test_no_generated_file_is_left_over() -> None:
    assert stale() == []


def _commands(group: click.Group, path: str = "braidfs") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += _commands(command, f"{path} {name}")
        else:
            found.append((f"{path} {name}", command))
    return found


@pytest.mark.parametrize(("path", "command"), _commands(cli), ids=lambda value: str(value)[:40])
def test_every_verb_has_help_examples_and_json(path: str, command: click.Command) -> None:
    assert isinstance(command, Command), "fsclient.cli.frame.Command gives examples and exit codes"
    assert command.help and command.examples
    for example in command.examples:
        assert "braidfs" in example.words
    if path.split()[1] not in ("mount", "completion"):
        assert any(option.name == "as_json" for option in command.params)
