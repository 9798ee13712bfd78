"""A journal in etcd 3.4 or later: a few keys below one prefix, changed in transactions.

PREFIX/head            the head; each change of the log compares its whole value
PREFIX/turn            log, term and owner: what a beat compares. Only a claim changes it
PREFIX/beats           its version, which etcd counts, says how often the owner has beaten; a claim
                       deletes the key, so that it counts anew
PREFIX/entries/INDEX   what there is to know of an entry, and its payload if that is small
PREFIX/parts/INDEX/NONCE/NUMBER  a larger payload, in pieces
PREFIX/members/NAME    what a metaserver reported

etcd refuses requests of more than 1.5 MiB, so the parts of a large entry are put one by one
beforehand; the entry exists once the head names it. Parts that no entry names were left by
metaservers that were fenced: they have an index that an entry of another nonce got, and trim
deletes them with it. A call that ran out of time has not worked in vain: the same append then puts,
and the same read fetches, only the parts that are missing.

A request may happen twice, or late. That is harmless: it compares the head, or the turn; and a
report only looks older for a moment. etcd keeps each former value until it is told to forget them
(compaction), which trim does; that concerns all keys of this etcd, those of others too. Its files
get smaller by more than that: etcd_care.py.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from metaserver.store.journal import (
    NO_NONCE,
    PAYLOAD_MAX,
    READ_BYTES_MAX,
    DamagedJournalError,
    EngineHealth,
    EngineMember,
    Entry,
    FencedError,
    Head,
    JournalFullError,
    Member,
    Sighting,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
    claimed,
)
from metaserver.store.journals.etcd_care import EtcdCare
from metaserver.store.journals.etcd_gateway import (
    AttemptError,
    EtcdSettings,
    GarbledError,
    Gateway,
    GatewayError,
    Json,
    NoSpaceError,
)
from metaserver.store.journals.etcd_layout import (
    INLINE_MAX,
    PART_SIZE,
    Keys,
    Stub,
    pack_entry,
    pack_head,
    pack_member,
    pack_turn,
    part_count,
    unpack_entry,
    unpack_head,
    unpack_member,
)
from metaserver.store.journals.etcd_members import look_at
from metaserver.store.journals.etcd_txn import (
    OPERATIONS_MAX,
    TXN_PATH,
    Answer,
    Transaction,
    delete,
    delete_range,
    get,
    get_range,
    has_value,
    has_version,
    put,
)

_READ_ENTRIES_MAX: Final = 256
_TRIM_ENTRIES_MAX: Final = 500  # of one transaction
_COMPACT_EVERY_S: Final = 30.0


class EtcdJournal:
    """One metaserver's door to the log."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._gateway = Gateway(settings)
        self._keys = Keys(settings.prefix)
        self._care = EtcdCare(self._gateway, settings.endpoints, settings.timeout_s)
        self._put: tuple[Head, int] = (Head(), 0)  # the append in work, and how many of its parts
        self._unsure: Head | None = None  # what a change of unknown outcome was to make
        self._fetched: dict[bytes, bytes] = {}  # parts of the read in work, by key
        self._compacted: float | None = None  # when, by the monotonic clock

    def close(self) -> None:
        self._gateway.close()

    # What every call is made of.

    def _run(self, transaction: Transaction, deadline: float) -> Answer:
        """Raises GatewayError, NoSpaceError, GarbledError."""
        return transaction.parse(self._gateway.call(TXN_PATH, transaction.body(), deadline))

    def _look(self, *operations: Json, deadline: float) -> Answer:
        answer = self._run(Transaction(success=operations), deadline)
        if not answer.succeeded:
            raise GarbledError("etcd did not do a transaction without a condition")
        return answer

    def _sighting(self, deadline: float) -> Sighting:
        answer = self._look(get(self._keys.head), get(self._keys.beats), deadline=deadline)
        raw, beats = answer.value(0), answer.found[1]
        head = Head() if raw is None else unpack_head(raw)
        return Sighting(head, beats[0].version if beats else 0)

    def _holds(self, head: Head) -> Json:
        """Compares the whole head."""
        if not head.log:
            return has_version(self._keys.head, 0)
        return has_value(self._keys.head, pack_head(head))

    def _change(self, at: Head, new: Head, transaction: Transaction, deadline: float) -> bool:
        """Runs a transaction that needs the head `at` and otherwise gets the head first. Returns
        whether it found `new` instead, so that an earlier attempt has done all there was to do.
        Raises FencedError if the head is another one."""
        answer = self._run(transaction, deadline)
        if answer.succeeded:
            return False
        raw = answer.value(0)
        try:
            now = Head() if raw is None else unpack_head(raw)
        except GarbledError as error:  # to try again would not help
            raise DamagedJournalError(str(error)) from None
        if _is_same(now, new):
            return True
        if now == at and not transaction.compare[1:]:
            raise GarbledError("etcd refused a change though the head was as expected")
        raise FencedError(f"the journal in etcd is at {now}, not at {at}")

    def _settle_full(self, at: Head, new: Head, error: NoSpaceError, deadline: float) -> Head:
        """etcd said that it has no room, which it also says of changes that it has just made. An
        attempt of before that is still on its way may happen once there is room again."""
        now = self._sighting(deadline).head
        if _is_same(now, new):
            return now
        if now == at and error.is_sure and self._unsure != new:
            raise JournalFullError(str(error)) from None
        if now == at:
            raise UnknownOutcomeError(f"{error}; an attempt of before may still happen") from None
        raise FencedError(f"the journal in etcd is at {now}, not at {at}") from None

    @contextlib.contextmanager
    def _unsure_of(self, new: Head) -> Iterator[None]:
        """Remembers that the outcome of a change is unknown, if that is how it ends."""
        try:
            yield
        except UnknownOutcomeError:
            self._unsure = new
            raise

    # The head.

    def sighting(self) -> Sighting:
        with _question():
            return self._sighting(self._gateway.deadline())

    def claim(self, seen: Sighting, owner: str, term: int = 0) -> Head:
        deadline = self._gateway.deadline()
        at = seen.head
        new = claimed(at, owner, term)
        made = new if at.log else replace(new, log=uuid.uuid4().bytes)
        transaction = Transaction(
            compare=(self._holds(at), has_version(self._keys.beats, seen.beats)),
            success=(
                put(self._keys.head, pack_head(made)),
                put(self._keys.turn, pack_turn(made)),
                delete(self._keys.beats),
            ),
            failure=(get(self._keys.head),),
        )
        with self._unsure_of(new), _change():
            try:
                if self._change(at, new, transaction, deadline):
                    return self._sighting(deadline).head
            except NoSpaceError as error:
                return self._settle_full(at, new, error, deadline)
        return made

    def beat(self, head: Head) -> None:
        transaction = Transaction(
            compare=(has_value(self._keys.turn, pack_turn(head)),),
            success=(put(self._keys.beats, b""),),
            failure=(get(self._keys.turn),),
        )
        with _change():
            answer = self._run(transaction, self._gateway.deadline())
        if not answer.succeeded:
            raise FencedError(f"it is not the turn of {head}, but {answer.value(0)!r}")

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        if len(payload) > PAYLOAD_MAX or len(nonce) != len(NO_NONCE):
            raise ValueError("an entry of this size does not fit into a journal")
        deadline = self._gateway.deadline()
        new = replace(at, index=at.index + 1, nonce=nonce)
        with self._unsure_of(new), _change():
            try:
                self._append(at, new, payload, deadline)
            except NoSpaceError as error:
                return self._settle_full(at, new, error, deadline)
        return new

    def _append(self, at: Head, new: Head, payload: bytes, deadline: float) -> None:
        size = len(payload)
        inline = payload if size <= INLINE_MAX else None
        stub = Stub(new.index, new.term, new.nonce, at.nonce, size, inline)
        puts = [
            put(self._keys.head, pack_head(new)),
            put(self._keys.entry(new.index), pack_entry(stub)),
        ]
        if part_count(size) == 1:
            puts.append(put(self._keys.part(new.index, new.nonce, 0), payload))
        elif part_count(size) and self._put_parts(at, new, payload, deadline):
            return
        self._change(at, new, self._if_at(at, puts), deadline)

    def _put_parts(self, at: Head, new: Head, payload: bytes, deadline: float) -> bool:
        """Puts those that are missing. Returns whether the entry has been appended already."""
        ready = self._put[1] if self._put[0] == new else 0
        for number in range(ready, part_count(len(payload))):
            key = self._keys.part(new.index, new.nonce, number)
            piece = payload[number * PART_SIZE : (number + 1) * PART_SIZE]
            transaction = self._if_at(at, (put(key, piece),))
            if self._change(at, new, transaction, deadline):
                return True
            self._put = (new, number + 1)
        return False

    def _if_at(self, at: Head, puts: Sequence[Json]) -> Transaction:
        return Transaction((self._holds(at),), puts, (get(self._keys.head),))

    # Entries.

    def read(self, after: int) -> Sequence[Entry]:
        deadline = self._gateway.deadline()
        with _question():
            stubs = self._stubs(after, deadline)
            self._fetch(stubs, deadline)
            entries = [self._whole(stub) for stub in stubs]
        self._fetched.clear()
        return entries

    def _stubs(self, after: int, deadline: float) -> list[Stub]:
        """Entries behind `after`, as many as one read returns."""
        wanted = get_range(self._keys.entries_from(after + 1), limit=_READ_ENTRIES_MAX)
        answer = self._look(get(self._keys.head), wanted, deadline=deadline)
        raw = answer.value(0)
        head = Head() if raw is None else unpack_head(raw)
        stubs = [
            unpack_entry(self._keys.index_of(record.key), record.value)
            for record in answer.found[1]
        ]
        _check_chain(stubs, after, head)
        size = 0
        for count, stub in enumerate(stubs):
            size += stub.size
            if count and size > READ_BYTES_MAX:
                return stubs[:count]
        return stubs

    def _fetch(self, stubs: Sequence[Stub], deadline: float) -> None:
        """Gets the parts that are not here yet."""
        keys = [key for stub in stubs for key in self._parts_of(stub)]
        self._fetched = {key: self._fetched[key] for key in keys if key in self._fetched}
        missing = [key for key in keys if key not in self._fetched]
        each = min(OPERATIONS_MAX - 1, READ_BYTES_MAX // PART_SIZE)
        for start in range(0, len(missing), each):
            some = missing[start : start + each]
            oldest = get(self._keys.entry(stubs[0].index))
            answer = self._look(oldest, *map(get, some), deadline=deadline)
            if answer.value(0) is None:
                raise TrimmedError(f"entry {stubs[0].index} was trimmed while it was read")
            for key, operation in zip(some, range(1, len(some) + 1), strict=True):
                value = answer.value(operation)
                if value is None:
                    raise GarbledError("a part of an entry is missing")
                self._fetched[key] = value

    def _parts_of(self, stub: Stub) -> list[bytes]:
        numbers = range(part_count(stub.size))
        return [self._keys.part(stub.index, stub.nonce, number) for number in numbers]

    def _whole(self, stub: Stub) -> Entry:
        payload = stub.inline
        if payload is None:
            payload = b"".join(self._fetched[key] for key in self._parts_of(stub))
        if len(payload) != stub.size:
            raise GarbledError(f"entry {stub.index} has {len(payload)} bytes, not {stub.size}")
        return stub.entry(payload)

    def trim(self, head: Head, below: int) -> None:
        deadline = self._gateway.deadline()
        turn = pack_turn(head)
        with _question():
            answer = self._look(
                get(self._keys.turn),
                get(self._keys.head),
                get_range(self._keys.entries_from(0), limit=1, keys_only=True),
                deadline=deadline,
            )
            self._check_turn(answer, turn, head)
            now = unpack_head(answer.value(1) or b"")
            oldest = answer.found[2]
            below = min(below, now.index)
            first = self._keys.index_of(oldest[0].key) if oldest else below
            while first < below:
                first = min(below, first + _TRIM_ENTRIES_MAX)
                transaction = Transaction(
                    compare=(has_value(self._keys.turn, turn),),
                    success=(
                        delete_range(self._keys.entries_below(first)),
                        delete_range(self._keys.parts_below(first)),
                    ),
                    failure=(get(self._keys.turn),),
                )
                answer = self._run(transaction, deadline)
                if not answer.succeeded:
                    self._check_turn(answer, turn, head)
            self._compact(answer.revision, deadline)

    def _check_turn(self, answer: Answer, turn: bytes, head: Head) -> None:
        found = answer.value(0)
        if found != turn or not answer.succeeded:
            raise FencedError(f"it is not the turn of {head}, but {found!r}")

    def _compact(self, revision: int, deadline: float) -> None:
        """Lets etcd forget what was overwritten or deleted; not each time, as it reads all keys."""
        now = time.monotonic()
        if self._compacted is not None and now - self._compacted < _COMPACT_EVERY_S:
            return
        # It is done again at the next trim, and another door may have been faster.
        with contextlib.suppress(GatewayError):
            self._gateway.call("/v3/kv/compaction", {"revision": str(revision)}, deadline)
        self._compacted = now

    # Members.

    def report(self, member: Member) -> None:
        record = put(self._keys.member(member.name), pack_member(member))
        with _question():
            self._look(record, deadline=self._gateway.deadline())

    def members(self) -> Sequence[Member]:
        with _question():
            answer = self._look(get_range(self._keys.members), deadline=self._gateway.deadline())
            found = [unpack_member(record.value) for record in answer.found[0]]
        return sorted(found, key=lambda member: member.name)

    def forget(self, name: str) -> None:
        with _question():
            self._look(delete(self._keys.member(name)), deadline=self._gateway.deadline())

    # Outside the waist.

    def health(self) -> EngineHealth:
        """Asks each endpoint how it is. Ends within the time of one call."""
        endpoints = self._settings.endpoints
        seconds = self._settings.timeout_s / len(endpoints) / 2
        return EngineHealth("etcd", tuple(self._member(one, seconds) for one in endpoints))

    def _member(self, endpoint: str, seconds: float) -> EngineMember:
        try:
            seen = look_at(self._gateway, endpoint, seconds)
        except (AttemptError, NoSpaceError, GarbledError) as error:
            return EngineMember(endpoint, is_reachable=False, alarms=(str(error),))
        return EngineMember(endpoint, True, seen.is_leader, seen.size, seen.quota, seen.alarms)

    def care(self, head: Head) -> Sequence[str]:
        """Does what etcd's members need now and then, if it is the turn of `head`, and returns what
        that was. May block for a minute. Raises FencedError, UnreachableError,
        DamagedJournalError."""
        with _question():
            return self._care.care(lambda: self._require_turn(head))

    def _require_turn(self, head: Head) -> None:
        answer = self._look(get(self._keys.turn), deadline=self._gateway.deadline())
        self._check_turn(answer, pack_turn(head), head)


def _is_same(now: Head, new: Head) -> bool:
    """Whether `now` is what a change has made; the first claim does not know the log's name."""
    return now == (new if new.log else replace(new, log=now.log))


def _check_chain(stubs: Sequence[Stub], after: int, head: Head) -> None:
    """Raises TrimmedError, GarbledError."""
    if not stubs:
        if head.index > after:
            raise GarbledError(f"entries behind {after} are missing")
        return
    if stubs[0].index != after + 1:
        raise TrimmedError(f"the journal in etcd begins with entry {stubs[0].index}")
    for before, stub in pairwise(stubs):
        if stub.index != before.index + 1 or stub.previous != before.nonce:
            raise GarbledError(f"entry {stub.index} does not follow entry {before.index}")
    newest = stubs[-1]
    if newest.index > head.index or (newest.index == head.index and newest.nonce != head.nonce):
        raise GarbledError(f"entry {newest.index} is not one that the head names")
    if newest.index < head.index and len(stubs) < _READ_ENTRIES_MAX:
        raise GarbledError(f"entries behind {newest.index} are missing")


@contextlib.contextmanager
def _question() -> Iterator[None]:
    """Of a call whose errors mean that it is to be made again."""
    try:
        yield
    except NoSpaceError as error:
        raise JournalFullError(str(error)) from None
    except GatewayError as error:
        raise UnreachableError(str(error)) from None
    except GarbledError as error:
        raise DamagedJournalError(str(error)) from None


@contextlib.contextmanager
def _change() -> Iterator[None]:
    """Of a change whose request may have left."""
    try:
        yield
    except NoSpaceError as error:
        raise JournalFullError(str(error)) from None
    except (GatewayError, GarbledError) as error:
        raise UnknownOutcomeError(str(error)) from None
