"""Numbers of users and groups as a client knows them: in replies, and in ACLs both ways.

The store, and replies kept in it for repeats, have the cluster's numbers. What leaves for a client
whose key maps ids (metaserver.identity) is rewritten here, once, as the last thing before it is
sent; what comes from it is metaserver.squash's. `RECORDS` says of each reply where it has
attribute records. A number that the client has none for is 65534. Of an ACL a client is shown the
entries of those whom it can be; the others are kept when it sets another one, unless that has no
mask, and so no such entries at all. Pure.
"""

from dataclasses import replace
from typing import Any, Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import with_owners
from fscommon.wire.ahead import OpenedAhead
from fscommon.wire.births import Delegated
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame
from fscommon.wire.messages import (
    BODIES,
    Committed,
    Entry,
    Failure,
    GetXattr,
    Opened,
    ReadDirReply,
    Removed,
    Renamed,
    XattrValue,
)
from fscommon.wire.ops import Op
from metaserver.identity import Ids, Who
from metaserver.namespace import acl

ACLS: Final = (acl.ACCESS, acl.DEFAULT)
RECORDS: Final[dict[type, tuple[str, ...]]] = {
    Committed: ("attributes", "parents"),
    Delegated: ("attributes",),
    Entry: ("attributes", "parents"),
    Failure: ("parents",),
    Opened: ("attributes", "parents"),
    OpenedAhead: ("attributes", "parents"),
    ReadDirReply: ("attributes", "parents"),
    Removed: ("attributes", "parents"),
    Renamed: ("attributes", "replaced", "parents"),
}


def shown(op: Op, frame: Frame, status: int, body: bytes, who: Who) -> bytes:
    """The body of the reply to this request as its client may read it."""
    kind = BODIES[op][1] if status == 0 else Failure
    if kind is XattrValue:
        return _shown_xattr(frame, body, who)
    fields = RECORDS.get(kind)
    if fields is None:
        return body
    message: Any = decode(kind, body)
    uid, gid = who.uids.to_client, who.gids.to_client
    return encode(
        replace(message, **{name: with_owners(getattr(message, name), uid, gid) for name in fields})
    )


# ---- ACLs ---------------------------------------------------------------------------------------


def _shown_xattr(frame: Frame, body: bytes, who: Who) -> bytes:
    value = decode(XattrValue, body).value
    if not value or decode(GetXattr, frame.body).name not in ACLS:
        return body
    entries = tuple(
        _numbered(entry, _ids(entry, who).to_client(entry.id)) if _is_named(entry) else entry
        for entry in acl.unpack_acl(value)
        if not _is_foreign(entry, who)
    )
    return encode(XattrValue(acl.pack_acl(entries)))


def meant_acl(value: bytes, stored: bytes | None, who: Who) -> bytes:
    """The ACL that a client asks for, with the cluster's numbers, and with those entries of the one
    that is there which it was not shown. Raises EINVAL."""
    entries = tuple(_meant(entry, who) for entry in acl.unpack_acl(value))
    if stored is not None and any(entry.tag == acl.MASK for entry in entries):
        entries += tuple(entry for entry in acl.unpack_acl(stored) if _is_foreign(entry, who))
    return acl.pack_acl(entries)


def _meant(entry: acl.AclEntry, who: Who) -> acl.AclEntry:
    if not _is_named(entry):
        return entry
    number = _ids(entry, who).to_cluster(entry.id)
    if number is not None:
        return _numbered(entry, number)
    if who.translates:
        raise FsError(Status.EINVAL, f"the key of this client maps no user or group {entry.id}")
    return entry  # root's: it is refused what root does, not to name it


def _is_named(entry: acl.AclEntry) -> bool:
    return entry.tag in (acl.USER, acl.GROUP)


def _ids(entry: acl.AclEntry, who: Who) -> Ids:
    return who.uids if entry.tag == acl.USER else who.gids


def _numbered(entry: acl.AclEntry, number: int) -> acl.AclEntry:
    return replace(entry, id=number)


def _is_foreign(entry: acl.AclEntry, who: Who) -> bool:
    return who.translates and _is_named(entry) and not _ids(entry, who).may_be(entry.id)
