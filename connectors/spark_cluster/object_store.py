"""What Spark needs for a checkpoint and tables at a URL, by its scheme."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

__all__ = ["S3_SCHEME", "canonical_place", "is_on_s3", "object_store_conf"]

S3_SCHEME: Final = "s3a"

_CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_ON_S3: Final = {
    # Files become visible when they are whole. The default manager renames them, which S3 does by a copy.
    _CHECKPOINT_MANAGER: "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
    # Of its names the last one is that of the class: Delta's own for S3, where one driver alone writes a table.
    "spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore",
}


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


def object_store_conf(url: str) -> dict[str, str]:
    """Return Spark's settings for a checkpoint and tables at a path or URL.

    >>> object_store_conf("/data/job")
    {}
    """
    return dict(_ON_S3) if is_on_s3(url) else {}
