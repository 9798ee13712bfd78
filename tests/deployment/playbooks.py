"""Running the playbooks of this checkout against the hosts of a `Site`."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, Site
from tests.dev import ansible

KEY = "5eed" * 16
PLAY_SECONDS_MAX = 900


@dataclass(frozen=True, slots=True)
class Recap:
    """The counts of ansible-playbook, by host; the output helps to understand a failure."""

    changed: dict[str, int]
    failed: dict[str, int]
    output: str


class Playbooks:
    """`groups`: group of the inventory → hosts."""

    def __init__(self, site: Site, wheels: Wheels, groups: Mapping[str, Sequence[str]]) -> None:
        self._site = site
        self.wheels = wheels
        self.groups = {name: list(hosts) for name, hosts in groups.items()}
        self.variables: dict[str, Any] = {}

    def run(self, name: str, *words: str, fails: bool = False) -> Recap:
        """Runs playbooks/NAME.yml; raises an AssertionError with its output when it fails."""
        inventory = self._site.folder / "inventory.json"
        inventory.write_text(json.dumps(self._inventory(), indent=1))
        program = ansible.program("ansible-playbook")
        command = [
            program,
            "-i",
            str(inventory),
            "--forks",
            "5",
            str(ansible.PLAYBOOKS / "playbooks" / f"{name}.yml"),
            *words,
        ]
        plugins = str(Path(__file__).with_name("connection_plugins"))
        environment = {
            **os.environ,
            **ansible.environment(program),
            "ANSIBLE_CONNECTION_PLUGINS": plugins,
        }
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=PLAY_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )
        output = result.stdout + result.stderr
        assert KEY not in output and "PRIVATE KEY" not in output, "a key was printed"
        assert (result.returncode != 0) == fails, output
        return Recap(_counts(output, "changed"), _counts(output, "failed"), output)

    def _inventory(self) -> dict[str, Any]:
        hosts = self._site.hosts
        return {
            "all": {
                "hosts": {name: self._host(hosts[name]) for name in self._used()},
                "vars": {
                    "ansible_connection": "host_by_namespace",
                    "ansible_become": False,
                    "ansible_pipelining": True,
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "node_wheel": str(self.wheels.wheel),
                    "node_dependencies": f"{self.wheels.dependencies}.tar",
                    "node_key": KEY,
                    "node_tls": "required",
                    "node_tls_names": ["{{ address }}"],
                    "node_metaservers": [hosts[n].address for n in self.groups["metaservers"]],
                    "node_sysctls": {"net.ipv4.tcp_rmem": "4096 131072 8388608"},
                    "metaserver_listen": "{{ address }}:7400",
                    "storageserver_listen": "{{ address }}:7411",
                    "etcd_address": "{{ address }}",
                    "storageserver_targets": [{"path": "/srv/braidfs/t1"}],
                    "metaserver_settings": {"stripe_width_max": 8},
                    "metaserver_backup_directory": "/srv/braidfs/nightly",
                    **self.variables,
                },
                "children": {
                    group: {"hosts": {name: {} for name in names}}
                    for group, names in self.groups.items()
                },
            }
        }

    def _host(self, host: Host) -> dict[str, Any]:
        return {"test_host_pid": host.pid, "address": host.address}

    def _used(self) -> list[str]:
        return sorted({name for names in self.groups.values() for name in names})


def _counts(output: str, word: str) -> dict[str, int]:
    found = re.findall(rf"^(\S+)\s*: ok=.*\b{word}=(\d+)", output, re.M)
    return {host: int(count) for host, count in found}
