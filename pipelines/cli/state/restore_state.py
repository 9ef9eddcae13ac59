"""`popstream restore`: replace the state by the best candidate, from which `popstream up` continues."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from checkpoints.prefix_owner import Owner
from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.file_access import files_made_with, umask_of_tables
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.topic_admin import describe
from pipelines.cli.exits import say
from pipelines.cli.job_sources import log_of, open_kafka, snapshots_of
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.spark_tools import reading_session, working
from pipelines.cli.target import require_job_folder
from pipelines.job_settings import JobSettings
from pipelines.process.prefix_ownership import require_ended
from pipelines.recovery.candidates import NO_SNAPSHOT, snapshot_of_id
from pipelines.recovery.replaced_files import move_tables_away
from pipelines.recovery.restore import Restored, restore
from pipelines.recovery.take_snapshot import take_snapshot
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Unavailable

__all__ = ["run_restore"]


def run_restore(
    settings: JobSettings, *, var: Path, lossy: bool, only: str | None, rebuild: Sequence[str], as_json: bool
) -> None:
    """Restore, and report the new state.

    Raises:
        Fenced: A job owns the folder, or another one runs with the prefix.
        Invalid: The ops topic, the snapshot or a table does not exist, or the folder is not that of a job. Nothing was
            created.
        Unavailable: Kafka does not answer.
        Corrupt: No candidate can be continued.
    """
    folder = settings.job_folder.absolute()
    snapshots = snapshots_of(settings)
    connection = settings.connection
    if connection is not None:  # the folder may be a new one, on another disk
        reach_kafka(connection)
        log_of(connection, settings.topic_prefix)
    else:
        require_job_folder(folder)
    if only is not None and only != NO_SNAPSHOT:
        snapshot_of_id(snapshots, only)  # before a table is moved
    umask = umask_of_tables(folder.delta, otherwise=settings.umask)
    with files_made_with(umask), Ownership(folder.lock) as ownership:
        with open_kafka(settings, var) as connection, reading_session(var) as spark, working("restoring"):
            log = log_of(connection, settings.topic_prefix)
            continues = _owner_epoch(connection, settings.topic_prefix, ownership.place)
            move_tables_away(folder, rebuild)
            restored = restore(folder, log, connection, spark, snapshots, lossy=lossy, only=only, continues=continues)
        # Before anything else may fail: what was lost is said once.
        if as_json:
            print(msgspec.json.encode(restored).decode(), flush=True)
        else:
            _print(restored)
        _require_base(restored, snapshots, partial(_take_base, folder, settings))


def _owner_epoch(connection: KafkaConnection, prefix: str, place: str) -> str:
    """Return the state epoch of the last owner of the prefix, or an empty text if nobody has owned it yet.

    Raises:
        Fenced: It runs, and would write rows that the restore does not know: `place` is not that of its lock file.
    """
    name = Topics.of(prefix).owner
    if name not in describe(connection, [name]):
        return ""
    owner = require_ended(prefix, OwnerLog(connection, name, Owner), place)
    return "" if owner is None else owner.state_epoch


def _require_base(restored: Restored, snapshots: SnapshotStore, take: Callable[[], None]) -> None:
    """Take the snapshot from which later restores and verifications start, if the log does not lead to the state."""
    try:
        if restored.since_loss and not any(
            snapshot.applied.state_epoch in restored.since_loss for snapshot in snapshots.list()
        ):
            take()
    except Unavailable as error:
        message = (
            f"the state is restored, but not the snapshot taken from which later restores start: {error.message}; when"
            " that is mended, run `popstream snapshot`"
        )
        raise Unavailable(message, subject=error.subject) from error


def _take_base(folder: JobFolder, settings: JobSettings) -> None:
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(RocksStore(folder.state))
        queues = stack.enter_context(RocksStore(folder.queues, BUILDER_FAMILIES)) if folder.queues.is_dir() else None
        take_snapshot(state, queues, folder.scratch, snapshots_of(settings))


def _print(restored: Restored) -> None:
    facts = {
        "restored from": restored.source,
        "continues after": f"{restored.apply_seq:,} micro-batches",
        "to replay": f"{restored.to_replay:,} records, whose rows are compared with those in Delta",
    }
    facts["snapshots in"] = restored.snapshots
    if restored.replaced:
        facts["replaced state"] = restored.replaced
    for number, reason in enumerate(restored.passed_over, 1):
        facts[f"skipped {number}"] = reason
    for number, loss in enumerate(restored.lost, 1):
        facts[f"lost {number}"] = loss
    print_facts(standard_output(), facts)
    say("start the job: `popstream up`")
