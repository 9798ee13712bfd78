"""What `./dev bench data --deepspeed` says before DeepSpeed can run, and what it reads of its
output.
"""

from pathlib import Path

import pytest

from tests.bench.data import swap_files
from tests.bench.data.swap_files import check_bytes, compile_for, need_compiler, rate_of
from tests.dev.steps import StepError

SAID = "Task Read Latency = 0.5 sec\nTask Read Speed = 3.0 GB/sec\nE2E Read Speed = 2.0 GB/sec\n"


def _compiler(folder: Path, *missing: str) -> None:
    """A g++ that does not find these headers."""
    fails = "".join(f"case $* in *{header}*) exit 1;; esac\n" for header in missing)
    (folder / "g++").write_text(f"#!/bin/sh\n{fails}exit 0\n")
    (folder / "g++").chmod(0o755)


def test_what_compiling_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(StepError, match=r"no g\+\+ in PATH.*Debian: g\+\+"):
        need_compiler()
    for header, package in (("libaio.h", "libaio-dev"), ("Python.h", "python3-dev")):
        _compiler(tmp_path, header)
        with pytest.raises(StepError, match=rf"no {header}.*Debian: {package}"):
            need_compiler()
    _compiler(tmp_path)
    need_compiler()


def test_a_missing_ninja_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compiler(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(StepError, match=r"no ninja in PATH.*Debian: ninja-build"):
        compile_for(str(tmp_path / "environment" / "bin" / "python"))


def test_the_rate_of_all_its_threads_is_read() -> None:
    assert rate_of(SAID) == pytest.approx(2 * 1024**3 / 1e6)
    with pytest.raises(RuntimeError, match="printed no speed"):
        rate_of("Found 1 validation error(s)\n")


@pytest.mark.parametrize("said", ["Fail: correctness of deepspeed_aio_read()", ""])
def test_bytes_that_differ_are_a_failure(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_files, "ds_io", lambda *_: said)
    with pytest.raises(RuntimeError, match="the bytes are not the same"):
        check_bytes("python", Path("/"), 1 << 20)
