"""What the page shows, as JSON: STATUS, what is wrong, rates now and over the last hour.

Only the event loop's thread calls. The JSON is made on request, at most once in FRESH_S for all
requests together. Counters are sampled every SAMPLE_S even without requests, so that rates are
known at once.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fscommon.observe.health import CertificateSeen, problems_of
from fscommon.observe.rates import Meter
from fscommon.observe.status import session_text, status_json
from fscommon.wire.messages import Empty, StatusReply
from metaserver.context import Context
from metaserver.engine import Engine, Time
from metaserver.ops.status import status
from metaserver.page.history import SAMPLE_S, History
from metaserver.transaction import Transaction

FRESH_S: Final = 1.0
ROWS_MAX: Final = 500  # rows of clients; only the busiest clients get one


class PageSource:
    """Makes the JSON. certificate_ends_s: when the metaserver's own certificate ends, as a Unix
    time; None: it has none."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], Time],
        certificate_ends_s: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.silences: Mapping[str, str] = {}  # why standbys are silent, by their names
        self.seen: StatusReply | None = None  # the newest one
        self._clock = clock
        self._certificate_ends_s = certificate_ends_s
        self._engine = engine
        self._history = History()
        self._meter = Meter()
        self._made_s = -FRESH_S
        self._made = b""

    def sample(self, requests: int) -> None:
        """The caller samples every SAMPLE_S. requests: those answered so far."""
        time = self._clock()
        self._status(time)
        nodes = self._engine.services.membership.nodes()
        self._history.sample(nodes, requests, time.now_s, time.now_ns)

    def json(self) -> bytes:
        time = self._clock()
        if time.now_s - self._made_s >= FRESH_S:
            self._made = json.dumps(self._shown(time)).encode()
            self._made_s = time.now_s
        return self._made

    def _shown(self, time: Time) -> dict[str, Any]:
        reply = self._status(time)
        shown = status_json(reply, problems_of(reply, self._certificates(time), self.silences))
        clients = shown["clients"]
        for row, client in zip(clients, reply.clients, strict=True):
            row["rates"] = self._meter.rates(f"client {client.session}").as_json()
            assert row["session"] == session_text(client.session)
        clients.sort(key=_busy, reverse=True)
        for row, node in zip(shown["nodes"], reply.nodes, strict=True):
            row["rates"] = self._meter.rates(f"node {node.node}").as_json()
        return {
            **shown,
            "now_ns": time.now_ns,
            "clients": clients[:ROWS_MAX],
            "client_count": len(clients),
            "history": {"sample_s": SAMPLE_S, **self._history.as_json()},
        }

    def _certificates(self, time: Time) -> tuple[CertificateSeen, ...]:
        ends_s = self._certificate_ends_s()
        if ends_s is None:
            return ()
        return (CertificateSeen("the metaserver", ends_s - time.now_ns / 1e9),)

    def _status(self, time: Time) -> StatusReply:
        found: list[StatusReply] = []

        def look(tx: Transaction, context: Context) -> None:
            found.append(status(tx, Empty(), context))

        self._engine.system(look, time)
        self.seen = found[0]
        self._meter.take(found[0], time.now_s)
        self._meter.forget_others(found[0])
        return found[0]


def _busy(row: dict[str, Any]) -> tuple[float, int]:
    rates = row["rates"]
    return rates["read_bytes_per_s"] + rates["written_bytes_per_s"], row["requests"]
