"""What a program understands beyond the wire protocol itself, as bits of `features` of REGISTER and
SESSION_OPEN. A server or client that does not state a bit is not given what needs it."""

from typing import Final

FEATURE_REPLICAS: Final = 1  # files with several replicas (docs/decisions/0063-mirrors.md)
FEATURE_POOLS: Final = 2  # slots of a directory's own layout (docs/decisions/0013-delegation.md)
