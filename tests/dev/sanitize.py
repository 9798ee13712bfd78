"""`./dev sanitize`: native under ASan+UBSan and TSan, the mount under ASan, one minute per fuzzer.

Native tests run in both builds. The integration subset runs unmodified Python with libasan
preloaded and the instrumented module first on its path; leaks are not looked for there (Python
itself leaves plenty). TSan needs a fixed address space: setarch -R.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.dev.build import build, build_lock, cmake_build
from tests.dev.steps import BUILD, StepError, console, open_step, quiet_step, tool

FUZZ_SECONDS = 60
INTEGRATION_SUBSET = ("tests/fuse", "tests/stress")
INTEGRATION_TIMEOUT_SECONDS = 1200  # for tests that name none: under ASan everything is slower
_UBSAN = "print_stacktrace=1:halt_on_error=1"


def sanitize(fuzz_seconds: int, integration: bool) -> bool:
    build()
    steps: list[Callable[[], None]] = [_native_address, _native_thread]
    if integration:
        steps.append(_integration_address)
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
        environment={"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
    )


def _library(name: str) -> str:
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def _integration_address() -> None:
    options = ("-DBRAIDFS_SANITIZE=address",)
    with build_lock():
        folder = cmake_build(
            "module-address", "Module with address sanitizer", options, ("_braidfs_native",)
        )
    environment = {
        "LD_PRELOAD": f"{_library('libasan.so')}:{_library('libstdc++.so.6')}",
        "ASAN_OPTIONS": f"detect_leaks=0:handle_sigbus=0:log_path={BUILD}/log/asan",
        "UBSAN_OPTIONS": _UBSAN,
        "BRAIDFS_TEST_PATIENCE": "3",
        "PYTHONPATH": f"{folder / 'bindings'}:{os.environ['PYTHONPATH']}",
    }
    for old in (BUILD / "log").glob("asan.*"):
        old.unlink()
    timeout = f"--timeout={INTEGRATION_TIMEOUT_SECONDS}"
    code = open_step(
        [tool("python"), "-m", "pytest", "-q", timeout, *INTEGRATION_SUBSET],
        environment=environment,
    )
    reports = sorted((BUILD / "log").glob("asan.*"))
    if code or reports:
        names = " ".join(map(str, reports)) or "no sanitizer report"
        raise StepError(f"Integration tests under ASan: exit {code}; {names}")
    console.print("[green]✓[/] Integration tests under ASan")


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
