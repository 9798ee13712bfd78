"""When something happened to an inode last, in numbers that rise: what was asked before must not be
believed after. Pure, and bounded: of what is forgotten it is as if it had happened just now."""


class Stamps:
    def __init__(self, inodes_max: int) -> None:
        self._inodes_max = inodes_max
        self._of: dict[int, int] = {}
        self._forgotten = 0
        self.now = 0

    def note(self, ino: int) -> None:
        """It happens to ino now."""
        self.now += 1
        if len(self._of) >= self._inodes_max:
            self._of.clear()
            self._forgotten = self.now
        self._of[ino] = self.now

    def of(self, ino: int) -> int:
        """Another number after each note() of ino, and above the `now` of before it."""
        return self._of.get(ino, self._forgotten)
