"""braidfs status: asks the metaserver for its view of the cluster and shows it."""

import json
import sys
from dataclasses import asdict

import trio
from rich.console import Console
from rich.table import Table

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.errors import BraidError
from fscommon.rpc.caller import open_caller
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op

TIMEOUT_S = 10.0


def show_status(metaserver: str, key_file: str, *, as_json: bool) -> int:
    """Print it; the exit code."""
    try:
        key = load_key(key_file)
        reply = trio.run(_ask, metaserver, key, strict_exception_groups=True)
    except BraidError as error:
        sys.stderr.write(f"braidfs: {error}\n")
        return 1
    if as_json:
        sys.stdout.write(json.dumps(asdict(reply), default=bytes.hex, indent=2) + "\n")
    else:
        _print(reply)
    return 0


async def _ask(metaserver: str, key: bytes) -> StatusReply:
    hello = HelloFields("admin", "braidfs status")
    async with open_caller(metaserver, key=key, hello=hello, timeout_s=TIMEOUT_S) as caller:
        reply = await caller.call(Op.STATUS, Empty(), TIMEOUT_S)
        assert isinstance(reply, StatusReply)
        return reply


def _print(reply: StatusReply) -> None:
    console = Console()
    state = "recovering: waiting for clients of before the restart" if reply.recovering else "ready"
    console.print(f"cluster {reply.cluster.hex()}  metaserver {state}")
    console.print(
        f"{_size(reply.files.bytes_available)} of {_size(reply.files.bytes_total)} available, "
        f"{reply.files.inodes_total - reply.files.inodes_free} inodes"
    )
    console.print(f"transaction {reply.txn}, durable {reply.durable}")
    console.print(_targets(reply))
    console.print(_clients(reply))


def _targets(reply: StatusReply) -> Table:
    table = Table("target", "node", "address", "state", "free", "size", title="Targets")
    for row in reply.map.targets:
        free, total = _size(row.bytes_free), _size(row.bytes_total)
        table.add_row(str(row.target), str(row.node), row.address, row.state, free, total)
    return table


def _clients(reply: StatusReply) -> Table:
    table = Table("session", "client", "open files", "heard of", title="Clients")
    for row in reply.clients:
        heard = f"{row.seconds_since_renewal:.1f} s ago"
        table.add_row(f"{row.session:x}", row.node, str(row.opens), heard)
    return table


def _size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} PiB"
