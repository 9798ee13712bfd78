"""Names cannot control a terminal."""

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsclient.cli.terminal import Terminal, plain, table
from fscommon.observe.visible import visible, visible_lines, visible_name

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.\u2066\x7f\r\n\ud800[red]x[/] [/none] \\[b]"


def printed(*what: object) -> str:
    sink = io.StringIO()
    Terminal(file=sink, width=400, force_terminal=False).print(*what)
    return sink.getvalue()


def is_harmless(text: str) -> bool:
    kinds = {unicodedata.category(c) for c in text if c != "\n"}
    return not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("name", [HOSTILE, "[/]", "[red", "x\x1b[31m[red]y[/]"])
def test_text_and_cells(name: str) -> None:
    for what in (name, f"client {name} is silent", table(("a", "b"), [(name, "[red]down[/]")])):
        assert is_harmless(printed(what)), repr(printed(what))
    assert len(printed(table(("name",), [(name,)])).splitlines()) == 2, "a cell is one line"
    assert "[red]" not in printed(table(("a",), [("[red]down[/]",)])), "a colour of our own"
    assert plain("[red]x[/]") in ("\\[red]x\\[/]", "\\[red]x[/]")


@given(st.text(), st.binary())
def test_whatever_a_name_holds(text: str, octets: bytes) -> None:
    assert is_harmless(visible(text)) and "\n" not in visible(text)
    assert is_harmless(visible_lines(text))
    assert is_harmless(visible_name(octets))
    visible_name(octets).encode()
    assert is_harmless(printed(text)) and is_harmless(printed(table(("n",), [(text,)])))
    assert visible(visible(text)) == visible(text)


def test_what_prints_stays() -> None:
    for name in ("model-00001-of-00002.safetensors", "Größe 数据 é", "a b\\x1b"):
        assert visible(name) == name and json.loads(json.dumps(name)) == name
