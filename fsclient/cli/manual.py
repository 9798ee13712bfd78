"""Makes man pages from the command line itself: one for `braidfs`, one for each verb or group.
Pure.

./dev man writes them to docs/man; a test compares them. The pages of the server programs and of the
mount helper are written by hand.
"""

import inspect
import re
from collections.abc import Iterator

import click

from .frame import Command

TITLE = "BraidFS"
_SEE_ALSO = ("mount.fuse.braidfs (8)", "braidfs-metaserver (8)", "braidfs-storageserver (8)")


def pages(cli: click.Group) -> dict[str, str]:
    """Maps the name of each page to its text."""
    context = click.Context(cli, info_name="braidfs")
    made = {"braidfs.1": _overview(cli, context)}
    for name, verb in sorted(cli.commands.items()):
        made[f"braidfs-{name}.1"] = _page(verb, click.Context(verb, context, name))
    return made


def help_texts(cli: click.Group) -> str:
    """The --help of every command, one after the other."""
    context = click.Context(cli, info_name="braidfs", terminal_width=90, max_content_width=90)
    return "\n".join(
        f"$ {one.command_path} --help\n{one.command.get_help(one)}\n" for one in _walk(context)
    )


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name, verb in sorted(context.command.commands.items()):
            yield from _walk(
                click.Context(verb, context, name, terminal_width=90, max_content_width=90)
            )


def _overview(cli: click.Group, context: click.Context) -> str:
    lines = [
        *_head("braidfs", _first(cli)),
        ".SH SYNOPSIS",
        ".B braidfs",
        "\\fIVERB\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(cli),
        ".SH VERBS",
    ]
    for one in _walk(context):
        if isinstance(one.command, Command):
            words = one.command_path.split(" ", 1)[1]
            page = f"braidfs-{words.split()[0]}"
            lines += [
                ".TP",
                f".B {_text(words)}",
                f"{_first(one.command)}.",
                f"See\n.BR {_text(page)} (1).",
            ]
    lines += [
        ".SH FILES",
        ".TP",
        ".I /etc/braidfs/admin.toml",
        "metaservers (a list of addresses) and key_file, for the verbs that ask the cluster.",
        ".TP",
        ".I /etc/braidfs/client.toml",
        "TLS, RDMA, metrics and log of the mounts of this host: see",
        ".BR mount.fuse.braidfs (8).",
        ".SH ENVIRONMENT",
        ".TP",
        ".B BRAIDFS_METASERVER, BRAIDFS_KEY_FILE",
        "As the options \\-\\-metaserver and \\-\\-key\\-file.",
        ".TP",
        ".B BRAIDFS_ADMIN_CONFIG",
        "Read instead of /etc/braidfs/admin.toml.",
    ]
    return _joined([*lines, *_see_also(_SEE_ALSO)])


def _page(verb: click.Command, context: click.Context) -> str:
    lines = _head(f"braidfs-{context.info_name}", _first(verb))
    commands = [one for one in _walk(context) if isinstance(one.command, Command)]
    lines.append(".SH SYNOPSIS")
    for index, one in enumerate(commands):
        usage = " ".join(one.command.collect_usage_pieces(one))
        lines += [*([".br"] if index else []), f".B {_text(one.command_path)}", _text(usage)]
    lines += [".SH DESCRIPTION", *_paragraphs(verb)]
    for one in commands:
        if len(commands) > 1:
            lines += [
                f".SH {_text(one.command_path.removeprefix('braidfs ').upper())}",
                *_paragraphs(one.command),
            ]
        lines += _command(one, ".SS" if len(commands) > 1 else ".SH")
    return _joined([*lines, *_see_also(("braidfs (1)", *_SEE_ALSO))])


def _command(context: click.Context, heading: str) -> list[str]:
    command = context.command
    assert isinstance(command, Command)
    lines = [f"{heading} Options"]
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record and record[1]:
            lines += [".TP", f".B {_text(record[0])}", _text(record[1])]
    lines.append(f"{heading} Examples")
    for example in command.examples:
        lines += [".TP", f".B {_text(example.words)}", _text(example.text)]
    lines.append(f"{heading} Exit status")
    for code, text in command.exits.items():
        lines += [".TP", f".B {code}", _text(text)]
    return lines


def _head(name: str, what: str) -> list[str]:
    phrase = what if what.startswith(TITLE) else what[:1].lower() + what[1:]
    heading = f'.TH {_text(name.upper())} 1 "" "{TITLE}" "User Commands"'
    return [heading, ".SH NAME", f"{_text(name)} \\- {phrase}"]


def _first(command: click.Command) -> str:
    return _text(re.split(r"[.:](?:\s|$)", inspect.cleandoc(command.help or ""), maxsplit=1)[0])


def _paragraphs(command: click.Command) -> list[str]:
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    return [line for part in parts for line in (".PP", _text(" ".join(part.split())))]


def _see_also(pages: tuple[str, ...]) -> list[str]:
    return [".SH SEE ALSO", ",\n".join(f".BR {_text(page)}" for page in pages)]


def _text(text: str) -> str:
    """Escapes text for roff: backslashes, hyphens of options, lines that look like requests."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    escaped = escaped.replace('"', "\\(dq")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.M)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
