"""A BraidFS cluster on the loopback of one machine: real processes, real sockets, real mounts.

`./dev up` and the tests share it. `plan` decides names, ports and paths and writes them down;
`process` starts, finds and stops one detached program; `mounts` mounts and unmounts; `cluster`
composes them.
"""
