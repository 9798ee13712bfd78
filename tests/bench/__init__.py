"""`./dev bench`: BraidFS beside local ext4, and beside a FUSE file system that does nothing.

`cases` is the table of what is measured, `systems` the three file systems, `smoke` runs the rounds
and judges. `data` is a folder of its own: the data path at length, also beside other file systems.
"""
