"""Paths and mounts: what hand-made mountinfo says, as the kernel would follow it."""

from pathlib import Path

import pytest

import braidfs
from braidfs import mounts
from braidfs.mounts import Mount

ROOT = b"20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
DATA = b"30 20 0:40 / /data rw,nosuid,nodev shared:5 master:2 - fuse.braidfs meta1:/ rw,user_id=0"
FOLDER = b"31 20 0:41 / /imagenet ro,nosuid - fuse.braidfs meta1,meta2:7400:/imagenet rw,user_id=0"


class Node:
    """A node with these mounts; mountinfo is a file of the test."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def mount(self, *lines: bytes) -> None:
        self._file.write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    file = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "_MOUNTINFO", str(file))
    return Node(file)


def mountpoint_of(path: str) -> str | None:
    mount = braidfs.where(path)
    return mount.mountpoint if mount else None


def test_a_mount_is_told_with_source_and_options(node: Node) -> None:
    node.mount(ROOT, DATA, FOLDER)
    of_mount = ("rw", "nosuid", "nodev", "user_id=0")
    assert braidfs.where("/data/a/b") == Mount("/data", "meta1:/", of_mount, "/")
    mount = braidfs.where(Path("/imagenet"))
    assert mount is not None and mount.source == "meta1,meta2:7400:/imagenet"
    assert mount.options[0] == "ro" and "rw" not in mount.options and mount.folder == "/imagenet"


@pytest.mark.parametrize("path", ["/", "/database", "/dat", "/home/data/x", "/data/../x"])
def test_elsewhere_there_is_none(node: Node, path: str) -> None:
    node.mount(ROOT, DATA)
    assert braidfs.where(path) is None


def test_links_and_relative_paths_are_followed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    node.mount(ROOT, b"30 20 0:40 / %s rw - fuse.braidfs meta1:/ rw" % bytes(here))
    assert mountpoint_of(str(tmp_path / "link" / "not" / "made")) == str(here)
    assert braidfs.where(tmp_path / "link" / "..") is None
    monkeypatch.chdir(here)
    assert mountpoint_of("file") == str(here)


def test_names_are_unescaped_and_may_be_any_bytes(node: Node) -> None:
    node.mount(
        ROOT, rb"30 20 0:40 /x\040y /my\040data\134\011\012" b"\xff rw - fuse.braidfs m:/ rw"
    )
    mount = braidfs.where("/my data\\\t\n\udcff/file")
    assert mount is not None and mount.folder == "/x y"
    assert braidfs.path("braid:///x y/file") == "/my data\\\t\n\udcff/file"


def test_the_deepest_mount_wins_whatever_the_order_of_lines(node: Node) -> None:
    inner = b"32 30 0:42 / /data/scratch rw - ext4 /dev/sdb rw"
    for lines in ((ROOT, DATA, inner), (inner, DATA, ROOT)):
        node.mount(*lines)
        assert mountpoint_of("/data/scratchy") == "/data"
        assert mountpoint_of("/data/scratch/a") is None


def test_of_stacked_mounts_the_upper_one_is_seen(node: Node) -> None:
    upper = b"32 30 0:42 / /data rw - fuse.braidfs other:/ rw"
    node.mount(ROOT, DATA, upper)
    mount = braidfs.where("/data/x")
    assert mount is not None and mount.source == "other:/"
    assert braidfs.path("braid://other/x") == "/data/x"
    with pytest.raises(LookupError, match="no mount of this node shows braid://meta1/x"):
        braidfs.path("braid://meta1/x")
    node.mount(ROOT, DATA, b"32 30 0:42 / /data rw - tmpfs none rw")
    assert braidfs.where("/data/x") is None


def test_a_mount_above_hides_those_below(node: Node) -> None:
    deep = b"30 20 0:40 / /mnt/data rw - fuse.braidfs meta1:/ rw"
    node.mount(ROOT, deep, b"31 20 0:41 / /mnt rw - tmpfs none rw")
    assert braidfs.where("/mnt/data/x") is None
    with pytest.raises(LookupError, match="no BraidFS is mounted on this node"):
        braidfs.path("braid:///x")


def test_a_root_whose_parent_is_itself_or_unknown(node: Node) -> None:
    rootfs = b"1 1 0:2 / / rw - rootfs none rw"
    node.mount(rootfs, ROOT, DATA)
    assert mountpoint_of("/data/x") == "/data"
    node.mount(b"30 7 0:40 / /data rw - fuse.braidfs meta1:/ rw")  # seen from a chroot
    assert mountpoint_of("/data/x") == "/data"
    assert braidfs.where("/other") is None


def test_bind_mounts_show_a_folder(node: Node) -> None:
    bound = b"32 20 0:40 /sets/a /srv/a rw - fuse.braidfs meta1:/team rw"
    node.mount(ROOT, bound)
    mount = braidfs.where("/srv/a/1")
    assert mount is not None and mount.folder == "/team/sets/a"
    assert braidfs.path("braid:///team/sets/a/1/2") == "/srv/a/1/2"
    assert braidfs.path("braid:///team/sets/a") == "/srv/a"
    assert braidfs.url("/srv/a/1") == "braid:///team/sets/a/1"
    with pytest.raises(LookupError, match="meta1:/team at /srv/a"):
        braidfs.path("braid:///team/sets/abc")
    node.mount(ROOT, bound.replace(b"/sets/a ", b"/sets/a//deleted "))
    with pytest.raises(LookupError, match="no BraidFS is mounted"):
        braidfs.path("braid:///team/sets/a")


def test_the_mount_of_the_deepest_folder_is_taken_then_one_that_can_be_written(node: Node) -> None:
    read_only = DATA.replace(b"30 20", b"33 20").replace(b"/data rw", b"/aaa ro")
    node.mount(ROOT, read_only, DATA, FOLDER)
    assert braidfs.path("braid:///imagenet/a") == "/imagenet/a"
    assert braidfs.path("braid:///imagenet2") == "/data/imagenet2"
    assert braidfs.path("braid:///") == braidfs.path("braid://") == "/data"
    assert braidfs.path("braid://meta2/imagenet/a/../b") == "/imagenet/b"
    assert braidfs.path("braid:///a%20b?c#d") == "/data/a%20b?c#d"
    assert braidfs.path("braid:///../../etc") == "/data/etc"


def test_several_clusters_need_a_name(node: Node) -> None:
    other = b"33 20 0:43 / /other rw - fuse.braidfs meta9:7400:/ rw"
    node.mount(ROOT, DATA, other)
    with pytest.raises(LookupError, match=r"several clusters.*braid://HOST/x"):
        braidfs.path("braid:///x")
    assert braidfs.path("braid://meta9/x") == "/other/x"
    assert braidfs.path("braid://meta1:7400/x") == "/data/x"


def test_paths_stay_and_other_schemes_are_refused(node: Node) -> None:
    node.mount(ROOT)
    assert braidfs.path("/data/x") == "/data/x" and braidfs.path(Path("x")) == "x"
    with pytest.raises(ValueError, match="expected braid:///PATH"):
        braidfs.path("s3://bucket/x")
    with pytest.raises(LookupError, match="/x does not lie on a mount"):
        braidfs.url("/x")


def test_a_change_of_mounts_is_seen_at_once(node: Node) -> None:
    node.mount(ROOT, DATA)
    assert braidfs.path("braid:///x") == "/data/x"
    node.mount(ROOT)
    with pytest.raises(LookupError):
        braidfs.path("braid:///x")


def test_this_machine_has_mounts_that_are_understood() -> None:
    assert braidfs.where("/proc") is None
    with pytest.raises(AttributeError, match="no attribute 'elsewhere'"):
        braidfs.elsewhere  # noqa: B018
    assert {"where", "path", "url", "Announcer"} <= set(dir(braidfs))
