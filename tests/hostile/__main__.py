"""`python -m tests.hostile [--storage] [--seed N] [--kind K] [--op OP] [--count N]`: attacks on a
metaserver, or on a storage server (then ops are numbers).

A run prints the command that repeats what it found.
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
from tests.hostile import data_requests, data_run
from tests.hostile.attack import ALL_OPS, KINDS
from tests.hostile.run import SERVERS, SETTINGS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=sorted({*KINDS, *data_run.KINDS}), action="append")
    parser.add_argument("--op", action="append", help="its name; its number with --storage")
    parser.add_argument("--count", type=int, default=256, help="bodies of each op, for each kind")
    words = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="hostile-"))
    settings = data_run.SETTINGS if words.storage else SETTINGS
    plan = make_plan(
        state,
        storage_servers=1 if words.storage else SERVERS,
        targets=data_run.TARGETS if words.storage else None,
        settings=settings,
    )
    cluster = Cluster(plan)
    try:
        cluster.start_servers()
        faults = _on_storage(cluster, words) if words.storage else _on_metaserver(cluster, words)
    finally:
        cluster.stop_servers()
    print("\n".join(faults) or "nothing was found")
    if faults:
        print(f"the cluster's state and logs: {state}")
        return 1
    shutil.rmtree(state)
    return 0


def _on_metaserver(cluster: Cluster, words: argparse.Namespace) -> list[str]:
    ops = tuple(Op[name] for name in words.op) if words.op else ALL_OPS
    return trio.run(run, cluster, words.seed, tuple(words.kind or KINDS), ops, words.count)


def _on_storage(cluster: Cluster, words: argparse.Namespace) -> list[str]:
    ops = tuple(int(number) for number in words.op) if words.op else data_requests.CODES
    kinds = tuple(words.kind or data_run.KINDS)
    return trio.run(data_run.run, cluster, words.seed, kinds, ops, words.count)


if __name__ == "__main__":
    sys.exit(main())
