"""A copy of what a job on a cluster has committed, in stores and tables on this machine, to verify it or to keep it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import Snapshot
from connectors.delta.tables import TABLES
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.undelivered import read_undelivered
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint, units_checkpoint
from pipelines.cluster.committed import is_committed, last_committed
from pipelines.cluster.hadoop_file import HadoopFile
from pipelines.cluster.migration.exported_queues import export_queues
from pipelines.cluster.migration.shards import Shards
from pipelines.cluster.migration.to_cluster import beginning_progress, beginning_rows
from pipelines.recovery.verify.base import Snapshots
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid

__all__ = [
    "BEGINNING",
    "Checkpoint",
    "CopiedStores",
    "WithBeginning",
    "copy_beginning",
    "copy_state",
    "copy_stores",
    "local_tables",
]

BEGINNING = "of the migration"
"""In place of the id of a snapshot: the state with which a state from elsewhere began."""


class Checkpoint(NamedTuple):
    """A checkpoint, with what it takes to read it.

    Attributes:
        spark: A session with the state store of `cluster_session`.
        url: Path or URL of the state.
        identity: Its identity.
        log: The ops topic.
    """

    spark: SparkSession
    url: str
    identity: CheckpointIdentity
    log: LogFound


class CopiedStores(NamedTuple):
    """The folders of the copies; `queues` is None where no queues are built."""

    state: Path
    queues: Path | None


def copy_state(checkpoint: Checkpoint, path: Path) -> None:
    """Write the committed state to a new store. The job must not run: it deletes what it replaces.

    Raises:
        Invalid: It has decided nothing.
        Corrupt: The log is not the one that was decided, or has lost records after the state.
        Unavailable: The place cannot be reached.
    """
    spark, url, identity, log = checkpoint
    committed = last_committed(spark, decide_checkpoint(url), log.topic)
    if committed is None:
        message = f"the state in {url} has decided nothing yet"
        raise Invalid(message, subject=url)
    shards = Shards.read(spark, url, identity)
    applied = shards.applied(log.topic, identity.state_epoch, identity.former_epochs, committed.spark_batch_id + 1)
    shards.write(path, applied, log, rows_from=identity.first_offset)


def copy_stores(checkpoint: Checkpoint, connection: KafkaConnection, folder: Path) -> CopiedStores:
    """Do as `copy_state` for state and queues, each with what may not be in the tables yet."""
    spark, url, identity, _ = checkpoint
    builds = is_committed(spark, units_checkpoint(url))
    copied = CopiedStores(folder / "state", folder / "queues" if builds else None)
    copy_state(checkpoint, copied.state)
    undelivered = read_undelivered(spark, connection, url, identity)
    with RocksStore(copied.state) as state:
        state.write_changes(undelivered.rows)
    if copied.queues is not None:
        export_queues(spark, url, copied.queues)
        with RocksStore(copied.queues, BUILDER_FAMILIES) as queues:
            queues.write_changes(undelivered.units)
    return copied


def copy_beginning(checkpoint: Checkpoint, folder: Path) -> Snapshot:
    """Write the state with which a state from elsewhere began to `state` in a folder, and return it as a snapshot."""
    spark, url, identity, log = checkpoint
    shards = Shards(
        identity, beginning_progress(spark, url), lambda: beginning_rows(spark, url, identity.ops_partitions)
    )
    applied = shards.applied(log.topic, identity.state_epoch, identity.former_epochs)
    shards.write(folder / "state", applied, log, rows_from=identity.first_offset)
    return Snapshot(id=BEGINNING, taken_at_ms=0, applied=applied, files=[])


class WithBeginning:
    """Snapshots, and before them the state with which a state from elsewhere began.

    Args:
        snapshots: The others.
        beginning: As `copy_beginning` returns it.
        folder: Where that has written it.
    """

    def __init__(self, snapshots: Snapshots, beginning: Snapshot, folder: Path) -> None:
        self._snapshots = snapshots
        self._beginning = beginning
        self._folder = folder

    def list(self) -> Sequence[Snapshot]:
        """See `Snapshots.list`."""
        return [*self._snapshots.list(), self._beginning]

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """See `Snapshots.fetch`."""
        if snapshot.id == self._beginning.id:
            shutil.copytree(self._folder, folder)
        else:
            self._snapshots.fetch(snapshot, folder)


def local_tables(spark: SparkSession, tables: str, folder: Path) -> Path:
    """Return where tables can be read as files: their own place, or a folder into which they are copied.

    Raises:
        Invalid: There are none.
        Unavailable: The place cannot be reached.
    """
    locations = TableLocations(tables)
    names = [name for name in TABLES if HadoopFile(spark, f"{locations.of(name)}/_delta_log").names()]
    if not names:
        message = f"there are no tables in {tables}: name their place with --tables"
        raise Invalid(message, subject=tables)
    here = locations.folder(spark)
    if here is not None:
        return here
    for name in names:
        # The log first: what it names was written before.
        HadoopFile(spark, f"{locations.of(name)}/_delta_log").copy_to(folder / name / "_delta_log")
        HadoopFile(spark, locations.of(name)).copy_to(folder / name, without="_delta_log")
    return folder
