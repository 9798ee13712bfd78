"""Bodies of RDMA: an offer of a queue pair, and its answer (docs/decisions/0010-rdma-transport.md).

`fscommon.wire.messages.BODIES` ties them to their op.
"""

from dataclasses import dataclass

from fscommon.ranges import Message, Record, Text


@dataclass(frozen=True, slots=True)
class RdmaOffer:
    """First request on a connection of purpose "rdma": the client's queue pair as native describes
    it. Empty: a question only, whether and by what the server would agree."""

    peer: Record


@dataclass(frozen=True, slots=True)
class RdmaAnswer:
    """The server's queue pair, connected to the client's; or a reason and no queue pair. by: the
    port and address it uses, for people."""

    peer: Record
    reason: Message = ""
    by: Text = ""
