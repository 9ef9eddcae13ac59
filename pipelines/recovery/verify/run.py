"""Runs a verification: makes its plan or goes on with one that was kept, starts its processes, and listens to them."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from broker_state.store.rocks_store import RocksStore
from checkpoints.reconcile import LogFound, require_same_log
from connectors.delta.table_damage import damage_in
from connectors.delta.tables import TABLES, table_path
from pipelines.recovery.progress import Progress, ProgressReport
from pipelines.recovery.replay_source import ReplaySource
from pipelines.recovery.verify import worker
from pipelines.recovery.verify.base import Snapshots, choose_base
from pipelines.recovery.verify.decide_again import ShareResult
from pipelines.recovery.verify.plan import VerifyPlan, read_plan
from pipelines.recovery.verify.planning import facts_of_state, keys_digest, make_plan, require_undamaged, why_unusable
from pipelines.recovery.verify.units import UnitResult
from pipelines.recovery.verify.verdict import EMBEDDED, Advice, Verified, verdict
from pipelines.recovery.verify.work_folder import WorkFolder, linked_copy, replace_file
from pipelines.recovery.verify.worker import UNITS, VerifyTask
from pipelines.recovery.worker_pool import explained, run_processes
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from popstream.wire.signing import KeyRing

__all__ = ["Inputs", "goes_on", "verify"]


def goes_on(since: str | None) -> str:
    """Return what continues a verification that was stopped.

    >>> goes_on("newest")
    '`popstream verify --since newest` goes on where this one ended'
    """
    return f"`popstream verify{'' if since is None else f' --since {shlex.quote(since)}'}` goes on where this one ended"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is verified.

    Attributes:
        state: A state that is not written: of a stopped job, or a copy.
        queues: Store of its builder, likewise; None: there is none.
        is_copy: The stores are those of a running job, copied to `incoming` in the folder of the verification. The
            tables may be there, too.
        delta: Folder of the tables.
        log: The ops topic.
        connection: The Kafka with the ops topic and the message topics.
        snapshots: Snapshots to begin with, if the log has lost its first records.
        handle_ring: The job's keys of handles.
        admin_ring: Its keys of operations.
        advice: What is to be done where something differs.
    """

    state: Path
    queues: Path | None
    is_copy: bool = False
    delta: Path
    log: LogFound
    connection: KafkaConnection
    snapshots: Snapshots
    handle_ring: KeyRing | None = None
    admin_ring: KeyRing | None = None
    advice: Advice = EMBEDDED


def verify(
    inputs: Inputs,
    folder: WorkFolder,
    *,
    since: str | None = None,
    fresh: bool = False,
    with_messages: bool = True,
    processes: int | None = None,
    on_report: Callable[[ProgressReport], None] = lambda _: None,
) -> Verified:
    """Decide the log again, up to the applied offsets of a state, and compare. A verification that was stopped goes on.

    Args:
        inputs: What is verified.
        folder: Where the verification keeps what it has done, locked by the caller. Empty after a result.
        since: Id of the snapshot to begin with, or `newest`. By default the start of the log, or the oldest snapshot
            after which the log is complete.
        fresh: Give up a verification that was stopped.
        with_messages: Compare units with the records of message topics, too.
        processes: Processes that decide; by default one for each core.
        on_report: Called every few seconds.

    Raises:
        Corrupt: The log is not the one that was decided, or is complete after no snapshot. Or a file is damaged.
        Invalid: The log is not complete after the snapshot `since`, or a table has other columns.
        Unavailable: Kafka does not answer, the disk is full, or a process was killed.
    """
    progress = Progress(on_report)
    with _disk_errors(folder, since):
        plan = _plan(inputs, folder, progress, since=since, fresh=fresh, processes=processes or os.cpu_count() or 1)
    source = ReplaySource(
        connection=inputs.connection,
        topic=plan.topic,
        partition_count=len(plan.first),
        handle_ring=inputs.handle_ring,
        admin_ring=inputs.admin_ring,
    )
    tasks = [
        VerifyTask(
            work=str(folder.root),
            number=number,
            source=source,
            with_messages=with_messages,
        )
        for number in [*range(len(plan.shares)), *([UNITS] if plan.has_units else [])]
    ]
    results = _run(tasks, progress, since)
    shares = [msgspec.json.decode(results[number], type=ShareResult) for number in range(len(plan.shares))]
    units = msgspec.json.decode(results[UNITS], type=UnitResult) if UNITS in results else None
    found = verdict(plan.base, shares, units, inputs.advice)
    # What a replay leads to is in some columns alone, and a damaged file may be read without an error.
    progress.begin("reading all columns of the tables")
    damages = (damage_in(table_path(Path(plan.delta), name)) for name in TABLES)
    lines = [damage.message for damage in damages if damage is not None]
    found = msgspec.structs.replace(found, differences=[*found.differences, *lines])
    folder.clear()
    return found


def _plan(
    inputs: Inputs, folder: WorkFolder, progress: Progress, *, since: str | None, fresh: bool, processes: int
) -> VerifyPlan:
    progress.begin("verifying the files of the state")
    facts = facts_of_state(inputs.state)
    require_same_log(facts.applied, inputs.log)
    keys = keys_digest(inputs.handle_ring, inputs.admin_ring)
    kept = None if fresh else read_plan(folder.plan)
    if kept is not None:
        image = folder.image if inputs.is_copy else None
        reason = why_unusable(kept, facts, inputs.log, image=image, since=since, keys=keys)
        if reason is None:
            progress.begin("going on with the verification that was stopped")
            facts_of_state(Path(kept.state))
            shutil.rmtree(folder.incoming, ignore_errors=True)
            return kept
        progress.begin(f"a verification that was stopped is given up: {reason}")
    folder.clear()
    if inputs.is_copy:
        folder.incoming.rename(folder.image)

    def now_at(path: Path) -> Path:
        is_moved = inputs.is_copy and path.is_relative_to(folder.incoming)
        return folder.image / path.relative_to(folder.incoming) if is_moved else path

    base = choose_base(facts.applied, inputs.log, inputs.snapshots, folder.base, since, facts.since_loss)
    if base.snapshot is not None:
        progress.begin(f"verifying the files of {base.name}")
        with RocksStore(folder.base / "state", read_only=True) as store:
            require_undamaged(store, base.name, base.instead)
    progress.begin("reading the logs of the tables")
    plan = make_plan(
        facts,
        base,
        inputs.log,
        state=now_at(inputs.state),
        queues=None if inputs.queues is None else now_at(inputs.queues),
        delta=now_at(inputs.delta),
        since=since,
        keys=keys,
        processes=processes,
    )
    if base.snapshot is not None:
        for number in range(len(plan.shares)):
            linked_copy(folder.base / "state", folder.share(number))
        shutil.rmtree(folder.base)
    replace_file(folder.plan, msgspec.msgpack.encode(plan))
    return plan


def _run(tasks: Sequence[VerifyTask], progress: Progress, since: str | None) -> dict[int, msgspec.Raw]:
    by_number = {task.number: task for task in tasks}
    return run_processes(worker.__name__, by_number, progress, what="the verification", advice=goes_on(since))


@contextlib.contextmanager
def _disk_errors(folder: WorkFolder, since: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = explained(
            f"the verification cannot write to {folder.root}: {error.strerror or error}", goes_on(since)
        )
        raise Unavailable(message, subject=str(folder.root)) from error
