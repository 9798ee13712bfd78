"""fscommon/net/rdma.py with the pyverbs of PyPI (59) sees the same as with Debian's (44).

PyPI has only the source, which includes its rdma-core. Both are built in .build/rdma, once, with a
virtual environment for Cython, and used from there: nothing is installed. It takes some minutes, so
it is in the long form only.
"""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dev.steps import BUILD, StepError, quiet_step, tool
from tests.rdma.vm.guest import GuestRun, missing, run_in_guest

VERSION = "59.0"
FOLDER = BUILD / "rdma" / f"pyverbs-{VERSION}"
# The modules that pyverbs.device imports, and their imports.
MODULES = (
    "addr",
    "base",
    "cmid",
    "cq",
    "device",
    "dmabuf",
    "flow",
    "libibverbs_enums",
    "librdmacm_enums",
    "mr",
    "pd",
    "qp",
    "srq",
    "wq",
    "wr",
    "xrcd",
)
SUFFIX = f"cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so"
OPTIONS = ("-DIN_PLACE=1", "-DENABLE_RESOLVE_NEIGH=0", "-DNO_MAN_PAGES=1", "-DENABLE_STATIC=0")


def _build() -> Path:
    """The folder that is put in front of the path. Raises StepError."""
    source = FOLDER / f"pyverbs-{VERSION}" / "rdma-core"
    made = source / "build" / "python"
    if (FOLDER / "done").exists():
        return made
    shutil.rmtree(FOLDER, ignore_errors=True)
    python = FOLDER / "venv" / "bin" / "python"
    FOLDER.mkdir(parents=True)
    quiet_step("pyverbs: environment", [sys.executable, "-m", "venv", str(FOLDER / "venv")])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    quiet_step("pyverbs: Cython", [*pip, "install", "cython<3.2"])
    fetch = ["download", "--no-deps", "--no-binary", "pyverbs", f"pyverbs=={VERSION}"]
    quiet_step("pyverbs: source", [*pip, *fetch, "-d", str(FOLDER)])
    archive = next(FOLDER.glob("*.tar.gz"))
    quiet_step("pyverbs: unpack", ["tar", "-x", "-C", str(FOLDER), "-f", str(archive)])
    words = [
        *OPTIONS,
        f"-DPYTHON_EXECUTABLE={python}",
        f"-DCYTHON_EXECUTABLE={python.with_name('cython')}",
    ]
    build = source / "build"
    quiet_step(
        "pyverbs: configure", ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build), *words]
    )
    goals = [f"python/pyverbs/{name}.{SUFFIX}" for name in MODULES]
    goals += ["lib/libibverbs.so", f"lib/librxe-rdmav{VERSION.partition('.')[0]}.so"]
    quiet_step("pyverbs: build", ["ninja", "-C", str(build), *goals])
    (FOLDER / "done").touch()
    return made


def _shown(newer: Path) -> list[dict[str, list[str]]]:
    """The ports with Debian's version, then with the newer one: in one guest, because link-local
    addresses are random."""
    out = io.BytesIO()
    script = 'show() { "$0" -m tests.rdma.guest.show_ports; }; show && PYTHONPATH=$1 show'
    command = ("bash", "-c", script, tool("python"), str(newer))
    code = run_in_guest(GuestRun(command), out)
    assert code == 0, f"exit {code}: {out.getvalue().decode(errors='replace')}"
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_both_versions_show_the_same_ports() -> None:
    if reason := missing():
        pytest.skip(reason)
    try:
        newer = _build()
    except (StepError, subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"pyverbs {VERSION} of PyPI cannot be had: {error}")
    with_debians, with_newer = _shown(newer)
    assert with_newer["pyverbs"] == [str(newer / "pyverbs")]
    assert with_debians["pyverbs"] == ["/usr/lib/python3/dist-packages/pyverbs"]
    assert with_newer["ports"] == with_debians["ports"]
    assert len(with_newer["ports"]) == 2
