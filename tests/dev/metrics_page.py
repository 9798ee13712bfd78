"""docs/METRICS.md from the one table of metrics. The module is pure; ./dev man writes the page, a
test compares it.
"""

from fscommon.observe.metrics import TABLE, Metric

_HEAD = """# Metrics

Written by `./dev man` from `fscommon/observe/metrics.py`. Every program serves them for
Prometheus at its `metrics_listen` (a mount: that of its host's `client.toml`), path `/metrics`; off
by default. Counters end with `_total`, times are seconds, sizes bytes. A histogram NAME has
`NAME_bucket`, `NAME_sum` and `NAME_count`.
`monitoring/alerts.yml` are alert rules, `monitoring/grafana-dashboard.json` is a dashboard.

| metric | kind | labels | what it shows |
|---|---|---|---|
"""
_TAIL = """
Metrics of data requests, bytes and caches are the counters of native code, read at the time of the
scrape (`fscommon/observe/native_counters.py`). `braidfs_native` has its other counters, for
diagnosis, one value of `counter` each: they only rise while the program runs, except current
amounts (`inodes`, `buffer_bytes`, `cache_records`). Only root can ask a device for its own count of
wear (smartctl_exporter); `braidfs_target_device_written_bytes_total` is what was written to it.

| histogram | upper bounds of its buckets |
|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [f"| `{row.name}` | {row.kind.value} | {_labels(row)} | {row.help} |" for row in TABLE]
    buckets = [
        f"| `{row.name}` | {', '.join(f'{bound:g}' for bound in row.buckets)} |"
        for row in TABLE
        if row.buckets
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL + "\n".join(buckets) + "\n"


def _labels(row: Metric) -> str:
    return ", ".join(f"`{label}`" for label in row.labels)
