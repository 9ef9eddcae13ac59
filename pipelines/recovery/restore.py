"""`popstream restore`: the state that loses least and agrees with log and tables, put in place to be continued.

```
the first candidate         gets a new state epoch, and knows which rows the tables have: they are recomputed and
(`restore_candidates`)      compared by the next `popstream up`, and not written again
with which nothing is lost,
or else, with consent, the
one that loses least
```

The builder's store is kept if it is whole, else that of the snapshot comes with the state, or a new one; whichever it
is gets an epoch of its own, and tells again what it has built beyond the rows of the table.

Nothing is thrown away: what lay in the place before is moved to `replaced/`.
"""

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog
from pyspark.sql import SparkSession

from broker_state.store.generation import raise_generation
from broker_state.store.overlay import STATE, Change
from broker_state.store.rocks_store import BUILDER_FAMILIES, META, DiskFull, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, applied_of, encode_noted
from checkpoints.attempts import Attempts
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound, require_end, require_same_log
from checkpoints.replay import REPLAY_KEY, Replay
from checkpoints.snapshots import SnapshotStore
from connectors.delta.covered import (
    covered_offsets,
    generation_used,
    has_rows_of_others,
    quarantined,
    whole_versions,
)
from connectors.delta.flusher import AuditFlusher
from connectors.delta.store import ensure_table
from connectors.delta.tables import AUDIT_TABLES
from connectors.delta.transactions import known_versions
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.micro_batch import PIPELINE
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.quarantine import QUARANTINE, quarantine_change
from pipelines.build_consume_queue.builder import Builder, UnitsInDelta
from pipelines.build_consume_queue.units_in_delta import units_in_delta
from pipelines.recovery.candidates import Judged, find_candidates, judge, read_all
from popstream.wire.failures import Corrupt, Invalid

__all__ = ["Restored", "restore"]

_log = structlog.get_logger(__name__)


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was put in place.

    Attributes:
        source: The present state, a snapshot with its id, or an empty state.
        apply_seq: Where it goes on.
        to_replay: Records of the log that follow it.
        passed_over: Other candidates, and why they could not be taken.
        snapshots: How many there were, and where.
        lost: What was given up; only after a lossy restore.
        since_loss: State epochs from the last lossy restore on: only their snapshots are a base for `popstream verify`.
        replaced: Where the former state lies now.
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
    bootstrap_servers: str,
    spark: SparkSession,
    snapshots: SnapshotStore,
    *,
    lossy: bool,
    only: str | None = None,
) -> Restored:
    """Put the best state in place; the caller owns the folder, and no job runs in it.

    Args:
        folder: Of the job.
        log: The ops topic as it is now.
        bootstrap_servers: Its Kafka, and that of the message topics.
        spark: A session with Delta.
        snapshots: Where they are kept.
        lossy: If something is given up with every state, take the one with the least.
        only: Id of the one snapshot to take.

    Raises:
        Invalid: There is no such snapshot.
        Unavailable: Snapshots or Kafka cannot be reached, or the disk is full: no other state is taken for that.
        Corrupt: No candidate will do; it says why for each. Or no state can: the log lost its end or has other
            partitions, or a table has rows on top of a hole.
    """
    tables = _Tables.read(spark, folder.delta, log)
    for ends in tables.covered.values():
        require_end(log, ends)
    for applied in _decided(folder, snapshots):
        if applied.ops_topic_id == log.topic_id:
            require_same_log(applied, log)
    audited = units_in_delta(spark, folder.delta, bootstrap_servers)
    looked_at = f"{len(snapshots.list())} snapshots at {snapshots.url}"
    passed_over: dict[str, str] = {}
    good = judge(
        find_candidates(folder, snapshots, only),
        folder,
        log,
        tables.whole,
        passed_over,
        was_more=tables.has_others,
        lossy=lossy,
    )
    with contextlib.closing(good):
        for judged in good:
            source, losses = judged.source, judged.losses
            applied, replay = _continued(judged, log, tables)
            try:
                _begin(judged, applied, replay, spark, folder.delta)
            except Corrupt as error:
                passed_over[source] = error.message
                continue
            # What the log has lost of the dispatches, only a builder tells again that builds its queues anew.
            replaced = _swap(folder, judged.place, keep_queues=not losses.records)
            Attempts(folder.attempts).forget()
            _begin_queues(folder, audited)
            return Restored(
                source=source,
                apply_seq=applied.apply_seq,
                to_replay=sum(end - applied.next_offset[partition] for partition, end in log.end_offset.items()),
                passed_over=[f"{other}: {why}" for other, why in passed_over.items() if other != source],
                snapshots=looked_at,
                lost=losses.lines,
                since_loss=replay.since_loss,
                replaced=None if replaced is None else str(replaced),
            )
    message = f"no state can be continued ({looked_at}):"
    details = [f"{source}: {why}" for source, why in passed_over.items()]
    raise Corrupt(message, subject=str(folder.root), details=details)


class _Tables(NamedTuple):
    """What the audit tables have."""

    version: dict[str, int]
    whole: dict[str, dict[str, int]]
    epochs: set[str]
    """All that ever wrote to them."""
    covered: dict[str, dict[int, int]]
    has_others: bool
    """Rows of an earlier ops topic."""

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


def _decided(folder: JobFolder, snapshots: SnapshotStore) -> Iterator[Applied]:
    """How far anything that can still be asked had decided the log."""
    for snapshot in snapshots.list():
        yield snapshot.applied
    if folder.state.is_dir():
        with contextlib.suppress(Corrupt, Invalid, StoreStopped), RocksStore(folder.state, read_only=True) as state:
            if state.get(META, APPLIED_KEY) is not None:
                yield applied_of(state)


def _continued(judged: Judged, log: LogFound, tables: _Tables) -> tuple[Applied, Replay]:
    """The begin of a new state epoch, which continues all that the tables know."""
    source, _, found, losses = judged
    before = found.applied
    epochs = tables.epochs if before is None else tables.epochs | {*before.former_epochs, before.state_epoch}
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
        restored_from=source,
        covered=tables.covered,
        lost=losses.lines,
        compared_from=compared_from,
        since_loss=since_loss,
        whole=tables.whole,
        table_version=tables.version,
    )
    return applied, replay


def _begin(judged: Judged, applied: Applied, replay: Replay, spark: SparkSession, delta: Path) -> None:
    """Write it into the state at its place; the rows that wait there for Delta stay those of their own topic."""
    before = judged.found.applied
    is_of_another = before is not None and before.ops_topic_id != applied.ops_topic_id
    quarantine = [quarantine_change(*place) for place in quarantined(spark, delta, applied.ops_topic_id)]
    with RocksStore(judged.place / "state") as store:
        outbox = Outbox(store)
        if before is not None and is_of_another:
            _flush_rows_of(before, outbox, applied.state_epoch, spark, delta)
        raised: Iterable[Change] = ()
        if judged.losses.records:
            raised = list(raise_generation(store.scan(STATE, b""), generation_used(spark, delta)))
        store.write_changes(
            [
                *raised,
                *outbox.changes([]),
                *quarantine,
                (META, APPLIED_KEY, applied.encode()),
                (META, NOTED_KEY, encode_noted({})),
                (META, REPLAY_KEY, replay.encode()),
            ],
            [QUARANTINE] if is_of_another else [],
        )


def _flush_rows_of(before: Applied, outbox: Outbox, state_epoch: str, spark: SparkSession, delta: Path) -> None:
    """What waits of a former topic would go to Delta under the id of the one that there is now."""
    # Asked anew for each candidate: one that was then passed over has perhaps brought the same rows there.
    there = covered_offsets(spark, delta, before.ops_topic_id)
    flusher = AuditFlusher(
        spark, delta, PIPELINE, state_epoch, ops_topic_id=before.ops_topic_id, covered=there, compared_from=there
    )
    DeltaFlush(outbox, flusher, applied_seq=lambda: before.apply_seq).flush()


def _begin_queues(folder: JobFolder, audited: UnitsInDelta) -> None:
    """Let the builder's store know of the rows that its table has, and of no others."""
    if audited.ends or folder.queues.is_dir():
        with RocksStore(folder.queues, BUILDER_FAMILIES) as store:
            Builder(store, Outbox(store), "").begin_epoch(uuid.uuid4().hex, audited)


def _swap(folder: JobFolder, place: Path, *, keep_queues: bool) -> Path | None:
    """Put the restored state where the job looks for it; what was there is kept.

    Args:
        folder: Of the job.
        place: Has the state, and perhaps the builder's store.
        keep_queues: The builder's store that is there is as good as any, unless it is damaged: it is read on from where
            it ends, whatever the state knows.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    replaced = folder.replaced / f"{stamp}-{uuid.uuid4().hex[:6]}"
    moved = None
    for restored, present in ((place / "queues", folder.queues), (place / "state", folder.state)):
        if present == folder.queues and keep_queues and _is_whole(present):
            continue
        if present.exists():
            moved = replaced
            replaced.mkdir(parents=True, exist_ok=True)
            present.rename(replaced / present.name)
        if restored.is_dir():
            restored.rename(present)
    return moved


def _is_whole(queues: Path) -> bool:
    if not queues.is_dir():
        return False
    try:
        with RocksStore(queues, BUILDER_FAMILIES) as store:
            read_all(store, BUILDER_FAMILIES)
    except DiskFull:
        raise
    except (Corrupt, Invalid, StoreStopped) as error:
        _log.warning("queues_replaced", error=str(error))
        return False
    return True
