"""The state of all shards of a checkpoint, and how it is written to a store as an embedded job has it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.reconcile import LogFound, lost_records, require_same_log
from checkpoints.replay import REPLAY_KEY, Replay
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.quarantine import quarantine_change
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.decide.shard_rows import PROGRESS_MAPS, Progress, ShardRow, content_of, progress_of
from pipelines.cluster.migration.stored_state import (
    ContentDigest,
    Migrated,
    content_of_store,
    digest_of,
    fill,
    rows_of_checkpoint,
    shards_of_checkpoint,
)
from popstream.wire.base_errors import Corrupt

__all__ = ["Shards"]


class Shards:
    """What all shards hold; one of them is in memory at a time.

    Args:
        identity: Whose state it is.
        progress: How far they have come.
        rows: Yields what all maps hold; the rows of a shard follow each other.

    Attributes:
        next_offset: By partition of the ops topic, the first offset that is not decided.
    """

    def __init__(
        self, identity: CheckpointIdentity, progress: Progress, rows: Callable[[], Iterable[ShardRow]]
    ) -> None:
        self.identity = identity
        self._rows = rows
        self._quarantined = progress.quarantined
        begun = {number: identity.first_offset.get(number, 0) for number in range(identity.ops_partitions)}
        self.next_offset = begun | progress.next_offset

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str, identity: CheckpointIdentity) -> "Shards":
        """Read the state after the last committed micro-batch. The job must not run: it deletes what it replaces.

        Args:
            spark: A session with the state store of `cluster_session`.
            checkpoint: Path or URL of the state on the cluster.
            identity: Its identity.
        """
        deciding, count = decide_checkpoint(checkpoint), identity.ops_partitions
        progress = progress_of(rows_of_checkpoint(spark, deciding, count, PROGRESS_MAPS))
        return cls(identity, progress, lambda: shards_of_checkpoint(spark, deciding, count))

    def applied(self, ops_topic: str, state_epoch: str, former_epochs: Iterable[str], apply_seq: int = 0) -> Applied:
        """Return how far the state has decided the log, under the name `state_epoch`."""
        return Applied(
            state_epoch=state_epoch,
            ops_topic=ops_topic,
            ops_topic_id=self.identity.ops_topic_id,
            apply_seq=apply_seq,
            next_offset=self.next_offset,
            former_epochs=list(former_epochs),
        )

    def write(self, path: Path, applied: Applied, log: LogFound, *, rows_from: dict[int, int]) -> Migrated:
        """Write a new store, and compare it with what was read.

        Args:
            path: The folder of the store, which does not exist.
            applied: As `applied` returns it.
            log: The ops topic.
            rows_from: By partition, the first offset whose rows are in the tables beside the store.

        Raises:
            Corrupt: The log is not the one that was decided, or has lost records after the state; or what was written
                is not what was read.
        """
        require_same_log(applied, log)
        if lost := lost_records(applied.next_offset, log):
            message = f"{log.topic} no longer has the records after the state"
            raise Corrupt(message, subject=log.topic, details=lost)
        with RocksStore(path) as state:
            read = ContentDigest()
            fill(state, read.through(content_of(self._rows(), self.identity.seed)))
            state.write_changes([*self._quarantine(), *self._begun_elsewhere(applied, rows_from)])
            state.write_changes([(META, APPLIED_KEY, applied.encode())])
            written = digest_of(content_of_store(state))
        if read.migrated != written:
            message = f"what was written to {path} is not what was read: remove it, and try again"
            raise Corrupt(message, subject=str(path))
        return written

    def _quarantine(self) -> Iterator[Change]:
        for partition, errors in self._quarantined.items():
            for kafka_offset, error in errors.items():
                yield quarantine_change(partition, kafka_offset, error)

    def _begun_elsewhere(self, applied: Applied, rows_from: dict[int, int]) -> Iterator[Change]:
        since_loss = self.identity.since_loss
        if since_loss or any(rows_from.values()):
            replay = Replay(
                restored_from="a state that came from elsewhere",
                compared_from=dict.fromkeys(AUDIT_TABLES, rows_from),
                since_loss=[*dict.fromkeys((*since_loss, self.identity.state_epoch, applied.state_epoch))]
                if since_loss
                else [],
            )
            yield META, REPLAY_KEY, replay.encode()
