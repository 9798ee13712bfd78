"""braidfs key: the cluster key."""

import hashlib
from pathlib import Path

import click

from fscommon.auth.key import create_key, load_key

from .frame import KEY_FILE, Command, json_option, show


@click.group()
def key() -> None:
    """The cluster key: who has it is trusted with everything."""


def fingerprint(path: Path) -> str:
    """Tells two keys apart and gives none away."""
    return hashlib.sha256(b"braidfs key fingerprint" + load_key(path)).hexdigest()[:16]


def _show(path: Path, as_json: bool) -> None:
    seen = {"path": str(path), "fingerprint": fingerprint(path)}
    show(seen, as_json, lambda c: c.print(f"{path}: key {seen['fingerprint']}", markup=False))


@key.command(
    "create",
    cls=Command,
    examples=[("braidfs key create", f"A new key in {KEY_FILE}."),
              ("braidfs key create ./cluster.key --json", "Elsewhere; prints its fingerprint.")],
)  # fmt: skip
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=KEY_FILE)
@json_option
def key_create(path: Path, as_json: bool) -> None:
    """Write a new random key to PATH, readable by its owner alone. A file that exists is kept."""
    create_key(path)
    _show(path, as_json)


@key.command(
    "check",
    cls=Command,
    examples=[("braidfs key check", f"Is {KEY_FILE} sound?"),
              ("ssh stor1 braidfs key check", "The fingerprints of two hosts must agree.")],
)  # fmt: skip
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=KEY_FILE)
@json_option
def key_check(path: Path, as_json: bool) -> None:
    """Check a key file and print the fingerprint of the key, which gives nothing away."""
    _show(path, as_json)
