"""What a job on a cluster reports beside the rest: its queries, and how far each shard is."""

import msgspec

__all__ = ["ClusterReport", "QueryReport", "ShardReport"]


class QueryReport(msgspec.Struct, frozen=True, kw_only=True):
    """A query of Spark, by the last progress that it has reported.

    Attributes:
        name: `decide_ops`, `audit`, or `build_units` with message topics.
        spark_batch_id: Spark's number of its micro-batch.
        records: Records that it read.
        seconds: How long it took.
        at_ms: When it began, in ms since 1970.
        behind: Records of its topic that were not read then.
        state_keys: Keys of its state, in all shards.
        state_bytes: Memory of its state store, in all executors.
    """

    name: str
    spark_batch_id: int
    records: int
    seconds: float
    at_ms: int
    behind: int
    state_keys: int = 0
    state_bytes: int = 0


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the ops topic.

    Attributes:
        partition: Its number.
        next_offset: The first offset that is not decided.
        lag: Offsets that are not decided; None: Kafka was not asked.
        recent: Offsets that were decided in the last ten minutes, by this driver.
    """

    partition: int
    next_offset: int
    lag: int | None
    recent: int = 0


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a job's report that a cluster has.

    Attributes:
        master: The cluster, as Spark names it; empty: no job was asked.
        tables: Path or URL of the Delta tables; empty likewise.
        shards: By partition of the ops topic.
        skew: What the busiest shard had of the recent records, as a multiple of the mean; 1: all had as many. None:
            there were none.
        queries: The queries that have reported progress.
        audit_failures: How often the query that writes the tables has failed and was started again.
        audit_overdue: Entries that are not written and older than half of the retention of their topic.
    """

    master: str = ""
    tables: str = ""
    shards: list[ShardReport]
    skew: float | None = None
    queries: list[QueryReport] = []
    audit_failures: int = 0
    audit_overdue: int = 0

    @property
    def busiest(self) -> ShardReport | None:
        """The shard with the most recent records; None: there were none."""
        found = max(self.shards, key=lambda shard: shard.recent, default=None)
        return found if found is not None and found.recent else None
