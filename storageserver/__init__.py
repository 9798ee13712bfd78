"""The storage server: keeps the objects of its targets and serves them to clients.

Bytes are native's (native/src/server, native/src/store); this package opens the targets, admits
connections, and keeps the metaserver and native agreed on sessions, epoch and targets.
"""
