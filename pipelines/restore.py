"""`popstream restore`: the state that loses least and agrees with log and tables, put in place to be continued.

```
candidates, best first      the present state, snapshots from the newest on, an empty state
each must                   open, be of this ops topic, have its next records in the log,
                            and have had no rows in Delta that are there no more (`checkpoints.losses`)
the first that does         gets a new state epoch, and knows which rows the tables have: they are recomputed and
                            compared by the next `popstream up`, and not written again
```

The builder's store is kept if it is whole, else that of the snapshot comes with the state, or a new one; whichever it
is gets an epoch of its own, and tells again what it has built beyond the rows of the table.

Nothing is thrown away: what lay in the place before is moved to `replaced/`.
"""

import math
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from pyspark.sql import SparkSession

from broker_state.errors import Corrupt, Invalid
from broker_state.generation import raise_generation
from broker_state.overlay import STATE, Family
from broker_state.rocks_store import BUILDER_FAMILIES, FAMILIES, META, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, applied_of, decode_noted, encode_noted
from checkpoints.attempts import Attempts
from checkpoints.layout import JobFolder
from checkpoints.losses import Continuable, Losses, losses_of
from checkpoints.reconcile import LogFound, require_end
from checkpoints.replay import REPLAY_KEY, Replay, replay_of
from checkpoints.snapshots import Snapshot, SnapshotStore
from connectors.delta.covered import (
    covered_offsets,
    has_rows_of_others,
    known_versions,
    quarantined,
    whole_versions,
)
from connectors.delta.flusher import AuditFlusher
from connectors.delta.store import ensure_table
from connectors.delta.tables import AUDIT_TABLES
from pipelines.builder.audited import audited_queues
from pipelines.builder.builder import Audited, Builder
from pipelines.flush import FlushLoop
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
        source: The present state, the id of a snapshot, or an empty state.
        apply_seq: Where it goes on.
        to_replay: Records of the log that follow it.
        passed_over: Better candidates, and why they could not be taken.
        lost: What was given up; only after a lossy restore.
        since_loss: State epochs from the last lossy restore on: snapshots of theirs alone can be gone on from.
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
        lossy: Take a state although something is given up with it.
        only: Id of the one snapshot to take.

    Raises:
        Invalid: There is no such snapshot.
        Unavailable: Snapshots or Kafka cannot be reached, or the disk takes nothing: no worse state is taken for that.
        Corrupt: No candidate will do; it says why for each. Or the log lost its end, or has other partitions.
    """
    beside = _Beside(spark, folder.delta, log)
    for ends in beside.covered.values():
        require_end(log, ends)
    audited = audited_queues(spark, folder.delta, bootstrap_servers)
    passed_over: list[str] = []
    was_more = beside.has_rows_of_others
    for candidate in _candidates(folder, snapshots, only):
        place = folder.scratch / f"restore-{uuid.uuid4().hex}"
        try:
            try:
                candidate.put(place)
                found = _read(place)
            except (Corrupt, Invalid, StoreStopped) as error:
                passed_over.append(f"{candidate.source}: {error.message}")
                continue
            if problem := _problem(found, log, is_empty=candidate.source == EMPTY):
                passed_over.append(f"{candidate.source}: {problem}")
                continue
            losses = losses_of(found, log, beside.whole, was_more=was_more)
            was_more |= bool(found.replay.since_loss) or (found.applied is not None and not found.is_of(log))
            if losses.lines and not lossy:
                passed_over.append(f"{candidate.source}: {'; '.join(losses.lines)} (`--lossy` accepts that)")
                continue
            applied, replay = beside.begin(place / "state", candidate.source, found, losses)
            # What the log has lost of a builder's dispatches, only another building of its queues tells again.
            keep_queues = candidate.source == PRESENT or not losses.records
            replaced = _swap(folder, place, keep_queues=keep_queues)
            Attempts(folder.attempts).forget()
        finally:
            shutil.rmtree(place, ignore_errors=True)
        _begin_queues(folder, audited)
        return Restored(
            source=candidate.source,
            apply_seq=applied.apply_seq,
            to_replay=sum(end - applied.next_offset[partition] for partition, end in log.end_offset.items()),
            passed_over=passed_over,
            lost=losses.lines,
            since_loss=replay.since_loss,
            replaced=None if replaced is None else str(replaced),
        )
    message = "no state can be continued:"
    raise Corrupt(message, subject=str(folder.root), details=passed_over)


class _Beside:
    """The log and the audit tables, beside which a state is to go on."""

    def __init__(self, spark: SparkSession, delta: Path, log: LogFound) -> None:
        self._spark, self._delta, self._log = spark, delta, log
        for table in AUDIT_TABLES.values():
            ensure_table(spark, delta, table)
        self.whole = {name: whole_versions(delta, name, PIPELINE) for name in AUDIT_TABLES}
        self.covered = self._covered(log.topic_id)
        self.has_rows_of_others = any(has_rows_of_others(spark, delta, name, log.topic_id) for name in AUDIT_TABLES)

    def begin(self, state: Path, source: str, found: Continuable, losses: Losses) -> tuple[Applied, Replay]:
        """Make a state the begin of a new state epoch, which continues all that the tables know."""
        applied = self._applied(found)
        replay = self._replay(source, found, losses, applied.state_epoch)
        is_other = found.applied is not None and not found.is_of(self._log)
        quarantine = quarantined(self._spark, self._delta, self._log.topic_id)
        with RocksStore(state) as store:
            outbox = Outbox(store)
            if is_other:
                self._flush_rows_of_the_former_topic(outbox, found, applied.state_epoch)
            raised = list(raise_generation(store.scan(STATE, b""))) if losses.records else []
            store.write_changes(
                [
                    *raised,
                    *outbox.changes([]),
                    *(quarantine_change(*place) for place in quarantine),
                    (META, APPLIED_KEY, applied.encode()),
                    (META, NOTED_KEY, encode_noted({})),
                    (META, REPLAY_KEY, replay.encode()),
                ],
                [QUARANTINE] if is_other else [],
            )
        return applied, replay

    def _applied(self, found: Continuable) -> Applied:
        before = found.applied
        decided = before.next_offset if before is not None and found.is_of(self._log) else {}
        epochs = {epoch for name in AUDIT_TABLES for epoch in known_versions(self._delta, name, PIPELINE)}
        if before is not None:
            epochs |= {*before.former_epochs, before.state_epoch}
        return Applied(
            state_epoch=uuid.uuid4().hex,
            ops_topic=self._log.topic,
            ops_topic_id=self._log.topic_id,
            apply_seq=0 if before is None else before.apply_seq,
            next_offset={p: max(first, decided.get(p, 0)) for p, first in self._log.first_offset.items()},
            former_epochs=sorted(epochs),
        )

    def _replay(self, source: str, found: Continuable, losses: Losses, state_epoch: str) -> Replay:
        since_loss: list[str] = []
        compared_from: dict[str, dict[int, int]] = {}
        if losses.lines:
            since_loss, compared_from = [state_epoch], self.covered
        elif found.replay.since_loss:
            since_loss, compared_from = [*found.replay.since_loss, state_epoch], found.replay.compared_from
        return Replay(
            restored_from=source,
            covered=self.covered,
            lost=losses.lines,
            compared_from=compared_from,
            since_loss=since_loss,
        )

    def _flush_rows_of_the_former_topic(self, outbox: Outbox, found: Continuable, state_epoch: str) -> None:
        """What waits in the outbox would go to Delta under the id of the topic that there is now."""
        assert found.applied is not None
        upto, topic_id = found.applied.apply_seq, found.applied.ops_topic_id
        covered = self._covered(topic_id)
        flusher = AuditFlusher(
            self._spark,
            self._delta,
            PIPELINE,
            state_epoch,
            ops_topic_id=topic_id,
            covered=covered,
            compared_from=covered,
        )
        FlushLoop(outbox, flusher, interval_s=math.inf, applied_seq=lambda: upto, on_failure=_raise).flush()

    def _covered(self, topic_id: str) -> dict[str, dict[int, int]]:
        return {name: covered_offsets(self._spark, self._delta, name, topic_id) for name in AUDIT_TABLES}


def _raise(error: BaseException) -> None:
    raise error


def _candidates(folder: JobFolder, snapshots: SnapshotStore, only: str | None) -> Iterator[_Candidate]:
    def fetched(snapshot: Snapshot) -> Callable[[Path], None]:
        return lambda place: snapshots.fetch(snapshot, place)

    found = snapshots.list()
    if only is not None:
        chosen = [snapshot for snapshot in found if snapshot.id == only]
        if not chosen:
            message = (
                f"there is no snapshot {only} at {snapshots.url}: `popstream snapshot --list` tells which there are"
            )
            raise Invalid(message, subject=only)
        yield _Candidate(only, fetched(chosen[0]))
        return
    if folder.state.is_dir():
        yield _Candidate(PRESENT, lambda place: _copy_of_present(folder, place))
    for snapshot in found:
        yield _Candidate(f"snapshot {snapshot.id}", fetched(snapshot))
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


def _problem(found: Continuable, log: LogFound, *, is_empty: bool) -> str | None:
    """Why nobody would want to continue this."""
    if found.applied is None:
        return None if is_empty else "it has decided nothing"
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
    for restored, present in ((place / "state", folder.state), (place / "queues", folder.queues)):
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
    except (Corrupt, Invalid, StoreStopped) as error:
        _log.warning("queues_replaced", error=str(error))
        return False
    return True
