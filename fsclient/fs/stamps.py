"""When something last happened to an inode, as numbers that rise: a reply to a request from before
it must not be used after it. Pure. Bounded: an inode that was forgotten counts as one to which it
has just happened."""


class Stamps:
    def __init__(self, inodes_max: int) -> None:
        self._inodes_max = inodes_max
        self._of: dict[int, int] = {}
        self._forgotten = 0
        self.now = 0

    def note(self, ino: int) -> None:
        """Notes that it happens to ino now."""
        self.now += 1
        if len(self._of) >= self._inodes_max:
            self._of.clear()
            self._forgotten = self.now
        self._of[ino] = self.now

    def of(self, ino: int) -> int:
        """A number that differs after each note() of ino, and is above the `now` of before it."""
        return self._of.get(ino, self._forgotten)
