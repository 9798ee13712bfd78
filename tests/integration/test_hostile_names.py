"""Names of files and clients that reach an administrator's terminal cannot control it."""

import json
import os
import unicodedata
from pathlib import Path

import pytest

from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120), pytest.mark.expects_warnings]

NAME = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\xe2\x80\xaegnp.\xff\n[red] x"
MOUNTPOINT = "\x1b[2J\u202e[b]"


def is_harmless(text: str) -> bool:
    kinds = {unicodedata.category(c) for c in text if c != "\n"}
    return not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_no_output_has_them(make_cluster: ClusterMaker, localdir: Path) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    folder = os.fsencode(cluster.mount_path) + b"/" + NAME
    os.mkdir(folder)
    file = folder + b"/" + NAME
    with open(file, "wb") as sink:
        sink.write(b"bytes")
    os.symlink(NAME, folder + b"/link")
    cli = Cli(cluster)
    cli.run("quota", "set", "--tree", os.fsdecode(folder), "--bytes", "1G")
    cli.run("trash", "enable", os.fsdecode(folder))
    os.unlink(file)
    with open(file, "wb") as sink:
        sink.write(b"bytes")
    place = localdir / MOUNTPOINT
    with cluster.second_client(place):
        holds = place / "held"
        holds.write_bytes(b"x")
        for words in (
            ("find", cluster.mount_path),
            ("stat", os.fsdecode(file)),
            ("stat", os.fsdecode(folder + b"/link")),
            ("stat", os.fsdecode(folder + b"/none")),
            ("du", cluster.mount_path),
            ("df",),
            ("layout", "get", os.fsdecode(folder)),
            ("quota", "list"),
            ("quota", "get", "--tree", os.fsdecode(folder)),
            ("trash", "list", os.fsdecode(folder)),
            ("trash", "trees"),
            ("status",),
            ("client", "list"),
            ("client", "stats"),
            ("client", "leases"),
            ("key", "list"),
            ("net", "paths"),
            ("top", "--count", "1", "--interval", "0.2"),
        ):
            for more in ((), ("--json",)):
                ended = cli.end(*words, *more)
                assert is_harmless(ended.stdout) and is_harmless(ended.stderr), (words, ended)
                # A name does not begin a new line either.
                assert "\n[red]" not in ended.stdout, (words, ended)
                if more and ended.code == 0 and words[0] not in ("find", "top"):
                    json.loads(ended.stdout)
