"""The table of leases: a pure state machine. Time is passed in; recalls to send come out as a list.

A *need* is an inode with LEASE_* bits: a shared bit to read that facet, an exclusive bit to change
it. `admit` says whether an op with these needs may run now. If not, it recalls what is in the way
and returns a Claim; `take_ready` returns the claim when every recall that it waits for has ended.

A recall ends when its number comes back, when its holder has given up the lease by itself, or when
the lease has run out. That is `duration_s` after the holder was last heard before the recall was
decided: from then on renewals do not extend this lease. A lease with an exclusive bit does not just
run out, because its holder may have sent bytes that are still on their way. `expire` names such
sessions: they are evicted, and stay in the table as *ghosts* until they are fenced everywhere.

Invariants: two sessions (ghosts included) never hold conflicting leases; nobody is granted what an
earlier claim of another session needs, so the conflicts of a claim only become fewer; a holder is
granted nothing on an inode while it must give up something there.
Only the event loop's thread calls. metaserver.lease_gate sends, metaserver.eviction fences.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from fscommon.layout.attributes import (
    LEASE_ALL,
    LEASE_CHILDREN,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_EXCLUSIVE_ALL,
    LEASE_EXCLUSIVE_SHIFT,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_READER,
    LEASE_SHARED_ALL,
    LEASE_WRITER,
)
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import HeldLease, RecallItem, ReturnItem
from metaserver.leases.bits import WRITER_BITS, conflict, to_give_up, without_halves
from metaserver.leases.children import Children
from metaserver.leases.contended import ContendedDirectories
from metaserver.leases.holders import Claim, Held, Holder, Need, Recall
from metaserver.leases.inodes import InodeHolders
from metaserver.sessions import Sessions

_SECONDS_MAX: Final = 10_000
_AHEAD_SHARE: Final = 0.875  # of the bound; above, only ops that open or change are granted more
_OVERDRAFT: Final = 64  # leases above twice the bound, while the oldest are being recalled
# How many leases above the bound of a session are recalled together: at most, and at least while
# others are being recalled.
_TRIMMING_MAX: Final = 512
_TRIMMING_MIN: Final = 64
# The overdraft for files that are being written. Their leases cannot be recalled, because nobody
# could write them without one. As many as a session may have open (metaserver.sessions).
_WRITTEN_MAX: Final = 1 << 20


class Leases:
    def __init__(self, sessions: Sessions, *, duration_s: float, leases_max: int) -> None:
        """The table reads of each session when it was last heard (`renewed_s`), and its newest
        request (`heard`)."""
        self.duration_s = duration_s
        self.leases_max, self._ahead_max = leases_max, int(leases_max * _AHEAD_SHARE)
        self._sessions = sessions
        self._holders: dict[SessionId, Holder] = {}
        self._inodes = InodeHolders()
        self.children = Children()  # what sessions hold by directories, beside the leases here
        self._recalls: dict[int, Recall] = {}
        self._claims: dict[Ino, list[Claim]] = {}
        self._ready: list[Claim] = []
        self.numbers = itertools.count(1)  # of recalls
        self._sequence = itertools.count(1)
        self._contended = ContendedDirectories()
        self.unsent: dict[SessionId, list[RecallItem]] = {}
        self.count = 0  # leases of all sessions
        self.counts: Counter[str] = Counter()  # recalls by how they ended
        self._recall_seconds: deque[float] = deque(maxlen=_SECONDS_MAX)

    # ---- sessions ------------------------------------------------------------------------

    def connected(self, session: SessionId) -> None:
        """The session has a recall connection: it may get leases. Open recalls are sent again."""
        holder = self._holders.setdefault(session, Holder())
        holder.is_cached = True
        if holder.recalls:
            self.unsent[session] = [recall.item() for recall in holder.recalls.values()]

    def disconnected(self, session: SessionId) -> None:
        holder = self._holders.get(session)
        if holder is not None:
            holder.is_cached = False
            self.unsent.pop(session, None)

    def closed(self, session: SessionId) -> None:
        """The client has ended its session: it has nothing left to write."""
        holder = self._holders.get(session)
        if holder is not None:
            self._vanish(session, holder)

    def evict(self, session: SessionId, writing: Iterable[Ino], now_s: float) -> None:
        """The session was evicted. What it held, and what it could write, stays held until
        `fenced`."""
        holder = self._holders.setdefault(session, Holder())
        known = self._sessions.get(session)
        holder.until_s = known.renewed_s + self.duration_s if known else now_s
        holder.is_cached = False
        holder.is_ghost = True
        self.unsent.pop(session, None)
        for ino in writing:
            if not self._conflicts(session, ino, LEASE_WRITER):
                self._add(session, holder, ino, LEASE_WRITER, 0)

    def disown(self, session: SessionId) -> None:
        """What an evicted session may still read in its caches matters to nobody: its leases end
        with the fence."""
        holder = self._holders.get(session)
        if holder is not None and holder.is_ghost:
            holder.until_s = 0.0

    def fenced(self, session: SessionId, now_s: float) -> None:
        """No storage server accepts anything from the evicted session any more."""
        holder = self._holders.get(session)
        if holder is not None and holder.is_ghost:
            holder.is_fenced = True
            self.expire(now_s)

    def ghosts(self) -> list[SessionId]:
        """Returns the sessions that were evicted and are not known to be fenced."""
        return [s for s, holder in self._holders.items() if holder.is_ghost]

    def reassert(self, session: SessionId, ino: Ino, flags: int) -> bool:
        """A client reports after a restart what it held. Returns False if it cannot hold it now."""
        holder = self._holders.setdefault(session, Holder())
        is_given = not self._conflicts(session, ino, flags) and self._has_room(holder, flags)
        if is_given:
            self._add(session, holder, ino, flags, 0)
        return is_given

    def hold(self, session: SessionId, ino: Ino, seconds: float, now_s: float = 0.0) -> None:
        """A holder that is no session keeps its lease for so long when it is, or was, recalled."""
        self._holders[session].keep(ino, seconds, now_s)

    # ---- before an op runs ---------------------------------------------------------------

    def is_holder(self, session: SessionId) -> bool:
        """Whether the session holds leases, or may be granted some."""
        return session in self._holders

    def is_alone(self, session: SessionId) -> bool:
        """Whether no other session holds any lease: then every op of this one may run."""
        holder = self._holders.get(session)
        return self.count == (len(holder.leases) if holder else 0)

    def admit(
        self,
        session: SessionId,
        needs: Sequence[Need],
        now_s: float,
        claim: Claim | None = None,
        reporters: Iterable[tuple[Ino, SessionId]] = (),
    ) -> Claim | None:
        """Returns None if the op may run now, else the claim that it waits with. reporters:
        sessions that must also report what they know of these inodes."""
        reported = claim.reported if claim else frozenset()
        for need in needs:
            if need.flags & LEASE_EXCLUSIVE_ALL:
                self.single(need.ino, but=session)
        found = [
            (need, held, give_up)
            for need in needs
            for held in self._inodes.rivals(session, need.ino, need.flags)
            if (give_up := to_give_up(need.flags, held.flags)) >= 0
            and not (give_up == 0 and (need.ino, held.session) in reported)
        ]
        waits = [self._recall(need, held, give_up, now_s) for need, held, give_up in found]
        for ino, other in set(reporters) - reported:
            if (holder := self._holders.get(other)) and holder.is_cached and not holder.is_ghost:
                waits.append(self._send(holder, ino, holder.lease_on(ino, other), 0, now_s))
        recalls = {recall.number: recall for recall in waits if recall is not None}
        if claim is not None:
            self._unlist(claim)
        if not recalls:
            return None
        claim = claim or Claim(next(self._sequence), session)
        claim.needs = needs
        claim.waits = set(recalls)
        for recall in recalls.values():
            recall.claims.append(claim)
        for ino in {need.ino for need in needs}:
            self._claims.setdefault(ino, []).append(claim)
        return claim

    def cancel(self, claim: Claim) -> None:
        """Nobody waits with the claim any more. Its recalls go on."""
        self._unlist(claim)
        for number in claim.waits:
            self._recalls[number].claims.remove(claim)
        claim.waits = set()
        if claim in self._ready:
            self._ready.remove(claim)

    def take_ready(self) -> list[Claim]:
        """Returns the claims whose recalls have all ended, in order. The caller calls `admit` for
        each again."""
        ready, self._ready = self._ready, []
        return sorted(ready, key=lambda claim: claim.seq)

    def is_claimed(self, ino: Ino) -> bool:
        """Whether a request waits for a lease on the inode."""
        return ino in self._claims

    @property
    def is_anyone_ready(self) -> bool:
        return bool(self._ready)

    # ---- grants --------------------------------------------------------------------------

    def grant(
        self,
        session: SessionId,
        ino: Ino,
        wanted: int,
        request_id: int,
        now_s: float,
        claim: Claim | None = None,
        *,
        is_look: bool = False,
    ) -> int:
        """Grants what is free of `wanted`; returns what the session then holds on the inode. A
        lease that is granted again is the youngest again. A file that is held by its directory and
        only looked at stays held so, and needs no lease of its own. A mere look at attributes
        pushes out no other lease: else a walk through a large tree would recall everything."""
        if (holder := self._holders.get(session)) is None:
            return 0
        is_covered = self.children.covers(session, ino)
        if is_covered and not is_look:
            self.single(ino)
        have = 0
        if held := holder.leases.get(ino):
            have = held.flags
            holder.leases.move_to_end(ino)
        recalled = holder.recalled_flags(ino) if holder.recalls else 0
        new = wanted & ~have
        if not new or recalled or not holder.is_cached or (is_covered and is_look):
            return have & ~recalled & LEASE_ALL
        if is_look and not (held or new & LEASE_ENTRIES or self._has_room_ahead(holder)):
            return 0  # of a large listing that is the answer for most files
        new = self._free(session, ino, new, claim) if self._is_contested(session, ino) else new
        if self._contended.is_contended(ino, now_s):
            new = 0
        is_passing = is_look and not new & LEASE_ENTRIES
        if new and (held or self._has_room(holder, new, is_passing=is_passing)):
            self._add(session, holder, ino, have | new, request_id)
            have |= new
            self._trim_above_bound(holder, now_s)
        return have & LEASE_ALL

    def grant_children(
        self, session: SessionId, directory: Ino, inos: Sequence[Ino], request_id: int
    ) -> None:
        """Grants META and DATA of these files by their directory; leases that the session held on
        single files become part of it. would_grant() was true for each, and there was room."""
        holder = self._holders[session]
        self._add(session, holder, directory, LEASE_CHILDREN, request_id)
        self.children.grant(session, directory, inos, request_id)
        for ino in inos:
            held = holder.leases.get(ino)
            if held is not None and not held.flags & ~LEASE_READER:
                self._remove(holder, ino, held)

    def single(self, ino: Ino, but: SessionId | None = None) -> None:
        """Gives each session that holds the file by its directory, except that one, a lease on the
        file itself, which can be recalled."""
        for session, request_id in self.children.take(ino, but):
            self._add(session, self._holders[session], ino, LEASE_READER, request_id)

    def _has_room(self, holder: Holder, flags: int, *, is_passing: bool = False) -> bool:
        if is_passing:
            return self._has_room_ahead(holder)
        is_written = flags & LEASE_DATA_EXCLUSIVE
        above = _WRITTEN_MAX if is_written else self.leases_max + _OVERDRAFT
        return len(holder.leases) < self.leases_max + above

    def would_grant(self, session: SessionId, ino: Ino, wanted: int, now_s: float) -> bool:
        """Whether grant() would grant all of it, without a recall from anybody."""
        holder = self._holders.get(session)
        if holder is None or not holder.is_cached or holder.recalled_flags(ino):
            return False
        if self._contended.is_contended(ino, now_s):
            return False
        if not self._is_contested(session, ino):
            return True
        new = wanted & ~self.held(session, ino)
        return self._free(session, ino, new, None) == new

    def room_ahead(self, session: SessionId) -> int:
        """How many more files may be granted by a directory without a recall of any lease."""
        holder = self._holders.get(session)
        has_room = holder is not None and self._has_room_ahead(holder)
        return self.children.room if has_room else 0

    def _has_room_ahead(self, holder: Holder) -> bool:
        return len(holder.leases) < self._ahead_max

    def born(self, session: SessionId, ino: Ino, flags: int, request_id: int, now_s: float) -> None:
        """The session made this inode by itself, and holds these leases on it since then. They may
        exceed the bound: a session makes no more files than it has slots."""
        holder = self._holders.get(session)
        if holder is not None and not self._inodes.has_others(session, ino):
            self._add(session, holder, ino, flags, request_id)
            self._trim_above_bound(holder, now_s)

    def exclusive_behind(self, after: int, flag: int, count: int) -> list[Ino]:
        """Returns the next inodes, in order, on which a session holds this exclusive bit."""
        return self._inodes.exclusive_behind(after, flag, count)

    def is_held(self, ino: Ino, flags: int) -> bool:
        """Whether some session holds one of these exclusive bits on the inode."""
        return self._inodes.is_held(ino, flags)

    def held(self, session: SessionId, ino: Ino) -> int:
        holder = self._holders.get(session)
        held = holder.leases.get(ino) if holder else None
        return held.flags if held else 0

    def _is_contested(self, session: SessionId, ino: Ino) -> bool:
        return ino in self._claims or self._inodes.has_others(session, ino)

    def _free(self, session: SessionId, ino: Ino, new: int, claim: Claim | None) -> int:
        """Returns the bits of `new` that conflict with no lease of another session, and with no
        earlier claim."""
        seq = claim.seq if claim else 0
        others = [held.flags for held in self._inodes.rivals(session, ino, new)]
        others += [
            need.flags
            for other in self._claims.get(ino, ())
            if other.session != session and (not seq or other.seq < seq)
            for need in other.needs
            if need.ino == ino
        ]
        for flags in others:
            facets = conflict(new, flags)
            new &= ~(facets << LEASE_EXCLUSIVE_SHIFT)
            new &= ~conflict(new, flags)
        return without_halves(new)

    def _trim_above_bound(self, holder: Holder, now_s: float) -> None:
        """Recalls the oldest leases, as many as are above the bound: at least a few dozen at a time
        while others are being recalled."""
        above = len(holder.leases) - holder.trimming - self.leases_max
        room = _TRIMMING_MAX - holder.trimming
        if above > 0 and (not holder.trimming or min(above, room) >= _TRIMMING_MIN):
            self._trim(holder, min(above, room), now_s)

    def _trim(self, holder: Holder, count: int, now_s: float) -> None:
        for ino, held in holder.take_oldest(count):
            holder.trimming += 1
            self._send(holder, ino, held, held.flags, now_s, is_trim=True)

    # ---- what comes back -----------------------------------------------------------------

    def returned(self, session: SessionId, items: Iterable[ReturnItem], now_s: float) -> None:
        """Takes returned leases. The answer to a recall gives up what that recall asked for. An
        answer that comes twice, or too late, gives up nothing: the lease may have been granted
        again since."""
        holder = self._holders.get(session)
        if holder is None:
            return
        for item in items:
            if not item.recall:
                if self.children.covers(session, Ino(item.ino)):
                    self.single(Ino(item.ino))
                self._give_up(session, holder, Ino(item.ino), item.flags, now_s)
                continue
            recall = holder.recalls.get(item.recall)
            if recall is not None and recall.ino == item.ino:
                self._end(recall, now_s, "answered")

    def downgrade(self, session: SessionId, inos: Iterable[Ino], now_s: float) -> None:
        """Makes exclusive leases on these files shared: the session has closed them."""
        holder = self._holders.get(session)
        if holder is None:
            return
        for ino in inos:
            held = holder.leases.get(ino)
            if held is not None and held.flags & LEASE_EXCLUSIVE_ALL:
                self._give_up(session, holder, ino, LEASE_EXCLUSIVE_ALL, now_s)
                self._trim_above_bound(holder, now_s)  # a shared lease may be recalled

    def forget(self, ino: Ino, now_s: float) -> None:
        """The inode does not exist any more: ends all leases on it."""
        self.children.take(ino)
        for held in list(self._inodes.of(ino)):
            holder = self._holders[held.session]
            self._give_up(held.session, holder, ino, LEASE_SHARED_ALL | LEASE_CHILDREN, now_s)

    def dismiss(self, session: SessionId, ino: Ino, now_s: float) -> bool:
        """Recalls the attributes of the inode, and nobody waits for it: the session has changed the
        inode already. Returns True if others hold leases on it."""
        self.single(ino)
        need = Need(ino, LEASE_META_EXCLUSIVE)
        others = self._inodes.others(session, ino)
        for held in others:
            give_up = to_give_up(need.flags, held.flags)
            if give_up > 0:
                self._recall(need, held, give_up, now_s)
        return bool(others)

    def ask_remover(self, session: SessionId, ino: Ino, now_s: float) -> bool:
        """Recalls META from the session that takes the last name of a file which it holds by its
        directory: it may have the file open without having said so, and its answer tells. Returns
        False if it does not hold the file so."""
        if not self.children.covers(session, ino):
            return False
        self.single(ino)
        holder = self._holders[session]
        self._send(holder, ino, holder.leases[ino], LEASE_META, now_s)
        return True

    def is_recalled(self, ino: Ino) -> bool:
        """Whether a session that holds leases on the inode has not answered a recall yet."""
        return any(ino in self._holders[held.session].recalled for held in self._inodes.of(ino))

    def expire(self, now_s: float) -> list[SessionId]:
        """Ends recalls of leases that have run out, and ghosts. Returns the sessions that must be
        evicted, because they did not give up an exclusive lease in time."""
        doomed = []
        for session, holder in list(self._holders.items()):
            for recall in [r for r in holder.recalls.values() if r.deadline_s <= now_s]:
                exclusive = not recall.flags or recall.flags & LEASE_EXCLUSIVE_ALL
                if not exclusive or holder.is_fenced:
                    self._end(recall, now_s, "fenced" if holder.is_ghost else "expired")
                elif not holder.is_ghost and session not in doomed:
                    doomed.append(session)
            if holder.is_fenced and holder.until_s <= now_s:
                self._vanish(session, holder)
        return doomed

    # ---- reports -------------------------------------------------------------------------

    def pending(self, session: SessionId) -> tuple[RecallItem, ...]:
        """Returns the recalls that the session has not answered."""
        holder = self._holders.get(session)
        if holder is None or not holder.recalls:
            return ()
        return tuple([recall.item() for recall in holder.recalls.values()])

    def sums(self, session: SessionId) -> tuple[int, int, int, bool]:
        """Returns four facts of the session: the number of inodes with a lease, and with an
        exclusive one; the number of open recalls; whether it is granted leases."""
        holder = self._holders.get(session)
        return (0, 0, 0, False) if holder is None else holder.sums()

    def of(self, session: SessionId) -> list[HeldLease]:
        """Returns what the session holds, in order of ino."""
        holder = self._holders.get(session)
        return [] if holder is None else holder.report()

    def take_recall_seconds(self) -> list[float]:
        """Returns how long each recall took that has ended since the last call; only the newest
        ones are kept."""
        seconds = list(self._recall_seconds)
        self._recall_seconds.clear()
        return seconds

    @property
    def recalls_open(self) -> int:
        return len(self._recalls)

    # ---- inside --------------------------------------------------------------------------

    def _conflicts(self, session: SessionId, ino: Ino, flags: int) -> bool:
        """Whether another session holds a lease that conflicts with these bits."""
        rivals = self._inodes.rivals(session, ino, flags)
        return any(conflict(flags, held.flags) for held in rivals)

    def _add(
        self, session: SessionId, holder: Holder, ino: Ino, flags: int, request_id: int
    ) -> None:
        held = holder.leases.pop(ino, None)
        if held is None:
            held = Held(session, 0, 0)
            self._inodes.add(ino, held)
            self.count += 1
        self._inodes.change(ino, held, held.flags | flags)
        held.granted_by = request_id
        holder.leases[ino] = held  # the youngest now

    def _recall(self, need: Need, held: Held, give_up: int, now_s: float) -> Recall | None:
        """Returns the recall to wait for: an open one that asks for enough, else a new one. None:
        the lease has run out already."""
        holder = self._holders[held.session]
        if give_up:
            for open_recall in holder.recalled.get(need.ino, ()):
                if open_recall.flags & give_up == give_up:
                    return open_recall
            self._contended.recalled(need, now_s)
        recall = self._send(holder, need.ino, held, give_up, now_s)
        if recall.deadline_s <= now_s and give_up and not give_up & LEASE_EXCLUSIVE_ALL:
            self._end(recall, now_s, "expired")
            return None
        return recall

    def _send(
        self,
        holder: Holder,
        ino: Ino,
        held: Held,
        flags: int,
        now_s: float,
        *,
        is_trim: bool = False,
    ) -> Recall:
        known, kept_s = self._sessions.get(held.session), holder.kept_until_s(ino, now_s)
        recall = Recall(
            number=next(self.numbers),
            ino=ino,
            held=held,
            flags=flags,
            limit=known.heard if known else 0,
            began_s=now_s,
            deadline_s=known.renewed_s + self.duration_s if known else kept_s,
            is_trim=is_trim,
        )
        self._recalls[recall.number] = recall
        holder.recalls[recall.number] = recall
        holder.recalled.setdefault(ino, []).append(recall)
        if holder.is_cached:
            self.unsent.setdefault(held.session, []).append(recall.item())
        return recall

    def _give_up(
        self, session: SessionId, holder: Holder, ino: Ino, flags: int, now_s: float
    ) -> None:
        held = holder.leases.get(ino)
        if held is None:
            return
        flags |= (flags & LEASE_SHARED_ALL) << LEASE_EXCLUSIVE_SHIFT
        if flags & held.flags & LEASE_CHILDREN:
            self.children.leave(session, ino)
        self._inodes.change(ino, held, without_halves(held.flags & ~flags))
        if not held.flags:
            self._remove(holder, ino, held)
        for recall in list(holder.recalled.get(ino, ())):
            needed = recall.flags or WRITER_BITS  # a report is due as long as its holder may write
            if not held.flags & needed:
                self._end(recall, now_s, "answered")

    def _remove(self, holder: Holder, ino: Ino, held: Held) -> None:
        holder.let_go(ino)
        self.count -= 1
        if held.flags & LEASE_CHILDREN:
            self.children.leave(held.session, ino)
        self._inodes.remove(ino, held)

    def _end(self, recall: Recall, now_s: float, how: str) -> None:
        session = recall.held.session
        holder = self._holders[session]
        if holder.recalls.pop(recall.number, None) is None:
            return
        del self._recalls[recall.number]
        same = holder.recalled[recall.ino]
        same.remove(recall)
        if not same:
            del holder.recalled[recall.ino]
        holder.trimming -= recall.is_trim
        self.counts[how] += 1
        self._recall_seconds.append(now_s - recall.began_s)
        if recall.flags:
            self._give_up(session, holder, recall.ino, recall.flags, now_s)
        self._release(recall)
        if recall.is_trim and not holder.is_ghost:
            self._trim_above_bound(holder, now_s)

    def _release(self, recall: Recall) -> None:
        for claim in recall.claims:
            claim.waits.discard(recall.number)
            if not recall.flags:
                claim.reported.add((recall.ino, recall.held.session))
            if not claim.waits:
                self._ready.append(claim)
        recall.claims = []

    def _vanish(self, session: SessionId, holder: Holder) -> None:
        for ino, held in list(holder.leases.items()):
            self._remove(holder, ino, held)
        del self._holders[session]
        self.unsent.pop(session, None)
        for recall in holder.recalls.values():
            del self._recalls[recall.number]
            self.counts["fenced" if holder.is_ghost else "answered"] += 1
            self._release(recall)

    def _unlist(self, claim: Claim) -> None:
        for ino in {need.ino for need in claim.needs}:
            waiting = self._claims.get(ino, [])
            if claim in waiting:
                waiting.remove(claim)
                if not waiting:
                    del self._claims[ino]
