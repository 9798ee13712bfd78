"""Planted faults: each is a small wrong change of BraidFS that the suite must find.

A mutant replaces one function of one program, in that program's own process, before it starts: the
product has no code for it. `test_mutants` starts a cluster with one of them and runs the part of
the suite that must fail. The started program calls `run` (see `mutated_cluster`).
"""

import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

METASERVER, CLIENT = "metaserver", "client"
_MAINS = {METASERVER: "metaserver.program", CLIENT: "fsclient.cli.mount_helper"}
_WIDTH_AT, _TARGETS_AT = 2, 32  # fields of the layout record


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    program: str
    module: str
    attribute: str
    change: Callable[[Any], Any]  # the function as it is → the faulty one
    case: str  # file::function of one case that must fail


def _with(inode: Any, **changes: int) -> Any:
    return replace(inode, attributes=replace(inode.attributes, **changes))


def _nothing(_old: Any) -> Any:
    return lambda *_words, **_named: None


def _yes(_old: Any) -> Any:
    return lambda *_words: True


def _first(_old: Any) -> Any:
    return lambda first, *_rest: first


def _uncounted_link(save: Any) -> Any:
    return lambda tx, inode: save(tx, _with(inode, nlink=inode.attributes.nlink - 1))


def _same_mtime(resize: Any) -> Any:
    def resized(tx: Any, inode: Any, size: int, context: Any) -> Any:
        return _with(resize(tx, inode, size, context), mtime_ns=inode.attributes.mtime_ns)

    return resized


def _same_ctime(change_times: Any) -> Any:
    def changed(inode: Any, request: Any, context: Any) -> Any:
        return _with(change_times(inode, request, context), ctime_ns=inode.attributes.ctime_ns)

    return changed


def _microseconds(change_times: Any) -> Any:
    def changed(inode: Any, request: Any, context: Any) -> Any:
        found = change_times(inode, request, context)
        return _with(found, mtime_ns=found.attributes.mtime_ns // 1000 * 1000)

    return changed


def _own_group(_group: Any) -> Any:
    return lambda _parent, wanted, bits: (wanted.caller.gid, bits)


def _no_umask(inherited: Any) -> Any:
    def without(tx: Any, parent: Any, wanted: Any) -> Any:
        xattrs, bits = inherited(tx, parent, wanted)
        return xattrs, bits | (wanted.mode & 0o777)

    return without


def _no_default_acl(_inherited: Any) -> Any:
    return lambda _tx, _parent, wanted: ([], wanted.mode & 0o7777 & ~wanted.caller.umask)


def _uncounted_folders(touch: Any) -> Any:
    return lambda tx, parent, now, subdirectories: touch(tx, parent, now, subdirectories=0)


def _kept_name(_drop: Any) -> Any:
    return lambda _tx, inode, _context: inode.attributes.pack()


def _plain_rename(_exchange: Any) -> Any:
    return lambda *words: importlib.import_module("metaserver.ops.rename")._move(*words)


def _lost_entry(reply: Any) -> Any:
    def lost(names: Any, cookies: Any, attributes: Any, end: Any) -> Any:
        count = len(names) - (len(names) > 50)
        return reply(names[:count], cookies[: 8 * count], attributes[: 128 * count], end)

    return lost


def _no_sticky_bit(change_mode: Any) -> Any:
    def changed(tx: Any, inode: Any, request: Any) -> Any:
        found = change_mode(tx, inode, request)
        return _with(found, mode=found.attributes.mode & ~0o1000)

    return changed


class _Inodes:
    """The port of inodes, except for the layout of an inode that is opened again."""

    def __init__(self, real: Any, wrong: Callable[[bytes], bytes]) -> None:
        self._real, self._wrong = real, wrong
        self._seen: set[bytes] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def put(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        ino = attributes[:8]
        told = self._wrong(layout) if ino in self._seen else layout
        self._seen.add(ino)
        self._real.put(attributes, told, capability)


def _with_layouts(wrong: Callable[[bytes], bytes]) -> Callable[[Any], Any]:
    def mutated(make: Any) -> Any:
        def made(**named: Any) -> Any:
            datapath = make(**named)
            return replace(datapath, inodes=_Inodes(datapath.inodes, wrong))

        return made

    return mutated


def _swapped(layout: bytes) -> bytes:
    """Swaps the first two targets, so that each chunk is searched where another one is."""
    at = _TARGETS_AT
    return layout[:at] + layout[at + 4 : at + 8] + layout[at : at + 4] + layout[at + 8 :]


def _one_stripe_less(layout: bytes) -> bytes:
    (width,) = struct.unpack_from("<H", layout, _WIDTH_AT)
    narrow = struct.pack("<H", width - 1)
    return layout[:_WIDTH_AT] + narrow + layout[_WIDTH_AT + 2 : -4]


_OPS, _BIRTH = "metaserver.ops.", "metaserver.namespace.birth"

MUTANTS = (
    *(
        Mutant(name, METASERVER, module, attribute, change, case)
        for name, module, attribute, change, case in (
            (
                *("nlink_not_counted", _OPS + "link", "save", _uncounted_link),
                "test_link_unlink::test_link_counts_down",
            ),
            (
                *("rename_over_a_full_folder", _OPS + "rename", "is_empty", _yes),
                "test_rename::test_rename_enotempty",
            ),
            (
                *("rmdir_of_a_full_folder", _OPS + "rmdir", "is_empty", _yes),
                "test_mkdir_rmdir::test_rmdir_enotempty",
            ),
            (
                *("truncate_without_mtime", _OPS + "setattr", "_resize", _same_mtime),
                "test_truncate::test_times",
            ),
            (
                *("chmod_without_ctime", _OPS + "setattr", "_change_times", _same_ctime),
                "test_chmod::test_times",
            ),
            (
                *("sticky_bit_ignored", _OPS + "setattr", "_change_owner_and_mode"),
                *(_no_sticky_bit, "test_link_unlink::test_unlink_sticky"),
            ),
            (
                *("times_in_microseconds", _OPS + "setattr", "_change_times", _microseconds),
                "test_times::test_nanoseconds",
            ),
            (
                *("set_group_id_not_inherited", _BIRTH, "_group", _own_group),
                "test_mkdir_rmdir::test_mkdir_inherits_set_group_id",
            ),
            (
                *("umask_ignored", _BIRTH, "_inherited_acls", _no_umask),
                "test_open::test_o_creat_umask",
            ),
            (
                *("default_acl_not_inherited", _BIRTH, "_inherited_acls", _no_default_acl),
                "test_acl::test_default_is_inherited_by_files",
            ),
            (
                *("chown_keeps_set_id_bits", _OPS + "setattr", "without_set_id", _first),
                "test_chown::test_set_id_bits_are_cleared",
            ),
            (
                *("write_keeps_set_id_bits", _OPS + "commit", "without_set_id", _first),
                "test_read_write::test_write_clears_set_id_bits",
            ),
            (
                *("unlink_leaves_the_folders_times", _OPS + "unlink", "touch_directory", _nothing),
                "test_link_unlink::test_unlink_times",
            ),
            (
                *("dotdot_links", _OPS + "rename", "touch_directory", _uncounted_folders),
                "test_rename::test_rename_folder_link_counts",
            ),
            (
                *("replaced_file_keeps_its_link", _OPS + "rename", "drop_name", _kept_name),
                "test_rename::test_rename_replaced_file_loses_a_link",
            ),
            (
                *("exchange_replaces", _OPS + "rename", "_exchange", _plain_rename),
                "test_rename::test_exchange",
            ),
            (
                *("listing_loses_an_entry", _OPS + "readdir", "ReadDirReply", _lost_entry),
                "test_readdir::test_small_buffers",
            ),
            (*("xattrs_not_counted", _OPS + "xattrs", "_counted", _first), "test_xattr::test_list"),
        )
    ),
    Mutant(
        *("chunks_swapped", CLIENT, "fsclient.mount", "make_datapath", _with_layouts(_swapped)),
        "test_read_write::test_read_from_the_disk",
    ),
    Mutant(
        *("striping_off_by_one", CLIENT, "fsclient.mount", "make_datapath"),
        _with_layouts(_one_stripe_less),
        "test_read_write::test_read_from_the_disk",
    ),
)


def find(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def run(name: str) -> None:
    """Runs the program of this mutant, with its fault."""
    mutant = find(name)
    module = importlib.import_module(mutant.module)
    setattr(module, mutant.attribute, mutant.change(getattr(module, mutant.attribute)))
    importlib.import_module(_MAINS[mutant.program]).main()
