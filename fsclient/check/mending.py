"""Mends what two looks have found, as far as nothing can be lost by it: deletes orphans, and drops
replicas of which another one has everything, so that repair makes them anew."""

from dataclasses import dataclass
from typing import Final

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError
from fscommon.rpc.blocks import BlockCaller
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller
from fscommon.wire.fsck import FsckDrop, FsckDropped
from fscommon.wire.messages import ClusterMap
from fscommon.wire.ops import Op

from .looks import Servers, Tell
from .tables import Fault, Found, ObjectId, Tables

_AT_ONCE: Final = 256  # objects of one request to delete
_FILES: Final = 256  # of one query
_PIECE: Final = 1 << 20  # bytes of one read


async def delete_orphans(servers: Servers, tables: Tables, known: ClusterMap, tell: Tell) -> None:
    total, done = tables.count(Fault.ORPHAN), 0
    hello = HelloFields("server", "fsck", session=known.epoch)
    for entry in known.targets:
        some = tables.orphans_left(entry.target, _AT_ONCE)
        if not some:
            continue
        try:
            async with servers.open_caller(entry.address, hello) as caller:
                while some:
                    gone = await DataCaller(caller).delete_all(some, timeout_s=servers.timeout_s)
                    rows = list(zip(some, gone, strict=True))
                    _note(tables, [name for name, is_gone in rows if is_gone], "")
                    left = [name for name, is_gone in rows if not is_gone]
                    _note(tables, left, "the target did not delete it")
                    done += len(some)
                    tell("deleting", done, total)
                    some = tables.orphans_left(entry.target, _AT_ONCE)
        except (BraidError, OSError) as error:
            while some:
                _note(tables, some, str(error))
                some = tables.orphans_left(entry.target, _AT_ONCE)


def _note(tables: Tables, names: list[ObjectId], why: str) -> None:
    tables.note(Fault.ORPHAN, names, why)


@dataclass(slots=True)
class Drops:
    """Drops replicas that are missing or too short. now_ns: since 1970; older_s: only of files that
    have not changed for so long."""

    servers: Servers
    tables: Tables
    known: ClusterMap
    now_ns: int
    older_s: float

    async def drop_all(self, tell: Tell) -> None:
        total = self.tables.count(Fault.MISSING) + self.tables.count(Fault.SHORT)
        done = 0

        async def drop_each(caller: Caller) -> None:
            nonlocal done
            after: int | None = None
            while inos := self.tables.losers(after, _FILES):
                for ino in inos:
                    lost = self.tables.lost_of(ino, self.now_ns)
                    await self._drop(caller, lost)
                    done += len(lost)
                    tell("dropping", done, total)
                after = inos[-1]

        if total:
            await self.servers.run(drop_each)

    async def _drop(self, caller: Caller, lost: list[Found]) -> None:
        """All of these are of one file."""
        mended: list[Found] = []
        for one in lost:
            why = await self._why_not(one)
            if why:
                self.tables.note(one.fault, [one.name], why)
            else:
                mended.append(one)
        if not mended:
            return
        why = ""
        try:
            request = self._request(mended)
            dropped: FsckDropped = await caller.call(Op.FSCK_DROP, request, self.servers.timeout_s)
            if dropped.count < len(mended):
                why = "the file has changed, or no other replica is up"
        except BraidError as error:
            why = str(error)
        for one in mended:
            self.tables.note(one.fault, [one.name], why)

    async def _why_not(self, one: Found) -> str:
        """ "": it may be dropped."""
        if not one.has_other:
            return "no other replica has what it should have"
        if one.age_s < self.older_s:
            return "its file has changed lately"
        if one.fault is Fault.MISSING:
            return ""
        for name, length in self.tables.holders_of(one):  # it has some bytes, which would be gone
            if await self._is_whole(name, length):
                return ""
        return "no other replica can be read from its beginning to its end"

    async def _is_whole(self, name: ObjectId, length: int) -> bool:
        (address,) = (one.address for one in self.known.targets if one.target == name.target)
        hello = HelloFields("server", "fsck", session=self.known.epoch)
        try:
            async with self.servers.open_caller(address, hello) as caller:
                caller.take_payloads(_PIECE)
                blocks = BlockCaller(caller, *name, timeout_s=self.servers.timeout_s)
                for offset in range(0, length, _PIECE):
                    await blocks.read(offset, min(_PIECE, length - offset))
        except (BraidError, OSError):
            return False
        return True

    def _request(self, lost: list[Found]) -> FsckDrop:
        return FsckDrop(
            lost[0].ino,
            lost[0].name.file_id,
            self.tables.epoch_of(lost[0].ino),
            tuple(one.name.number for one in lost),
            tuple(one.name.target for one in lost),
        )
