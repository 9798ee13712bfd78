"""DLIO's command lines, and what its results say. Pure.

DLIO 2.0.0 (dlio_benchmark on PyPI) replays a workload of the format "files" with PyTorch's
DataLoader: each emulated GPU is a rank of MPI. Its samples are NumPy archives of the same sizes.
"""

import json
from collections.abc import Mapping
from typing import Any

from .utilisation import Trace
from .workload import Format, Workload


def overrides(workload: Workload, folder: str, files: int, results: str) -> list[str]:
    """What a workload file says, for DLIO."""
    wanted: dict[str, Any] = {
        "framework": "pytorch",
        "workflow.checkpoint": False,
        "workflow.profiling": False,
        "dataset.data_folder": folder,
        "dataset.format": "npz",
        "dataset.num_files_train": files,
        "dataset.num_samples_per_file": workload.samples_per_file,
        "dataset.record_length": workload.sample_bytes,
        "dataset.record_length_stdev": workload.deviation_bytes,
        "dataset.record_length_resize": 0,
        "reader.data_loader": "pytorch",
        "reader.batch_size": workload.batch,
        "reader.read_threads": workload.readers,
        "reader.file_shuffle": "seed",
        "reader.sample_shuffle": "seed",
        "train.epochs": 1,
        "output.folder": results,
    }
    return [f"++workload.{key}={_text(value)}" for key, value in wanted.items()]


def _text(value: object) -> str:
    return str(value) if not isinstance(value, str) else f"'{value}'"


def command(environment: str, ranks: int, words: list[str]) -> list[str]:
    programs = f"{environment.rstrip('/')}/bin"
    python = [f"{programs}/python", f"{programs}/dlio_benchmark"]
    return [f"{programs}/mpirun", "-n", str(ranks), *python, "workload=unet3d_h100", *words]


def make_words(words: list[str]) -> list[str]:
    return [*words, "++workload.workflow.generate_data=True", "++workload.workflow.train=False"]


def train_words(words: list[str], compute_s: float, seed: int) -> list[str]:
    return [
        *words,
        "++workload.workflow.generate_data=False",
        "++workload.workflow.train=True",
        f"++workload.train.computation_time={compute_s}",
        f"++workload.train.seed={seed}",
    ]


def traces(results: Mapping[str, str], compute_s: float) -> list[Trace]:
    """One for each rank. results: the texts of DLIO's files RANK_output.json. Raises ValueError."""
    found = []
    for name, text in sorted(results.items()):
        try:
            epoch = json.loads(text)["1"]
            first_s = float(epoch["proc"]["block1"][0])
            utilisation = epoch["au"]["block1"] / 100
            steps = len(epoch["compute"]["block1"])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{name} is not a result of DLIO 2.0.0") from error
        counted = compute_s * max(0, steps - 1) / utilisation if utilisation > 0 else 0.0
        found.append(
            Trace(
                began_s=0.0,
                first_s=first_s,
                stopped_s=first_s + counted,
                steps=steps,
                bytes=0,
                files=0,
            )
        )
    return found


def is_possible(workload: Workload) -> bool:
    return workload.format is Format.FILES and workload.samples_per_file == 1
