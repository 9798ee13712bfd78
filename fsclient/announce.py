"""The former place of braidfs.announce: programs that import it from here go on working."""

from braidfs.announce import Announcer, AnyPath

__all__ = ["Announcer", "AnyPath"]
