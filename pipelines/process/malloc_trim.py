"""What malloc keeps for itself: few arenas, and given back now and then.

Threads that allocate side by side make glibc open an arena for each, and what is freed in between stays there: after an
hour of load more of the process was free memory than used. Only glibc has these calls; elsewhere nothing is done.
"""

import ctypes
import os

__all__ = ["JVM_ENVIRONMENT", "bound_arenas", "give_back"]

_ARENAS_MAX = 2
_M_ARENA_MAX = -8
"""Of malloc.h."""

JVM_ENVIRONMENT = {"MALLOC_ARENA_MAX": str(_ARENAS_MAX)}
"""For a JVM that is started: it cannot be told later."""


def bound_arenas() -> None:
    """Let threads that begin later share two arenas."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, _ARENAS_MAX)


def give_back() -> None:
    """Return to the system what is free in all arenas; some milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    return ctypes.CDLL(None)
