"""Requests that succeeded after every caller had stopped waiting for them.

What such a request opened is closed again. What it changed is dropped from the caches: an answer
from before the change may have arrived after the callers stopped waiting, and the leases that came
with the reply were not noted. Touched by the trio thread only.
"""

from fscommon.layout.attributes import LEASE_SHARED_ALL, unpack_attributes
from fscommon.wire.births import ChangeBatch
from fscommon.wire.codec import decode
from fscommon.wire.messages import BODIES, Opened
from fscommon.wire.ops import OPENING, SPECS, Op

from ..leases.holder import Leases, inodes_in
from .inodes import Inodes
from .ports import Lanes


def undo_orphaned(op: Op, body: bytes, inodes: Inodes, leases: Leases, lanes: Lanes) -> None:
    """body: of the reply; for a CHANGE_BATCH, of the request."""
    if op is Op.CHANGE_BATCH:  # the replay opened its files once more
        for birth in decode(ChangeBatch, body).births:
            if birth.is_open:
                inodes.give_back(birth.ino)
        return
    reply: object = decode(BODIES[op][1], body)
    if isinstance(reply, Opened) and (op is Op.OPEN or op in OPENING):
        inodes.give_back(unpack_attributes(reply.attributes).ino)
    if SPECS[op].mutation and leases.is_on:
        for ino in inodes_in(reply):
            lanes.names.lease_drop(0, (ino,), LEASE_SHARED_ALL)
            inodes.unkeep(ino)  # its layout may have changed
        inodes.resized_closed += op is Op.SETATTR
