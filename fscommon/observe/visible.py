"""Names as people see them: what files, clients and servers are called is up to anybody, and goes
to the terminals and browsers of administrators.

What does not print (control characters, C1 ones too, those that turn the direction of text, halves
of surrogates, ends of lines) is shown by its number. The one place for it: logs (fscommon.observe
.log), the command line (fsclient.cli.terminal), problems (fscommon.observe.health). JSON has names
as they are: its writer escapes by itself.
"""


def visible(text: str) -> str:
    """On one line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """Text of several lines that are our own."""
    return "\n".join(map(visible, text.split("\n")))


def visible_name(name: bytes) -> str:
    return visible(name.decode("utf-8", "backslashreplace"))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
