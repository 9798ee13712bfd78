"""Bodies of what storage servers send to the metaserver."""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import U32, U64, Many, Message, Text, Token, U32s, U64s
from fscommon.wire.admin import NO_TRAFFIC, Traffic
from fscommon.wire.ops import Op

DROPPED_MAX: Final = 4096  # names in one DroppedNames
DAMAGED_MAX: Final = 64  # objects in one Heartbeat


@dataclass(frozen=True, slots=True)
class TargetReport:
    """files_total, files_free: inodes of the target's filesystem, without those kept for the log. A
    total of 0 means that only bytes limit the target."""

    target: U64  # 0: new, asks for an id
    uuid: Token  # from the superblock
    incarnation: U64
    bytes_total: U64
    bytes_free: U64
    objects: U64
    errors: U64
    files_total: U64 = 0
    files_free: U64 = 0


@dataclass(frozen=True, slots=True)
class FormerRegister:
    """What a metaserver of an earlier release takes: it refuses a REGISTER with more."""

    node: U64  # 0: new, asks for an id
    uuid: Token  # that of the node
    name: Text
    address: Text  # "host:port" for data connections
    cluster: Token  # b"": the node never joined a cluster
    targets: Annotated[tuple[TargetReport, ...], Many]


@dataclass(frozen=True, slots=True)
class Register(FormerRegister):
    """features: fscommon.wire.features. domain: what fails together with this node, as its
    configuration says; "": the host part of the address."""

    features: U64 = 0
    domain: Text = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """targets: ids, in the order of the request. sessions: every live one (rule 15). features:
    fscommon.wire.features, of the metaserver. refusals: in the same order, why a target is not part
    of the cluster any more, and what to do; "": it is. (): all are. removed: ids of targets that
    have left the cluster, whose dropped names are not kept: they serve nobody."""

    node: U64
    cluster: Token
    targets: U64s
    capability_key: Token  # 32 bytes, for HMAC-SHA256 of capabilities
    map_epoch: U64
    sessions: U64s
    timeout_s: float
    features: U64 = 0
    refusals: Annotated[tuple[Message, ...], Many] = ()
    removed: U64s = ()


@dataclass(frozen=True, slots=True)
class DamagedObject:
    target: U64
    file_id: U64
    object: U32


@dataclass(frozen=True, slots=True)
class FormerHeartbeat:
    node: U64
    targets: Annotated[tuple[TargetReport, ...], Many]
    session_version: U64  # version of the session table that this node has; 0: none
    traffic: Traffic = NO_TRAFFIC


@dataclass(frozen=True, slots=True)
class Heartbeat(FormerHeartbeat):
    """damaged: objects of which a reader has met damage since the last heartbeat, at most
    DAMAGED_MAX. A metaserver that states no features takes a FormerHeartbeat."""

    damaged: Annotated[tuple[DamagedObject, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """sessions is None while session_version is current."""

    map_epoch: U64
    session_version: U64
    sessions: U64s | None


@dataclass(frozen=True, slots=True)
class TargetDropped:
    """Asks for the names of a target's objects that were dropped: layouts name them no longer. A
    storage server asks between REGISTER and serving, page by page.

    after_file_id, after_object: the last name that it has; 0, 0: none."""

    target: U64
    after_file_id: U64
    after_object: U32


@dataclass(frozen=True, slots=True)
class DroppedNames:
    """At most DROPPED_MAX names, in order of file id and object number. end: these were the last
    ones."""

    file_ids: U64s
    objects: U32s
    end: bool

    def last(self) -> tuple[int, int]:
        return self.file_ids[-1], self.objects[-1]


SERVER_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.REGISTER: (Register, Registered),
    Op.HEARTBEAT: (Heartbeat, HeartbeatReply),
    Op.TARGET_DROPPED: (TargetDropped, DroppedNames),
}
