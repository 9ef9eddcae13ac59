"""Spark writes local files without starting a process for each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

CHILDREN_MINOR_FAULTS = 8
"""Place after the name in /proc/<pid>/stat: page faults of the children that have ended. Each process has some."""


def test_a_file_that_spark_writes_starts_no_process(spark: SparkSession, tmp_path: Path) -> None:
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    before = faults_of_children(pid)
    spark.range(1).write.json(str(tmp_path / "written"))
    assert list(tmp_path.rglob("*.json"))
    assert faults_of_children(pid) == before
    spark._jvm.java.lang.Runtime.getRuntime().exec("true").waitFor()
    assert faults_of_children(pid) > before, "a process is noticed"


def faults_of_children(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[CHILDREN_MINOR_FAULTS])


def test_spark_starts_the_python_that_runs_it(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
