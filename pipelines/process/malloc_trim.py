"""Keeps glibc's allocator from holding memory that was freed.

Memory that is freed within an arena stays there: after an hour of load more than half of the process was free memory.
Other C libraries lack these calls, and nothing is done.
"""

import ctypes
import os

from connectors.malloc_arenas import ARENAS_MAX

__all__ = ["limit_arenas", "trim"]

_M_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""


def limit_arenas() -> None:
    """Let the threads that start later share the few arenas of `connectors.malloc_arenas`."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, ARENAS_MAX)


def trim() -> None:
    """Return the free memory of all arenas to the system. Takes some milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    return ctypes.CDLL(None)
