"""Alert rules and the dashboard name metrics that exist, with labels that they have."""

import json
import re
from collections.abc import Iterator

import pytest

from fscommon.observe.health import CERTIFICATE_DAYS_MIN, ENGINE_FULL, SLOW_APPEND_S
from fscommon.observe.metrics import TABLE, Kind, Metric
from tests.dev.steps import ROOT

MONITORING = ROOT / "monitoring"
ROWS = {row.name: row for row in TABLE}
OTHER_LABELS = {"instance", "job", "le"}  # Prometheus itself adds these


def _rules() -> list[str]:
    text = (MONITORING / "alerts.yml").read_text()
    return re.findall(r"^ +expr: (.+)$", text, re.M)


def _panels() -> Iterator[tuple[str, str]]:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def _row(name: str) -> Metric:
    """The metric to which a name in a query belongs."""
    if name in ROWS:
        assert ROWS[name].kind is not Kind.HISTOGRAM, f"{name}: ask for _bucket, _sum or _count"
        return ROWS[name]
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    assert base in ROWS and ROWS[base].kind is Kind.HISTOGRAM, f"no metric {name}"
    return ROWS[base]


@pytest.mark.parametrize("query", [*_rules(), *(query for query, _ in _panels())])
def test_queries_name_metrics_that_exist(query: str) -> None:
    names = set(re.findall(r"\bbraidfs_\w+", query))
    assert names
    allowed = OTHER_LABELS.union(*(_row(name).labels for name in names))
    asked = set(re.findall(r"(\w+)(?:=~?|!=)\"", query))
    groups = re.findall(r"by \(([^)]*)\)", query)
    asked |= {label for group in groups for label in group.split(", ")}
    assert asked <= allowed, query
    for name in names:
        counts = _row(name).kind is Kind.COUNTER
        assert not counts or re.search(rf"(?:rate|increase)\({name}", query), f"{name} only rises"


@pytest.mark.parametrize(("query", "legend"), list(_panels()))
def test_legends_name_labels_that_are_there(query: str, legend: str) -> None:
    labels = set(re.findall(r"{{(\w+)}}", legend))
    names = re.findall(r"\bbraidfs_\w+", query)
    assert labels <= OTHER_LABELS.union(*(_row(name).labels for name in names))


def test_states_that_alerts_ask_for_exist() -> None:
    states = set(re.findall(r'state="(\w+)"', "".join(_rules())))
    assert states and states <= {"up", "down", "full", "lost", "running", "waiting", "paused"}


def test_alerts_have_severity_and_summary() -> None:
    text = (MONITORING / "alerts.yml").read_text()
    count = text.count("- alert: ")
    assert count == len(_rules()) >= 10
    assert text.count("summary: ") == count
    assert len(re.findall(r"severity: (?:warning|critical)", text)) == count


def test_the_journal_alerts_before_it_is_full() -> None:
    shares = re.findall(r"journal_engine_bytes .*> (0\.\d+)$", "\n".join(_rules()), re.M)
    assert shares == [str(ENGINE_FULL)]


def test_a_slow_journal_alerts_when_status_says_it_too() -> None:
    seconds = re.findall(r"journal_append_seconds_bucket.*> ([0-9.]+)$", "\n".join(_rules()), re.M)
    assert seconds == [str(SLOW_APPEND_S)]


def test_certificates_alert_when_status_says_it_too() -> None:
    days = re.findall(r"certificate_expiry.*< (\d+) \* 86400", "\n".join(_rules()))
    assert days == [str(CERTIFICATE_DAYS_MIN)]
