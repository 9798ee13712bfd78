"""Ansible's connection to a test host (tests.deployment.hosts): it enters the namespaces of the
host's PID 1.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
    name: host_by_namespace
    short_description: run tasks in the namespaces of a process
    description: As ansible.builtin.local, behind nsenter(1).
    options:
      pid:
        description: PID 1 of the host, as this machine counts.
        vars: [{name: test_host_pid}]
        type: int
        required: true
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Connection(Local):
    """exec_command, put_file and fetch_file, each with one nsenter."""

    transport = "host_by_namespace"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        pid = str(self.get_option("pid"))
        if not Path("/proc", pid).exists():
            raise AnsibleConnectionFailure("the host has ended")
        words = [
            "nsenter",
            "-t",
            pid,
            "-a",
            "-w",
            "env",
            "-i",
            f"PATH={PATH}",
            "HOME=/root",
            "LANG=C.UTF-8",
            "/bin/sh",
            "-c",
            cmd,
        ]
        return super().exec_command(shlex.join(words), in_data=in_data, sudoable=False)

    def put_file(self, in_path, out_path):
        self._checked(f"cat > {shlex.quote(out_path)}", Path(in_path).read_bytes())

    def fetch_file(self, in_path, out_path):
        Path(out_path).write_bytes(self._checked(f"cat {shlex.quote(in_path)}", None))

    def _checked(self, command, in_data):
        code, out, errors = self.exec_command(command, in_data=in_data)
        if code != 0:
            raise AnsibleError(f"{command}: {errors!r}")
        return out
