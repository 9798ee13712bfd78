"""Figures that tests measured, which pytest's summary shows."""

from collections.abc import Callable

import pytest

_FIGURES: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def show_figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """show_figure(text): a line of the summary."""
    lines = request.config.stash.setdefault(_FIGURES, [])
    return lambda text: lines.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_FIGURES, []):
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
