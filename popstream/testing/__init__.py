"""Tests of services without Kafka and Spark: `MemoryJob` decides as the real job, on a clock that the test moves.

`pytest_plugins = ["popstream.testing.pytest_plugin"]` gives tests the fixture `memory_job`.
"""

from popstream.testing.memory_job import MemoryJob
from popstream.testing.run_handler import run_handler

__all__ = ["MemoryJob", "run_handler"]
