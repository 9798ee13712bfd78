"""A cluster in which one program has a planted fault (see `mutants`).

BRAIDFS_POSIX_MUTANT names the fault; without it the suite runs on the cluster that all tests share.
The faulty program is a script in the state folder that plants the fault and then runs the program.
The mount helper is called directly, because mount(8) knows only the one in /sbin.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import ClusterPlan, ServerPlan, make_plan
from tests.cluster.process import Program
from tests.conftest import ROOT, STATES
from tests.fuse.posix.mutants import CLIENT, METASERVER, Mutant, find

VARIABLE = "BRAIDFS_POSIX_MUTANT"
_SCRIPT = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.fuse.posix.mutants import run
run({name!r})
"""


class MutatedCluster(Cluster):
    def __init__(self, plan: ClusterPlan, mutant: Mutant) -> None:
        super().__init__(plan)
        self._mutant = mutant
        # Its name is the program's own, because a running client is found by that name.
        is_client = mutant.program == CLIENT
        name = "mount.fuse.braidfs" if is_client else f"braidfs-{mutant.program}"
        self._script = plan.state / "bin" / name
        self._script.parent.mkdir()
        text = _SCRIPT.format(python=sys.executable, root=str(ROOT), name=mutant.name)
        self._script.write_text(text)
        self._script.chmod(0o755)

    def program(self, server: ServerPlan) -> Program:
        program = super().program(server)
        if self._mutant.program == METASERVER and server is self.plan.metaserver:
            return replace(program, argv=(str(self._script), *program.argv[1:]))
        return program

    def mount(self) -> None:
        is_mine = self._mutant.program == CLIENT
        helper = self._script if is_mine else BIN / "mount.fuse.braidfs"
        self.plan.mount.mkdir(exist_ok=True)
        words = [str(helper), self.plan.source(), str(self.plan.mount)]
        words += ["-o", self.plan.mount_options()]
        subprocess.run(words, check=True, timeout=mounts.MOUNT_SECONDS_MAX)


@contextmanager
def mutated_cluster(name: str) -> Iterator[Path]:
    STATES.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix=f"mutant-{name}-", dir=STATES))
    state.chmod(0o755)
    cluster = MutatedCluster(make_plan(state, storage_servers=2, targets=2), find(name))
    try:
        cluster.start()
        yield cluster.mount_path
    finally:
        cluster.stop()
        if not mounts.is_mounted(cluster.mount_path):
            shutil.rmtree(state)


def wanted() -> str | None:
    return os.environ.get(VARIABLE)
