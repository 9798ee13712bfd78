"""Man pages as Markdown, for the site of the documentation. Pure.

Only the macros that docs/man uses are known; another one is an error, so that no text is lost.
"""

import re
import shlex
from collections.abc import Collection, Iterator

_FONTS = {"B": "**", "I": "*", "R": ""}
# What begins with a line, and what stands for the line.
_STATES = {".TP": ("term", ""), ".nf": ("code", "\n```text"), ".fi": ("text", "```\n")}
_SPECIAL = re.compile(r"([\\`*_\[\]#])")


def name_of(page: str) -> str:
    """The command from the page's NAME section; braidfs-target (1) is for `braidfs target`."""
    name = _plain(page.partition(".SH NAME\n")[2].split(" \\- ")[0])
    return name.replace("-", " ", 1) if re.match(r"\.TH \S+ 1 ", page) else name


def summary_of(page: str) -> str:
    """What the NAME section says of the command."""
    return _plain(page.partition(".SH NAME\n")[2].partition("\n")[0].partition(" \\- ")[2])


def markdown(page: str, others: Collection[str]) -> str:
    """others: names of pages, such as braidfs-target, that a reference becomes a link to."""
    name = name_of(page)
    body = page.partition(".SH NAME\n")[2].partition("\n.SH ")[2]
    sections = [f"# {name}", "", _sentence(summary_of(page))]
    for section in re.split(r"^\.SH ", body, flags=re.M):
        title, _, text = section.partition("\n")
        heading = _plain(title.strip('"')).capitalize()
        sections += ["", f"## {heading}", ""]
        sections += _synopsis(text) if title == "SYNOPSIS" else _lines(text, others)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(sections)) + "\n"


def _synopsis(text: str) -> Iterator[str]:
    yield "```text"
    line = ""
    for one in text.splitlines():
        if one in (".br", ".PP"):
            yield line.strip()
            line = ""
        else:
            line += " " + "".join(_plain(word) for word in _words(one))
    yield line.strip()
    yield "```"


def _lines(text: str, others: Collection[str]) -> Iterator[str]:
    """The paragraphs of a section. A term of a list is followed by its text, indented."""
    state, indent = "text", ""
    for line in text.splitlines():
        if line in _STATES:
            state, fence = _STATES[line]
            yield fence
        elif line == ".PP" or line.startswith(".SS "):
            indent = ""
            yield f"\n### {_plain(line[4:])}\n" if line != ".PP" else ""
        elif state == "code":
            yield _plain(line)
        elif state == "term":
            state, indent = "definition", "    "
            yield "\n" + _formatted(line, others)
        elif state == "definition":
            state = "text"
            yield f":   {_formatted(line, others)}"
        else:
            yield indent + _formatted(line, others)


def _formatted(line: str, others: Collection[str]) -> str:
    if not line.startswith("."):
        return _inline(line)
    macro = line[1:].split(" ", 1)[0]
    if not macro or set(macro) - set(_FONTS) or len(macro) > 2:
        raise ValueError(f"a macro that the site does not know: {line}")
    words = _words(line)
    page = words[0].replace("\\-", "-")
    if macro == "BR" and page in others:
        return f"[{_escaped(page)}]({page}.md)" + "".join(_inline(word) for word in words[1:])
    if len(macro) == 1:
        words = [" ".join(words)]
    fonts = [_FONTS[macro[number % len(macro)]] for number in range(len(words))]
    marked = (_marked(word, font) for word, font in zip(words, fonts, strict=True))
    return "".join(marked)


def _marked(word: str, font: str) -> str:
    """Markdown wants no spaces inside of a mark, and none of it where a word follows directly."""
    text = _inline(word)
    core = text.strip()
    if not font or not core:
        return text
    lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    tag = {"**": "strong", "*": "em"}[font]
    return f"{lead}<{tag}>{core}</{tag}>{tail}"


def _words(line: str) -> list[str]:
    if not line.startswith("."):
        return [line]
    rest = line.partition(" ")[2]
    if line.startswith((".B ", ".I ")) and '"' not in rest:
        return [rest]
    lexer = shlex.shlex(rest, posix=True)
    lexer.whitespace_split, lexer.escape, lexer.quotes, lexer.commenters = True, "", '"', ""
    return list(lexer)


def _plain(text: str) -> str:
    return re.sub(r"\\f[BIRP]|\\&", "", text).replace("\\-", "-").replace("\\e", "\\")


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def _inline(text: str) -> str:
    """Escapes what Markdown would take for marks; fonts within a line become marks."""
    parts = re.split(r"\\f([BIRP])", text)
    found, font = [_escaped(_plain(parts[0]))], ""
    for mark, part in zip(parts[1::2], parts[2::2], strict=True):
        font = _FONTS.get(mark, "")
        found.append(_marked(_plain(part), font) if font else _escaped(_plain(part)))
    return "".join(found)


def _sentence(text: str) -> str:
    """A short description as a sentence of its own."""
    return text[:1].upper() + text[1:].rstrip(".") + "."
