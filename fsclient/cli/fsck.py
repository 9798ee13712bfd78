"""braidfs fsck: compares what records say of objects with the objects of all targets."""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..check.looks import Looks, Wanted
from ..check.mending import Drops, delete_orphans
from ..check.tables import Tables
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, Reach, json_option, reaching, run_trio, show
from .fsck_report import Report, former_json, print_former, print_report, write_json
from .words import Age, duration

_FORMER_AGE_S_MIN: Final = 600.0


@click.command(
    cls=Command,
    examples=[
        ("braidfs fsck", "Is everything there that should be, and nothing else?"),
        ("braidfs fsck --json", "Every fault, for a program."),
        ("braidfs fsck --repair", "And mend what can be mended without losing anything."),
        ("braidfs fsck --stray", "Only objects that belong to no file, after a restore."),
    ],
    exits={EXIT_UNHEALTHY: "faults were found and not mended, or not all targets could be read"},
)
@click.option(
    "--repair",
    is_flag=True,
    help="Delete orphans, and drop replicas that are missing or too short while another one has "
    "everything: they are made anew. Nothing else, and only what is older than --older-than.",
)
@click.option(
    "--older-than",
    type=Age(),
    default="1d",
    show_default=True,
    metavar="AGE",
    help="Orphans that were changed more recently are no faults, and of files that were, nothing "
    "is repaired. A shorter time than a day is for tests.",
)
@click.option(
    "--stray",
    is_flag=True,
    help="Look for orphans only. They are listed, and are no failure of the command.",
)
@click.option("--delete", is_flag=True, help="With --stray: delete the orphans.")
@click.option(
    "--older", type=Age(), metavar="AGE", help="With --stray: as --older-than, 10 minutes at least."
)
@reaching
@json_option
def fsck(
    reach: Reach,
    repair: bool,
    older_than: tuple[str, float],
    stray: bool,
    delete: bool,
    older: tuple[str, float] | None,
    as_json: bool,
) -> int:
    """Check the metaserver's records against the objects of all targets, while clients work.

    It finds orphans: objects that nothing names, such as those of files that are newer than a
    restored backup, or that a client could not tell of before it died. Missing: objects that were
    durable once, or that another replica has, and that their target does not have. Doubly named:
    objects that two files have, or a file and a record of what is to go. Too short: objects that
    another replica exceeds while nobody writes, or whose file was cut. And it counts the replicas
    that files lack: those are made by themselves.

    It looks twice, and calls nothing wrong that a client or the metaserver is just making. All
    targets should be up. Bytes are not read: a scrub does that. Records of files are checked with
    `python3 -m metaserver.fsck` while the metaserver does not run.
    """
    if (delete or older) and not stray:
        raise click.UsageError("--delete and --older go with --stray; otherwise --repair")
    if stray and repair:
        raise click.UsageError("with --stray it is --delete that deletes orphans")
    older_s = _age("--older-than", older_than)
    if older is not None:
        older_s = _age("--older", older)
        if older_s < _FORMER_AGE_S_MIN:
            least = duration(_FORMER_AGE_S_MIN)
            raise click.BadParameter(f"--older is an age of {least} at least")
    wanted = Wanted(older_s, only_orphans=stray)
    tables = Tables()
    try:
        report: Report = run_trio(_run, reach, tables, wanted, repair or delete, as_json)
        if stray:
            found = former_json(report)
            show(found, as_json, lambda console: print_former(console, report, delete=delete))
            return EXIT_UNHEALTHY if found["unread"] or found["not_deleted"] else EXIT_DONE
        if as_json:
            write_json(report, sys.stdout)
        else:
            show(None, False, lambda console: print_report(console, report))
        return EXIT_DONE if report.is_clean else EXIT_UNHEALTHY
    finally:
        tables.close()


def _age(option: str, age: tuple[str, float]) -> float:
    if age[0]:
        raise click.BadParameter(f"{option} is an age, without + or -")
    return age[1]


async def _run(reach: Reach, tables: Tables, wanted: Wanted, repair: bool, as_json: bool) -> Report:
    with _Bar(as_json) as tell:
        looks = Looks(reach, tables, wanted, tell)
        await looks.check()
        now_ns = time.time_ns()
        assert looks.map is not None
        if repair:
            await delete_orphans(reach, tables, looks.map, tell)
            if not wanted.only_orphans:
                drops = Drops(reach, tables, looks.map, now_ns, wanted.older_s)
                await drops.drop_all(tell)
    return Report(tables, looks.unread, len(looks.map.targets), wanted.older_s, now_ns, repair)


class _Bar:
    """Shows how far it is, on a terminal only."""

    def __init__(self, as_json: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=as_json or not sys.stderr.isatty(),
        )

    def __enter__(self) -> Callable[[str, int, int], None]:
        self._progress.__enter__()
        task = self._progress.add_task("", total=None)
        return lambda what, done, total: self._progress.update(
            task, description=what, completed=done, total=total
        )

    def __exit__(self, *args: Any) -> None:
        self._progress.__exit__(*args)
