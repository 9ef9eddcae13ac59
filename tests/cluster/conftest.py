"""A Spark with the state store of a cluster, on local threads: one for each process of tests."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from connectors.jars.resolve import spark_jars
from pipelines.cluster.session import cluster_session
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LOCAL = {
    "spark.master": "local[2,8]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
}


@pytest.fixture(scope="session")
def cluster_spark() -> Iterator[SparkSession]:
    """The session; never stop it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    jars = os.pathsep.join(str(jar) for jar in spark_jars(ROOT / "var"))
    session = cluster_session("popstream-cluster-tests", 2, {**LOCAL, "spark.driver.extraClassPath": jars})
    yield session
    session.stop()
