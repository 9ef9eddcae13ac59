"""`popstream restore`: the state that loses least and agrees with log and tables, put in place to be continued.

```
candidates, best first      the present state, snapshots from the newest on, an empty state
each must                   open, be of this ops topic, have its next records in the log,
                            and have had no rows in Delta that are there no more
the first that does         gets a new state epoch, and knows which rows the tables have: they are recomputed and
                            compared by the next `popstream up`, and not written again
```

The builder's store is kept if it opens, else that of the snapshot comes with the state, or a new one; whichever it is
gets an epoch of its own, and tells again what it has built beyond the rows of the table.

Nothing is thrown away: what lay in the place before is moved to `replaced/`.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from pyspark.sql import SparkSession

from broker_state.errors import Corrupt, Invalid, PopstreamError, Unavailable
from broker_state.generation import raise_generation
from broker_state.overlay import STATE
from broker_state.rocks_store import BUILDER_FAMILIES, FAMILIES, META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, applied_of, decode_noted, encode_noted
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound, lost_records
from checkpoints.replay import REPLAY_KEY, Replay
from checkpoints.snapshots import Snapshot, SnapshotStore
from connectors.delta.covered import covered_offsets, effective_versions
from connectors.delta.store import ensure_table
from connectors.delta.tables import AUDIT_TABLES
from pipelines.builder.audited import audited_queues
from pipelines.builder.builder import Audited, Builder, Queue
from pipelines.outbox import Outbox

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
        lost: What the log lacks; only after a lossy restore.
        replaced: Where the former state lies now.
    """

    source: str
    apply_seq: int
    to_replay: int
    passed_over: list[str]
    lost: list[str]
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
        lossy: Take a state although the log lacks records that it would decide next.
        only: Id of the one snapshot to take.

    Raises:
        Invalid: There is no such snapshot.
        Corrupt: No candidate will do; it says why for each.
    """
    tables = {name: _effective(spark, folder.delta, name) for name in AUDIT_TABLES}
    audited = audited_queues(spark, folder.delta, bootstrap_servers)
    passed_over: list[str] = []
    for candidate in _candidates(folder, snapshots, only):
        place = folder.scratch / f"restore-{uuid.uuid4().hex}"
        try:
            candidate.put(place)
            applied, noted = _read(place)
            lost = _lost(applied, log)
            is_empty = candidate.source == EMPTY
            if problem := _problem(applied, noted, log, tables, lost, lossy=lossy, is_empty=is_empty):
                passed_over.append(f"{candidate.source}: {problem}")
                continue
            covered = {name: covered_offsets(spark, folder.delta, name, log.topic_id) for name in AUDIT_TABLES}
            replay = Replay(restored_from=candidate.source, covered=covered, lost=lost)
            _begin(place / "state", applied, log, replay, {epoch for known in tables.values() for epoch in known})
            replaced = _swap(folder, place)
        except PopstreamError as error:
            passed_over.append(f"{candidate.source}: {error.message}")
            continue
        finally:
            shutil.rmtree(place, ignore_errors=True)
        _begin_queues(folder, audited)
        next_offset = {} if applied is None else applied.next_offset
        to_replay = sum(end - max(next_offset.get(p, 0), log.first_offset[p]) for p, end in log.end_offset.items())
        return Restored(
            source=candidate.source,
            apply_seq=0 if applied is None else applied.apply_seq,
            to_replay=to_replay,
            passed_over=passed_over,
            lost=lost,
            replaced=None if replaced is None else str(replaced),
        )
    message = "no state can be continued:"
    raise Corrupt(message, subject=str(folder.root), details=passed_over)


def _effective(spark: SparkSession, root: Path, name: str) -> Mapping[str, int]:
    ensure_table(spark, root, AUDIT_TABLES[name])
    return effective_versions(root, name, PIPELINE)


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


def _read(place: Path) -> tuple[Applied | None, dict[str, int]]:
    with RocksStore(place / "state") as state:
        if state.get(META, APPLIED_KEY) is None:
            return None, {}
        for family in FAMILIES:
            for _ in state.scan(family, b""):  # every block is read, and RocksDB checks each
                pass
        return applied_of(state), decode_noted(state.get(META, NOTED_KEY))


def _lost(applied: Applied | None, log: LogFound) -> list[str]:
    if applied is not None and applied.ops_topic_id != log.topic_id:
        return [f"{log.topic} was deleted and made again: what had been in it is gone"]
    return lost_records({} if applied is None else applied.next_offset, log)


def _problem(
    applied: Applied | None,
    noted: Mapping[str, int],
    log: LogFound,
    tables: Mapping[str, Mapping[str, int]],
    lost: list[str],
    *,
    lossy: bool,
    is_empty: bool,
) -> str | None:
    """Why this state cannot be continued."""
    if lost and not lossy:
        return f"{'; '.join(lost)} (`--lossy` accepts that)"
    if applied is None:
        return None if is_empty else "it has decided nothing"
    if applied.ops_topic != log.topic:
        return f"it is of {applied.ops_topic}"
    if 0 < len(applied.next_offset) < len(log.end_offset):
        return f"{log.topic} has {len(log.end_offset)} partitions and had {len(applied.next_offset)}"
    for name, seq in noted.items():
        had = tables[name].get(applied.state_epoch, -1)
        if had < seq:
            return f"{name} has lost rows that it counts on: they end at apply_seq {had}, not {seq}"
    return None


def _begin(state: Path, applied: Applied | None, log: LogFound, replay: Replay, known_epochs: set[str]) -> None:
    """Make it the begin of a new state epoch, which continues all that the tables know."""
    next_offset = dict.fromkeys(log.end_offset, 0) if applied is None else dict(applied.next_offset)
    if applied is not None:
        known_epochs |= {*applied.former_epochs, applied.state_epoch}
    if replay.lost:
        is_other = applied is not None and applied.ops_topic_id != log.topic_id
        next_offset = {
            partition: first if is_other else max(first, min(next_offset.get(partition, 0), log.end_offset[partition]))
            for partition, first in log.first_offset.items()
        }
    fresh = Applied(
        state_epoch=uuid.uuid4().hex,
        ops_topic=log.topic,
        ops_topic_id=log.topic_id,
        apply_seq=0 if applied is None else applied.apply_seq,
        next_offset=next_offset,
        former_epochs=sorted(known_epochs),
    )
    with RocksStore(state) as store:
        raised = list(raise_generation(store.scan(STATE, b""))) if replay.lost else []
        store.write_changes(
            [
                *raised,
                (META, APPLIED_KEY, fresh.encode()),
                (META, NOTED_KEY, encode_noted({})),
                (META, REPLAY_KEY, replay.encode()),
            ]
        )


def _begin_queues(folder: JobFolder, audited: Mapping[Queue, Audited]) -> None:
    """Let the builder's store know of the rows that its table has, and of no others."""
    if audited or folder.queues.is_dir():
        with RocksStore(folder.queues, BUILDER_FAMILIES) as store:
            Builder(store, Outbox(store), "").begin_epoch(uuid.uuid4().hex, audited)


def _swap(folder: JobFolder, place: Path) -> Path | None:
    """Put the restored state where the job looks for it; what was there is kept."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    replaced = folder.root / "replaced" / f"{stamp}-{uuid.uuid4().hex[:6]}"
    moved = None
    for restored, present in ((place / "state", folder.state), (place / "queues", folder.queues)):
        if not restored.is_dir() or (present == folder.queues and _opens(present)):
            continue
        if present.exists():
            moved = replaced
            replaced.mkdir(parents=True, exist_ok=True)
            present.rename(replaced / present.name)
        restored.rename(present)
    return moved


def _opens(queues: Path) -> bool:
    """The builder's own store is as good as it is: it is read on from where it ends, whatever the state knows."""
    if not queues.is_dir():
        return False
    try:
        RocksStore(queues, BUILDER_FAMILIES).close()
    except (Invalid, Unavailable) as error:
        _log.warning("queues_replaced", error=str(error))
        return False
    return True
