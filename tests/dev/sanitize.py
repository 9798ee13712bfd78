"""`./dev sanitize`: the native half and the mount under ASan+UBSan and TSan, one minute for each
fuzzer.

Native tests run in both builds, and so do the tests of the module _braidfs_reader and the
integration subset: unmodified Python with libasan or libtsan preloaded and the instrumented module
first on its path. Leaks are not checked there
(Python itself has many). TSan needs a fixed address space: setarch -R.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.dev.build import build, build_lock, cmake_build, reader_build
from tests.dev.steps import BUILD, StepError, console, open_step, quiet_step, tool

FUZZ_SECONDS = 60
# It is the number for each stored structure: without TSan hundreds are checked, and TSan finds
# nothing new in them.
TSAN_DAMAGES = 10
READER_TESTS = tuple(
    f"tests/unit/braidfs/test_{name}.py" for name in ("reading", "pools", "listing", "index")
)
INTEGRATION_SUBSET = ("tests/fuse", "tests/stress")
# It is for tests without a timeout of their own: under ASan everything is slower.
INTEGRATION_TIMEOUT_SECONDS = 1200
_UBSAN = "print_stacktrace=1:halt_on_error=1"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the runtime of a sanitizer is loaded into an interpreter that was built without it."""

    title: str
    sanitizer: str  # BRAIDFS_SANITIZE uses this name
    library: str
    variable: str
    options: str


ASAN = Runtime(
    "ASan",
    "address",
    "libasan.so",
    "ASAN_OPTIONS",
    # Freed memory is kept for a while, which tests of memory bounds would count.
    "detect_leaks=0:handle_sigbus=0:quarantine_size_mb=128",
)
# A program forks to become a daemon and goes on, which TSan would end; only our module is
# instrumented, and only its errors are reported.
TSAN = Runtime(
    "TSan",
    "thread",
    "libtsan.so",
    "TSAN_OPTIONS",
    "die_after_fork=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1:handle_sigbus=0",
)


def sanitize(fuzz_seconds: int, integration: bool) -> bool:
    build()
    steps: list[Callable[[], None]] = [_native_address, _native_thread]
    steps += [lambda: _reader(ASAN), lambda: _reader(TSAN)]
    if integration:
        steps += [lambda: _integration(ASAN), lambda: _integration(TSAN)]
    steps.append(lambda: _fuzzers(fuzz_seconds))
    results = [_passes(one) for one in steps]
    return all(results)


def _passes(one: Callable[[], None]) -> bool:
    try:
        one()
    except StepError as failure:
        console.print(str(failure), markup=False)
        return False
    return True


def _native_build(sanitizer: str) -> Path:
    options = (f"-DBRAIDFS_SANITIZE={sanitizer}", "-DBRAIDFS_TESTS=ON", "-DBRAIDFS_MODULE=OFF")
    with build_lock():
        return cmake_build(f"native-{sanitizer}", f"Native with {sanitizer} sanitizer", options)


def _native_address() -> None:
    folder = _native_build("address")
    quiet_step(
        "Native tests under ASan and UBSan",
        ["ctest", "--test-dir", str(folder), "--output-on-failure"],
        environment={"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": _UBSAN},
    )


def _native_thread() -> None:
    folder = _native_build("thread")
    quiet_step(
        "Native tests under TSan",
        ["setarch", "-R", "ctest", "--test-dir", str(folder), "--output-on-failure"],
        environment={
            "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
            "BRAIDFS_DAMAGES": str(TSAN_DAMAGES),
        },
    )


def _library(name: str) -> str:
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def _reader(kind: Runtime) -> None:
    name = kind.sanitizer
    with build_lock():
        options = (f"-DBRAIDFS_SANITIZE={name}",)
        folder = reader_build(f"reader-{name}", f"Reader module with {name} sanitizer", options)
    # The module is found before that of the product's build, which .pth puts on the path.
    _python_tests(kind, f"reader-{name}", str(folder), ["-m", "not full", *READER_TESTS])


def _integration(kind: Runtime) -> None:
    name = kind.sanitizer
    with build_lock():
        folder = cmake_build(
            f"module-{name}",
            f"Module with {name} sanitizer",
            (f"-DBRAIDFS_SANITIZE={name}",),
            ("_braidfs_native",),
        )
    _python_tests(kind, name, str(folder / "bindings"), INTEGRATION_SUBSET)


def _python_tests(kind: Runtime, name: str, modules: str, tests: Sequence[str]) -> None:
    """Runs tests with the instrumented modules of that folder. Their reports are named NAME.PID."""
    reports = BUILD / "log"
    environment = {
        "LD_PRELOAD": f"{_library(kind.library)}:{_library('libstdc++.so.6')}",
        kind.variable: f"{kind.options}:log_path={reports / name}",
        "UBSAN_OPTIONS": f"{_UBSAN}:log_path={reports / name}",
        "BRAIDFS_TEST_PATIENCE": "3",
        "PYTHONPATH": f"{modules}:{os.environ['PYTHONPATH']}",
    }
    for old in reports.glob(f"{name}.*"):
        old.unlink()
    timeout = f"--timeout={INTEGRATION_TIMEOUT_SECONDS}"
    code = open_step(
        ["setarch", "-R", tool("python"), "-m", "pytest", "-q", timeout, *tests],
        environment=environment,
    )
    found = sorted(reports.glob(f"{name}.*"))
    if code or found:
        names = " ".join(map(str, found)) or "no sanitizer report"
        raise StepError(f"Tests of {name} under {kind.title}: exit {code}; {names}")
    console.print(f"[green]✓[/] Tests of {name} under {kind.title}")


def _fuzzers(seconds: int) -> None:
    options = (
        "-DCMAKE_CXX_COMPILER=clang++-14",
        "-DBRAIDFS_FUZZ=ON",
        "-DBRAIDFS_TESTS=OFF",
        "-DBRAIDFS_MODULE=OFF",
    )
    with build_lock():
        folder = cmake_build("fuzz", "Fuzzers", options)
    programs = sorted(path for path in (folder / "fuzz").glob("fuzz_*") if path.is_file())
    if not programs:
        raise StepError(f"no fuzzer was built in {folder / 'fuzz'}")
    for program in programs:
        corpus = BUILD / "corpus" / program.name
        corpus.mkdir(parents=True, exist_ok=True)
        command = [str(program), f"-max_total_time={seconds}", "-max_len=65536", str(corpus)]
        quiet_step(f"{program.name}, {seconds} s", command, folder=corpus)
