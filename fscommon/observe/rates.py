"""Rates of servers and clients, from differences between two STATUS replies. Pure: time is given.

Storage servers report counts with every heartbeat, clients with every renewal of their session. A
rate is the difference of two counts over the time between the reports that held them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from fscommon.wire.admin import Traffic
from fscommon.wire.messages import StatusReply


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of one server or client, and when they were reported."""

    at_s: float
    traffic: Traffic
    requests: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    requests: float = 0.0

    def __add__(self, other: "Rates") -> "Rates":
        return Rates(*(getattr(self, name) + getattr(other, name) for name in RATES))

    def as_json(self) -> dict[str, float]:
        return {f"{name}_per_s": round(getattr(self, name), 1) for name in RATES}


RATES: Final = Rates.__slots__


class Meter:
    """Samples by name. `rates` are those of the last sample, from its difference to the one
    before."""

    def __init__(self) -> None:
        self._before: dict[str, Sample] = {}
        self._rates: dict[str, Rates] = {}

    def take(self, status: StatusReply, now_s: float) -> None:
        for name, sample in _samples(status, now_s):
            before = self._before.get(name)
            if before is None or sample.traffic.reads < before.traffic.reads:
                self._before[name] = sample  # new, or it was restarted
                self._rates[name] = Rates()
            elif sample.at_s - before.at_s > 0.5:  # another report, not the same one again
                self._rates[name] = _difference(before, sample)
                self._before[name] = sample

    def forget_others(self, status: StatusReply) -> None:
        """Forgets servers and clients that are gone."""
        live = {name for name, _ in _samples(status, 0.0)}
        for name in [name for name in self._before if name not in live]:
            del self._before[name], self._rates[name]

    def rates(self, name: str) -> Rates:
        return self._rates.get(name, Rates())


def _samples(status: StatusReply, now_s: float) -> Iterator[tuple[str, Sample]]:
    for node in status.nodes:
        at_s = now_s - node.seconds_since_heartbeat
        yield f"node {node.node}", Sample(at_s, node.traffic, 0, now_s)
    for client in status.clients:
        at_s = now_s - max(client.seconds_since_report, 0.0)
        yield (f"client {client.session}", Sample(at_s, client.traffic, client.requests, now_s))


def _difference(before: Sample, after: Sample) -> Rates:
    asked = after.asked_s - before.asked_s
    return replace(
        rates_between(before.traffic, after.traffic, after.at_s - before.at_s),
        requests=max(0, after.requests - before.requests) / asked if asked > 0 else 0.0,
    )


def rates_between(old: Traffic, new: Traffic, passed_s: float) -> Rates:
    """The rates of bytes and operations, without requests."""
    return Rates(
        read_bytes=(new.read_bytes - old.read_bytes) / passed_s,
        written_bytes=(new.written_bytes - old.written_bytes) / passed_s,
        reads=(new.reads - old.reads) / passed_s,
        writes=(new.writes - old.writes) / passed_s,
    )
