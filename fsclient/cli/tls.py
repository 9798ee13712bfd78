"""braidfs tls: makes certificates of the servers, and shows what a server has."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console

from fscommon.config.tls import AUTHORITY_FILE, FOLDER, REQUIRED, TlsSettings
from fscommon.errors import ConfigError, TransportError
from fscommon.net.address import METASERVER_PORT, Address, parse_address
from fscommon.net.tls import tls_of

from .certificates import Certificate, create_authority, is_good, issue, look_at
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, Group, json_option, run_trio, show

DAYS: Final = 365
RENEW_DAYS: Final = 30
TIMEOUT_S: Final = 10.0
_NAME: Final = re.compile(r"[0-9A-Za-z.:_-]+")  # openssl does not interpret these
_SOON: Final = {EXIT_UNHEALTHY: "the certificate ends within --days"}


@click.group(cls=Group)
def tls() -> None:
    """TLS for TCP connections: make certificates, and check what a server shows.

    Servers prove themselves by a certificate that the cluster's own authority signed; hosts that
    connect need its ca.crt. Programs read their files again when these change: nothing is
    restarted.
    """


@tls.command(
    "authority",
    cls=Command,
    examples=[
        ("braidfs tls authority", f"ca.crt and ca.key in {FOLDER}."),
        ("braidfs tls authority ./authority --json", "Elsewhere."),
    ],
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER)
@json_option
def authority(folder: Path, as_json: bool) -> None:
    """Make the authority of a cluster: FOLDER/ca.crt, and ca.key, which signs.

    Keep ca.key on one host, or outside of the cluster: its holder can pass for every server.
    """
    create_authority(folder)
    _show(look_at(folder / "ca.crt"), as_json, {"path": str(folder / "ca.crt")})


@tls.command(
    "issue",
    cls=Command,
    examples=[
        ("braidfs tls issue 10.0.0.11 stor1.example", f"server.crt and server.key in {FOLDER}."),
        (
            "braidfs tls issue 10.0.0.11 --authority ./authority --to ./stor1 --days 90",
            "Files to be copied to that host.",
        ),
        (
            "braidfs tls issue 10.0.0.11 --renew",
            "Only if less than 30 days are left, or names or authority have changed: for timers.",
        ),
        (
            "braidfs tls issue 10.0.0.21 --client-auth --to ./etcd1",
            "For a member of etcd, which connects to the other members.",
        ),
    ],
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--authority",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="The folder with ca.crt and ca.key.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Where to write.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=DAYS,
    show_default=True,
    help="How long the certificate is valid.",
)
@click.option("--renew", is_flag=True, help="Keep a certificate that is still valid for some time.")
@click.option(
    "--client-auth",
    "for_clients",
    is_flag=True,
    help="Valid for a client, too: for members of etcd, and metaservers whose journal is there.",
)
@json_option
def issue_(
    names: Sequence[str],
    authority: Path,
    folder: Path,
    days: int,
    renew: bool,
    for_clients: bool,
    as_json: bool,
) -> None:
    """Make a server's certificate for the addresses and names by which it is reached.

    These are the ones that clients mount from, and those that storage servers advertise.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f"'{name}' is neither an address nor the name of a host")
    renew_days = min(RENEW_DAYS, days // 3)
    is_kept = renew and is_good(authority, names, renew_days, folder, for_clients=for_clients)
    if not is_kept:
        issue(authority, names, days, folder, for_clients=for_clients)
    path = folder / "server.crt"
    _show(look_at(path), as_json, {"path": str(path), "changed": not is_kept})


@tls.command(
    "check",
    cls=Command,
    exits=_SOON,
    examples=[
        ("braidfs tls check 10.0.0.7", "The certificate that the metaserver shows."),
        ("braidfs tls check 10.0.0.11:7411 --days 14", "Exit code 3 when it ends in two weeks."),
        ("braidfs tls check /etc/braidfs/tls/server.crt --json", "A file."),
    ],
)
@click.argument("what", metavar="HOST[:PORT]|FILE")
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    default=AUTHORITY_FILE,
    show_default=True,
    help="The authority to trust.",
)
@click.option(
    "--days",
    type=click.IntRange(0, 3650),
    default=0,
    metavar="DAYS",
    help="Report a certificate that ends within this time.",
)
@json_option
def check(what: str, ca: Path, days: int, as_json: bool) -> int:
    """Show the certificate in FILE, or the one that the server at HOST shows."""
    if Path(what).is_file():
        seen, beside = look_at(Path(what)), {"path": what}
    else:
        if "/" in what:
            raise ConfigError(f"there is no {what}")
        address = parse_address(what, port_default=METASERVER_PORT)
        seen, beside = run_trio(_ask, address, ca)
    _show(seen, as_json, beside)
    return EXIT_UNHEALTHY if seen.days_left() <= days else EXIT_DONE


async def _ask(address: Address, ca: Path) -> tuple[Certificate, dict[str, Any]]:
    """Gets the server's certificate. Raises ConfigError, TransportError."""
    with trio.move_on_after(TIMEOUT_S):
        cipher, (subject, issuer, ends_s) = await tls_of(address, TlsSettings(REQUIRED, ca))
        ends = datetime.fromtimestamp(ends_s, UTC)
        found = Certificate(subject, issuer, (), ends)
        return found, {"address": str(address), "cipher": cipher}
    raise TransportError(f"{address} did not answer within {TIMEOUT_S:g} s")


def _show(seen: Certificate, as_json: bool, beside: dict[str, Any]) -> None:
    found = {
        **beside,
        "subject": seen.subject,
        "issuer": seen.issuer,
        "names": list(seen.names),
        "ends": seen.ends.isoformat(),
        "days_left": round(seen.days_left(), 1),
    }
    show(found, as_json, lambda console: _print(console, found))


def _print(console: Console, found: dict[str, Any]) -> None:
    where = found.get("path") or f"{found['address']} by {found['cipher']}"
    if found.get("changed") is False:
        where += " (kept)"
    console.print(where, markup=False)
    console.print(f"  subject  {found['subject']}", markup=False)
    console.print(f"  issuer   {found['issuer']}", markup=False)
    if found["names"]:
        console.print(f"  names    {', '.join(found['names'])}", markup=False)
    console.print(f"  ends     {found['ends']}, in {found['days_left']:g} days", markup=False)
