"""The JVMs of tests start with the class archives that `make setup` has made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.jars.class_archive import class_archive, flags_to_use
from connectors.jars.resolve import java, spark_jars
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_kafka_loads_its_classes_from_the_archive(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    loaded = tmp_path / "loaded"
    jars = os.pathsep.join(str(jar.resolve()) for jar in kafka_jar_files)
    flags = [*flags_to_use("kafka", kafka_jar_files), f"-Xlog:class+load:file={loaded}"]
    command = [java(), *flags, "-cp", jars, "kafka.Kafka", "--version"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    lines = [line for line in loaded.read_text().splitlines() if "kafka.Kafka" in line]
    assert lines
    assert all("shared objects file (top)" in line for line in lines)


def test_spark_starts_with_its_archive(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert f"-XX:SharedArchiveFile={class_archive('spark', spark_jars(ROOT / 'var'))}" in list(arguments)
