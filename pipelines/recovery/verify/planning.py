"""Makes the plan of a verification, and says whether one that was kept still holds."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import Applied, applied_of
from checkpoints.reconcile import LogFound
from checkpoints.replay import replay_of
from checkpoints.table_file import verify_tables
from connectors.delta.log.commits import commits_up_from
from connectors.delta.log.transactions import epochs_of
from connectors.delta.pieces import PiecedTable, find_pieces
from connectors.delta.restore_queries import whole_versions
from connectors.delta.store import require_columns
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, table_path
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import PIPELINE
from pipelines.recovery.verify.base import Base
from pipelines.recovery.verify.plan import TablePlan, VerifyPlan, unit_sources
from pipelines.recovery.verify.slices import slices_of
from popstream.wire.base_errors import RESTORE, Corrupt
from popstream.wire.signing import KeyRing

__all__ = ["StateFacts", "facts_of_state", "keys_digest", "make_plan", "require_undamaged", "why_unusable"]

SLICE_OFFSETS = 20_000
"""Offsets of a share in a slice: what is decided, compared and noted at once."""


class StateFacts(msgspec.Struct, frozen=True):
    """What a plan needs of a state."""

    applied: Applied
    quarantine: list[tuple[int, int, str]]
    compared_from: Mapping[str, Mapping[int, int]]
    since_loss: list[str]


def facts_of_state(state: Path) -> StateFacts:
    """Read a state, of which every block is verified.

    Raises:
        Corrupt: A file of it is damaged.
        Invalid: It has decided nothing.
    """
    with RocksStore(state, read_only=True) as store:
        require_undamaged(store, "the state", RESTORE)
        replay = replay_of(store)
        applied = applied_of(store)
        # A record is on the list before it is decided.
        quarantine = [(*at, error) for at, error in Quarantine(store) if at[1] < applied.next_offset.get(at[0], 0)]
        return StateFacts(applied, quarantine, replay.compared_from, replay.since_loss)


def require_undamaged(store: RocksStore, name: str, advice: str) -> None:
    """Verify every block of a store. Raises Corrupt with the advice."""
    try:
        verify_tables(store)
    except Corrupt as error:
        message = f"{name} cannot be verified: {error.message}: {advice}"
        raise Corrupt(message, subject=error.subject) from error


def make_plan(
    facts: StateFacts,
    base: Base,
    log: LogFound,
    *,
    state: Path,
    queues: Path | None,
    delta: Path,
    since: str | None,
    keys: str,
    processes: int,
) -> VerifyPlan:
    """Read the logs of the tables, and say what is compared with what.

    Raises:
        Corrupt: A file of a table is damaged or missing, or rows were written after a RESTORE.
        Invalid: A table has other columns.
    """
    end = {str(p): max(offset, base.next_offset.get(p, 0)) for p, offset in facts.applied.next_offset.items()}
    first = {p: base.next_offset.get(int(p), 0) for p in end}
    tables = {}
    for name in AUDIT_TABLES:
        found = find_pieces(
            table_path(delta, name),
            TABLES[name],
            ("partition", "ops_topic_id"),
            "kafka_offset",
            _partitions(log.topic_id),
        )
        _require_columns(delta, name, found)
        if found.version >= 0:
            whole_versions(delta, name, PIPELINE)  # rows after a RESTORE are refused
        tables[name] = TablePlan(
            version=found.version,
            pieces=found.pieces,
            ends={p: min(offset, end[p]) for p, offset in found.ends.items() if p in end},
            compared_from={str(p): offset for p, offset in facts.compared_from.get(name, {}).items()},
            first_ms=found.first_ms,
        )
    # Also without a store of the builder: a job may have lost it.
    path = table_path(delta, CONSUME_QUEUE.name)
    units = find_pieces(path, CONSUME_QUEUE, ("topic", "queue_id", "topic_id"), "queue_offset", unit_sources)
    _require_columns(delta, CONSUME_QUEUE.name, units)
    partitions = sorted(int(p) for p in end if end[p] > first[p])
    shares = [partitions[number::processes] for number in range(min(processes, len(partitions)))]
    return VerifyPlan(
        since=since,
        base=base.snapshot,
        topic=log.topic,
        topic_id=log.topic_id,
        first=first,
        end=end,
        state=str(state.absolute()),
        queues=None if queues is None else str(queues.absolute()),
        delta=str(delta.absolute()),
        applied=facts.applied,
        keys=keys,
        quarantine=facts.quarantine,
        tables=tables,
        units=units,
        slices=slices_of(first, end, tables["operations"].pieces, SLICE_OFFSETS * max(1, len(shares))),
        shares=shares or [[]],
    )


def why_unusable(
    plan: VerifyPlan, facts: StateFacts, log: LogFound, *, image: Path | None, since: str | None, keys: str
) -> str | None:
    """Return why a plan that was kept does not hold any more; None: it does.

    Args:
        plan: The plan.
        facts: Of the state as it is now.
        log: The ops topic as it is now.
        image: Where the copies are that a verification of a running job has begun with; None: the job does not run.
        since: The snapshot that is asked for.
        keys: Digest of the keys of handles and operations.
    """
    now, then = facts.applied, plan.applied
    decided = [each for each in facts.quarantine if each[1] < then.next_offset.get(each[0], 0)]
    is_same_state = now.state_epoch == then.state_epoch and (
        now.next_offset == then.next_offset if image is None else now.apply_seq >= then.apply_seq
    )
    reasons = (
        (plan.since == since, "it began elsewhere"),
        (plan.topic_id == log.topic_id and len(plan.end) == len(log.end_offset), "the ops topic is another one"),
        (plan.keys == keys, "the keys of handles or operations are other ones"),
        (
            image is None or Path(plan.state).is_relative_to(image.absolute()),
            "the job runs now, and writes to the state that it began with",
        ),
        (Path(plan.state).is_dir(), "the copy of the state is gone"),
        (is_same_state, "the state is another one"),
        (decided == plan.quarantine, "the quarantine is another one"),
    )
    for holds, reason in reasons:
        if not holds:
            return reason
    return next(_changed_tables(plan), None)


def _changed_tables(plan: VerifyPlan) -> Iterator[str]:
    """Yield each table of which more than appends and compactions of a job has happened since the plan."""
    versions = {name: (table.version, table.pieces) for name, table in plan.tables.items()}
    versions[CONSUME_QUEUE.name] = (plan.units.version, plan.units.pieces)
    for name, (version, pieces) in versions.items():
        path = table_path(Path(plan.delta), name)
        is_ours = all(
            commit.operation == "OPTIMIZE" or epochs_of(commit.txns, name) for commit in commits_up_from(path, version)
        )
        if not is_ours or not all((path / piece.path).is_file() for piece in pieces):
            yield f"{name} was changed"


def keys_digest(*rings: KeyRing | None) -> str:
    """Return a digest of the keys of handles and operations."""
    return hashlib.sha256(msgspec.json.encode(rings, order="sorted")).hexdigest()


def _partitions(topic_id: str) -> Callable[[pa.Table], pa.ChunkedArray]:
    def sources(rows: pa.Table) -> pa.ChunkedArray:
        is_ours = pc.equal(rows["ops_topic_id"], topic_id)
        return pc.if_else(is_ours, rows["partition"].cast(pa.string()), pa.scalar(None, pa.string()))

    return sources


def _require_columns(delta: Path, name: str, found: PiecedTable) -> None:
    if found.version >= 0:
        # The job adds to the table what it lacks; it may not have run since the table is that of an older version.
        require_columns(table_path(delta, name), TABLES[name], found.schema, may_lack=TABLES[name].optional_columns)
