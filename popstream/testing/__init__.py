"""The job in memory, for tests of services: the real kernel, and a clock that the test moves."""

from popstream.testing.memory_job import MemoryJob

__all__ = ["MemoryJob"]
