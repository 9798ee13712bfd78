"""Mounts without being root: fusermount3 mounts and passes the open device over a socket.

It blocks, and is called in a worker thread before the mount is served.
"""

import array
import os
import socket
import subprocess

from fscommon.errors import ConfigError

_COMMAND = "fusermount3"
_FD_SIZE = array.array("i").itemsize


def mount_as_user(
    mountpoint: str, source: str, *, read_only: bool, checks_elsewhere: bool = False
) -> int:
    """Returns the mounted /dev/fuse, which the caller owns. checks_elsewhere: the kernel checks no
    permissions. Raises ConfigError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        checks = () if checks_elsewhere else ("default_permissions",)
        words = ("ro" if read_only else "rw", "nosuid", "nodev", "allow_other", *checks)
        result = _run(mountpoint, source, theirs, words)
        if result.returncode:
            reason = result.stderr.decode(errors="replace").strip() or "no reason given"
            raise ConfigError(f"{_COMMAND} could not mount {mountpoint}: {reason}")
        return _receive_fd(ours)


def _run(
    mountpoint: str, source: str, theirs: socket.socket, options: tuple[str, ...]
) -> subprocess.CompletedProcess[bytes]:
    name = source.replace("\\", "\\\\").replace(",", "\\,")
    words = [*options, "subtype=braidfs", f"fsname={name}"]
    try:
        return subprocess.run(
            [_COMMAND, "-o", ",".join(words), "--", mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            check=False,
            timeout=30,
        )
    except FileNotFoundError:
        raise ConfigError(f"mounting needs root or {_COMMAND} (package fuse3)") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{_COMMAND} did not end within 30 s") from None


def _receive_fd(ours: socket.socket) -> int:
    _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(_FD_SIZE))
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(packed[: len(packed) - len(packed) % _FD_SIZE])
            return fds[0]
    raise ConfigError(f"{_COMMAND} passed no device")
