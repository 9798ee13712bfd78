"""The list of PyTorch's versions that the long form tries, and what pip is asked for."""

import pytest

from tests.dev.steps import ROOT
from tests.torch.versions import ALL, MINORS, is_of, requirement

PAGE = ROOT / "docs" / "train" / "pytorch-checkpoints.md"


def test_no_minor_version_is_left_out() -> None:
    assert [tuple(map(int, one.split("."))) for one in MINORS] == [
        (2, minor) for minor in range(7, 7 + len(MINORS))
    ]


def test_the_page_says_which_were_tried() -> None:
    assert f"PyTorch {MINORS[0]} to {MINORS[-1]}" in PAGE.read_text().replace("\n", " ")


def test_requirements() -> None:
    assert requirement("2.9") == "torch==2.9.*"
    assert requirement("2.7.0") == "torch==2.7.0"
    assert requirement(ALL[-1]) == f"torch>=2.{7 + len(MINORS)}"


@pytest.mark.parametrize(
    ("installed", "version", "is_one"),
    [
        ("2.13.0+cpu", "2.13", True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.1", "2.13.0", False),
        ("2.13.0", "2.1", False),
        ("2.15.0", "newer", False),
    ],
)
def test_what_is_installed(installed: str, version: str, is_one: bool) -> None:
    assert is_of(installed, version) is is_one
