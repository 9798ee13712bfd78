"""When the certificates of the servers end, as they show them to this machine; only with TLS.

STATUS does not have this, so each server is connected to: the metaserver for STATUS in any case,
storage servers as by `node ping`, all at once and within SHOWN_S together. A server that does not
answer shows nothing: STATUS says whether it is up.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError
from fscommon.observe.health import CertificateSeen
from fscommon.rpc.caller import Caller
from fscommon.tasks import open_tasks
from fscommon.wire.messages import StatusReply

from .cluster import status_of
from .frame import Reach, run_trio

SHOWN_S: Final = 3.0
_ENDED: Final = "certificate has expired"  # OpenSSL's error, which ends the handshake


@dataclass(frozen=True, slots=True)
class Shown:
    """A server's certificate. ends_s: a Unix time; None: it has ended and was not shown."""

    server: str
    ends_s: int | None

    def as_json(self) -> dict[str, Any]:
        ends = None if self.ends_s is None else datetime.fromtimestamp(self.ends_s, UTC).isoformat()
        return {"server": self.server, "ends": ends}


def ask_with_certificates(reach: Reach) -> tuple[StatusReply, list[Shown]]:
    """Returns STATUS, and the certificates of the metaserver and of storage servers."""
    reply, shown = reach.ask(lambda caller: _ask_metaserver(reach, caller))
    if reach.tls.is_on:
        shown += run_trio(of_storage_servers, reach, reply)
    return reply, shown


def seen(certificates: Sequence[Shown]) -> list[CertificateSeen]:
    now_s = time.time()
    return [
        CertificateSeen(one.server, None if one.ends_s is None else one.ends_s - now_s)
        for one in certificates
    ]


async def _ask_metaserver(reach: Reach, caller: Caller) -> tuple[StatusReply, list[Shown]]:
    reply = await status_of(caller, reach)
    ends_s = caller.certificate_ends_s
    return reply, [] if ends_s is None else [Shown("the metaserver", ends_s)]


async def of_storage_servers(reach: Reach, reply: StatusReply) -> list[Shown]:
    """The certificates of the storage servers that are up, in their order."""
    nodes = [node for node in reply.nodes if node.is_up]
    found: list[Shown | None] = [None] * len(nodes)

    async def one(index: int) -> None:
        node = nodes[index]
        found[index] = await _of_server(reach, f"storage server {node.name}", node.address)

    with trio.move_on_after(SHOWN_S):
        async with open_tasks() as tasks:
            for index in range(len(nodes)):
                tasks.start_soon(one, index)
    return [shown for shown in found if shown is not None]


async def _of_server(reach: Reach, server: str, address: str) -> Shown | None:
    try:
        async with reach.open_caller(address, HelloFields("server", "braidfs status")) as caller:
            ends_s = caller.certificate_ends_s
            return None if ends_s is None else Shown(server, ends_s)
    except BraidError as error:
        return Shown(server, None) if _ENDED in str(error) else None
