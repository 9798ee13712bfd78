"""POSIX semantics of the mounted file system, without FUSE and without sockets."""
