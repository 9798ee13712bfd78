"""Case v: for how many emulated GPUs a place is enough, by `braidfs validate --suite training`.

A machine with one disk feeds less than one GPU of the published unet3d (1.6 GB/s). So its files
have a tenth of the published size here, a batch has one of them, and the GPU reads a thirtieth of
the bytes in a second: 54 MB/s. Each GPU reads ten files in an epoch, so that fifty GPUs read 7 GB.
With more, the page cache of a virtual machine may grow into memory that its host has taken back,
and the time until the host gives it again would count as time of the file system. Epochs have the
short form. The kernel's caches are dropped before each epoch; what a peer's daemons keep in their
own memory stays.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import BraidPlace, NullPlace, Place
from tests.cluster.cluster import BIN

SMALLER_UNET3D = """
title = "unet3d with files of a tenth and a thirtieth of an A100"
format = "files"
sample_bytes = 14_660_063
deviation_bytes = 6_834_181
batch = 1
readers = 4
epochs = 3
utilisation = 0.90

[compute_s]
a100 = 0.2725
"""
SMALL = "A100 that retinanet keeps busy"
LARGE = "thirtieths of an A100 that unet3d keeps busy"
SECONDS_MAX = 1800


def _rows(_: Amounts) -> Iterator[Row]:
    yield Row(SMALL, "GPUs", (Bar(Than.LOCAL, 0.55), Bar(Than.PEERS, 2.5)))
    yield Row(LARGE, "GPUs", (Bar(Than.LOCAL, 0.7), Bar(Than.PEERS, 2.5)))


def _fed(place: Place, workload: str, *options: str) -> int:
    """The largest number of GPUs; 0 if not even one is kept busy. Raises RuntimeError."""
    words = [str(BIN / "braidfs"), "validate", str(place.folder), "--suite", "training", "--short"]
    words += ["--workload", workload, "--gpu", "a100", "--gpus", "max", "--json", *options]
    if isinstance(place, BraidPlace):
        words += ["--key-file", str(place.cluster.plan.key_file)]
    else:
        words += ["--any-file-system"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode not in (0, 3):  # 3: not enough, or not valid
        raise RuntimeError(f"validate: {done.stderr.strip()[-300:]}")
    (result,) = json.loads(done.stdout)["results"]
    if result["why_invalid"]:
        raise RuntimeError(f"validate: {', '.join(result['why_invalid'])}")
    is_enough = result["utilisation"]["middle"] >= result["utilisation_least"]
    return int(result["gpus"]) if is_enough else 0


def _run(place: Place, _: Amounts) -> Values:
    if isinstance(place, NullPlace):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        smaller = Path(folder, "smaller-unet3d.toml")
        smaller.write_text(SMALLER_UNET3D)
        return {SMALL: _fed(place, "retinanet"), LARGE: _fed(place, str(smaller), "--files", "10")}


EMULATED_GPUS = Case("v", "emulated GPUs", lambda amounts: tuple(_rows(amounts)), _run)
