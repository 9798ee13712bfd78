"""`./dev test`: the native tests by ctest, then everything else by pytest.

The last line on the terminal is pytest's own summary. With arguments for pytest, only pytest runs;
without them, two more processes share its tests with it (tests.dev.beside).
"""

import os
from collections.abc import Sequence

from tests.dev.build import NATIVE_BUILD, build
from tests.dev.steps import StepError, console, open_step, quiet_step, tool

# How often the long form cuts the power of the simulated device under the chunk store, and how many
# worlds it runs (native/tests/world); the quick form has 500 of each.
FULL_NATIVE_TESTS = {"BRAIDFS_CUTS": "10000", "BRAIDFS_WORLD_SEEDS": "20000"}


def test(full: bool, pytest_words: Sequence[str]) -> int:
    build(tests=True)
    native_ok = True if pytest_words else _native_tests(full)
    words = [*(["--full"] if full else []), *(pytest_words or ["-p", "tests.dev.beside"])]
    code = open_step([tool("python"), "-m", "pytest", *words])
    return code if native_ok else (code or 1)


def _native_tests(full: bool) -> bool:
    # Those that may measure their own timeouts run one after another (native/tests/CMakeLists.txt).
    jobs = str(max(2, (os.cpu_count() or 2) // 2))
    command = ["ctest", "--test-dir", str(NATIVE_BUILD), "--output-on-failure", "-j", jobs]
    try:
        quiet_step("Native tests", command, environment=FULL_NATIVE_TESTS if full else {})
    except StepError as failure:
        console.print(str(failure), markup=False)
        return False
    return True
