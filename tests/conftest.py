"""Fixtures shared by tests with Spark and Kafka, and a report of one line per test file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.jars.resolve import kafka_jars, spark_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from tests.support.pytest_hooks.file_report import FileReport
from tests.support.pytest_hooks.schedule import LightAndHeavyScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

ROOT = Path(__file__).parents[1]

SPARK_SETTINGS = (
    # The JVMs of tests run hundreds of small queries, each once: to generate and compile code for them takes more than
    # half of the CPU time. Not by a `spark-defaults.conf`: its folder on the class path rules out class archives.
    "--conf spark.sql.codegen.wholeStage=false",
    "--conf spark.sql.codegen.factoryMode=NO_CODEGEN",
)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the settings of tests to every Spark; report files instead of dots (not with `-q` and `-v`)."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join((*SPARK_SETTINGS, "pyspark-shell"))
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.get_verbosity() == 0:
        config.pluginmanager.register(FileReport(config.rootpath, terminal), "file-report")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LightAndHeavyScheduling | None:
    """Run files with Spark on some of the workers only (`--dist loadfile`)."""
    return LightAndHeavyScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def kafka_jar_files() -> list[Path]:
    """The class path of a broker, as `make setup` has fetched it."""
    return kafka_jars(ROOT / "var")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_jar_files: list[Path]) -> Iterator[EmbeddedKafka]:
    """One broker for all tests that only need one; never stop it or change its settings."""
    folder, settings = tmp_path_factory.mktemp("kafka"), {"log.cleaner.backoff.ms": "200"}  # by default 15 s
    with EmbeddedKafka(folder, jars=kafka_jar_files, settings=settings, java_options=SHORT_LIVED_JVM) as broker:
        yield broker


@pytest.fixture
def own_kafka(tmp_path: Path, kafka_jar_files: list[Path]) -> Iterator[EmbeddedKafka]:
    """A broker that the test may break."""
    with EmbeddedKafka(tmp_path / "kafka", jars=kafka_jar_files, java_options=SHORT_LIVED_JVM) as broker:
        yield broker


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics, different in every test."""
    return f"t{secrets.token_hex(5)}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark with Delta for all tests that need one; never stop it."""
    from connectors.delta.session import QUICK_COMPILER, build_session  # noqa: PLC0415 - tests without Spark need not wait for its import

    session = build_session("popstream-tests", spark_jars(ROOT / "var"), java_options=[QUICK_COMPILER])
    yield session
    session.stop()
