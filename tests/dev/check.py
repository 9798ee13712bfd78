"""`./dev check`: all checks that do not run the product.

These are ruff and clang-format (`./dev format` writes what they want), shellcheck, codespell (words
that it takes for wrong and that are right are in pyproject.toml), mypy --strict (also of tests,
whose fakes must fit what they stand for), import-linter's layers, the native module's stub (the one
in the tree must be what nanobind generates today), and the strict build of the documentation's site
(tests/dev/docs.py). All of them run, also after one failed.
`./dev check NAME...` runs some of them; .pre-commit-config.yaml has the quick ones.
"""

import difflib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.dev import docs
from tests.dev.build import GTEST, MODULE_FOLDER, READER, READER_FOLDER, build
from tests.dev.native_ports import generated
from tests.dev.steps import ROOT, StepError, console, quiet_step, tool

STUB = ROOT / "native" / "bindings" / "_braidfs_native.pyi"
READER_STUB = READER / "_braidfs_reader.pyi"
CLANG_FORMAT = "clang-format-14"  # each version has rules of its own
PROGRAMS = ("fscommon", "fsclient", "metaserver", "storageserver")
USERS = "braidfs"  # the package of users, who have older versions of Python
USERS_PYTHON = "3.10"
TESTS = (
    "tests.bench",
    "tests.cluster",
    "tests.coherence",
    "tests.conformance",
    "tests.dev",
    "tests.fuse",
    "tests.hostile",
    "tests.integration",
    "tests.model",
    "tests.rdma",
    "tests.recipes",
    "tests.stress",
    "tests.torch",
    "tests.unit",
    "tests.wire",
)


def check(names: Sequence[str] = ()) -> bool:
    """Runs the named checks; without names all of them."""
    chosen = names or tuple(CHECKS)
    if "stub" in chosen:
        build(tests=GTEST.exists())  # every line of C++ is compiled with -Wall -Wextra -Werror
    results = [_passes(one) for name, one in CHECKS.items() if name in chosen]
    return all(results)


def format_sources() -> None:
    """Rewrites Python and C++ as check() wants them."""
    quiet_step("ruff format", [tool("ruff"), "format", "."])
    quiet_step("clang-format", [CLANG_FORMAT, "-i", *_tracked("*.cpp", "*.h")])


def write_stub() -> None:
    """Copies today's generated stub into the tree, with the files that are generated from it."""
    build()
    STUB.write_text(_generated())
    READER_STUB.write_text(_generated_reader())
    for path, text in generated(_generated()).items():
        path.write_text(text)


def _passes(one: Callable[[], None]) -> bool:
    try:
        one()
    except StepError as failure:
        console.print(str(failure), markup=False)
        return False
    return True


def _ruff() -> None:
    quiet_step("ruff", [tool("ruff"), "check", "--output-format=concise", "."])
    quiet_step("ruff format", [tool("ruff"), "format", "--check", "."])


def _clang_format() -> None:
    quiet_step("clang-format", [CLANG_FORMAT, "--dry-run", "--Werror", *_tracked("*.cpp", "*.h")])


def _shellcheck() -> None:
    quiet_step("shellcheck", ["shellcheck", *filter(_is_shell, _tracked())])


def _codespell() -> None:
    quiet_step("codespell", [tool("codespell"), *_tracked()])


def _is_shell(name: str) -> bool:
    with (ROOT / name).open("rb") as file:
        return file.readline().startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh"))


def _tracked(*patterns: str) -> list[str]:
    words = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "--"]
    listed = subprocess.run(
        [*words, *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _mypy() -> None:
    packages = [word for package in (*PROGRAMS, USERS, *TESTS) for word in ("-p", package)]
    path = {"MYPYPATH": _mypy_path()}
    quiet_step("mypy", [tool("mypy"), "--strict", *packages], environment=path)
    users = [tool("mypy"), "--strict", "--python-version", USERS_PYTHON, "-p", USERS]
    quiet_step(f"mypy of {USERS} for Python {USERS_PYTHON}", users, environment=path)


def _mypy_path() -> str:
    return f"{ROOT}:{STUB.parent}:{READER}"


def _layers() -> None:
    quiet_step("import-linter", [tool("lint-imports")])


def _generated() -> str:
    return (MODULE_FOLDER / STUB.name).read_text()


def _generated_reader() -> str:
    return (READER_FOLDER / READER_STUB.name).read_text()


def _stub() -> None:
    wanted = {STUB: _generated(), READER_STUB: _generated_reader(), **generated(_generated())}
    for path, text in wanted.items():
        if difference := _difference(path, text):
            told = f"{path} is not what the module offers: ./dev build --stub"
            raise StepError("\n".join([*difference, told]))
    console.print("[green]✓[/] native stubs, ports and reference page")


def _difference(path: Path, wanted: str) -> Sequence[str]:
    have = path.read_text() if path.exists() else ""
    return list(
        difflib.unified_diff(
            have.splitlines(), wanted.splitlines(), "in the tree", "generated", lineterm=""
        )
    )


CHECKS: Mapping[str, Callable[[], None]] = {
    "ruff": _ruff,
    "clang-format": _clang_format,
    "shellcheck": _shellcheck,
    "codespell": _codespell,
    "mypy": _mypy,
    "layers": _layers,
    "docs": docs.build,
    "stub": _stub,
}
