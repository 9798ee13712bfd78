"""./dev demo tells its whole story, here in small: for --full, as a death takes long to notice."""

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
