"""The environment of DLIO, for `braidfs validate --suite training --engine dlio` (`./dev bench data
--dlio`).

dlio_benchmark 2.0.0 is the last release of PyPI. It names packages that it does not need for
PyTorch's loader (TensorFlow, DALI, torchvision), so it is installed without what it names, and an
empty package stands in for tensorflow.
"""

import subprocess
from pathlib import Path

from tests.dev.extras import folder_of, requirements_of
from tests.dev.steps import quiet_step

NAME = "dlio"
ALONE = ("dlio_benchmark==2.0.0", "pydftracer==1.0.2")  # each without the packages that it names
_WITH_THEIRS = (
    *("mpich>=5,<6", "hydra-core>=1.3", "omegaconf>=2.3", "h5py>=3.11"),
    *("pandas>=2", "pillow>=10", "psutil>=5.9"),
)


def environment() -> Path:
    """The folder of the environment; it is made when it is first needed."""
    wanted = [
        one for one in requirements_of("bench") if one.startswith(("torch", "numpy", "mpi4py"))
    ]
    folder = folder_of(NAME, [*wanted, *_WITH_THEIRS])
    if not (folder / "bin" / "dlio_benchmark").exists():
        pip = [str(folder / "bin" / "pip"), "install", "--disable-pip-version-check", "--no-input"]
        quiet_step("DLIO", [*pip, "--no-deps", *ALONE])
        _stand_in(folder)
    return folder


def _stand_in(folder: Path) -> None:
    words = [
        str(folder / "bin" / "python"),
        "-c",
        "import sysconfig as s; print(s.get_path('purelib'))",
    ]
    place = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    package = Path(place.stdout.strip()) / "tensorflow"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text('"""Stands in for TensorFlow: nothing of it is used."""\n')
