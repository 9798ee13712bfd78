"""Why a standby metaserver is silent, as far as this machine can tell by connecting to it.

STATUS only says that it has not reported to the journal. Who shows STATUS tries its address: its
program may have ended, hang, run without the journal, be of a former release, or be out of reach
with its host.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from fscommon.errors import (
    AuthenticationError,
    BraidError,
    NobodyThereError,
    RefusedError,
    TransportError,
)
from fscommon.net.address import parse_address
from fscommon.net.tcp import TcpTransport
from fscommon.observe.health import silent_standbys
from fscommon.rpc.caller import Caller
from fscommon.tasks import open_tasks
from fscommon.wire.group import CANNOT_FOLLOW, MetaserverStatus
from fscommon.wire.messages import StatusReply

TRIED_S: Final = 2.0  # for each of: to connect, and to be answered
ENDED: Final = "its host answers, but nothing listens there: the program has ended"
HANGS: Final = "it accepts connections and answers nothing: the program is stopped, or hangs"
RUNS: Final = "it runs, and answers: it does not reach the journal"
OUT_OF_REACH: Final = "its host cannot be reached from here"
STRANGER: Final = "what listens at its address does not have the key of this cluster"

Opener = Callable[[str], AbstractAsyncContextManager[Caller]]


async def reasons_of_silence(status: StatusReply, open_to: Opener) -> dict[str, str]:
    """Half a sentence for each standby that is silent, by its name. open_to: connects to a
    metaserver, as an administrator."""
    found: dict[str, str] = {}

    async def one(row: MetaserverStatus) -> None:
        found[row.name] = await reason_of_silence(row.address, open_to)

    async with open_tasks() as tasks:
        for row in silent_standbys(status):
            tasks.start_soon(one, row)
    return found


async def reason_of_silence(address: str, open_to: Opener) -> str:
    try:
        with trio.fail_after(TRIED_S):
            stream = await TcpTransport().dial(parse_address(address))
            await stream.aclose()
    except NobodyThereError:
        return ENDED
    except (BraidError, trio.TooSlowError):
        return OUT_OF_REACH
    return await _reason_of_one_that_listens(address, open_to)


async def _reason_of_one_that_listens(address: str, open_to: Opener) -> str:
    try:
        with trio.fail_after(TRIED_S):
            async with open_to(address):
                return RUNS
    except RefusedError as error:
        _, words, reason = str(error).partition(CANNOT_FOLLOW)
        return f"{words}{reason}" if words else RUNS
    except (TransportError, trio.TooSlowError):
        return HANGS
    except AuthenticationError:
        return STRANGER
    except BraidError as error:
        return f"it cannot be asked: {error}"
