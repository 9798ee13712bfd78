"""The conformance suite: POSIX and the Linux man pages, one case for each sentence.

Files are named after the calls they check. Every case runs on a local ext4 file system (so that
the suite itself is shown to be right) and on a BraidFS mount; the docstring of a case, or the id
of its row in a table, is the sentence that it checks. Where BraidFS is known to do something else,
`differences` says what exactly and why: the case must then show just that. `context` gives a case
its folder and its users, `calls` the bare system calls.
"""
