"""Claim: of two drivers that commit one micro-batch to a checkpoint on disks, the second one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_file_of_a_checkpoint_is_made_by_one_of_two_writers(cluster_spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = cluster_spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/0")
    conf = cluster_spark._jsparkSession.sessionState().newHadoopConf()
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    files = managers.create(jvm.org.apache.hadoop.fs.Path(str(tmp_path)), conf)
    assert files.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"
    one, other = files.createAtomic(path, False), files.createAtomic(path, False)
    for stream, content in ((one, b"one"), (other, b"other")):
        stream.write(bytearray(content))
    one.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        other.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        files.createAtomic(path, False).close()
    assert (tmp_path / "0").read_bytes() == b"one"
