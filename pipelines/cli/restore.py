"""`popstream restore`: put the best state in place, so that `popstream up` goes on from there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from checkpoints.reconcile import LogFound
from checkpoints.snapshots import SnapshotStore
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import describe
from pipelines.cli.exits import say
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.snapshot import snapshots_of
from pipelines.cli.spark_tools import reading_session, working
from pipelines.process.host import KAFKA_FOLDER
from pipelines.process.preflight import reach_kafka
from pipelines.recovery.ops_log import found_log
from pipelines.recovery.restore import Restored, restore
from pipelines.recovery.snapshot_loop import take_snapshot
from pipelines.settings import JobSettings
from popstream.wire.failures import Invalid

__all__ = ["log_of", "run_restore", "the_kafka_of"]


def run_restore(settings: JobSettings, *, var: Path, lossy: bool, only: str | None, as_json: bool) -> None:
    """Restore, and tell what was put in place.

    Raises:
        Fenced: A job owns the folder.
        Invalid: There is no ops topic, or no such snapshot.
        Unavailable: Kafka does not answer.
        Corrupt: No state can be continued.
    """
    folder = JobFolder(settings.folder.absolute())
    snapshots = snapshots_of(settings)
    with Ownership(folder.lock):
        with the_kafka_of(settings, var) as servers, reading_session(var) as spark, working("restoring"):
            log = log_of(servers, settings.topic_prefix)
            restored = restore(folder, log, servers, spark, snapshots, lossy=lossy, only=only)
        if restored.since_loss and not _has_base(restored, snapshots):
            # The log does not lead here any more: from now on everything begins with this.
            _take_base(folder, settings)
    if as_json:
        print(msgspec.json.encode(restored).decode())
        return
    _print(restored)


@contextlib.contextmanager
def the_kafka_of(settings: JobSettings, var: Path) -> Iterator[str]:
    """Servers of the job's Kafka; its own broker is started for as long as this takes."""
    if settings.bootstrap_servers:
        reach_kafka(settings.bootstrap_servers)
        yield settings.bootstrap_servers
        return
    folder = settings.folder.absolute() / KAFKA_FOLDER
    if not folder.is_dir():
        message = f"there is no Kafka in {folder}: name the job's by --bootstrap-servers"
        raise Invalid(message, subject=str(folder))
    with EmbeddedKafka(folder, jars=kafka_jars(var.absolute())) as kafka:
        yield kafka.bootstrap_servers


def log_of(servers: str, prefix: str) -> LogFound:
    """The ops topic of a job as it is now.

    Raises:
        Invalid: There is none.
    """
    name = Topics.of(prefix).ops
    facts = describe(servers, [name]).get(name)
    if facts is None:
        message = f"there is no topic {name}: is the prefix right?"
        raise Invalid(message, subject=name)
    return found_log(servers, facts)


def _has_base(restored: Restored, snapshots: SnapshotStore) -> bool:
    return any(snapshot.applied.state_epoch in restored.since_loss for snapshot in snapshots.list())


def _take_base(folder: JobFolder, settings: JobSettings) -> None:
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(RocksStore(folder.state))
        queues = stack.enter_context(RocksStore(folder.queues, BUILDER_FAMILIES)) if folder.queues.is_dir() else None
        take_snapshot(state, queues, folder.scratch, snapshots_of(settings))


def _print(restored: Restored) -> None:
    facts = {
        "restored from": restored.source,
        "goes on after": f"{restored.apply_seq:,} micro-batches",
        "to replay": f"{restored.to_replay:,} records, whose rows are compared with those in Delta",
    }
    facts["looked at"] = restored.snapshots
    if restored.replaced:
        facts["former state"] = restored.replaced
    for number, why in enumerate(restored.passed_over, 1):
        facts[f"passed over {number}"] = why
    for number, what in enumerate(restored.lost, 1):
        facts[f"lost {number}"] = what
    print_facts(standard_output(), facts)
    say("start the job: `popstream up`")
