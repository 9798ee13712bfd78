"""Translates ids of users and groups for a client: in replies, and in ACLs in both directions.

The store has the ids of the cluster, and so have the replies kept in it for repeats. For a client
whose key maps ids (metaserver.identity), replies are rewritten here, as the last step before they
are sent; the rows of ops translate requests (metaserver.squash). `RECORDS` says which fields of a
reply have attribute records. An id that the client has none for becomes 65534. A client sees only
those entries of an ACL that are for users and groups that it can be. When it sets an ACL, the
hidden entries are kept, unless the new ACL has no mask and so can have no such entries. Pure.
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
    """Returns the body of the reply with the client's ids."""
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
    """Returns the ACL that a client asks for with ids of the cluster, and with the entries of the
    stored ACL that the client did not see. Raises EINVAL."""
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
    return entry  # root's: the client may not act as root, but it may name root


def _is_named(entry: acl.AclEntry) -> bool:
    return entry.tag in (acl.USER, acl.GROUP)


def _ids(entry: acl.AclEntry, who: Who) -> Ids:
    return who.uids if entry.tag == acl.USER else who.gids


def _numbered(entry: acl.AclEntry, number: int) -> acl.AclEntry:
    return replace(entry, id=number)


def _is_foreign(entry: acl.AclEntry, who: Who) -> bool:
    return who.translates and _is_named(entry) and not _ids(entry, who).may_be(entry.id)
