"""The report of a run as one HTML page: no file beside it, nothing from the network. Pure."""

import time
from collections.abc import Sequence
from html import escape
from typing import Final

from .outcome import Findings, NodeFacts, Outcome
from .plots import Bar, Mark, bars
from .sizing import GB, Need, sizings
from .suites import Amounts, Kind

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5c6670;--paper:#fff;--line:#d7dce1;
--read:#2f6fde;--write:#c9631b;--other:#5a8f3c;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4ae;--paper:#14171a;
--line:#343b42;--read:#6ea1ff;--write:#f0a060;--other:#8fc46a;--bad:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2rem}
p.verdict{font-size:1.15rem}.bad{color:var(--bad)}.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.25rem .6rem;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}figure{margin:1rem 0}
figcaption{font-weight:600}svg{width:100%;height:auto;font:13px system-ui,sans-serif}
svg text{fill:var(--ink)}svg .label{text-anchor:end}rect.read{fill:var(--read)}
rect.write{fill:var(--write)}rect.other{fill:var(--other)}
line.mark{stroke:var(--soft);stroke-dasharray:4 3}text.mark{fill:var(--soft);text-anchor:middle}
"""


def page(findings: Findings, amounts: Amounts, need: Need | None) -> str:
    """The whole page."""
    names = [node.name for node in findings.nodes]
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(findings.began_ns / 1e9))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>BraidFS validation, {when}</title><style>{_STYLE}</style>",
        f"<h1>BraidFS validation</h1><p class=soft>{when} · suite {escape(findings.suite)} · "
        f"{len(names)} node{'s' if len(names) != 1 else ''}, each {amounts.jobs} jobs · "
        f"{findings.seconds:.0f} s</p>",
        *_verdict(findings, need),
        "<h2>Enough for how many GPUs</h2>",
        _sizes(findings),
        "<h2>Rates</h2>",
        *_rates(findings),
        "<h2>Every phase</h2>",
        _phases(findings.outcomes),
        "<h2>Nodes</h2>",
        *_nodes(findings.outcomes, names),
        _facts(findings.nodes),
        "<h2>How it was measured</h2>",
        _method(findings),
    ]
    return "\n".join(parts) + "\n"


def verdict(findings: Findings) -> str:
    """One sentence for people."""
    read, write = findings.rate("read"), findings.rate("write")
    sized = ", ".join(f"{one.gpus} {one.profile.name}" for one in sizings(read, write))
    return (
        f"Reads {read / GB:.2f} GB/s, writes {write / GB:.2f} GB/s: "
        f"enough for so many GPUs: {sized}."
    )


def _verdict(findings: Findings, need: Need | None) -> list[str]:
    parts = [f"<p class=verdict>{escape(verdict(findings))}</p>"]
    if findings.damage:
        told = "".join(f"<li>{escape(text)}</li>" for text in findings.damage)
        said = "<b>Bytes were read that are not those that were written.</b>"
        parts.append(f"<div class=bad>{said}<ul>{told}</ul></div>")
    else:
        parts.append("<p>Every byte that was checked is the one that was written.</p>")
    if need is not None:
        said = "It is enough" if need.is_met else "It is <b>not</b> enough"
        kind = "" if need.is_met else " class=bad"
        parts.append(f"<p{kind}>{said} for {need.gpus} GPUs of profile {need.profile.name}.</p>")
    return parts


def _sizes(findings: Findings) -> str:
    rows = [
        (
            one.profile.name,
            f"{one.profile.read / GB:g} GB/s",
            f"{one.profile.write / GB:g} GB/s",
            str(one.gpus),
            one.limit,
        )
        for one in sizings(findings.rate("read"), findings.rate("write"))
    ]
    columns = ("profile", "read of each", "write of each", "GPUs", "limited by")
    return _table(columns, rows)


def _rates(findings: Findings) -> list[str]:
    moved = [one for one in findings.outcomes if one.phase.kind is not Kind.METADATA]
    named = [one for one in findings.outcomes if one.phase.kind is Kind.METADATA]
    rates = [
        Bar(one.phase.title, one.whole.bytes_per_second, _rate(one), _colour(one)) for one in moved
    ]
    waits = [
        Bar(one.phase.title, one.whole.p99_us, f"{one.whole.p99_us:,.0f} µs", _colour(one))
        for one in findings.outcomes
        if one.whole.p99_us
    ]
    made = [
        Bar(
            one.phase.title,
            one.whole.operations_per_second,
            f"{one.whole.operations_per_second:,.0f}/s",
            "other",
        )
        for one in named
    ]
    marks = [Mark(GB, "a light GPU reads")] if any(bar.value > GB / 20 for bar in rates) else []
    return [
        bars("Bytes a second, all nodes", rates, marks),
        bars("Names a second, all nodes", made),
        bars("99 of 100 operations are faster than (the slowest node)", waits),
    ]


def _wait(us: float) -> str:
    return f"{us:,.0f} µs" if us else ""


def _rate(one: Outcome) -> str:
    return f"{one.whole.bytes_per_second / 1e6:,.0f} MB/s"


def _colour(one: Outcome) -> str:
    if one.phase.kind is Kind.METADATA:
        return "other"
    return "read" if one.phase.kind is Kind.READ or one.phase.verifies else "write"


def _phases(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for one in outcomes:
        whole = one.whole
        checked = "damaged" if one.damage else "right" if one.phase.verifies else ""
        rows.append(
            (
                one.phase.title,
                f"{whole.seconds:.1f} s",
                _rate(one) if whole.bytes else "",
                f"{whole.operations_per_second:,.0f}/s",
                _wait(whole.p50_us),
                _wait(whole.p99_us),
                checked,
            )
        )
    columns = ("phase", "took", "bytes", "operations", "median", "99 %", "checked")
    return _table(columns, rows)


def _nodes(outcomes: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    plots = []
    for one in outcomes:
        if one.phase.name in ("read", "write"):
            rows = [
                Bar(
                    name,
                    part.bytes_per_second,
                    f"{part.bytes_per_second / 1e6:,.0f} MB/s",
                    _colour(one),
                )
                for name, part in zip(names, one.by_node, strict=True)
            ]
            plots.append(bars(one.phase.title, rows))
    return plots


def _facts(nodes: Sequence[NodeFacts]) -> str:
    rows = [
        (
            one.name,
            one.source,
            one.file_system,
            str(one.cpus),
            f"{one.memory_bytes / (1 << 30):.0f} GiB",
            one.kernel,
            one.fio,
        )
        for one in nodes
    ]
    return _table(("node", "mounted", "as", "CPUs", "memory", "kernel", "fio"), rows)


def _method(findings: Findings) -> str:
    run = {one.phase.tool for one in findings.outcomes} - {""}
    left_out = [name for name, tool in (("IOR", "ior"), ("mdtest", "mdtest")) if tool not in run]
    of_tools = "IOR and mdtest ran on each node by itself, all at once. "
    if left_out:
        of_tools = (
            f"Not every node has {' and '.join(left_out)}: the shared file and the names follow "
            "their patterns. "
        )
    return (
        "<p class=soft>All nodes do a phase together. A rate is all bytes over the time of the "
        "slowest node, syncs included. Each node reads what another one wrote; a single node drops "
        "its page cache first. A profile is what one GPU reads and writes at a time: light 1 and "
        "0.75, medium 2 and 1.5, heavy 4 and 3 GB/s. These nodes made the load: more of them may "
        "get more out of the same servers. "
        f"{of_tools}</p>"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
