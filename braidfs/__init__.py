"""What programs that train use beside the mount: checkpoints, data sets and paths.

Everything here works on any POSIX file system; what only BraidFS has is silently off elsewhere.
"""
