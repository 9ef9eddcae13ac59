"""Tests of services without Kafka and Spark: `MemoryJob` decides as the real job, on a clock that the test moves."""

from popstream.testing.memory_job import MemoryJob

__all__ = ["MemoryJob"]
