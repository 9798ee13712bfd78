"""What programs that train use beside the mount: checkpoints, data sets and paths.

    import braidfs

    braidfs.where("/data/imagenet")       # the mount that has it; None: it is not on BraidFS
    braidfs.path("braid:///imagenet")     # its path on this node

Everything here works on any POSIX file system; what only BraidFS has is silently off elsewhere.
Nothing is imported before it is used, so that `import braidfs` costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all of this file
if TYPE_CHECKING:
    from .announce import Announcer as Announcer
    from .mounts import Mount as Mount
    from .mounts import path as path
    from .mounts import url as url
    from .mounts import where as where

__all__ = ["Announcer", "Mount", "path", "url", "where"]

_PLACES = {
    "Announcer": ".announce",
    "Mount": ".mounts",
    "path": ".mounts",
    "url": ".mounts",
    "where": ".mounts",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'braidfs' has no attribute '{name}'")
    found: object = getattr(import_module(_PLACES[name], __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
