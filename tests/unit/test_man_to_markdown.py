"""Man pages as Markdown: nothing of them is lost, and nothing is taken for a mark."""

import pytest

from tests.dev.man_to_markdown import markdown, name_of, summary_of
from tests.dev.steps import ROOT

PAGE = r""".TH BRAIDFS\-ROPE 1 "" "BraidFS" "User Commands"
.SH NAME
braidfs\-rope \- ropes of the cluster
.SH SYNOPSIS
.B braidfs rope list
[OPTIONS]
.br
.B braidfs rope cut
ROPE...
.SH ROPE LIST
.PP
Lists ropes; see \fIcut\fR. A name_of_a_rope is 1<=x.
.SS Options
.TP
.BI length= METRES
Only of this length.
.SH SEE ALSO
.BR braidfs\-knot (1),
.BR umount (8)
"""


def test_a_page() -> None:
    text = markdown(PAGE, {"braidfs-knot"})
    assert (name_of(PAGE), summary_of(PAGE)) == ("braidfs rope", "ropes of the cluster")
    assert "```text\nbraidfs rope list [OPTIONS]\nbraidfs rope cut ROPE...\n```" in text
    assert r"Lists ropes; see <em>cut</em>. A name\_of\_a\_rope is 1&lt;=x." in text
    assert "<strong>length=</strong><em>METRES</em>\n:   Only of this length." in text
    assert "[braidfs-knot](braidfs-knot.md)(1)," in text
    assert "<strong>umount</strong>(8)" in text


def test_an_unknown_macro_is_told() -> None:
    with pytest.raises(ValueError, match="RS"):
        markdown(PAGE + ".RS 4\n", ())


def test_every_page_keeps_its_words() -> None:
    for path in (ROOT / "docs" / "man").glob("*.[18]"):
        page = path.read_text()
        text = markdown(page, ())
        sections = page.count("\n.SH ") + page.count("\n.SS ") - 1  # NAME is the title
        assert text.count("\n## ") + text.count("\n### ") == sections, path
