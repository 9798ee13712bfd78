"""An environment with ansible-core, and one with ansible-lint too, beside the one of the product.

Each is made when it is first asked for, from the extra `ansible` of pyproject.toml, in
.build/ansible and .build/ansible-lint: whoever runs no playbook does not wait for it.
"""

import fcntl
import sys
import tomllib
from pathlib import Path

from tests.dev.steps import BUILD, ROOT, quiet_step

PLAYBOOKS = ROOT / "ansible"


def program(name: str) -> str:
    """The path of ansible-playbook, ansible-doc, ..., or of ansible-lint."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    both: list[str] = project["optional-dependencies"]["ansible"]
    is_lint = name == "ansible-lint"
    wanted = [one for one in both if is_lint or one.startswith("ansible-core")]
    folder = _folder(is_lint)
    stamp = folder / "requirements.txt"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "ansible.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text().split("\n") != wanted:
            _make(folder, wanted)
            stamp.write_text("\n".join(wanted))
    return str(folder / "bin" / name)


def _folder(is_lint: bool) -> Path:
    return BUILD / ("ansible-lint" if is_lint else "ansible")


def _make(folder: Path, wanted: list[str]) -> None:
    make = [sys.executable, "-m", "venv", "--clear", str(folder)]
    quiet_step(f"Environment of {folder.name}", make)
    pip = [str(folder / "bin" / "pip"), "install", "--disable-pip-version-check", "--no-input"]
    quiet_step(f"Packages of {folder.name}", [*pip, *wanted])


def environment(program: str) -> dict[str, str]:
    """For a program() and what it calls by name; it writes nothing into the tree."""
    cache = BUILD / "ansible-home"
    return {
        "PATH": f"{Path(program).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "ANSIBLE_NOCOLOR": "1",
    }
