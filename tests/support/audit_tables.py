"""Rows of an audit table, as a flusher takes them and as Spark reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_state.audit import DeliveryRow
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import encode_rows
from connectors.delta.tables import table_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Row, SparkSession


__all__ = ["NOW_MS", "delivery", "delta_log", "flushed", "slices", "stored", "stored_seqs"]

NOW_MS = 1_795_262_400_000


def delivery(seq: int, number: int, now_ms: int = NOW_MS) -> DeliveryRow:
    return DeliveryRow(
        0, seq, number, now_ms, "orders", 0, "g", "leased", number, number + 4, 1, 0, 1, now_ms, None, "pop", None
    )


def slices(seqs: Iterable[int], rows_each: int = 2) -> list[tuple[int, bytes]]:
    return [
        (seq, data)
        for seq in seqs
        for data in encode_rows("deliveries", [delivery(seq, number) for number in range(rows_each)])
    ]


def stored(spark: SparkSession, root: Path, table: str = "deliveries") -> list[Row]:
    frame = spark.read.format("delta").load(str(table_path(root, table)))
    return frame.orderBy("apply_seq", "ordinal").collect()


def stored_seqs(spark: SparkSession, root: Path) -> list[int]:
    return [row["apply_seq"] for row in stored(spark, root)]


def delta_log(spark: SparkSession, path: Path) -> Any:
    """Delta's own object for the log of the table in this folder."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))


def flushed(flusher: AuditFlusher, count: int) -> AuditFlusher:
    """The flusher after its first commits, `count` of them, of two rows each."""
    for seq in range(1, count + 1):
        flusher.flush("deliveries", slices([seq]), seq)
    return flusher
