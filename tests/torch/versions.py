"""The versions of PyTorch that the long form tries. This is the one list of them.

PyTorch has a new minor version every two or three months: it belongs here then, and into
docs/train/pytorch-checkpoints.md. "newer" has the long form try also what this list does not know.
"""

MINORS = ("2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
NEWER = "newer"
ALL = (*MINORS, NEWER)


def requirement(version: str) -> str:
    """What pip is asked for: the last patch of a minor version, the one patch, or what is newer
    than the list."""
    if version == NEWER:
        major, minor = MINORS[-1].split(".")
        return f"torch>={major}.{int(minor) + 1}"
    return f"torch=={version}.*" if version in MINORS else f"torch=={version}"


def is_of(installed: str, version: str) -> bool:
    """Whether a value of torch.__version__, such as 2.13.0+cpu, is of the version."""
    return f"{installed.partition('+')[0]}.".startswith(f"{version}.")
