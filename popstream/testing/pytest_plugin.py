"""Fixtures for tests of services: `pytest_plugins = ["popstream.testing.pytest_plugin"]` in `conftest.py`.

They are not there by themselves: each run of pytest in an environment that has popstream would load the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from popstream.testing.memory_job import MemoryJob

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["memory_job"]


@pytest.fixture
def memory_job() -> Iterator[MemoryJob]:
    """A job for one test, with empty topics; clients that the test leaves open are closed."""
    with MemoryJob() as job:
        yield job
