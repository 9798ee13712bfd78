"""`python -m tests.hostile [--seed N] [--kind K] [--op OP] [--count N]`: attacks.

What a run found is repeated by the command that it printed.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import trio

from fscommon.wire.ops import Op
from tests.cluster.cluster import Cluster
from tests.cluster.plan import make_plan
from tests.hostile.attack import ALL_OPS, KINDS
from tests.hostile.run import SETTINGS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--op", choices=[op.name for op in ALL_OPS], action="append")
    parser.add_argument("--count", type=int, default=256, help="bodies of each op, for each kind")
    words = parser.parse_args()
    ops = tuple(Op[name] for name in words.op) if words.op else ALL_OPS
    state = Path(tempfile.mkdtemp(prefix="hostile-"))
    cluster = Cluster(make_plan(state, storage_servers=1, settings=SETTINGS))
    try:
        cluster.start_servers()
        faults = trio.run(run, cluster, words.seed, tuple(words.kind or KINDS), ops, words.count)
    finally:
        cluster.stop_servers()
    print("\n".join(faults) or "nothing was found")
    if faults:
        print(f"the cluster's state and logs: {state}")
        return 1
    shutil.rmtree(state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
