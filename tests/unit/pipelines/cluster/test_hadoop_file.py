"""Claim: a place that cannot be reached is named, also if nothing more is known. Method: a session without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Unavailable
from tests.support.java_error import ended_java_error, java_error

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (java_error("java.net.UnknownHostException: s3\n\tat x"), "java.net.UnknownHostException: s3"),
        (ended_java_error(), "it gave no reason"),
    ],
    ids=["reason", "ended"],
)
def test_a_place_that_cannot_be_reached_is_named(error: Py4JJavaError, reason: str) -> None:
    spark: Any = MagicMock()
    spark._jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.side_effect = error
    with pytest.raises(Unavailable) as raised:
        HadoopFile(spark, "s3a://bucket/state")
    assert raised.value.message == f"s3a://bucket/state cannot be reached: {reason}"
