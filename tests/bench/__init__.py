"""`./dev bench`: BraidFS compared with local ext4 and with a FUSE file system that does nothing.

`cases` is the table of what is measured, `systems` has the three file systems, `smoke` runs the
rounds and judges. `data` is a folder of its own: it measures the data path in detail, also compared
with other file systems.
"""
