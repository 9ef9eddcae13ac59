"""`popstream restore`: the state that loses least and agrees with log and tables, put in place to be continued.

```
candidates, best first      the present state, snapshots from the newest on, an empty state
each must                   open, be of this ops topic, have its next records in the log,
                            and have had no rows in Delta that are there no more (`checkpoints.losses`)
the first that does,        gets a new state epoch, and knows which rows the tables have: they are recomputed and
or else, with consent,      compared by the next `popstream up`, and not written again
the one that loses least
```

The builder's store is kept if it is whole, else that of the snapshot comes with the state, or a new one; whichever it
is gets an epoch of its own, and tells again what it has built beyond the rows of the table.

Nothing is thrown away: what lay in the place before is moved to `replaced/`.
"""

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog
from pyspark.sql import SparkSession

from broker_state.errors import Corrupt, Invalid
from broker_state.generation import raise_generation
from broker_state.overlay import STATE, Change, Family
from broker_state.rocks_store import BUILDER_FAMILIES, FAMILIES, META, DiskFull, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, applied_of, decode_noted, encode_noted
from checkpoints.attempts import Attempts
from checkpoints.layout import JobFolder
from checkpoints.losses import Continuable, Losses, losses_of
from checkpoints.reconcile import LogFound, require_end, require_same_log
from checkpoints.replay import REPLAY_KEY, Replay, replay_of
from checkpoints.snapshots import Snapshot, SnapshotStore
from connectors.delta.covered import (
    covered_offsets,
    generation_used,
    has_rows_of_others,
    known_versions,
    quarantined,
    whole_versions,
)
from connectors.delta.flusher import AuditFlusher
from connectors.delta.store import ensure_table, newest_versions
from connectors.delta.tables import AUDIT_TABLES, table_path
from pipelines.builder.audited import audited_queues
from pipelines.builder.builder import Audited, Builder
from pipelines.flush import Flush
from pipelines.outbox import Outbox
from pipelines.quarantine import QUARANTINE, quarantine_change

__all__ = ["PIPELINE", "Restored", "restore"]

_log = structlog.get_logger(__name__)

PIPELINE = "apply_ops"
PRESENT = "the present state"
EMPTY = "an empty state"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was put in place.

    Attributes:
        source: The present state, a snapshot with its id, or an empty state.
        apply_seq: Where it goes on.
        to_replay: Records of the log that follow it.
        passed_over: Other candidates, and why they could not be taken.
        lost: What was given up; only after a lossy restore.
        since_loss: State epochs from the last lossy restore on: only their snapshots are a base for `popstream verify`.
        replaced: Where the former state lies now.
    """

    source: str
    apply_seq: int
    to_replay: int
    passed_over: list[str]
    lost: list[str]
    since_loss: list[str]
    replaced: str | None


class _Candidate(NamedTuple):
    source: str
    put: Callable[[Path], None]
    """Puts its files (`state`, and perhaps `queues`) into a folder."""


class _Judged(NamedTuple):
    candidate: _Candidate
    place: Path
    """Its files are there."""
    found: Continuable
    losses: Losses


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
    audited = audited_queues(spark, folder.delta, bootstrap_servers)
    passed_over: dict[str, str] = {}
    candidates = _candidates(folder, snapshots, only)
    with contextlib.closing(_judged(candidates, folder, log, tables, passed_over, lossy=lossy)) as good:
        for judged in good:
            source, losses = judged.candidate.source, judged.losses
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
                lost=losses.lines,
                since_loss=replay.since_loss,
                replaced=None if replaced is None else str(replaced),
            )
    message = "no state can be continued:"
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
        return cls(
            version={name: newest_versions(table_path(delta, name))[0] for name in AUDIT_TABLES},
            whole={name: whole_versions(delta, name, PIPELINE) for name in AUDIT_TABLES},
            epochs={epoch for name in AUDIT_TABLES for epoch in known_versions(delta, name, PIPELINE)},
            covered=_covered(spark, delta, log.topic_id),
            has_others=any(has_rows_of_others(spark, delta, name, log.topic_id) for name in AUDIT_TABLES),
        )


def _covered(spark: SparkSession, delta: Path, topic_id: str) -> dict[str, dict[int, int]]:
    return {name: covered_offsets(spark, delta, name, topic_id) for name in AUDIT_TABLES}


def _decided(folder: JobFolder, snapshots: SnapshotStore) -> Iterator[Applied]:
    """How far anything that can still be asked had decided the log."""
    for snapshot in snapshots.list():
        yield snapshot.applied
    if folder.state.is_dir():
        with contextlib.suppress(Corrupt, Invalid, StoreStopped), RocksStore(folder.state, read_only=True) as state:
            if state.get(META, APPLIED_KEY) is not None:
                yield applied_of(state)


def _judged(
    candidates: Iterable[_Candidate],
    folder: JobFolder,
    log: LogFound,
    tables: _Tables,
    passed_over: dict[str, str],
    *,
    lossy: bool,
) -> Generator[_Judged]:
    """Those with which nothing is given up, as they come; then, with consent, the others, the least loss first."""
    costly: list[tuple[_Candidate, Losses]] = []
    was_more = tables.has_others
    for candidate in candidates:
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(_placed(candidate, folder))
                found = _read(place)
            except DiskFull:
                raise
            except (Corrupt, Invalid, StoreStopped) as error:
                passed_over[candidate.source] = error.message
                continue
            if problem := _problem(candidate, found, log):
                passed_over[candidate.source] = problem
                continue
            losses = losses_of(found, log, tables.whole, was_more=was_more)
            was_more |= bool(found.replay.since_loss) or found.is_of_another(log)
            if not losses.lines:
                yield _Judged(candidate, place, found, losses)
                continue
            passed_over[candidate.source] = f"{'; '.join(losses.lines)} (`--lossy` accepts that)"
            costly.append((candidate, losses))
    if lossy:
        for candidate, losses in sorted(costly, key=lambda one: (bool(one[1].records), bool(one[1].rows))):
            with _placed(candidate, folder) as place:
                yield _Judged(candidate, place, _read(place), losses)


@contextlib.contextmanager
def _placed(candidate: _Candidate, folder: JobFolder) -> Iterator[Path]:
    place = folder.scratch / f"restore-{uuid.uuid4().hex}"
    try:
        candidate.put(place)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _continued(judged: _Judged, log: LogFound, tables: _Tables) -> tuple[Applied, Replay]:
    """The begin of a new state epoch, which continues all that the tables know."""
    candidate, _, found, losses = judged
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
        restored_from=candidate.source,
        covered=tables.covered,
        lost=losses.lines,
        compared_from=compared_from,
        since_loss=since_loss,
        whole=tables.whole,
        table_version=tables.version,
    )
    return applied, replay


def _begin(judged: _Judged, applied: Applied, replay: Replay, spark: SparkSession, delta: Path) -> None:
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
    there = _covered(spark, delta, before.ops_topic_id)
    flusher = AuditFlusher(
        spark, delta, PIPELINE, state_epoch, ops_topic_id=before.ops_topic_id, covered=there, compared_from=there
    )
    Flush(outbox, flusher, applied_seq=lambda: before.apply_seq).flush()


def _candidates(folder: JobFolder, snapshots: SnapshotStore, only: str | None) -> Iterator[_Candidate]:
    """Best first.

    Raises:
        Invalid: There is no snapshot `only`.
    """

    def fetched(snapshot: Snapshot) -> _Candidate:
        return _Candidate(f"snapshot {snapshot.id}", lambda place: snapshots.fetch(snapshot, place))

    found = [snapshot for snapshot in snapshots.list() if only in {None, snapshot.id}]
    if only is not None and not found:
        message = f"there is no snapshot {only} at {snapshots.url}: `popstream snapshot --list` tells which there are"
        raise Invalid(message, subject=only)
    if only is None and folder.state.is_dir():
        yield _Candidate(PRESENT, lambda place: _copy_of_present(folder, place))
    for snapshot in found:
        yield fetched(snapshot)
    if only is None:
        yield _Candidate(EMPTY, lambda place: (place / "state").mkdir(parents=True))


def _copy_of_present(folder: JobFolder, place: Path) -> None:
    """Opened here it would be changed; it stays as it is until it is replaced."""
    place.mkdir(parents=True)
    shutil.copytree(folder.state, place / "state", copy_function=_link)


def _link(source: str, target: str) -> None:
    """SST files never change and may be shared; the rest is written to."""
    if source.endswith(".sst"):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


def _read(place: Path) -> Continuable:
    with RocksStore(place / "state") as state:
        if state.get(META, APPLIED_KEY) is None:
            return Continuable()
        _read_all(state, FAMILIES)
        return Continuable(
            applied=applied_of(state), noted=decode_noted(state.get(META, NOTED_KEY)), replay=replay_of(state)
        )


def _read_all(store: RocksStore, families: Iterable[Family]) -> None:
    """RocksDB checks each block that is read."""
    for family in families:
        for _ in store.scan(family, b""):
            pass


def _problem(candidate: _Candidate, found: Continuable, log: LogFound) -> str | None:
    """Why nobody would want to continue this."""
    if found.applied is None:
        return None if candidate.source == EMPTY else "it has decided nothing"
    return None if found.applied.ops_topic == log.topic else f"it is of {found.applied.ops_topic}"


def _begin_queues(folder: JobFolder, audited: Audited) -> None:
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
    replaced = folder.root / "replaced" / f"{stamp}-{uuid.uuid4().hex[:6]}"
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
            _read_all(store, BUILDER_FAMILIES)
    except DiskFull:
        raise
    except (Corrupt, Invalid, StoreStopped) as error:
        _log.warning("queues_replaced", error=str(error))
        return False
    return True
