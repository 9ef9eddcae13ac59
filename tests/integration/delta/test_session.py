"""Claim: Spark starts on a machine whose own name has no address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_spark_does_not_look_up_the_name_of_the_machine(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    assert jvm.java.lang.System.getenv("SPARK_LOCAL_IP") == "127.0.0.1"
    # It looks up the name of this address instead; without one it is the address.
    assert jvm.org.apache.spark.util.Utils.localCanonicalHostName() in {"localhost", "127.0.0.1"}
