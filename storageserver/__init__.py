"""The storage server: keeps the objects of its targets and serves them to clients.

Native code handles the bytes (native/src/server, native/src/store). This package opens the targets,
admits connections, and keeps metaserver and native code agreed on sessions, map epoch and targets.
"""
