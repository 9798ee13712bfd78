"""Names as people see them. Anybody may choose the names of files, clients and servers, and these
go to the terminals and browsers of administrators.

Characters that do not print are shown by their number: control characters (C1 ones as well), those
that turn the direction of text, surrogate halves, line ends. Everything for people goes through
here: logs (fscommon.observe.log), the command line (fsclient.cli.terminal), problems
(fscommon.observe.health). JSON has names unchanged: its writer escapes them. Pure.
"""


def visible(text: str) -> str:
    """The text on one line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """A text of several lines that are our own."""
    return "\n".join(map(visible, text.split("\n")))


def visible_name(name: bytes) -> str:
    return visible(name.decode("utf-8", "backslashreplace"))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
