"""An environment with ansible-core, and one with ansible-lint too, beside the product's
environment.

Each is created when it is first needed, from the extra `ansible` of pyproject.toml, in
.build/ansible and .build/ansible-lint: a run without playbooks does not wait for it.
"""

from pathlib import Path

from tests.dev.extras import folder_of, requirements_of
from tests.dev.steps import BUILD, ROOT

PLAYBOOKS = ROOT / "ansible"


def program(name: str) -> str:
    """The path of ansible-playbook, ansible-doc, ..., or of ansible-lint."""
    is_lint = name == "ansible-lint"
    both = requirements_of("ansible")
    wanted = [one for one in both if is_lint or one.startswith("ansible-core")]
    folder = folder_of("ansible-lint" if is_lint else "ansible", wanted)
    return str(folder / "bin" / name)


def environment(program: str) -> dict[str, str]:
    """The environment variables for a program() and for the programs that it calls by name; they
    keep it from writing into the tree."""
    cache = BUILD / "ansible-home"
    return {
        "PATH": f"{Path(program).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "ANSIBLE_NOCOLOR": "1",
    }
