"""The tables of the wire and their copies in native/include/braidfs agree."""

import logging
import re
from pathlib import Path

from fsclient.fs import ports
from fscommon import errors, limits
from fscommon.errors import Retry, Status
from fscommon.layout import attributes, capability
from fscommon.native import EventKind
from fscommon.wire import header, messages
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import SPECS, Op

INCLUDE = Path(__file__).parents[2] / "native" / "include" / "braidfs"
CONSTANT = re.compile(r"inline constexpr \w+ k(\w+) = (.+?);")
ENUMERATOR = re.compile(r"^\s+k(\w+) = (\d+),", re.MULTILINE)


def snake(camel: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", camel).upper()


def number(text: str) -> int:
    plain = re.sub(r"uint64_t{([\d']+)}", lambda found: found[1].replace("'", ""), text)
    value, _, shift = re.sub(r"(?<=\d)u\b", "", plain).partition("<<")
    return int(value, 0) << int(shift or 0)


def constants(name: str) -> dict[str, int]:
    found = CONSTANT.findall((INCLUDE / name).read_text())
    pattern = r"(uint64_t{[\d']+}|[\dxa-fu]+)( << \d+)?"
    return {snake(k): number(v) for k, v in found if re.fullmatch(pattern, v)}


def enumerators(name: str, enum: str) -> dict[str, int]:
    text = (INCLUDE / name).read_text()
    body = re.search(rf"enum class {enum} .*?{{(.*?)}};", text, re.DOTALL)
    assert body
    return {snake(k): int(v) for k, v in ENUMERATOR.findall(body.group(1))}


def test_limits() -> None:
    native = constants("limits.h")
    assert len(native) >= 8
    assert native == {name: getattr(limits, name) for name in native}


def test_statuses() -> None:
    native = enumerators("status.h", "Status")
    own = {s.name: s.value for s in Status if s >= 1000}
    assert {name: value for name, value in native.items() if value >= 1000} == own
    for name, value in native.items():
        assert Status(value).name == name


def test_statuses_that_are_safe_to_retry() -> None:
    text = (INCLUDE / "status.h").read_text()
    body = text[text.index("retry_is_safe(Status status)") :]
    native = {snake(name) for name in re.findall(r"case Status::k(\w+):", body)}
    assert native == {s.name for s, outcome in errors.TABLE.items() if outcome.retry is Retry.SAFE}


def test_ops() -> None:
    native = enumerators("frame.h", "Op")
    assert native == {name: Op[name].value for name in native}
    assert {op.name for op in Op if 16 <= op < 64} <= set(native)


def test_header_constants() -> None:
    native = constants("frame.h")
    assert native.pop("FRAME_MAGIC") == header.MAGIC
    assert native.pop("FRAME_VERSION") == header.VERSION
    assert native.pop("COPY_MUST_EXIST") == 1  # only native programs send it to each other
    assert native.pop("RIGHT_READ") == 1
    assert native.pop("RIGHT_WRITE") == 2
    assert native.pop("TARGET_MARK_FACTOR") == capability.TARGET_MARK_FACTOR
    assert native == {name: getattr(header, name) for name in native}


def test_header_fields_lie_where_native_has_them() -> None:
    text = (INCLUDE / "frame.h").read_text()
    body = re.search(r"struct FrameHeader {(.*?)};", text, re.DOTALL)
    assert body
    fields = re.findall(r"uint(\d+)_t (\w+) =", body.group(1))
    skipped = ("magic", "version", "reserved", "header_checksum")
    assert [name for _, name in fields if name not in skipped] == list(header.Header._fields)
    assert sum(int(bits) for bits, _ in fields) == header.HEADER_SIZE * 8


def test_lease_bits() -> None:
    native = constants("leases.h")
    assert len(native) >= 7
    assert native == {name: getattr(attributes, name) for name in native}


def test_commit_flags() -> None:
    native = constants("commit_flags.h")
    assert native.pop("WRITTEN_CUT") == ports.WRITTEN_CUT
    own = {name: value for name, value in vars(messages).items() if name.startswith("COMMIT_")}
    assert native == own


def test_event_kinds() -> None:
    assert enumerators("events.h", "EventKind") == {kind.name: kind.value for kind in EventKind}


def test_log_levels() -> None:
    native = enumerators("events.h", "LogLevel")
    own = {name: getattr(logging, name) for name in ("DEBUG", "WARNING", "ERROR")}
    assert native == {**own, "NOTICE": logging.INFO}


def test_fields_of_attribute_records_lie_where_native_has_them() -> None:
    native = constants("attributes.h")
    assert native.pop("BYTES") == attributes.ATTRIBUTES_SIZE
    assert native.pop("INODE_IMMUTABLE") == attributes.INODE_IMMUTABLE
    places = {name.removesuffix("_ns").upper(): at for name, at in _record_places()}
    assert len(native) >= 18
    assert native == {name: places[name] for name in native}


def _record_places() -> list[tuple[str, int]]:
    """The fields of an attribute record, each with its offset, found by packing them one by one."""
    fields = attributes.Attributes.__slots__
    empty = attributes.pack_fields(*[0] * len(fields))
    places = []
    for at, name in enumerate(fields):
        packed = attributes.pack_fields(*[1 if at == field else 0 for field in range(len(fields))])
        differing = [i for i, (a, b) in enumerate(zip(empty, packed, strict=True)) if a != b]
        places.append((name, differing[0]))
    return places


def test_tables_are_complete() -> None:
    assert set(SPECS) == set(Op)
    assert set(errors.TABLE) == set(Status)
    assert {op for op in Op if not 16 <= op < 64} == set(BODIES)
