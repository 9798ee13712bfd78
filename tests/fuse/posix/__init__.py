"""The conformance suite: POSIX and the Linux man pages, one case for each sentence.

Files are named after the calls that they check. Every case runs on a local ext4 file system (which
shows that the suite itself is right) and on a BraidFS mount; the docstring of a case, or the id of
its row in a table, is the sentence that it checks. Where BraidFS is known to differ, `differences`
says how exactly and why: the case must then show exactly that. `context` gives a case its folder
and its users, `calls` the bare system calls.
"""
