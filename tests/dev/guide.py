"""The commands of docs/OPERATIONS.md, for tests that run them."""

import re

from tests.dev.steps import ROOT


def commands_below(title: str) -> list[str]:
    """The commands in the code blocks below a heading of the third level, without remarks."""
    guide = (ROOT / "docs" / "OPERATIONS.md").read_text()
    page = re.split(r"^##", guide.partition(f"\n### {title}\n")[2], maxsplit=1, flags=re.M)[0]
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines, f"{title} has no commands"
    return [re.sub(r"\s{2,}#.*", "", line).strip() for line in lines]
