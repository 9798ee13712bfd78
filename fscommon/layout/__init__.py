"""Where a file's bytes are, and the packed records that describe it (docs/INTERFACES.md, section
1).
"""
