"""Delta tables of a test's own, and flushers that write to them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.flusher import AuditFlusher

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables as they are created, to copy: creating them takes seconds."""
    root = tmp_path_factory.mktemp("empty")
    AuditFlusher(spark, root, "jobs", "first", ops_topic_id="topic-1")
    return root


@pytest.fixture
def root(empty_tables: Path, tmp_path: Path) -> Path:
    shutil.copytree(empty_tables, tmp_path / "delta")
    return tmp_path / "delta"


@pytest.fixture
def start(spark: SparkSession, root: Path) -> Callable[..., AuditFlusher]:
    def start(state_epoch: str = "epoch-1", **more: Any) -> AuditFlusher:
        return AuditFlusher(spark, root, "jobs", state_epoch, ops_topic_id="topic-1", **more)

    return start
