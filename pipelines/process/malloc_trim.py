"""Keeps glibc's allocator from holding memory that was freed.

glibc gives each thread an arena of its own, up to eight per core, and memory that is freed within an arena stays there:
after an hour of load more than half of the process was free memory. Other C libraries lack these calls, and nothing is
done.
"""

import ctypes
import os

__all__ = ["JVM_ENVIRONMENT", "limit_arenas", "trim"]

_ARENAS_MAX = 2
_M_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""

JVM_ENVIRONMENT = {"MALLOC_ARENA_MAX": str(_ARENAS_MAX)}
"""Environment for a JVM, which takes the limit at its start only."""


def limit_arenas() -> None:
    """Let the threads that start later share two arenas."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, _ARENAS_MAX)


def trim() -> None:
    """Return the free memory of all arenas to the system. Takes some milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    return ctypes.CDLL(None)
