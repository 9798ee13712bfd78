"""Compares what the metaserver's records say of objects with the objects of all targets, while
clients work (docs/operate/fsck.md)."""
