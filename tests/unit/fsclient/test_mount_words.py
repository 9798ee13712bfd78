"""The arguments of mount.fuse.braidfs: the next process of a mount starts with the same ones."""

from pathlib import Path

import pytest

from fsclient.cli.mount_helper import with_absolute_files


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("key_file=a.key", "key_file=HERE/a.key"),
        ("ro,key_file=../a.key,log_file=log/b", "ro,key_file=UP/a.key,log_file=HERE/log/b"),
        ("-okey_file=a.key,hard", "-okey_file=HERE/a.key,hard"),
        ("config=own.toml,hard", "config=HERE/own.toml,hard"),
        ("-fo", "-fo"),
        ("key_file=/etc/a.key,log_file=", "key_file=/etc/a.key,log_file="),
        ("cache_dir=a,x-key_file=a.key", "cache_dir=a,x-key_file=a.key"),
        ("host:/key_file=a", "host:/key_file=a"),
    ],
)
def test_files_are_found_from_anywhere(given: str, kept: str) -> None:
    here = Path.cwd()
    assert with_absolute_files(given) == kept.replace("HERE", str(here)).replace(
        "UP", str(here.parent)
    )
