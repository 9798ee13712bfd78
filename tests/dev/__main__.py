"""./dev COMMAND: build, run, test and measure BraidFS from a checkout.

up [--mount DIR] [--state DIR] [--storage-servers N] [--targets N] [--metaservers N]
   [--journal etcd|postgresql]
                  start a cluster on loopback, with the data in its state folder, and mount it;
                  several metaservers over one journal, in an engine that is started for them
down [--state DIR]       unmount the cluster and stop its processes
status [--state DIR]     show the processes of the cluster
test [--full] [ARGS]     run all tests, in quick or long form; ARGS go to pytest
check [NAME...]          check lint, formats, spelling, types, layers, the site, the native stub;
                  NAMEs are ruff, clang-format, shellcheck, codespell, mypy, layers, docs, stub:
                  only these
format                   format Python and C++ as check requires
bench [smoke]            compare with local ext4 and null FUSE
bench data [--case a,c,…] [--rounds N] [--peers DIR] [--quick] [--plots DIR] [--torch] [--mpi]
           [--deepspeed]
                  measure small files, checkpoints, random reads, … (docs/performance.md)
bench data --dlio        make the environment of DLIO for braidfs validate --suite training
bench metadata           measure names and attributes, beside peers that scripts start [--peers DIR]
bench journals           measure what a journal of etcd or PostgreSQL costs
bench replicas [--rounds N] [--peers DIR] [--quick]
                  measure what two replicas cost, beside one and beside peers with two copies
bench rebuild            measure how fast what a lost server had is made again, beside readers
bench transport          count the cost of a request by TCP and by RDMA, in the guest
sanitize                 run native tests and the mount under ASan+UBSan and TSan, and fuzzers
demo                     show in two minutes a cluster that works, loses a server, is validated
wheel [--dependencies]   write wheels and source distributions into dist [with what they need]
wheel --users            write only those of the users' package, for every Python that is here
deb                      write Debian packages of the three programs into dist
deployment [ARGS]        run the long form of tests/deployment: hosts, playbooks, units
docs [--serve]           build the documentation's site in .build/site; --serve: on loopback
man                      write man pages and the golden help text anew
rdma [--seconds N] [--boots N] [--prepare] [COMMAND...]
                  run COMMAND, or the RDMA tests, in a guest with Soft-RoCE; --boots: boot N times,
                  --prepare: only get what the guest needs
build [--stub]           build, as up and test do first; --stub writes the generated stub
help                     show this text; COMMAND --help shows its part
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from tests.cluster.mounts import MountError
from tests.cluster.plan import ETCD, POSTGRESQL, PlanError, PlanWishes
from tests.cluster.ports import NoPortError
from tests.cluster.process import ProcessError
from tests.dev.steps import StepError, console

_FOLDER = click.Path(file_okay=False, path_type=Path, resolve_path=True)
_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}
_COUNT = click.IntRange(1, 64)
_TO_PYTEST = ("test", "deployment")
PYTEST_HELP = ".venv/bin/python -m pytest --help"
_BENCHMARKS = ("smoke", "data", "metadata", "journals", "rebuild", "replicas", "transport")


@click.group(add_help_option=False)
def cli() -> None:
    """Each command imports what it needs, so that `help` works without a build."""


@cli.command(name="help")
def show_help() -> None:
    click.echo(__doc__)


@cli.command()
@click.option("--mount", type=_FOLDER)
@click.option("--state", type=_FOLDER)
@click.option("--storage-servers", type=_COUNT)
@click.option("--targets", type=_COUNT)
@click.option("--metaservers", type=click.IntRange(1, 3))
@click.option("--journal", type=click.Choice((ETCD, POSTGRESQL)))
def up(state: Path | None, **wishes: Unpack[PlanWishes]) -> None:
    from tests.dev import cluster_commands  # noqa: PLC0415

    cluster_commands.up(state or cluster_commands.DEFAULT_STATE, wishes)


@cli.command()
@click.option("--state", type=_FOLDER)
def down(state: Path | None) -> None:
    from tests.dev import cluster_commands  # noqa: PLC0415

    cluster_commands.down(state or cluster_commands.DEFAULT_STATE)


@cli.command()
@click.option("--state", type=_FOLDER)
def status(state: Path | None) -> None:
    from tests.dev import cluster_commands  # noqa: PLC0415

    sys.exit(0 if cluster_commands.status(state or cluster_commands.DEFAULT_STATE) else 1)


@cli.command(context_settings=_PASSED_ON)
@click.option("--full", is_flag=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def test(full: bool, words: tuple[str, ...]) -> None:
    from tests.dev.run_tests import test as run  # noqa: PLC0415

    sys.exit(run(full, words))


@cli.command()
@click.argument("names", nargs=-1)
def check(names: tuple[str, ...]) -> None:
    from tests.dev.check import CHECKS  # noqa: PLC0415
    from tests.dev.check import check as run  # noqa: PLC0415

    if unknown := set(names) - set(CHECKS):
        raise click.BadParameter(f"no such check: {', '.join(sorted(unknown))}")
    sys.exit(0 if run(names) else 1)


@cli.command(name="format")
def format_sources() -> None:
    from tests.dev.check import format_sources as run  # noqa: PLC0415

    run()


@cli.command()
@click.argument("suite", type=click.Choice(_BENCHMARKS), default="smoke")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--peers", type=_FOLDER)
@click.option("--case", "cases", default="")
@click.option("--quick", is_flag=True)
@click.option("--plots", type=_FOLDER)
@click.option("--torch", is_flag=True)
@click.option("--mpi", is_flag=True)
@click.option("--deepspeed", is_flag=True)
@click.option("--dlio", is_flag=True)
def bench(suite: str, rounds: int, peers: Path | None, **more: Any) -> None:
    if more.pop("dlio"):
        from tests.bench.data.dlio import environment  # noqa: PLC0415

        console.print(f"{environment()}: for --dlio-environment", markup=False)
        return
    if suite == "data":
        from tests.bench.data.suite import Wishes, data  # noqa: PLC0415

        sys.exit(0 if data(Wishes(rounds=rounds, peers=peers, **more)) else 1)
    if suite == "metadata":
        from tests.bench.metadata import metadata  # noqa: PLC0415

        sys.exit(0 if metadata(rounds, peers) else 1)
    if suite == "journals":
        from tests.bench.journals import journals  # noqa: PLC0415

        sys.exit(0 if journals(rounds) else 1)
    if suite == "rebuild":
        from tests.bench.rebuild import rebuild  # noqa: PLC0415

        sys.exit(0 if rebuild() else 1)
    if suite == "replicas":
        from tests.bench.replicas import replicas  # noqa: PLC0415

        sys.exit(0 if replicas(rounds, peers, quick=more["quick"]) else 1)
    if suite == "transport":
        from tests.bench.transport import transport  # noqa: PLC0415

        transport()
        return
    from tests.bench.smoke import smoke  # noqa: PLC0415

    sys.exit(0 if smoke(rounds) else 1)


@cli.command()
@click.option("--fuzz-seconds", type=click.IntRange(1, 86_400), default=60, show_default=True)
@click.option("--integration/--no-integration", default=True)
def sanitize(fuzz_seconds: int, integration: bool) -> None:
    from tests.dev.sanitize import sanitize as run  # noqa: PLC0415

    sys.exit(0 if run(fuzz_seconds, integration) else 1)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--seconds", type=click.IntRange(1, 86_400), default=3600, show_default=True)
@click.option("--boots", type=click.IntRange(1, 1000))
@click.option("--prepare", is_flag=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def rdma(seconds: int, boots: int | None, prepare: bool, words: tuple[str, ...]) -> None:
    from tests.dev import rdma as guest  # noqa: PLC0415

    if prepare:
        sys.exit(guest.prepare())
    sys.exit(guest.boots(boots) if boots else guest.rdma(words, seconds))


@cli.command()
def demo() -> None:
    from tests.dev.demo import demo as run  # noqa: PLC0415

    run()


@cli.command()
@click.option("--dependencies", is_flag=True)
@click.option("--users", is_flag=True)
def wheel(dependencies: bool, users: bool) -> None:
    from tests.dev import package, users_package  # noqa: PLC0415

    if users:
        users_package.users_wheels(package.DIST, every_python=True)
        users_package.users_source_distribution(package.DIST)
        return
    package.wheel()
    package.source_distribution()
    users_package.users_source_distribution(package.DIST)
    if dependencies:
        package.dependencies()


@cli.command()
def deb() -> None:
    from tests.dev import deb as packages  # noqa: PLC0415

    packages.deb()


@cli.command(context_settings=_PASSED_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def deployment(words: tuple[str, ...]) -> None:
    from tests.dev.run_tests import test as run  # noqa: PLC0415

    sys.exit(run(True, ("tests/deployment", *words)))


@cli.command(name="docs")
@click.option("--serve", is_flag=True)
def build_docs(serve: bool) -> None:
    from tests.dev import docs  # noqa: PLC0415

    if serve:
        sys.exit(docs.serve())
    docs.show()


@cli.command()
def man() -> None:
    from tests.dev import build as building  # noqa: PLC0415
    from tests.dev import manual  # noqa: PLC0415

    building.build()
    manual.write()


@cli.command()
@click.option("--stub", is_flag=True)
def build(stub: bool) -> None:
    from tests.dev import build as building  # noqa: PLC0415
    from tests.dev import check  # noqa: PLC0415

    check.write_stub() if stub else building.build()


def help_of(verb: str) -> str:
    """What the text above says of a command: its lines and those that are further in. All of the
    text for a word that is none."""
    found = re.findall(rf"^{re.escape(verb)}\b.*\n(?:\s+\S.*\n)*", __doc__, re.M)
    if verb in _TO_PYTEST:
        found.append(f"ARGS are those of pytest: {PYTEST_HELP} lists them\n")
    return "".join(found) or __doc__


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether ./dev answers at once, and does nothing; as asks_for_help in the script."""
    if words[:1] in (["-h"], ["--help"]) or words[1:2] in (["-h"], ["--help"]):
        return True
    return words[:1] != ["rdma"] and not {"-h", "--help"}.isdisjoint(words[1:])


def main() -> None:
    if asks_for_help(sys.argv[1:]):
        click.echo(help_of(sys.argv[1]), nl=False)
        return
    try:
        cli(prog_name="./dev")
    except (StepError, PlanError, NoPortError, ProcessError, MountError) as failure:
        console.print(f"dev: {failure}", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
