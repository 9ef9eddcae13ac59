"""A Spark with the state store of a cluster, on threads of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.jars.resolve import spark_jars
from connectors.spark_cluster.storage import checkpoint_conf
from pipelines.cluster.session import cluster_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session"]

ROOT = Path(__file__).parents[2]
LOCAL = {
    **checkpoint_conf("file:/"),
    "spark.master": "local[2,8]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
}


def local_session(name: str, crash: Path, var: Path = ROOT / "var") -> SparkSession:
    """Return the session, with the jars in `var`; a JVM that crashes writes its report to the file `crash`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    options = f"{LOCAL['spark.driver.extraJavaOptions']} -XX:ErrorFile={crash}"
    jars = os.pathsep.join(str(jar) for jar in spark_jars(var))
    own = {"spark.driver.extraClassPath": jars, "spark.driver.extraJavaOptions": options}
    return cluster_session(name, 2, {**LOCAL, **own})
