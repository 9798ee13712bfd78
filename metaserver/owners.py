"""How the journal names a process that may append: NAME ADDRESS PROCESS.

PROCESS is random, so no other process has the same words: neither a later one of this metaserver,
nor one on another host whose configuration has the same name by mistake.
"""

import secrets
from dataclasses import dataclass, field

from metaserver.store.journal import Member
from metaserver.store.journaled import Mark


@dataclass(frozen=True, slots=True)
class Owner:
    name: str
    address: str
    process: str = field(default_factory=lambda: secrets.token_hex(8))

    def __str__(self) -> str:
        return f"{self.name} {self.address} {self.process}"

    @classmethod
    def of(cls, words: str) -> "Owner | None":
        """None: nobody is active, or these are the words of another program."""
        parts = words.split(" ")
        return cls(*parts) if len(parts) == 3 else None

    def member(self, mark: Mark, reports: int, kept: str = "") -> Member:
        return Member(self.name, self.address, mark.log, mark.index, reports, kept)
