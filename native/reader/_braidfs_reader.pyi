"""Threads that read batches of whole files, for braidfs.data."""



class Pool:
    """Threads of this process, which are started when they are first needed."""

    def __init__(self) -> None: ...

    def sizes(self, names: bytes, table: object, threads: int) -> None:
        """
        Finds the sizes of files.

        names: each one ends with a NUL. table: a writable buffer of rows of three numbers of
        64 bits (place, room, result); each result becomes a size in bytes or -errno.
        Raises what a signal's handler raises, after the calls under way.
        """

    def read(self, names: bytes, table: object, arena: object, threads: int) -> None:
        """
        Reads whole files into the arena, a writable buffer.

        names and table as for sizes(); place and room say where in the arena each file goes.
        Each result becomes a count of bytes or -errno; a count of all the room says nothing
        about the end of the file. Raises what a signal's handler raises, after the reads
        under way.
        """
