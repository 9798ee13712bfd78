"""Keeps what a run has finished in a file, so that the same command can go on after an interrupt.

There is one JSON file for each request (verb, nodes, amounts). It is replaced as a whole after each
phase, and removed when the run is over. It names the nodes and the file system: a file system that
was made anew since is another one. Which phases are repeated for their files is in suites.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from .nodes import NodeError
from .outcome import Findings, Measured, NodeFacts, Outcome
from .suites import Phase

VERSION: Final = 1


def state_folder() -> Path:
    """The folder of this user."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if given else Path.home() / ".local" / "state") / "braidfs"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run has finished. path: None keeps nothing."""

    path: Path | None = None

    @classmethod
    def of(cls, verb: str, request: dict[str, Any]) -> "Kept":
        words = json.dumps({"verb": verb, **request}, sort_keys=True)
        name = hashlib.sha256(words.encode()).hexdigest()[:16]
        return cls(state_folder() / f"{verb}-{name}.json")

    def exists(self) -> bool:
        return self.path is not None and self.path.exists()

    def begin(self) -> None:
        """Drops what an earlier run of the same request has left."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    end = begin

    def put(self, findings: Findings) -> None:
        """Writes what is finished. Raises OSError."""
        if self.path is None:
            return
        state = {
            "began_ns": findings.began_ns,
            "seconds": findings.seconds,
            "outcomes": [
                {
                    "phase": one.phase.name,
                    "damage": one.damage,
                    "by_node": [asdict(part) for part in one.by_node],
                }
                for one in findings.outcomes
            ],
        }
        self.put_state(findings.nodes, state)

    def put_state(self, nodes: Sequence[NodeFacts], state: dict[str, Any]) -> None:
        """Writes the state of a run on these nodes. Raises OSError."""
        if self.path is None:
            return
        whole = {"version": VERSION, "nodes": _who(nodes), **state}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(whole, indent=1))
        beside.replace(self.path)

    def take(self, findings: Findings, phases: Sequence[Phase]) -> None:
        """Adds what is kept to findings. Raises NodeError if the nodes of findings differ."""
        state = self.state_of(findings.nodes)
        if state is None:
            return
        by_name = {phase.name: phase for phase in phases}
        findings.outcomes = [
            Outcome(
                by_name[one["phase"]],
                tuple(Measured(**part) for part in one["by_node"]),
                tuple(one["damage"]),
            )
            for one in state["outcomes"]
            if one["phase"] in by_name
        ]
        findings.began_ns, findings.seconds = state["began_ns"], state["seconds"]

    def state_of(self, nodes: Sequence[NodeFacts]) -> dict[str, Any] | None:
        """What put_state() wrote; None if nothing is kept. Raises NodeError if the nodes differ."""
        if self.path is None or not self.path.exists():
            return None
        try:
            state: dict[str, Any] = json.loads(self.path.read_text())
            same = state["version"] == VERSION and state["nodes"] == _who(nodes)
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(f"{self.path} cannot be read: begin without --resume") from error
        if not same:
            raise NodeError(
                "the interrupted run used another file system, or its nodes have changed: "
                "begin without --resume"
            )
        return state


def _who(nodes: Sequence[NodeFacts]) -> list[list[str]]:
    return [[one.name, one.host, one.file_system, one.source, one.identity] for one in nodes]


@dataclass(frozen=True, slots=True)
class Step:
    """A phase to be done. is_again: only for its files, as its result is kept."""

    phase: Phase
    is_again: bool = False


def steps(phases: Sequence[Phase], done: frozenset[str]) -> list[Step]:
    """The phases that are left, preceded by those that make the files which they need. Pure."""
    by_name = {phase.name: phase for phase in phases}
    planned: list[Step] = []
    made: set[str] = set()
    for phase in phases:
        if phase.name in done:
            continue
        needed = by_name.get(phase.needs)
        if needed is not None and needed.name in done and needed.name not in made:
            title = f"{needed.title} (again, for the files)"
            planned.append(Step(replace(needed, title=title), is_again=True))
            made.add(needed.name)
        planned.append(Step(phase))
        made.add(phase.name)
    return planned
