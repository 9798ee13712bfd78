"""Frames of data operations: each field of the header at each of its bounds, bodies with every kind
of capability, wrong lengths and checksums, and all of it at random.

Everything follows from the header's fields and from the op table; unknown ops are sent as well. A
frame whose lengths do not match what follows it is the last one of its connection.
"""

import hmac
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from fscommon.checksum import block_sums, xxh3_64
from fscommon.errors import ProtocolError
from fscommon.layout.capability import (
    CAPABILITY_SIZE,
    RIGHT_READ,
    RIGHT_WRITE,
    TARGET_MARK_FACTOR,
    make_capability,
)
from fscommon.layout.layout import VACANT, Layout
from fscommon.limits import (
    BLOCK_SIZE,
    DELETE_ALL_MAX,
    DROP_NAMES_MAX,
    FRAME_BODY_LENGTH_MAX,
    FRAME_PAYLOAD_LENGTH_MAX,
    GENERATION_SHIFT,
    OBJECT_BYTES_MAX,
)
from fscommon.wire.header import (
    FLAG_CAPABILITY,
    FLAG_MUST_EXIST,
    FLAG_RAW,
    FLAG_SUMS,
    HEADER_SIZE,
    Header,
    decode_header,
)
from fscommon.wire.ops import Op

# Widths of the header's fields in bits, as struct packs them.
FIELDS: Final = {
    "flags": 16,
    "request_id": 64,
    "file_id": 64,
    "stripe_index": 32,
    "target": 32,
    "offset": 64,
    "length": 32,
    "payload_length": 32,
    "body_length": 32,
    "epoch": 32,
    "status": 16,
    "map_epoch": 32,
    "body_checksum": 64,
}
_LENGTHS: Final = ("payload_length", "body_length")
_EDGES: Final = (
    0,
    1,
    2,
    3,
    63,
    64,
    65,
    BLOCK_SIZE - 1,
    BLOCK_SIZE,
    BLOCK_SIZE + 1,
    DELETE_ALL_MAX,
    DELETE_ALL_MAX + 1,
    DROP_NAMES_MAX,
    DROP_NAMES_MAX + 1,
    FRAME_BODY_LENGTH_MAX,
    FRAME_BODY_LENGTH_MAX + 1,
    FRAME_PAYLOAD_LENGTH_MAX,
    FRAME_PAYLOAD_LENGTH_MAX + 1,
    OBJECT_BYTES_MAX - 1,
    OBJECT_BYTES_MAX,
    OBJECT_BYTES_MAX + 1,
    OBJECT_BYTES_MAX - BLOCK_SIZE,
)
_DATA_OPS: Final = tuple(op for op in Op if 16 <= op < 64)
# They are unknown ops, and ops of the handshake, of the metaserver and of administrators.
_OTHERS: Final = (0, 1, 2, 4, 5, 15, 30, 63, 64, 100, 107, 200, 230, 232, 236, 237, 254, 255)
CODES: Final = (Op.PING, *_DATA_OPS, *_OTHERS)
_NOBODY: Final = 0xDEAD_BEEF_0000  # no file has this id; nor the next one
_PAYLOAD: Final = 5000
_SOURCE: Final = struct.Struct("<QQIIII")
_NAME: Final = struct.Struct("<QII")
_FETCHED: Final = struct.Struct("<II")
_SUM: Final = struct.Struct("<Q")
_CAPABILITY: Final = struct.Struct("<QQIIQHHIQ")
_BOTH: Final = RIGHT_READ | RIGHT_WRITE
_NEEDS: Final[dict[int, int]] = {
    Op.READ: RIGHT_READ,
    Op.WRITE: RIGHT_WRITE,
    Op.SYNC: 0,
    Op.PUNCH: RIGHT_WRITE,
    Op.STAT: RIGHT_READ,
    Op.SEEK: RIGHT_READ,
    Op.COPY: _BOTH,
}


@dataclass(frozen=True, slots=True)
class File:
    layout: Layout
    rights: int  # the attacker has these rights


@dataclass(frozen=True, slots=True)
class Holder:
    """An attacker: its session, the capabilities that it got, and what it knows of others.

    `key` is the capability key, with which a test makes capabilities that the metaserver would
    never give.
    """

    session: int
    key: bytes
    files: tuple[File, ...]
    others: tuple[Layout, ...] = ()  # it has no capability for these
    spared: frozenset[int] = frozenset()  # they are file ids that it does not name
    is_server: bool = False  # its requests need no capability


@dataclass(frozen=True, slots=True)
class Case:
    """One frame as it is sent. `is_last`: its lengths are wrong, so no later bytes are a frame."""

    op: int
    raw: bytes
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
    header: Header
    body: bytes = b""
    payload: bytes = b""

    def pack(self) -> bytes:
        checksum = xxh3_64(self.body) if self.body else 0
        sealed = self.header._replace(
            body_length=len(self.body), payload_length=len(self.payload), body_checksum=checksum
        )
        return sealed.encode() + self.body + self.payload

    def pack_as_said(self) -> bytes:
        return self.header.encode() + self.body + self.payload


class Maker:
    def __init__(self, rng: random.Random, holder: Holder) -> None:
        self._rng = rng
        self._holder = holder
        self._ids = 1 << 40  # no bound has this value

    def cases(self, op: int, count: int) -> list[Case]:
        """A third each: bounds and broken frames, capabilities, and random ones."""
        some = max(count // 3, 1)
        bounds = [*self._at_each_bound(op), *self._broken(op)]
        proofs = list(self._with_each_capability(op))
        chosen = [Case(op, self._good(op).pack())]
        for kind in (bounds, proofs):
            chosen += self._rng.sample(kind, min(some, len(kind)))
        chosen += [self._any(op) for _ in range(some)]
        self._rng.shuffle(chosen)
        return chosen

    # ---- good ones ----

    def _good(self, op: int) -> _Parts:
        file = self._rng.choice(self._holder.files)
        stripe_index = self._rng.randrange(file.layout.stripe_width)
        self._ids += 1
        header = Header(
            op,
            request_id=self._ids,
            file_id=file.layout.file_id,
            stripe_index=stripe_index,
            target=file.layout.targets[stripe_index],
            epoch=file.layout.truncate_epoch,
        )
        return self._filled(header, self._capability(file))

    def _filled(self, header: Header, capability: bytes) -> _Parts:
        """A frame with the body and payload that such an op has; `length` of the header is used if
        it is possible."""
        if header.op == Op.DELETE_ALL:
            count = min(header.length or 2, DELETE_ALL_MAX)
            name = _NAME.pack(header.file_id, header.stripe_index & 63, 0)
            return _Parts(header._replace(length=count), name * count)
        if header.op == Op.DROP_NAMES:
            count = min(header.length or 2, DROP_NAMES_MAX)
            replica = (header.stripe_index & 63) | 1 << GENERATION_SHIFT
            return _Parts(
                header._replace(length=count), _NAME.pack(header.file_id, replica, 0) * count
            )
        if header.op == Op.FETCH:
            count = min(header.length or 2, 256)
            fetched = capability + _FETCHED.pack(header.stripe_index, 4096)
            return _Parts(header._replace(length=count), fetched * count)
        if not _takes_capability(header.op):
            return _Parts(header)
        return self._capable(header, capability)

    def _capable(self, header: Header, capability: bytes) -> _Parts:
        flags = 0 if self._holder.is_server else FLAG_CAPABILITY
        body = b"" if self._holder.is_server else capability
        match header.op:
            case Op.WRITE:
                return self._write(header, flags, body)
            case Op.READ | Op.PUNCH:
                return _Parts(header._replace(flags=flags, length=header.length or 4096), body)
            case Op.COPY:
                offset = header.offset // BLOCK_SIZE * BLOCK_SIZE
                length = max(header.length // BLOCK_SIZE, 1) * BLOCK_SIZE
                source = _SOURCE.pack(
                    header.file_id,
                    0,
                    header.stripe_index,
                    header.target,
                    0,
                    (header.epoch + 1) & 0xFFFF_FFFF,
                )
                copy = header._replace(flags=flags, offset=offset, length=length)
                return _Parts(copy, body + source + body)
            case _:
                return _Parts(header._replace(flags=flags), body)

    def _write(self, header: Header, flags: int, body: bytes) -> _Parts:
        length = header.length if 0 < header.length <= 1 << 20 else _PAYLOAD
        payload = self._rng.randbytes(length)
        sums = b"".join(_SUM.pack(one) for one in block_sums(header.offset, payload))
        return _Parts(header._replace(flags=flags | FLAG_SUMS, length=length), body + sums, payload)

    # ---- capabilities ----

    def _capability(self, file: File, **wrong: int) -> bytes:
        return make_capability(
            self._holder.key,
            layout=file.layout.pack(),
            session=wrong.get("session", self._holder.session),
            rights=wrong.get("rights", file.rights),
            map_epoch=wrong.get("map_epoch", 1),
            ino=wrong.get("ino", file.layout.file_id),
        )

    def _capabilities(self, file: File) -> Iterator[bytes]:
        """None of these allows more than `file.rights` to the objects of `file`."""
        good = self._capability(file)
        yield good
        for other in self._holder.files:
            yield self._capability(other)
        for rights in {0, file.rights & RIGHT_READ, file.rights & RIGHT_WRITE}:
            yield self._capability(file, rights=rights)
        for session in (0, 1, self._holder.session ^ 1, (1 << 64) - 1):
            yield self._capability(file, session=session)
        for width in {1, file.layout.stripe_width}:
            layout = replace(
                file.layout,
                file_id=_NOBODY,
                stripe_width=width,
                targets=file.layout.targets[:width],
            )
            yield self._capability(File(layout, file.rights))
        # One that reads may name any generation: a right to write would make objects of no layout.
        yield self._capability(File(_replicated(file.layout), file.rights & RIGHT_READ))
        for epoch in (1, (1 << 32) - 1):
            yield self._capability(File(replace(file.layout, truncate_epoch=epoch), file.rights))
        for bit in self._rng.sample(range(len(good) * 8), 24):
            flipped = bytearray(good)
            flipped[bit // 8] ^= 1 << bit % 8
            yield bytes(flipped)
        for layout in self._holder.others:
            forged = bytearray(good)
            forged[:8] = layout.file_id.to_bytes(8, "little")
            yield bytes(forged)
        yield from (bytes(64), b"\xff" * 64, good[:48] + bytes(16))

    def _with_each_capability(self, op: int) -> Iterator[Case]:
        if self._holder.is_server or not _takes_capability(op):
            return
        for file in self._holder.files:
            for capability in self._capabilities(file):
                for named in self._named(file):
                    self._ids += 1
                    header = named._replace(op=op, request_id=self._ids)
                    yield Case(op, self._filled(header, capability).pack())

    def _named(self, file: File) -> Iterator[Header]:
        """Objects for which the capability of a file might be used."""
        targets = file.layout.targets
        epoch = file.layout.truncate_epoch
        good = Header(0, file_id=file.layout.file_id, target=targets[0], epoch=epoch)
        yield good
        yield good._replace(stripe_index=len(targets))
        yield good._replace(stripe_index=63)
        for generation in (1, (1 << 24) - 1):
            yield good._replace(stripe_index=generation << GENERATION_SHIFT)
            yield good._replace(stripe_index=len(targets) | generation << GENERATION_SHIFT)
        yield good._replace(target=targets[-1])
        yield good._replace(epoch=(1 << 32) - 1)
        yield good._replace(file_id=_NOBODY + 1)
        for layout in self._holder.others:
            yield good._replace(file_id=layout.file_id, target=layout.targets[0])

    # ---- bounds ----

    def _bounds(self, field: str) -> list[int]:
        top = 1 << FIELDS[field]
        numbers = {top - 1, top - 2, top >> 1, (top >> 1) - 1, (top >> 1) + 1, *_EDGES}
        if field == "file_id":
            numbers.update(file.layout.file_id for file in self._holder.files)
            numbers.update(layout.file_id for layout in self._holder.others)
            numbers -= self._holder.spared
        if field == "flags":
            numbers.update(1 << bit for bit in range(16))
        return sorted(number for number in numbers if 0 <= number < top)

    def _at_each_bound(self, op: int) -> Iterator[Case]:
        for field in FIELDS:
            for value in self._bounds(field):
                good = self._good(op)
                sealed = _sealed(good)
                said = replace(good, header=sealed._replace(**{field: value}))
                is_last = field in _LENGTHS and value != getattr(sealed, field)
                yield Case(op, said.pack_as_said(), is_last)
                if field in ("length", "offset"):  # it is tried with the fields that belong to it
                    parts = self._filled(good.header._replace(**{field: value}), good.body[:64])
                    yield Case(op, parts.pack())
                if field == "flags":  # they are tried beside the flags that it needs
                    header = good.header._replace(flags=good.header.flags ^ value)
                    yield Case(op, replace(good, header=header).pack())

    def _broken(self, op: int) -> Iterator[Case]:
        """A frame that is invalid in one place, or a body of another shape."""
        good = self._good(op)
        raw = good.pack()
        for place in (0, 3, 4, 58, 59, 64, 71, 72, 79):
            flipped = bytearray(raw)
            flipped[place] ^= 0x41
            yield Case(op, bytes(flipped), is_last=True)
        for body in (b"", good.body[:-1], good.body + b"\0", good.body * 2, bytes(4096)):
            yield Case(op, replace(good, body=body).pack())
        wrong_sums = good.body[:-8] + bytes(8)
        yield Case(op, replace(good, body=wrong_sums).pack())
        yield Case(op, replace(good, payload=good.payload + b"x").pack())
        yield Case(op, replace(good, payload=good.payload[:-1]).pack())
        yield Case(op, raw[: len(raw) // 2], is_last=True)

    # ---- at random ----

    def _any(self, op: int) -> Case:
        rng = self._rng
        file = rng.choice(self._holder.files)
        header = self._good(op).header
        for field in rng.sample([f for f in FIELDS if f not in _LENGTHS], rng.randrange(4)):
            value = rng.choice(self._bounds(field))
            if rng.random() < 0.3 and field != "file_id":
                value = rng.getrandbits(FIELDS[field])
            header = header._replace(**{field: value})
        if header.op == Op.FENCE and self._holder.is_server:
            header = header._replace(offset=0)  # this one ends sessions, and is allowed to
        capability = self._capability(file)
        if rng.random() < 0.5:
            capability = rng.choice(list(self._capabilities(file)))
        parts = self._filled(header, capability)
        if rng.random() < 0.3:
            extra = rng.choice((FLAG_MUST_EXIST, FLAG_RAW, 1 << rng.randrange(16)))
            parts = replace(parts, header=parts.header._replace(flags=parts.header.flags ^ extra))
        if rng.random() < 0.1 and parts.body:
            body = bytearray(parts.body)
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            parts = replace(parts, body=bytes(body))
        return Case(op, parts.pack())


def _sealed(parts: _Parts) -> Header:
    checksum = xxh3_64(parts.body) if parts.body else 0
    return parts.header._replace(
        body_length=len(parts.body), payload_length=len(parts.payload), body_checksum=checksum
    )


def _replicated(layout: Layout) -> Layout:
    """The same with two replicas of each stripe, of which one is vacant."""
    targets = tuple(target for one in layout.targets for target in (VACANT, one))
    generations = (0, 1) * layout.stripe_width
    return replace(
        layout, targets=targets, replica_count=2, generations=generations, generation_last=1
    )


def _takes_capability(op: int) -> bool:
    return op in _NEEDS or op == Op.FETCH


def may_succeed(holder: Holder, raw: bytes) -> bool:
    """Whether this frame may be answered with OK, by docs/INTERFACES.md.

    An op that changes or reveals anything of an object may succeed if its capability is the
    metaserver's, this session's, and for the object.
    """
    try:
        header = decode_header(raw[:HEADER_SIZE])
    except ProtocolError:
        return False
    if header.op in (Op.PING, Op.FETCH):
        return True
    if holder.is_server:
        return header.op in _DATA_OPS
    needs = _NEEDS.get(header.op)
    return needs is not None and _allows(
        holder, raw[HEADER_SIZE : HEADER_SIZE + CAPABILITY_SIZE], header, needs
    )


def _allows(holder: Holder, capability: bytes, header: Header, needs: int) -> bool:
    if len(capability) < CAPABILITY_SIZE:
        return False
    signed, mac = capability[: _CAPABILITY.size], capability[_CAPABILITY.size :]
    file_id, session, rights, _, _, width, places, epoch, marks = _CAPABILITY.unpack(signed)
    is_proved = hmac.digest(holder.key, signed, "sha256")[: len(mac)] == mac
    generation, stripe_index = divmod(header.stripe_index, 1 << GENERATION_SHIFT)
    replicas = max(places, 1)
    all_places = width * replicas
    first = stripe_index * replicas
    is_covered = width == 0 or (
        stripe_index < width
        and (places > 0 or generation == 0)
        and (not needs & RIGHT_WRITE or header.epoch <= epoch)
        and any(
            _mark_of(header.target, all_places) == _marked(marks, place, all_places)
            for place in range(first, first + replicas)
        )
    )
    return (
        is_proved
        and is_covered
        and (file_id, session) == (header.file_id, holder.session)
        and rights & needs == needs
    )


def _bits(places: int) -> int:
    return min(32, 64 // places)


def _mark_of(target: int, places: int) -> int:
    return int((target * TARGET_MARK_FACTOR & 0xFFFF_FFFF) >> 32 - _bits(places))


def _marked(marks: int, place: int, places: int) -> int:
    return int(marks >> place * _bits(places) & (1 << _bits(places)) - 1)
