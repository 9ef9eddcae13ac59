"""A table with many commits: what a flush costs as the log grows, and how long it takes to open the table."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable

from connectors.delta.flusher import AuditFlusher
from connectors.delta.log.table_log import read_data_files
from connectors.delta.session import build_session
from connectors.delta.tables import table_path
from connectors.jars.resolve import spark_jars
from tests.benchmarks.benchmark_options import BenchOptions
from tests.support.audit_tables import delta_log, slices

__all__ = ["measure_long_log"]

COMMITS_MAX = 10_000
_TABLE = "deliveries"


def measure_long_log(options: BenchOptions) -> dict[str, Any]:
    """Flush two rows 10,000 times, or less if the operations to drain are few; then open the table, in three ways."""
    commits = min(COMMITS_MAX, options.operations // 50)
    spark = build_session("popstream-bench", spark_jars(options.var))
    root = options.work / "long_log"
    flush_ms: list[float] = []
    try:
        flusher = AuditFlusher(spark, root, "bench", "epoch", ops_topic_id="bench")
        for seq in range(1, commits + 1):
            rows = slices([seq])
            began = time.perf_counter()
            flusher.flush(_TABLE, rows, seq)
            flush_ms.append((time.perf_counter() - began) * 1000)
        path = table_path(root, _TABLE)

        def open_with_spark() -> None:
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
            delta_log(spark, path).unsafeVolatileSnapshot().numOfFiles()

        return {
            "commits": commits,
            "flush_ms": {
                name: round(statistics.median(part), 2)
                for name, part in (
                    ("first_tenth", flush_ms[: commits // 10]),
                    ("last_tenth", flush_ms[-commits // 10 :]),
                )
            },
            "flush_with_checkpoint_ms": round(statistics.median(sorted(flush_ms)[-commits // 50 :]), 1),
            "open_ms": {
                "spark": _median_ms(open_with_spark),
                "delta_rs": _median_ms(lambda: DeltaTable(path).file_uris()),
                "job": _median_ms(lambda: read_data_files(path)),
            },
        }
    finally:
        spark.stop()


def _median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 1)
