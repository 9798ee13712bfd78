"""Checkpoints of many ranks that appear whole or not at all. No torch, no dependency.

`Checkpoints` is where to begin; docs/train/checkpoints.md has the recipe and the promises.
"""

from .checkpoints import Checkpoints
from .commit import Step
from .errors import (
    AttemptUsedError,
    CheckpointError,
    CommitTimeout,
    DrainFailed,
    LockTimeout,
    NotWhole,
    PartFailed,
    StagingFull,
    StepExists,
    StepLost,
)
from .part import Part

__all__ = [
    "AttemptUsedError",
    "CheckpointError",
    "Checkpoints",
    "CommitTimeout",
    "DrainFailed",
    "LockTimeout",
    "NotWhole",
    "Part",
    "PartFailed",
    "StagingFull",
    "Step",
    "StepExists",
    "StepLost",
]
