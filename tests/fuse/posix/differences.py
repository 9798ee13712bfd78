"""The one table of what BraidFS does otherwise than a local ext4, with the reason.

A case named here must end on BraidFS as `shows` says: the name of the errno that a call failed
with, or the first line of the assertion that did not hold. Anything else is a failure, success
too. Each reason stands in docs/SEMANTICS.md; `test_suite` compares them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    shows: str
    reason: str


_WHITEOUT = Difference("EINVAL", "RENAME_WHITEOUT is refused: BraidFS is no layer of overlayfs")
_ATIME = Difference("assert '' == 'a'", "Reading does not change atime, as on a noatime mount")
_SIZE = Difference("EFBIG/EINVAL expected, success found", "Files may have any size of 63 bits")
_FALLOCATE = Difference("EOPNOTSUPP", "fallocate(2) is refused")
_TMPFILE = Difference("EOPNOTSUPP", "O_TMPFILE is refused")
_FLAGS = Difference("ENOTTY", "Inode flags (chattr: immutable, append-only) are not kept")


def _one_extent(shows: str) -> Difference:
    return Difference(shows, "SEEK_DATA and SEEK_HOLE take a file as one extent of data")


DIFFERENCES: dict[str, Difference] = {
    "test_space::test_fallocate_grows": _FALLOCATE,
    "test_space::test_fallocate_never_shrinks": _FALLOCATE,
    "test_space::test_fallocate_keep_size": _FALLOCATE,
    "test_space::test_fallocate_punch_hole": _FALLOCATE,
    "test_space::test_fallocate_punch_hole_beyond_the_end": _FALLOCATE,
    "test_space::test_fallocate_zero_range": _FALLOCATE,
    "test_space::test_fallocate_times": _FALLOCATE,
    "test_space::test_fallocate_clears_set_id_bits": _FALLOCATE,
    "test_space::test_tmpfile_read_and_write": _TMPFILE,
    "test_space::test_tmpfile_is_linked": _TMPFILE,
    "test_space::test_tmpfile_exclusive_is_not_linked": _TMPFILE,
    "test_path_resolution::test_getflags": _FLAGS,
    "test_path_resolution::test_setflags": _FLAGS,
    "test_path_resolution::test_immutable": _FLAGS,
    "test_path_resolution::test_append_only": _FLAGS,
    "test_path_resolution::test_setflags_eperm": Difference(
        "EPERM expected, ENOTTY found", _FLAGS.reason
    ),
    "test_rename::test_whiteout": _WHITEOUT,
    "test_rename::test_whiteout_unprivileged": _WHITEOUT,
    "test_read_write::test_read_time": _ATIME,
    "test_times::test_readdir_time": _ATIME,
    "test_stat::test_blocks_of_a_sparse_file": Difference(
        "assert 2097152 < 1000", "st_blocks of a file is its size, holes included"
    ),
    "test_stat::test_statx_birth_time": Difference(
        "assert (6143 & 2048)", "statx shows no birth time"
    ),
    "test_xattr::test_create_and_replace_together": Difference(
        "ENODATA/EEXIST/EINVAL expected, success found",
        "XATTR_CREATE together with XATTR_REPLACE is XATTR_CREATE",
    ),
    "test_truncate::test_efbig": _SIZE,
    "test_lseek::test_seek_data": _one_extent("assert 0 == 1048576"),
    "test_lseek::test_seek_hole": _one_extent("assert 4194304 == (1048576 + 65536)"),
    "test_lseek::test_seek_hole_inside": _one_extent("assert 4194304 == 5000"),
    "test_lseek::test_seek_data_enxio_only_a_hole": _one_extent("ENXIO expected, success found"),
    "test_lseek::test_seek_data_sets_the_offset": _one_extent("assert b'\\x00' == b'x'"),
}
