"""`./dev man`: writes into the tree what is generated from the programs; tests compare it.

These are man pages of `braidfs` (docs/man), the golden text of every --help (tests/golden), and
docs/METRICS.md.
"""

from collections.abc import Mapping
from pathlib import Path

from tests.dev import metrics_page
from tests.dev.steps import ROOT, console

HELP = Path("tests/golden/help.txt")
MAN = Path("docs/man")
METRICS = Path("docs/METRICS.md")


def generated() -> dict[Path, str]:
    """Path below the root → text, of everything that is generated."""
    from fsclient.cli.main import cli  # noqa: PLC0415 - after the build
    from fsclient.cli.manual import help_texts, pages  # noqa: PLC0415

    made: dict[Path, str] = {HELP: help_texts(cli), METRICS: metrics_page.page()}
    made.update({MAN / name: text for name, text in pages(cli).items()})
    return made


def stale() -> list[Path]:
    """Files in the tree that are not generated any more."""
    made = generated()
    kept = [path.relative_to(ROOT) for path in (ROOT / MAN).glob("braidfs*.1")]
    return [path for path in kept if path not in made]


def write() -> None:
    made = generated()
    for path in stale():
        (ROOT / path).unlink()
    changed = _written(made)
    console.print(f"[green]✓[/] {len(made)} generated files, {changed} changed")


def _written(made: Mapping[Path, str]) -> int:
    changed = 0
    for path, text in made.items():
        place = ROOT / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() or place.read_text() != text:
            place.write_text(text)
            changed += 1
    return changed
