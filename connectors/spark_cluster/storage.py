"""What Spark needs for a checkpoint and tables at a URL, by its scheme."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["S3_SCHEME", "canonical_place", "checkpoint_conf", "is_on_s3", "tables_conf"]

S3_SCHEME: Final = "s3a"

_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
# Files become visible when they are whole. The default manager renames them, which S3 does by a copy.
_ON_S3: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
# The default manager starts a process for the link status of each file: 100 ms of every micro-batch.
_ON_DISKS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# Of its names the last one is that of the class: Delta's own for S3, where one driver alone writes a table.
_LOG_STORE: Final = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}


def is_on_s3(url: str) -> bool:
    """Return whether a path or URL is on S3.

    >>> is_on_s3("s3a://bucket/job"), is_on_s3("/data/job")
    (True, False)
    """
    return urlsplit(url).scheme == S3_SCHEME


def canonical_place(place: str) -> str:
    """Return a path or URL as Hadoop writes it: Delta takes two forms of one place for two places.

    >>> canonical_place("file:///data/job/"), canonical_place("s3a://bucket/job"), canonical_place("/data/job")
    ('file:/data/job', 's3a://bucket/job', '/data/job')
    """
    url = urlsplit(place.rstrip("/"))
    return f"{url.scheme}:{url.path}" if url.scheme and not url.netloc else url.geturl()


def checkpoint_conf(url: str, hadoop_settings: Collection[str] = ()) -> dict[str, str]:
    """Return Spark's settings for a checkpoint at a path or URL.

    Args:
        url: The path or URL.
        hadoop_settings: Names of settings of Hadoop. With one of the default file system, or with a folder of Hadoop's
            own settings in the environment, a path without a scheme may be of any.

    >>> checkpoint_conf("hdfs://names/job"), len(checkpoint_conf("file:/data/job"))
    ({}, 1)
    """
    if is_on_s3(url):
        return {_MANAGER: _ON_S3}
    scheme = urlsplit(url).scheme
    knows_default = "fs.defaultFS" in hadoop_settings or "HADOOP_CONF_DIR" in os.environ
    return {_MANAGER: _ON_DISKS} if scheme == "file" or not (scheme or knows_default) else {}


def tables_conf(url: str) -> dict[str, str]:
    """Return Spark's settings for tables at a path or URL.

    >>> tables_conf("/data/job/tables")
    {}
    """
    return dict(_LOG_STORE) if is_on_s3(url) else {}
