"""The one table of the differences between BraidFS and a local ext4, with the reasons.

A case named here must end on BraidFS as `shows` says: with the name of the errno of a failed call,
or with the first line of the assertion that did not hold. Any other end is a failure, and so is
success. Each reason is in docs/SEMANTICS.md; `test_suite` compares them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    shows: str
    reason: str


_WHITEOUT = Difference("EINVAL", "RENAME_WHITEOUT is refused: BraidFS is no layer of overlayfs")
_ATIME = Difference("assert '' == 'a'", "Reading does not change atime, as on a noatime mount")
_SIZE = Difference("EFBIG/EINVAL expected, success found", "Files may have any size of 63 bits")


DIFFERENCES: dict[str, Difference] = {
    "test_rename::test_whiteout": _WHITEOUT,
    "test_rename::test_whiteout_unprivileged": _WHITEOUT,
    "test_read_write::test_read_time": _ATIME,
    "test_times::test_readdir_time": _ATIME,
    "test_stat::test_blocks_of_a_sparse_file": Difference(
        "assert 2097152 < 1000", "st_blocks of a file is its size, holes included"
    ),
    "test_xattr::test_create_and_replace_together": Difference(
        "ENODATA/EEXIST/EINVAL expected, success found",
        "XATTR_CREATE together with XATTR_REPLACE is XATTR_CREATE",
    ),
    "test_truncate::test_efbig": _SIZE,
}
