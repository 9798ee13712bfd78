"""`python -m braidfs.checkpoint list|verify|remove|tidy ROOT`: for containers without `braidfs`.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 a step is not whole.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import commands
from .commands import Answer
from .errors import CheckpointError
from .shelf import TIDY_AGE


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        answer: Answer = given.work(given)
    except (CheckpointError, OSError, ValueError) as error:
        print(f"braidfs.checkpoint: {error}", file=sys.stderr)  # noqa: T201
        return commands.FAILED
    text = json.dumps(answer.shown) if given.json else "\n".join(answer.lines)
    print(text)  # noqa: T201
    return answer.exit


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m braidfs.checkpoint",
        description="Look at the checkpoints of a run, and remove them.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 a step is not whole.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _verb(verbs, "list", "Show the visible steps.", lambda given: commands.list_steps(given.root))
    verify = _verb(verbs, "verify", "Compare steps with their manifests.", _verify)
    verify.add_argument("step", nargs="*", type=int, help="without any: all visible ones")
    remove = _verb(
        verbs,
        "remove",
        "Remove steps that nobody reads.",
        lambda given: commands.remove_steps(given.root, given.step),
    )
    remove.add_argument("step", nargs="+", type=int)
    tidy = _verb(
        verbs,
        "tidy",
        "Remove what crashed writers left.",
        lambda given: commands.tidy_root(given.root, given.age),
    )
    tidy.add_argument(
        "--age", type=float, default=TIDY_AGE, help="seconds without a change (%(default)g)"
    )
    return parser


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    work: Callable[[argparse.Namespace], Answer],
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text)
    verb.add_argument("root", type=Path, metavar="ROOT", help="the directory of the checkpoints")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(work=work)
    return verb


def _verify(given: argparse.Namespace) -> Answer:
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if sys.stderr.isatty():
            print(f"\r{done / 2**30:,.1f} GiB", end="", file=sys.stderr, flush=True)  # noqa: T201

    answer = commands.verify_steps(given.root, given.step, progress)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)  # noqa: T201
    return answer


if __name__ == "__main__":
    sys.exit(main())
