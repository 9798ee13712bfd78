"""
Threads that read batches of whole files, and listings of folders, for braidfs.data.
"""



def list_folder(folder: bytes, prefix: bytes, ends: tuple[bytes, ...], device: int) -> tuple[int, bytes, bytes, bytes, bytes, list[bytes], list[int]]:
    """
    Lists the files of a folder whose names end with one of `ends`, and its folders.

    ends: in small letters; none: all files. Files are regular ones and symbolic links to
    such. device: that of a mount which tells sizes together with names; 0: none.

    Returns the folder's inode number; the paths of the files, each behind the prefix; and,
    as numbers of 64 bits, where each path begins and the last one ends, sizes in bytes, and
    inode numbers (0 for a link); the names of folders, each with a slash; and how many files
    come before each folder. Both are sorted by their bytes. Raises OSError.
    """

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
