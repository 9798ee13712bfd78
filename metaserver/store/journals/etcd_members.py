"""What single members of etcd say of themselves, and are asked to do.

All other requests go to whichever member answers (Gateway.call); these are about one of them. They
are of no help in agreeing on anything: each member tells what it knows.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metaserver.store.journals.etcd_gateway import (
    AttemptError,
    Gateway,
    Json,
    list_of,
    mapping_of,
    number_of,
    text_of,
)

NO_SPACE: Final = "NOSPACE"
_ALARM_PATH: Final = "/v3/maintenance/alarm"
_QUOTA: Final = "etcd_server_quota_backend_bytes"
_COMPACTED: Final = "etcd_debugging_mvcc_db_compaction_keys_total"


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """size: bytes of its file; in_use: those of them that held something when it last counted: it
    counts at each change, and so not after a compaction that no change follows. compacted: how many
    keys compactions have deleted since it started. quota: the size at which it takes no more; None
    if it does not say. alarms: in etcd's words."""

    endpoint: str
    member: str
    is_leader: bool
    size: int
    in_use: int
    quota: int | None = None
    version: str = ""
    alarms: tuple[str, ...] = ()
    compacted: int = 0


def look_at(gateway: Gateway, endpoint: str, seconds: float) -> EtcdServer:
    """Raises AttemptError, NoSpaceError, GarbledError."""
    status = gateway.ask(endpoint, "/v3/maintenance/status", {}, seconds)
    member = text_of(mapping_of(status.get("header")).get("member_id"))
    metrics = _metrics(gateway, endpoint, seconds)
    return EtcdServer(
        endpoint,
        member,
        is_leader=member == status.get("leader"),
        size=number_of(status.get("dbSize")),
        in_use=number_of(status.get("dbSizeInUse")),
        quota=_value_of(_QUOTA, metrics),
        version=text_of(status.get("version", "")),
        alarms=tuple(text_of(one).strip() for one in list_of(status.get("errors"))),
        compacted=_value_of(_COMPACTED, metrics) or 0,
    )


def _metrics(gateway: Gateway, endpoint: str, seconds: float) -> str:
    try:
        return gateway.fetch_text(endpoint, "/metrics", seconds)
    except AttemptError:
        return ""


def _value_of(metric: str, metrics: str) -> int | None:
    found = re.search(rf"^{metric} ([0-9.e+]{{1,30}})$", metrics, re.M)
    with contextlib.suppress(ValueError, OverflowError):
        return int(float(found[1])) if found else None
    return None


def defragment(gateway: Gateway, endpoint: str, seconds: float) -> None:
    """The member writes its file anew, and answers nobody meanwhile. It goes on if it takes longer
    than `seconds`. Raises AttemptError, NoSpaceError."""
    gateway.ask(endpoint, "/v3/maintenance/defragment", {}, seconds, has_header=False)


def full_members(gateway: Gateway, endpoint: str, seconds: float) -> Sequence[str]:
    """The members that have raised the alarm NOSPACE: with one of them, etcd takes no changes.
    Raises AttemptError, NoSpaceError, GarbledError."""
    answer = gateway.ask(endpoint, _ALARM_PATH, {"action": "GET"}, seconds, has_header=False)
    alarms = [mapping_of(one) for one in list_of(answer.get("alarms"))]
    return [text_of(one.get("memberID")) for one in alarms if one.get("alarm") == NO_SPACE]


def disarm(gateway: Gateway, endpoint: str, member: str, seconds: float) -> None:
    """Ends the alarm NOSPACE of that member, and no other alarm. Raises as full_members."""
    body: Json = {"action": "DEACTIVATE", "memberID": member, "alarm": NO_SPACE}
    gateway.ask(endpoint, _ALARM_PATH, body, seconds, has_header=False)
