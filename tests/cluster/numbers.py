"""The metrics of a cluster's programs, read as Prometheus reads them."""

import os
import re
import urllib.request
from collections import Counter
from pathlib import Path

from fscommon.observe.native_counters import ROWS
from tests.cluster.networks import Place
from tests.cluster.plan import HERE, HOST, ClusterPlan, ServerPlan
from tests.cluster.process import wait_until

SECONDS_MAX = 60.0


def metrics(port: int, place: Place = HERE) -> str:
    """The metrics page of the program that serves it at this port of its own loopback."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=SECONDS_MAX) as page:
            return str(page.read().decode())

    return place.call(read)


def metric(server: ServerPlan, name: str, **labels: str) -> float:
    """The sum of all samples of that name that have these labels."""
    return sum(samples(metrics(server.metrics_port, server.place), name, **labels).values())


def samples(page: str, name: str, **labels: str) -> dict[str, float]:
    """The samples of that name that have these labels: the text of their labels, and the value."""
    found: dict[str, float] = {}
    for one in re.finditer(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", page, re.M):
        text = one.group(1) or ""
        if all(f'{label}="{value}"' in text for label, value in labels.items()):
            found[text] = float(one.group(2))
    return found


def requests_shown(server: ServerPlan) -> Counter[str]:
    """Requests that a metaserver has answered, by op, as it counted them last."""
    counted: Counter[str] = Counter()
    for text, count in samples(
        metrics(server.metrics_port, server.place), "braidfs_requests_total"
    ).items():
        counted[text.split('op="')[1].split('"')[0]] += int(count)
    return counted


def requests_answered(server: ServerPlan, mount_path: Path) -> Counter[str]:
    """Requests answered up to now. A request through that mount makes the metaserver count all
    earlier ones."""
    former = requests_shown(server)["STATFS"]
    os.statvfs(mount_path)
    if not wait_until(lambda: requests_shown(server)["STATFS"] > former, 10):
        raise AssertionError("the metaserver does not count the requests that it answers")
    return requests_shown(server)


def native_counters(port: int) -> dict[str, int]:
    """Native counters, by their own names, of the program whose metrics are at this port."""
    page = metrics(port)
    found = re.findall(r'^braidfs_native\w*\{.*?"(\w+)"\} ([0-9.e+]+)$', page, re.M)
    counted = {name: int(float(value)) for name, value in found}
    for name, row in ROWS.items():
        values = samples(page, row.metric, **row.labels)
        if values:
            counted[name] = int(sum(values.values()))
    return counted


def servers_counted(plan: ClusterPlan, counter: str) -> int:
    """The sum of a native counter over the storage servers, since they started."""
    return sum(native_counters(server.metrics_port)[counter] for server in plan.storageservers)
