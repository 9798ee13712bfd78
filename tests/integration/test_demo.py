"""`./dev demo` runs completely, with small sizes; only with --full, because noticing a death takes
long.
"""

from pathlib import Path

import pytest

from tests.dev.demo import Demo

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]


@pytest.mark.full
def test_the_whole_story(localdir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demo = Demo(localdir, scale=0.05)
    demo.run()
    shown = capfd.readouterr()
    assert "is down" in shown.out and "enough for so many GPUs" in shown.out
    assert "not one error" in shown.err and "the last one is whole" in shown.err
    assert "<svg" in demo.report.read_text()
    assert not demo.mounted
