"""How many arenas glibc's allocator may have: of each thread one, up to eight per core, which it seldom returns.

With the threads of Spark, or of a job, that is hundreds of MiB of free memory.
"""

__all__ = ["ARENAS_ENVIRONMENT", "ARENAS_MAX"]

ARENAS_MAX = 2

ARENAS_ENVIRONMENT = {"MALLOC_ARENA_MAX": str(ARENAS_MAX)}
"""For a process that is started, such as a JVM, which takes the limit at its start only."""
