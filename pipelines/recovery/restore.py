"""`popstream restore`: replaces the state of a job by the one that agrees with log and tables and loses least.

The first candidate with which nothing is lost is taken (candidates.py), or else, with consent, the one with the least
loss. It gets a new state epoch, and a note of the rows that the tables have: the next `popstream up` recomputes and
compares these rows, and does not write them again.

The builder's store is kept if it is not damaged; otherwise that of the snapshot takes its place, or an empty one. It
gets a new epoch, too, and writes the units again that the Delta table does not have.

Nothing is deleted: what was in the place before is moved aside (replaced_files.py).
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from pyspark.sql import SparkSession

from broker_state.store.generation import raise_generation
from broker_state.store.overlay import STATE, Change
from broker_state.store.rocks_store import BUILDER_FAMILIES, META, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, applied_of, encode_noted
from checkpoints.layout import JobFolder
from checkpoints.micro_batch_attempts import Attempts
from checkpoints.reconcile import LogFound, require_end, require_same_log
from checkpoints.replay import REPLAY_KEY, Replay
from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.flusher import AuditFlusher
from connectors.delta.log.transactions import known_versions
from connectors.delta.restore_queries import (
    covered_offsets,
    generation_used,
    has_rows_of_others,
    quarantined,
    whole_versions,
)
from connectors.delta.store import ensure_table
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.quarantine import QUARANTINE, QuarantinedRecord, quarantine_change
from pipelines.apply_ops.source import PIPELINE
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_records import UnitsInDelta
from pipelines.build_consume_queue.units_in_delta import units_in_delta
from pipelines.recovery.candidates import (
    NO_SNAPSHOT,
    PassedOver,
    UsableState,
    find_candidates,
    usable_states,
)
from pipelines.recovery.known_quarantine import known_quarantine
from pipelines.recovery.replaced_files import put_in_place
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["Restored", "restore"]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore.

    Attributes:
        source: Origin of the restored state: the present state, a snapshot with its id, or an empty state.
        apply_seq: The apply_seq at which the job continues.
        to_replay: Number of offsets in the log after the state.
        passed_over: Candidates that were not taken, each with the reason, or a line for each table that is the reason.
        snapshots: Number of snapshots, and their storage.
        lost: What was lost; empty unless the restore was lossy.
        since_loss: State epochs from the last lossy restore on: only their snapshots are a base for `popstream verify`.
        replaced: Folder with the former state, if there was one.
    """

    source: str
    apply_seq: int
    to_replay: int
    passed_over: list[str]
    snapshots: str
    lost: list[str]
    since_loss: list[str]
    replaced: str | None


def restore(
    folder: JobFolder,
    log: LogFound,
    connection: KafkaConnection,
    spark: SparkSession,
    snapshots: SnapshotStore,
    *,
    lossy: bool,
    only: str | None = None,
    continues: str = "",
) -> Restored:
    """Put the best state in place. The caller owns the folder, and no job runs in it.

    Args:
        folder: Folder of the job.
        log: The ops topic as it is now.
        connection: The Kafka with the ops topic and the message topics.
        spark: A session with Delta.
        snapshots: The snapshot storage.
        lossy: If something is lost with every candidate, take the one with the least loss.
        only: Id of the only snapshot to consider, or `NO_SNAPSHOT` to consider an empty state alone.
        continues: State epoch of the owner of the prefix, whose state this one will continue; empty: none.

    Raises:
        Invalid: There is no such snapshot.
        Unavailable: Snapshots or Kafka cannot be reached, or the disk is full: no reason to take another state.
        Corrupt: No candidate can be taken, with the reason for each. Or no state can be continued at all: the log has
            lost its end or has other partitions, or a table has rows after missing ones.
    """
    tables = _Tables.read(spark, folder.delta, log)
    _require_log(log, tables, folder, snapshots)
    in_delta = units_in_delta(spark, folder.delta, connection)
    considered = f"{len(snapshots.list())} snapshots at {snapshots.url}"
    passed_over: dict[str, PassedOver] = {}
    quarantine = known_quarantine(folder, log.topic_id)
    candidates = find_candidates(folder, snapshots, only)
    states = usable_states(
        candidates, folder, log, tables.whole, passed_over, quarantine, was_more=tables.has_others, lossy=lossy
    )
    with contextlib.closing(states):
        for state in states:
            applied, replay = _new_epoch(state, log, tables, continues)
            try:
                _begin_epoch(state, applied, replay, quarantine, spark, folder.delta)
            except Corrupt as error:
                passed_over[state.source] = PassedOver([error.message])
                continue
            # Dispatches that the log has lost are sent again only by a builder that starts with an empty store.
            replaced = put_in_place(folder, state.folder, keep_queues=not state.losses.records)
            Attempts(folder.attempts).forget()
            folder.scrubbed.unlink(missing_ok=True)  # other files may have the same names
            _begin_builder_epoch(folder, in_delta)
            return Restored(
                source=state.source,
                apply_seq=applied.apply_seq,
                to_replay=sum(end - applied.next_offset[partition] for partition, end in log.end_offset.items()),
                passed_over=_lines(passed_over, but=state.source),
                snapshots=considered,
                lost=state.losses.lines,
                since_loss=replay.since_loss,
                replaced=None if replaced is None else str(replaced),
            )
    message = f"no state can be continued ({considered}):"
    raise Corrupt(
        message, subject=str(folder.root), details=[*_lines(passed_over), *_others(passed_over, snapshots, only)]
    )


def _lines(passed_over: Mapping[str, PassedOver], but: str = "") -> list[str]:
    return [f"{source}: {reason}" for source, found in passed_over.items() if source != but for reason in found.reasons]


def _others(passed_over: Mapping[str, PassedOver], snapshots: SnapshotStore, only: str | None) -> Iterator[str]:
    """Yield what is possible if no candidate was taken, each with its command."""
    if any(found.are_losses for found in passed_over.values()):
        yield "the least of these losses is accepted by `popstream restore --lossy`"
    if only not in {None, NO_SNAPSHOT}:
        older = next((snapshot.id for snapshot in snapshots.list() if snapshot.id < only), NO_SNAPSHOT)
        yield f"an older state is restored by `popstream restore --snapshot {older}`"


class _Tables(NamedTuple):
    """The contents of the audit tables.

    Attributes:
        version: By table, its Delta version.
        whole: By table and state epoch, the apply_seq up to which all rows are there.
        epochs: All state epochs that ever wrote to the tables.
        covered: By table and partition, the offset below which all rows are there.
        has_others: There are rows of an earlier ops topic.
    """

    version: dict[str, int]
    whole: dict[str, dict[str, int]]
    epochs: set[str]
    covered: dict[str, dict[int, int]]
    has_others: bool

    @classmethod
    def read(cls, spark: SparkSession, delta: Path, log: LogFound) -> Self:
        for table in AUDIT_TABLES.values():
            ensure_table(spark, delta, table)
        known = {name: known_versions(delta, name, PIPELINE) for name in AUDIT_TABLES}
        return cls(
            version={name: version for name, (version, _) in known.items()},
            whole={name: whole_versions(delta, name, PIPELINE) for name in AUDIT_TABLES},
            epochs={epoch for _, epochs in known.values() for epoch in epochs},
            covered=covered_offsets(spark, delta, log.topic_id),
            has_others=has_rows_of_others(spark, delta, log.topic_id),
        )


def _require_log(log: LogFound, tables: _Tables, folder: JobFolder, snapshots: SnapshotStore) -> None:
    """Raise Corrupt if the log ends before records that were applied: they would be replaced by others."""
    for ends in tables.covered.values():
        require_end(log, ends)
    for applied in _known_applied(folder, snapshots):
        if applied.ops_topic_id == log.topic_id:
            require_same_log(applied, log)


def _known_applied(folder: JobFolder, snapshots: SnapshotStore) -> Iterator[Applied]:
    """Yield the applied offsets of every snapshot, and of the present state if it can be read."""
    for snapshot in snapshots.list():
        yield snapshot.applied
    if folder.state.is_dir():
        with contextlib.suppress(Corrupt, Invalid, StoreStopped), RocksStore(folder.state, read_only=True) as state:
            if state.get(META, APPLIED_KEY) is not None:
                yield applied_of(state)


def _new_epoch(state: UsableState, log: LogFound, tables: _Tables, continues: str) -> tuple[Applied, Replay]:
    """Return the notes with which a new state epoch begins; it continues all epochs that the tables know, and one."""
    found, losses = state.found, state.losses
    before = found.applied
    epochs = tables.epochs if before is None else tables.epochs | {*before.epochs}
    epochs = epochs | ({continues} - {""})
    decided = {} if before is None or found.is_of_another(log) else before.next_offset
    applied = Applied(
        state_epoch=uuid.uuid4().hex,
        ops_topic=log.topic,
        ops_topic_id=log.topic_id,
        apply_seq=0 if before is None else before.apply_seq,
        next_offset={p: max(first, decided.get(p, 0)) for p, first in log.first_offset.items()},
        former_epochs=sorted(epochs),
    )
    since_loss: list[str] = []
    compared_from: dict[str, dict[int, int]] = {}
    if losses.lines:
        since_loss, compared_from = [applied.state_epoch], tables.covered
    elif found.replay.since_loss:
        since_loss, compared_from = [*found.replay.since_loss, applied.state_epoch], found.replay.compared_from
    replay = Replay(
        restored_from=state.source,
        covered=tables.covered,
        lost=losses.lines,
        compared_from=compared_from,
        since_loss=since_loss,
        whole=tables.whole,
        table_version=tables.version,
    )
    return applied, replay


def _begin_epoch(
    state: UsableState,
    applied: Applied,
    replay: Replay,
    quarantine: Mapping[QuarantinedRecord, str],
    spark: SparkSession,
    delta: Path,
) -> None:
    """Write the notes of the new epoch into the state. Rows of another topic in its outbox are flushed first."""
    before = state.found.applied
    is_of_another = before is not None and before.ops_topic_id != applied.ops_topic_id
    # What the table says last: the rows that a replay leads to are compared with it.
    in_table = {(p, offset): error for p, offset, error in quarantined(spark, delta, applied.ops_topic_id)}
    known = [quarantine_change(*place, error) for place, error in {**quarantine, **in_table}.items()]
    with RocksStore(state.folder / "state") as store:
        outbox = Outbox(store)
        if before is not None and is_of_another:
            _flush_rows_of(before, outbox, applied.state_epoch, spark, delta)
        raised: Iterable[Change] = ()
        if state.losses.records:
            raised = list(raise_generation(store.scan(STATE, b""), generation_used(spark, delta)))
        store.write_changes(
            [
                *raised,
                *outbox.changes([]),
                *known,
                (META, APPLIED_KEY, applied.encode()),
                (META, NOTED_KEY, encode_noted({})),
                (META, REPLAY_KEY, replay.encode()),
            ],
            [QUARANTINE] if is_of_another else [],
        )


def _flush_rows_of(before: Applied, outbox: Outbox, state_epoch: str, spark: SparkSession, delta: Path) -> None:
    """Flush the rows of a former topic, which would later be written with the id of the present one."""
    # Read again for each candidate: one that was passed over may have flushed the same rows.
    covered = covered_offsets(spark, delta, before.ops_topic_id)
    flusher = AuditFlusher(
        spark, delta, PIPELINE, state_epoch, ops_topic_id=before.ops_topic_id, covered=covered, compared_from=covered
    )
    DeltaFlush(outbox, flusher, applied_seq=lambda: before.apply_seq).flush()


def _begin_builder_epoch(folder: JobFolder, in_delta: UnitsInDelta) -> None:
    """Begin a new epoch of the builder's store, which notes the units that the Delta table has."""
    if in_delta.ends or folder.queues.is_dir():
        with RocksStore(folder.queues, BUILDER_FAMILIES) as store:
            Builder(store, Outbox(store), "").begin_epoch(uuid.uuid4().hex, in_delta)
