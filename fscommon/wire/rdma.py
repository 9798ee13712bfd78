"""Bodies of RDMA: an offer of a queue pair, and its answer (docs/decisions/0010-rdma-transport.md).

`fscommon.wire.messages.BODIES` ties them to their op.
"""

from dataclasses import dataclass

from fscommon.ranges import Message, Record, Text


@dataclass(frozen=True, slots=True)
class RdmaOffer:
    """The first request on a connection of purpose "rdma": the client's queue pair as native code
    describes it. Empty: only asks whether the server would agree, and over which port."""

    peer: Record


@dataclass(frozen=True, slots=True)
class RdmaAnswer:
    """The server's queue pair, connected to the client's; or a reason and no queue pair. by: the
    port and address that it uses, for people."""

    peer: Record
    reason: Message = ""
    by: Text = ""
