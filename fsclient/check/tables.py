"""What a look has found, in a temporary SQLite file, so that any number of objects needs little
memory; and what does not fit together.

There are two looks. Each fills the tables anew, and only suspects of both are faults. No clock of
two hosts is compared for that, but the order of the looks: the names of the first one are read
before objects are listed, those of the second one behind. So an object was missing while it was
named, and one that nothing names had no name when it was there already.

Numbers of 64 bits are stored as SQLite has them, with a sign.
"""

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from fscommon.layout.layout import Layout, object_length, replicas_wanted, unpack_layout
from fscommon.limits import BLOCK_SIZE, GENERATION_SHIFT, OBJECT_BYTES_MAX
from fscommon.wire.fsck import FileRow, Named, NameRow
from fscommon.wire.objects import END_UNKNOWN, ObjectRow

_STRIPE_MASK: Final = (1 << GENERATION_SHIFT) - 1
_CACHE_KIB: Final = 64 << 10
_HALF: Final = 1 << 63
_LAYOUTS: Final = f"({Named.FILE:d}, {Named.INLINE_FILE:d})"
_OTHERS: Final = f"({Named.DOOMED:d}, {Named.LONE:d}, {Named.PLANNED:d}, {Named.DROPPED:d})"
_LOOK: Final = {
    "file": "ino, file_id, epoch, size, mtime, ctime",
    "name": "kind, target, file_id, number, ino, replicas, durable, must",
    "written": "ino",
    "intent": "file_id",
    "object": "target, file_id, number, bytes, age, reach",
    "readable": "target",
    "length": "target, file_id, number, length, state",
}
_SUSPECT: Final = (
    "kind, target, file_id, number, ino, bytes, age, has, wanted, stamp, has_other, why, done"
)
# An object, as it is joined: a name and what is known of it.
_SAME: Final = "{0}.file_id = {1}.file_id AND {0}.number = {1}.number AND {0}.target = {1}.target"


class Fault(StrEnum):
    ORPHAN = "orphan"  # an object that nothing names
    MISSING = "missing"  # an object that a layout names, and that must be there
    DOUBLE = "doubly named"  # an object that is named twice
    SHORT = "too short"  # an object that ends before what must be there


class Length(NamedTuple):
    """What an object holds. length: up to where it can be read."""

    length: int
    state: int


THERE: Final = 0
NO_OBJECT: Final = 1
CUT: Final = 2  # its records say that it has more, which is gone


class ObjectId(NamedTuple):
    target: int
    file_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Found:
    """A fault. bytes, age_s: of the object, if it is there; otherwise age_s is that of the file's
    last change. has, wanted: bytes. has_other: another replica has all of it. why: that it was not
    mended; done: that it was."""

    fault: Fault
    name: ObjectId
    ino: int
    bytes: int
    age_s: float
    has: int
    wanted: int
    has_other: bool
    why: str
    is_done: bool

    @property
    def stripe(self) -> int:
        return self.name.number & _STRIPE_MASK

    @property
    def generation(self) -> int:
        return self.name.number >> GENERATION_SHIFT


@dataclass(slots=True)
class Counts:
    """files: with objects. lacking: files, and replicas that they lack. young: objects, and their
    bytes. being_made: objects of files that clients have not told of. being_written: files whose
    replicas were not compared. changed: what looked wrong once, and was not any more."""

    files: int = 0
    objects: int = 0
    lacking: tuple[int, int] = (0, 0)
    young: tuple[int, int] = (0, 0)
    being_made: int = 0
    being_written: int = 0
    changed: int = 0


class Tables:
    """Closed by `close`; the file is gone then. Raises OSError without room."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="braidfs-fsck-")
        path = Path(self._folder.name) / "found"
        self._db = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            f"CREATE TABLE suspect ({_SUSPECT}, PRIMARY KEY (kind, file_id, number, target))"
        )
        self._db.execute("CREATE INDEX suspect_ino ON suspect (ino)")
        self._db.execute("CREATE INDEX suspect_file ON suspect (file_id)")
        self._db.execute("CREATE TABLE entry (ino INTEGER PRIMARY KEY, parent, name)")
        self._db.execute("CREATE TABLE slot (file_id INTEGER PRIMARY KEY)")
        self.counts = Counts()
        self.begin_look()

    def close(self) -> None:
        self._db.close()
        self._folder.cleanup()

    def begin_look(self) -> None:
        """Forgets what the last look has seen, but not the suspects."""
        for table, columns in _LOOK.items():
            self._db.execute(f"DROP TABLE IF EXISTS {table}")
            self._db.execute(f"CREATE TABLE {table} ({columns})")
        self._db.execute("DROP TABLE IF EXISTS stripe")
        self._lacking_files = self._lacking_replicas = 0

    # ---- what a look sees ----------------------------------------------------------------

    def add_names(self, rows: Iterable[tuple[Named, object]]) -> None:
        self._db.execute("BEGIN")
        for kind, row in rows:
            if isinstance(row, FileRow):
                self._add_file(kind, row)
            elif isinstance(row, NameRow):
                place = kind, row.target, _signed(row.file_id), row.number
                self._insert("name", [(*place, 0, 0, 0, 0)])
            elif isinstance(row, bytes):
                self._add_layout(kind, unpack_layout(row))
            elif isinstance(row, int):
                self._insert("written", [(_signed(row),)])
        self._db.execute("COMMIT")

    def _add_file(self, kind: Named, row: FileRow) -> None:
        layout = unpack_layout(row.layout)
        counts = [0] * layout.stripe_width
        replicas = list(layout.replicas())
        for one in replicas:
            counts[one.stripe_index] += 1
        ino, file_id = _signed(row.ino), _signed(layout.file_id)
        is_inline = kind is Named.INLINE_FILE
        self._insert(
            "name",
            [
                (
                    *(kind, one.target, file_id, one.object_number, ino),
                    counts[one.stripe_index],
                    0 if is_inline else layout.durable_stripes >> one.stripe_index & 1,
                    0 if is_inline else _must_hold(layout, one.stripe_index, row.size),
                )
                for one in replicas
            ],
        )
        if is_inline:
            return
        stamp = layout.truncate_epoch, row.size, row.mtime_ns, row.ctime_ns
        self._insert("file", [(ino, file_id, *stamp)])
        lacks = sum(max(0, replicas_wanted(layout) - count) for count in counts)
        self._lacking_replicas += lacks
        self._lacking_files += lacks > 0

    def _add_layout(self, kind: Named, layout: Layout) -> None:
        """Of a file that is gone, or that is being cut."""
        file_id = _signed(layout.file_id)
        if kind is Named.INTENT:
            self._insert("intent", [(file_id,)])
        rows = [
            (kind, one.target, file_id, one.object_number, 0, 0, 0, 0) for one in layout.replicas()
        ]
        self._insert("name", rows)

    def add_entry(self, ino: int, parent: int, name: bytes) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO entry VALUES (?, ?, ?)", (_signed(ino), _signed(parent), name)
        )

    def add_slots(self, file_ids: Iterable[int]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO slot VALUES (?)", ((_signed(one),) for one in file_ids)
        )

    def add_objects(self, target: int, rows: Sequence[ObjectRow]) -> None:
        self._db.execute("BEGIN")
        self._insert(
            "object",
            [
                (
                    *(target, _signed(row.file_id), row.stripe_index, row.bytes, row.age_s),
                    None if row.end == END_UNKNOWN else row.end,
                )
                for row in rows
            ],
        )
        self._db.execute("COMMIT")

    def add_lengths(self, found: Iterable[tuple[ObjectId, Length]]) -> None:
        self._db.execute("BEGIN")
        rows = [(n.target, _signed(n.file_id), n.number, *length) for n, length in found]
        self._insert("length", rows)
        self._db.execute("COMMIT")

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({places})", rows)

    # ---- what is to be asked -------------------------------------------------------------

    def listed(self, readable: Iterable[int]) -> None:
        """All objects of these targets are here, of the others maybe some."""
        self._insert("readable", [(target,) for target in readable])
        for table, columns in (
            ("name", "file_id, number, target"),
            ("object", "file_id, number, target"),
            ("file", "ino"),
            ("written", "ino"),
            ("intent", "file_id"),
        ):
            self._db.execute(f"CREATE INDEX {table}_index ON {table} ({columns})")

    def unknown_targets(self, known: Iterable[int]) -> list[int]:
        """Targets that layouts name, and that are not among these. A file with inline bytes gets
        others with its first object, in the place of those that are gone."""
        found = self._db.execute(f"SELECT DISTINCT target FROM name WHERE kind = {Named.FILE:d}")
        return sorted({target for (target,) in found} - set(known))

    def note_missing(self, *, suspects: bool) -> None:
        """Objects of replicas that were not listed hold nothing."""
        self._db.execute(
            f"INSERT INTO length SELECT n.target, n.file_id, n.number, 0, {NO_OBJECT}"
            f" FROM name n JOIN readable USING (target) WHERE n.kind = {Named.FILE:d}"
            f" AND n.replicas > 1 AND NOT EXISTS (SELECT 1 FROM object o WHERE "
            f"{_SAME.format('o', 'n')}) {_of_suspects(suspects)}"
        )

    def to_be_measured(self, target: int, *, suspects: bool) -> Iterator[tuple[ObjectId, int]]:
        """Yields objects of the target that were listed and whose lengths are of interest, each
        with its end in the file: they may be shorter than another replica, or cut."""
        is_cut = f"n.must > 0 AND o.reach <= (n.must - 1) / {BLOCK_SIZE} * {BLOCK_SIZE}"
        is_written = "EXISTS (SELECT 1 FROM written w WHERE w.ino = n.ino)"
        what = "n.replicas > 1" if suspects else f"n.replicas > 1 AND NOT {is_written}"
        found = self._db.execute(
            f"SELECT n.file_id, n.number, o.reach, {is_cut} FROM name n JOIN object o ON "
            f"{_SAME.format('o', 'n')} WHERE n.target = ? AND n.kind = {Named.FILE:d}"
            f" AND ({what} OR {is_cut}) {_of_suspects(suspects)}",
            (target,),
        )
        for file_id, number, end, cut in found:
            yield ObjectId(target, _unsigned(file_id), number), end if cut else -1

    # ---- suspects ------------------------------------------------------------------------

    def suspect(self, older_s: float, *, only_orphans: bool = False) -> None:
        """Notes what does not fit, after the first look."""
        if not only_orphans:
            self._suspect("suspect", suspects=False)
        unnamed = f"""FROM object o WHERE NOT EXISTS
            (SELECT 1 FROM name n WHERE {_SAME.format("n", "o")})"""
        self._db.execute(
            f"INSERT INTO suspect (kind, target, file_id, number, ino, bytes, age) SELECT "
            f"'{Fault.ORPHAN}', target, file_id, number, 0, bytes, age {unnamed} AND age >= ?",
            (older_s,),
        )
        young = self._one(f"SELECT COUNT(*), SUM(bytes) {unnamed} AND age < ?", older_s)
        counts = self.counts
        counts.young = young[0], young[1] or 0
        counts.files = self._one("SELECT COUNT(*) FROM file")[0]
        counts.objects = self._one("SELECT COUNT(*) FROM object")[0]
        counts.lacking = self._lacking_files, self._lacking_replicas
        counts.being_written = self._one(
            "SELECT COUNT(DISTINCT n.ino) FROM name n JOIN written w USING (ino)"
            f" WHERE n.kind = {Named.FILE:d} AND n.replicas > 1"
        )[0]

    def confirm(self, older_s: float, former_end: int, former_older_s: float) -> None:
        """Forgets suspects that the second look does not find. former_end: objects of file ids
        below this must be older, as clients may have made them."""
        before = self._one("SELECT COUNT(*) FROM suspect")[0]
        self._db.execute(
            f"CREATE TABLE again ({_SUSPECT}, PRIMARY KEY (kind, file_id, number, target))"
        )
        self._suspect("again", suspects=True)
        self._db.execute(
            f"DELETE FROM suspect WHERE kind <> '{Fault.ORPHAN}' AND NOT EXISTS (SELECT 1 FROM "
            f"again a WHERE a.kind = suspect.kind AND {_SAME.format('a', 'suspect')}"
            " AND a.ino = suspect.ino AND a.stamp = suspect.stamp)"
        )
        self._db.execute(
            "UPDATE suspect SET (age, has, wanted, has_other) = (SELECT a.age, a.has, a.wanted,"
            f" a.has_other FROM again a WHERE a.kind = suspect.kind AND "
            f"{_SAME.format('a', 'suspect')}) WHERE kind <> '{Fault.ORPHAN}'"
        )
        orphan = f"DELETE FROM suspect WHERE kind = '{Fault.ORPHAN}' AND"
        is_slot = f"{orphan} file_id IN (SELECT file_id FROM slot)"
        self.counts.being_made = self._db.execute(is_slot).rowcount
        self._db.execute(
            f"{orphan} EXISTS (SELECT 1 FROM name n WHERE {_SAME.format('n', 'suspect')})"
        )
        known = f"SELECT 1 FROM object o WHERE {_SAME.format('o', 'suspect')}"
        self._db.execute(f"{orphan} NOT EXISTS ({known})")
        young = self._db.execute(
            f"{orphan} (NOT EXISTS ({known} AND o.age >= ?)"
            f" OR file_id BETWEEN 0 AND ? AND NOT EXISTS ({known} AND o.age >= ?))",
            (older_s, _signed(former_end) - 1, former_older_s),
        ).rowcount
        after = self._one("SELECT COUNT(*) FROM suspect")[0]
        self.counts.young = self.counts.young[0] + young, self.counts.young[1]
        self.counts.changed = before - after - self.counts.being_made - young

    def _suspect(self, into: str, *, suspects: bool) -> None:
        self._measure_stripes()
        columns = "kind, target, file_id, number, ino, age, has, wanted, stamp, has_other"
        start = f"INSERT OR IGNORE INTO {into} ({columns}) SELECT"
        named = "n.target, n.file_id, n.number, n.ino, f.ctime"
        is_there = f"EXISTS (SELECT 1 FROM object o WHERE {_SAME.format('o', 'n')})"
        has_intent = "EXISTS (SELECT 1 FROM intent i WHERE i.file_id = n.file_id)"
        is_written = "EXISTS (SELECT 1 FROM written w WHERE w.ino = n.ino)"
        stamp = "f.epoch || ' ' || f.size || ' ' || f.mtime || ' ' || f.ctime"
        file = f"n.kind = {Named.FILE:d} AND NOT {has_intent} {_of_suspects(suspects)}"
        joined = f"name n JOIN file f ON f.ino = n.ino LEFT JOIN stripe s ON {_of_stripe('n', 's')}"
        # What was durable once must be there, whoever works with the file.
        self._db.execute(
            f"{start} '{Fault.MISSING}', {named}, 0, n.must, '', {_OTHER} FROM {joined}"
            f" JOIN readable r ON r.target = n.target WHERE {file} AND n.durable AND NOT {is_there}"
        )
        measured = f"{joined} JOIN length l ON {_SAME.format('l', 'n')}"
        self._db.execute(
            f"{start} '{Fault.MISSING}', {named}, 0, n.must, '', {_OTHER} FROM {measured}"
            f" WHERE {file} AND n.durable AND l.state = {NO_OBJECT}"
        )
        self._db.execute(
            f"{start} '{Fault.SHORT}', {named}, l.length, n.must, '', {_OTHER} FROM {measured}"
            f" WHERE {file} AND l.state = {CUT}"
        )
        # Replicas are alike while nobody writes.
        self._db.execute(
            f"{start} CASE l.state WHEN {NO_OBJECT} THEN '{Fault.MISSING}' ELSE '{Fault.SHORT}' END"
            f", {named}, l.length, s.most, {stamp}, {_OTHER} FROM {measured} WHERE {file} AND NOT "
            f"{is_written} AND l.state <> {CUT} AND MIN(l.length, n.must) < s.most"
            f" AND NOT (n.durable AND l.state = {NO_OBJECT})"
        )
        self._db.execute(
            f"{start} '{Fault.DOUBLE}', target, file_id, number, MAX(ino), 0, 0, 0,"
            f" '', 0 FROM name n WHERE 1 {_of_suspects(suspects)} GROUP BY file_id, number, target"
            f" HAVING SUM(kind IN {_LAYOUTS}) > 1"
            f" OR (SUM(kind IN {_LAYOUTS}) = 1 AND SUM(kind IN {_OTHERS}) > 0)"
        )

    def _measure_stripes(self) -> None:
        """most: the bytes that a replica of the stripe has, at most those that it must have."""
        self._db.execute("CREATE INDEX length_index ON length (file_id, number, target)")
        had = f"MIN(l.length, n.must) AS had FROM name n JOIN length l ON {_SAME.format('l', 'n')}"
        self._db.execute(
            f"CREATE TABLE stripe AS SELECT file_id, stripe, MAX(had) AS most FROM (SELECT"
            f" n.file_id, n.number & {_STRIPE_MASK} AS stripe, {had} WHERE n.kind = {Named.FILE:d}"
            f" AND l.state = {THERE}) GROUP BY file_id, stripe"
        )
        self._db.execute("CREATE INDEX stripe_index ON stripe (file_id, stripe)")

    def _one(self, query: str, *values: object) -> tuple[int, ...]:
        found: tuple[int, ...] = self._db.execute(query, values).fetchone()
        return found

    # ---- what was found ------------------------------------------------------------------

    def has_suspects(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM suspect)")[0])

    def inos(self, count_max: int) -> set[int]:
        """The inodes of suspects, of each kind at most so many."""
        found: set[int] = set()
        for fault in Fault:
            query = "SELECT DISTINCT ino FROM suspect WHERE kind = ? AND ino <> 0 LIMIT ?"
            found.update(_unsigned(ino) for (ino,) in self._db.execute(query, (fault, count_max)))
        return found

    def suspected(self) -> Iterator[tuple[int, int, bool]]:
        """Yields target and file id of each suspect, and whether a file names it."""
        query = "SELECT DISTINCT target, file_id, ino <> 0 FROM suspect"
        for target, file_id, is_named in self._db.execute(query):
            yield target, _unsigned(file_id), bool(is_named)

    def count(self, fault: Fault, *, is_done: bool = False) -> int:
        query = "SELECT COUNT(*) FROM suspect WHERE kind = ?"
        return self._one(query + (" AND done = 1" if is_done else ""), fault)[0]

    def bytes_of(self, fault: Fault) -> int:
        return self._one("SELECT COALESCE(SUM(bytes), 0) FROM suspect WHERE kind = ?", fault)[0]

    def found(self, fault: Fault, now_ns: int, *, ino: int = 0) -> Iterator[Found]:
        """Yields them in order of file ids. now_ns: since 1970, for the ages of files. ino: only
        those of this file."""
        columns = "target, file_id, number, ino, bytes, age, has, wanted, has_other, why, done"
        which = "kind = ? AND ino = ?" if ino else "kind = ?"
        query = f"SELECT {columns} FROM suspect WHERE {which} ORDER BY file_id, number, target"
        values = (fault, _signed(ino)) if ino else (fault,)
        for (
            target,
            file_id,
            number,
            of,
            size,
            age,
            has,
            wanted,
            other,
            why,
            done,
        ) in self._db.execute(query, values):
            age_s = age if fault is Fault.ORPHAN else max(0.0, (now_ns - age) / 1e9)
            name = ObjectId(target, _unsigned(file_id), number)
            yield Found(
                *(fault, name, _unsigned(of), size or 0, age_s, has or 0, wanted or 0),
                *(bool(other), why or "", bool(done)),
            )

    def namers(self, name: ObjectId) -> list[tuple[Named, int]]:
        """What names the object, and the inodes of layouts."""
        query = "SELECT kind, ino FROM name WHERE file_id = ? AND number = ? AND target = ?"
        found = self._db.execute(query, (_signed(name.file_id), name.number, name.target))
        return [(Named(kind), _unsigned(ino)) for kind, ino in found if kind != Named.INTENT]

    def orphans_left(self, target: int, count_max: int) -> list[ObjectId]:
        """Orphans of the target of which nothing is noted yet, at most so many."""
        query = (
            "SELECT file_id, number FROM suspect"
            " WHERE kind = ? AND target = ? AND done IS NULL LIMIT ?"
        )
        found = self._db.execute(query, (Fault.ORPHAN, target, count_max))
        return [ObjectId(target, _unsigned(file_id), number) for file_id, number in found]

    def losers(self, after: int | None, count_max: int) -> list[int]:
        """Files behind this one with replicas that are missing or too short, at most so many."""
        query = (
            "SELECT DISTINCT ino FROM suspect WHERE kind IN (?, ?) AND ino > ? ORDER BY ino LIMIT ?"
        )
        start = -_HALF if after is None else _signed(after)
        values = Fault.MISSING, Fault.SHORT, start, count_max
        return [_unsigned(ino) for (ino,) in self._db.execute(query, values)]

    def lost_of(self, ino: int, now_ns: int) -> list[Found]:
        return [
            one
            for fault in (Fault.MISSING, Fault.SHORT)
            for one in self.found(fault, now_ns, ino=ino)
        ]

    def holders_of(self, lost: Found) -> list[tuple[ObjectId, int]]:
        """Other replicas that have all that any has of the stripe, with their lengths."""
        query = f"""SELECT m.target, m.number, k.length FROM name m
            JOIN length k ON {_SAME.format("k", "m")} JOIN stripe s ON {_of_stripe("m", "s")}
            WHERE m.kind = {Named.FILE:d} AND m.file_id = ? AND m.ino = ? AND m.target <> ?
            AND s.stripe = ? AND k.state = {THERE} AND MIN(k.length, m.must) >= s.most"""
        of, target = _signed(lost.name.file_id), lost.name.target
        found = self._db.execute(query, (of, _signed(lost.ino), target, lost.stripe))
        return [
            (ObjectId(other, lost.name.file_id, number), length) for other, number, length in found
        ]

    def epoch_of(self, ino: int) -> int:
        """The truncate epoch of a file that has a suspect."""
        return self._one("SELECT epoch FROM file WHERE ino = ?", _signed(ino))[0]

    def note(self, fault: Fault, names: Iterable[ObjectId], why: str) -> None:
        """why: that they were not mended; "": they were."""
        query = (
            "UPDATE suspect SET why = ?, done = ?"
            " WHERE kind = ? AND file_id = ? AND number = ? AND target = ?"
        )
        rows = [(why, not why, fault, _signed(n.file_id), n.number, n.target) for n in names]
        self._db.executemany(query, rows)

    def path_of(self, ino: int) -> tuple[bytes, ...] | None:
        """The names from the root; None: it has none."""
        names: list[bytes] = []
        while ino != 1:
            query = "SELECT parent, name FROM entry WHERE ino = ?"
            row = self._db.execute(query, (_signed(ino),)).fetchone()
            if row is None or len(names) > _DEPTH_MAX:
                return None
            names.append(row[1])
            ino = _unsigned(row[0])
        return tuple(reversed(names))


_DEPTH_MAX: Final = 4096
# Whether another replica of the stripe has all that any has.
_OTHER: Final = (
    f"EXISTS (SELECT 1 FROM name m JOIN length k ON {_SAME.format('k', 'm')} WHERE"
    f" m.kind = {Named.FILE:d} AND m.ino = n.ino AND m.file_id = n.file_id"
    f" AND m.number & {_STRIPE_MASK} = n.number & {_STRIPE_MASK} AND m.target <> n.target"
    f" AND k.state = {THERE} AND MIN(k.length, m.must) >= s.most)"
)


def _of_stripe(name: str, stripe: str) -> str:
    return f"{stripe}.file_id = {name}.file_id AND {stripe}.stripe = {name}.number & {_STRIPE_MASK}"


def _of_suspects(suspects: bool) -> str:
    return "AND n.file_id IN (SELECT file_id FROM suspect WHERE ino <> 0)" if suspects else ""


def _must_hold(layout: Layout, stripe: int, size: int) -> int:
    """The length of the object if the file has no holes."""
    return min(object_length(layout, stripe, size), OBJECT_BYTES_MAX)


def _signed(number: int) -> int:
    return number - 2 * _HALF if number >= _HALF else number


def _unsigned(number: int) -> int:
    return number + 2 * _HALF if number < 0 else number
