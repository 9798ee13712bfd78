"""The keys and values that a journal has in etcd (etcd.py says what each is for). Pure.

Values are lines of plain words, so that `etcdctl get` shows them to people; each begins with the
number of its layout. The same object has one form only, because transactions compare values.
"""

import json
from dataclasses import dataclass
from typing import Final

from metaserver.store.journal import NO_NONCE, NONCE_SIZE, PAYLOAD_MAX, Entry, Head, Member
from metaserver.store.journals.etcd_gateway import GarbledError

INLINE_MAX: Final = 16 << 10  # bytes of a payload that is kept with its entry
PART_SIZE: Final = 1 << 20  # of layout 1: readers compute from it how many parts there are
_LAYOUT: Final = "1"
_LOG_SIZE: Final = 16
_INDEX_MAX: Final = (1 << 64) - 1
_DIGITS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `first` on, below `end`."""

    first: bytes
    end: bytes


class Keys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.head = self._key("head")
        self.turn = self._key("turn")
        self.beats = self._key("beats")
        self.members = KeyRange(self._key("members/"), self._key("members0"))  # "0" follows "/"

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}/{name}".encode()

    def entry(self, index: int) -> bytes:
        return self._key(f"entries/{min(index, _INDEX_MAX):016x}")

    def part(self, index: int, nonce: bytes, number: int) -> bytes:
        return self._key(f"parts/{index:016x}/{nonce.hex()}/{number:04x}")

    def entries_from(self, index: int) -> KeyRange:
        return KeyRange(self.entry(index), self._key("entries0"))

    def entries_below(self, index: int) -> KeyRange:
        return KeyRange(self._key("entries/"), self.entry(index))

    def parts_below(self, index: int) -> KeyRange:
        return KeyRange(self._key("parts/"), self._key(f"parts/{index:016x}"))

    def index_of(self, entry_key: bytes) -> int:
        """Raises GarbledError."""
        digits = entry_key.removeprefix(self._key("entries/"))
        try:
            index = int(digits, 16)
        except ValueError:
            index = -1
        if index < 0 or self.entry(index) != entry_key:
            raise GarbledError("a key of an entry has no index")
        return index

    def member(self, name: str) -> bytes:
        return self._key(f"members/{name}")


@dataclass(frozen=True, slots=True)
class Stub:
    """An entry whose payload may still have to be fetched: then `inline` is None."""

    index: int
    term: int
    nonce: bytes
    previous: bytes
    size: int
    inline: bytes | None = None

    def entry(self, payload: bytes) -> Entry:
        return Entry(self.index, self.term, self.nonce, self.previous, payload)


def part_count(size: int) -> int:
    """How many parts a payload of that size has."""
    return 0 if size <= INLINE_MAX else -(-size // PART_SIZE)


def pack_head(head: Head) -> bytes:
    words = (_LAYOUT, head.log.hex(), head.term, head.index, head.nonce.hex(), head.owner)
    return " ".join(map(str, words)).encode()


def unpack_head(raw: bytes) -> Head:
    """Raises GarbledError."""
    words = _text(raw).split(" ", 5)
    if len(words) != 6:
        raise GarbledError("the head is garbled")
    _, log, term, index, nonce, owner = words
    head = Head(_unhex(log), _number(term), _number(index), _unhex(nonce), owner)
    if pack_head(head) != raw or len(head.log) != _LOG_SIZE or len(head.nonce) != NONCE_SIZE:
        raise GarbledError("the head is garbled, or of a later release")
    if not head.index and head.nonce != NO_NONCE:
        raise GarbledError("the head has a nonce without an entry")
    return head


def pack_turn(head: Head) -> bytes:
    return f"{_LAYOUT} {head.log.hex()} {head.term} {head.owner}".encode()


def pack_entry(stub: Stub) -> bytes:
    words = (_LAYOUT, stub.term, stub.nonce.hex(), stub.previous.hex(), stub.size)
    return " ".join(map(str, words)).encode() + b"\n" + (stub.inline or b"")


def unpack_entry(index: int, raw: bytes) -> Stub:
    """Raises GarbledError."""
    line, _, rest = raw.partition(b"\n")
    words = _text(line).split(" ")
    if len(words) != 5:
        raise GarbledError(f"entry {index} is garbled")
    _, term, nonce, previous, size_text = words
    size = _number(size_text)
    inline = rest if size <= INLINE_MAX else None
    stub = Stub(index, _number(term), _unhex(nonce), _unhex(previous), size, inline)
    if pack_entry(stub) != raw or size > PAYLOAD_MAX or (inline is not None and len(rest) != size):
        raise GarbledError(f"entry {index} is garbled, or of a later release")
    if len(stub.nonce) != NONCE_SIZE or len(stub.previous) != NONCE_SIZE:
        raise GarbledError(f"entry {index} has a nonce of another size")
    return stub


def pack_member(member: Member) -> bytes:
    fields = [member.address, member.log.hex(), member.applied, member.reports]
    if member.kept:  # which is rare: a release that does not know it reads all others
        fields.append(member.kept)
    return f"{_LAYOUT} {json.dumps([member.name, *fields])}".encode()


def unpack_member(raw: bytes) -> Member:
    """Raises GarbledError."""
    layout, _, text = _text(raw).partition(" ")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    kinds = (str, str, str, int, int, str)
    if layout != _LAYOUT or not isinstance(fields, list) or len(fields) not in (5, 6):
        raise GarbledError("what a metaserver reported is garbled")
    if tuple(map(type, fields)) != kinds[: len(fields)]:
        raise GarbledError("what a metaserver reported is garbled")
    name, address, log, applied, reports, *kept = fields
    return Member(name, address, _unhex(log), applied, reports, *kept)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise GarbledError("a value is not text") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise GarbledError("a value lacks a number")
    return int(text)


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise GarbledError("a value lacks bytes in hexadecimal") from None
