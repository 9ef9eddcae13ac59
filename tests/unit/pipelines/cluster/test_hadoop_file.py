"""Claim: a place that cannot be reached is named, also if nothing more is known. Method: a session without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from py4j.java_gateway import JavaObject

from connectors.spark_cluster.new_file import NewFile
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Unavailable
from tests.support.java_error import ended_java_error, ended_jvm, java_error

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("opened", [HadoopFile, NewFile])
def test_a_place_cannot_be_reached_once_the_jvm_has_ended(opened: type[HadoopFile | NewFile]) -> None:
    spark: Any = MagicMock()
    spark._jvm = ended_jvm().jvm
    with pytest.raises(Unavailable, match=r"s3a://bucket/state cannot be .*: \[Errno \d+\] Connection refused"):
        opened(spark, "s3a://bucket/state")


@pytest.mark.parametrize(
    "use",
    [
        lambda file: file.read(),
        lambda file: file.names(),
        lambda file: file.delete(),
        lambda file: file.qualified,
        lambda file: file.write(b""),
        lambda file: file.copy_to(Path()),
    ],
    ids=["read", "names", "delete", "qualified", "write", "copy_to"],
)
def test_so_it_cannot_when_the_jvm_ends_later(use: Callable[[HadoopFile], object]) -> None:
    file = HadoopFile(MagicMock(), "s3a://bucket/state")
    file._file_system = file._path = JavaObject("o1", ended_jvm()._gateway_client)
    with pytest.raises(Unavailable, match="s3a://bucket/state cannot be reached"):
        use(file)


@pytest.mark.parametrize("is_abortable", [True, False], ids=["object store", "file system"])
@pytest.mark.parametrize("broken", ["write", "close"])
def test_an_error_leaves_no_part_of_a_new_file(broken: str, *, is_abortable: bool) -> None:
    spark: Any = MagicMock()
    file = NewFile(spark, "s3a://bucket/state/identity")
    stream, file_system = file._stream, file._file_system
    stream.hasCapability.return_value = is_abortable
    spark._jvm.org.apache.commons.io.IOUtils.toByteArray.return_value = b"cont"
    getattr(stream, broken).side_effect = java_error("java.io.IOException: No space left on device\n\tat x")
    with pytest.raises(Unavailable, match=r"identity cannot be written: java.io.IOException: No space left on device"):
        file.write(b"content")
    assert (stream.abort.called, file_system.delete.called) == (is_abortable, not is_abortable)


def test_the_file_of_another_writer_stays() -> None:
    spark: Any = MagicMock()
    file = NewFile(spark, "s3a://bucket/state/identity")
    stream, file_system = file._stream, file._file_system
    stream.close.side_effect = java_error("it changed", name="org.apache.hadoop.fs.s3a.RemoteFileChangedException")
    assert not file.write(b"content")
    assert not stream.abort.called
    assert not file_system.delete.called


def test_after_an_error_the_file_of_another_writer_stays() -> None:
    """Where a file system lets two writers make one file: this one cannot know why its own was refused."""
    spark: Any = MagicMock()
    file = NewFile(spark, "other://bucket/state/identity")
    file._stream.hasCapability.return_value = False
    file._stream.close.side_effect = java_error("java.io.IOException: refused")
    spark._jvm.org.apache.commons.io.IOUtils.toByteArray.return_value = b"what the other has written"
    with pytest.raises(Unavailable, match="refused"):
        file.write(b"content")
    assert not file._file_system.delete.called


def test_a_signal_leaves_no_part_either() -> None:
    spark: Any = MagicMock()
    file = NewFile(spark, "hdfs://cluster/state/identity")
    file._stream.hasCapability.return_value = False
    file._stream.write.side_effect = KeyboardInterrupt
    spark._jvm.org.apache.commons.io.IOUtils.toByteArray.return_value = b""
    with pytest.raises(KeyboardInterrupt):
        file.write(b"content")
    assert file._file_system.delete.called
