"""What `braidfs fsck` shows: text for people, and JSON, which is written fault by fault."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TextIO

from rich.console import Console

from fscommon.wire.fsck import Named

from ..check.tables import Fault, Found, Tables
from .terminal import table
from .words import counted, duration, number, path_of, size

_SHOWN: Final = 20
_KEYS: Final = {
    Fault.ORPHAN: "orphans",
    Fault.MISSING: "missing",
    Fault.DOUBLE: "doubly_named",
    Fault.SHORT: "too_short",
}
_NAMERS: Final = {
    Named.FILE: "a layout",
    Named.INLINE_FILE: "a layout",
    Named.DOOMED: "a file that is being deleted",
    Named.LONE: "an object that is being deleted",
    Named.PLANNED: "a copy that is being made",
    Named.DROPPED: "a replica that was dropped",
}


@dataclass(frozen=True, slots=True)
class Report:
    """unread: targets that could not be read, and why. targets: how many there are. now_ns: since
    1970, for the ages of files."""

    tables: Tables
    unread: dict[int, str]
    targets: int
    older_s: float
    now_ns: int
    is_repair: bool

    @property
    def is_clean(self) -> bool:
        """Nothing is left wrong, and everything was looked at."""
        return not self.unread and all(map(self.is_mended, Fault))

    def is_mended(self, fault: Fault) -> bool:
        tables = self.tables
        return tables.count(fault) == tables.count(fault, is_done=True)

    def found(self, fault: Fault) -> Iterator[Found]:
        return self.tables.found(fault, self.now_ns)

    def path(self, one: Found) -> str | None:
        names = self.tables.path_of(one.ino) if one.ino else None
        return None if names is None else path_of(names)

    def summary(self) -> str:
        counts = {fault: self.tables.count(fault) for fault in Fault}
        total = sum(counts.values())
        files, objects = self.tables.counts.files, self.tables.counts.objects
        looked_at = f"{counted(objects, 'object')} of {counted(files, 'file')}"
        if self.unread:
            looked_at += f", without {counted(len(self.unread), 'target')} that could not be read"
        if not total:
            return f"clean: {looked_at}"
        words = (
            counted(counts[Fault.ORPHAN], "orphan"),
            f"{number(counts[Fault.MISSING])} missing",
            f"{number(counts[Fault.DOUBLE])} doubly named",
            f"{number(counts[Fault.SHORT])} too short",
        )
        mended = sum(self.tables.count(fault, is_done=True) for fault in Fault)
        said = f"{counted(total, 'fault')} in {looked_at}: {', '.join(words)}"
        return f"{said}; {number(mended)} mended" if self.is_repair else said


# ---- JSON ----------------------------------------------------------------------------------------


def write_json(report: Report, out: TextIO) -> None:
    """Writes it piece by piece: there may be millions of faults."""
    counts = report.tables.counts
    out.write("{\n")
    for fault, key in _KEYS.items():
        out.write(f'  "{key}": [')
        separator = "\n"
        for one in report.found(fault):
            out.write(f"{separator}    {json.dumps(_fault_json(report, one))}")
            separator = ",\n"
        out.write("],\n" if separator == "\n" else "\n  ],\n")
    rest = {
        "orphan_bytes": report.tables.bytes_of(Fault.ORPHAN),
        "lacking": {"files": counts.lacking[0], "replicas": counts.lacking[1]},
        "left_out": {
            "young_objects": counts.young[0],
            "young_bytes": counts.young[1],
            "younger_than_s": report.older_s,
            "objects_being_made": counts.being_made,
            "files_being_written": counts.being_written,
            "changed_meanwhile": counts.changed,
        },
        "files": counts.files,
        "objects": counts.objects,
        "targets": report.targets,
        "unread": {str(target): why for target, why in report.unread.items()},
        "mended": sum(report.tables.count(fault, is_done=True) for fault in Fault),
        "clean": report.is_clean,
        "summary": report.summary(),
    }
    out.write(json.dumps(rest, indent=2)[2:] + "\n")


def _fault_json(report: Report, one: Found) -> dict[str, Any]:
    row: dict[str, Any] = {
        "target": one.name.target,
        "file_id": one.name.file_id,
        "stripe": one.stripe,
        "generation": one.generation,
    }
    if one.fault is Fault.ORPHAN:
        row |= {"bytes": one.bytes, "age_s": one.age_s}
    else:
        row |= {"ino": one.ino, "path": report.path(one)}
    if one.fault in (Fault.MISSING, Fault.SHORT):
        row |= {"bytes": one.has, "bytes_wanted": one.wanted, "other_replica": one.has_other}
    if one.fault is Fault.DOUBLE:
        namers = report.tables.namers(one.name)
        row["named_by"] = [{"what": _NAMERS[kind], "ino": ino or None} for kind, ino in namers]
    return row | {"mended": one.is_done, "not_mended_because": one.why or None}


def former_json(report: Report) -> dict[str, Any]:
    """What --stray has shown since it exists."""
    tables = report.tables
    strays = [
        {
            "target": one.name.target,
            "file_id": one.name.file_id,
            "stripe": one.name.number,
            "bytes": one.bytes,
            "age_s": one.age_s,
        }
        for one in report.found(Fault.ORPHAN)
    ]
    return {
        "objects": tables.counts.objects,
        "stray": strays,
        "stray_bytes": tables.bytes_of(Fault.ORPHAN),
        "deleted": tables.count(Fault.ORPHAN, is_done=True),
        "unread": {str(target): why for target, why in report.unread.items()},
        "not_deleted": {
            str(one.name.target): one.why for one in report.found(Fault.ORPHAN) if one.why
        },
    }


# ---- text ----------------------------------------------------------------------------------------


def print_report(console: Console, report: Report) -> None:
    for fault in Fault:
        _print_fault(console, report, fault)
    _print_rest(console, report)
    console.print(report.summary(), markup=False)


_TITLES: Final = {
    Fault.ORPHAN: "orphans: objects that nothing names",
    Fault.MISSING: "missing: objects that a layout names, and that their targets do not have",
    Fault.DOUBLE: "doubly named: objects that a layout names, and something else",
    Fault.SHORT: "too short: objects that end before what they must hold",
}


def _print_fault(console: Console, report: Report, fault: Fault) -> None:
    count = report.tables.count(fault)
    if not count:
        return
    console.print(f"{_TITLES[fault]}: {number(count)}", markup=False)
    rows = [_row(report, one) for one in islice(report.found(fault), _SHOWN)]
    columns = ["target", "object", "bytes", "unchanged for"]
    if fault is not Fault.ORPHAN:
        columns = ["target", "object", "bytes", "of", "other replica", "path"]
    if fault is Fault.DOUBLE:
        columns = ["target", "object", "named by", "path"]
    if report.is_repair:
        columns.append("mended")
    console.print(table(columns, rows, right="target,bytes,of,unchanged for"))
    if count > _SHOWN:
        console.print(f"… and {number(count - _SHOWN)} more: --json has all of them")
    console.print()


def _row(report: Report, one: Found) -> list[str]:
    name = f"{one.name.file_id:016x}.{one.name.number:x}"  # as on the disk
    row = [str(one.name.target), name]
    path = report.path(one) or f"inode {one.ino}"
    if one.fault is Fault.ORPHAN:
        row += [size(one.bytes), duration(one.age_s)]
    elif one.fault is Fault.DOUBLE:
        named = (
            f"{_NAMERS[kind]} of inode {ino}" if ino else _NAMERS[kind]
            for kind, ino in report.tables.namers(one.name)
        )
        row += [", ".join(named), path]
    else:
        other = "has it" if one.has_other else "-"
        row += [size(one.has), size(one.wanted), other, path]
    if report.is_repair:
        row.append("yes" if one.is_done else f"no: {one.why or 'by hand'}")
    return row


def _print_rest(console: Console, report: Report) -> None:
    counts = report.tables.counts
    files, replicas = counts.lacking
    if files:
        console.print(
            f"{counted(files, 'file')} lack {counted(replicas, 'replica')}, which are made by "
            "themselves (braidfs find :/ --degraded)"
        )
    left_out = []
    if counts.young[0]:
        young = f"{counted(counts.young[0], 'object')} ({size(counts.young[1])}) without a name"
        left_out.append(f"{young} that changed in the last {duration(report.older_s)}")
    if counts.being_made:
        left_out.append(f"{counted(counts.being_made, 'object')} of files that clients make")
    if counts.being_written:
        left_out.append(f"the replicas of {counted(counts.being_written, 'file')} being written")
    if counts.changed:
        left_out.append(f"{number(counts.changed)} that looked wrong only once")
    if left_out:
        console.print(f"left out: {'; '.join(left_out)}", markup=False)
    for target, why in report.unread.items():
        console.print(f"target {target} could not be read: {why}", markup=False)


def print_former(console: Console, report: Report, *, delete: bool) -> None:
    tables = report.tables
    count, total = tables.count(Fault.ORPHAN), size(tables.bytes_of(Fault.ORPHAN))
    console.print(f"{counted(tables.counts.objects, 'object')}, {number(count)} stray ({total})")
    _print_fault(console, report, Fault.ORPHAN)
    if delete:
        deleted = tables.count(Fault.ORPHAN, is_done=True)
        console.print(f"{counted(deleted, 'object')} deleted")
    for target, why in report.unread.items():
        console.print(f"target {target} could not be read: {why}", markup=False)
