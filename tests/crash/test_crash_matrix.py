"""Claim: wherever in a micro-batch a job dies, the next start makes of it what an undisturbed job would have.

Method: the rows of the crash matrix (docs/testing.md), each by its name. A job in a process group of its own is
killed at that place while clients send, and what it left is looked at: a death that left something else does not count,
and is tried again. The next row disturbs the job that was started on it. In the end the scene compares
(tests/crash/scene.py).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import Applied, applied_of
from checkpoints.layout import JobFolder
from checkpoints.spark_progress import planned_end
from connectors.delta.restore_queries import whole_versions
from connectors.delta.tables import AUDIT_TABLES, table_path
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.source import PIPELINE
from pipelines.decide_ops.entries import read_frame, read_slice
from pipelines.decide_ops.entry import Entry, EntryKind
from tests.crash.scene import KILLED, OPS_PARTITIONS, PATIENCE_S, Scene, run_with
from tests.support.left_behind import end_offsets, live_files, records_between
from tests.support.processes.job_process import JobProcess
from tests.support.wire import wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# CI plays the others: one for each of RocksDB, Delta, Kafka and Spark.
ONLY_IN_FULL = pytest.mark.crash

TRIES = 5
ANSWERED_S_MAX = 120.0
BATCHES_BEHIND = 20
NEVER_S = 3_600.0


class Left(NamedTuple):
    """What a dead process has left: in RocksDB, in Delta, in Spark's checkpoint and in Kafka.

    `begun` is how far the log was decided when the last attempt began; `plans` is where each micro-batch ends,
    `committed` are those of them that Spark has noted; `orphans` are data files that no commit mentions, but those that
    were there before.
    """

    applied: Applied
    begun: dict[int, int]
    outbox: list[Entry]
    delivered: dict[str, int]
    plans: dict[int, dict[int, int]]
    committed: set[int]
    frames: set[tuple[int, bytes]]
    log_end: dict[int, int]
    orphans: set[Path]

    @property
    def last_answers(self) -> list[bool]:
        """Of each frame of the last WriteBatch, whether it is in Kafka."""
        answers = [entry for entry in self.outbox if entry.kind == EntryKind.ANSWERS]
        return [read_frame(e.value) in self.frames for e in answers if e.apply_seq == self.applied.apply_seq]


class Begun(msgspec.Struct):
    """What is looked at of the note of attempts."""

    next_offset: dict[int, int]


class Disturbed:
    """A job that runs between the tests, and the clients that there have been."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.folder = JobFolder(scene.folder)
        self.clients: list[Workload] = []
        self.orphans: set[Path] = set()
        self.job = JobProcess(scene.servers, scene.settings)

    @contextmanager
    def clients_at_work(self) -> Iterator[None]:
        """Two, for answers to two partitions; from the first answer of both on."""
        began_s = time.time()
        pair = [
            Workload(
                self.scene.servers,
                self.scene.topics,
                OPS_PARTITIONS,
                seed=len(self.clients) + number,
                pause_s=0.04,  # else a start has to catch up for half a minute
                reply_to=number,
            )
            for number in range(2)
        ]
        self.clients += pair
        with pair[0], pair[1]:
            wait_for(lambda: self.answers(pair, began_s), patience_s=ANSWERED_S_MAX)
            yield

    def answers(self, clients: list[Workload], since_s: float) -> bool:
        """Whether all of them have heard of what they sent since then."""
        assert self.job.process.poll() is None, self.job.log_tail()
        return all(client.first_answer_after(since_s) for client in clients)

    def has_noted_all(self) -> bool:
        """Whether Spark has noted a micro-batch that ends where the log does."""
        plans, committed = self.planned()
        newest = max(plans, default=-1)
        return newest in committed and plans[newest] == end_offsets(self.scene.servers, self.scene.topics.ops)

    def run(self, *, failpoint: str | None = None, **settings: object) -> None:
        """Start another process; the last one is dead."""
        self.job.__exit__(None, None, None)
        self.job = JobProcess(self.scene.servers, {**self.scene.settings, **settings}, failpoint=failpoint)

    def expect_death(self) -> None:
        code, _ = self.job.wait_for_death(PATIENCE_S)
        assert code == KILLED, f"{code}\n{self.job.log_tail()}"

    def left(self) -> Left:
        with RocksStore(self.folder.state, read_only=True) as store:
            applied, outbox = applied_of(store), Outbox(store)
            kinds = (EntryKind.ANSWERS, EntryKind.AUDIT)
            entries = [entry for kind in kinds for entry in outbox.undelivered(kind)]
        plans, committed = self.planned()
        topics, servers = self.scene.topics, self.scene.servers
        results = records_between(servers, topics.results, {}, end_offsets(servers, topics.results))
        return Left(
            applied=applied,
            begun=begun_of(self.folder.attempts),
            outbox=entries,
            delivered={
                table: whole_versions(self.folder.delta, table, PIPELINE).get(applied.state_epoch, -1)
                for table in AUDIT_TABLES
            },
            plans=plans,
            committed=committed,
            frames={(record.partition, record.value) for record in results},
            log_end=end_offsets(servers, topics.ops),
            orphans=self.data_files() - self.mentioned_files() - self.orphans,
        )

    def planned(self) -> tuple[dict[int, dict[int, int]], set[int]]:
        """Where each micro-batch of the last start ends, and which of them Spark has noted."""
        checkpoint = max(self.folder.spark.iterdir(), key=lambda path: int(path.name), default=None)
        if checkpoint is None:
            return {}, set()
        topic = self.scene.topics.ops
        plans = {number: planned_end(checkpoint, number, topic) for number in numbered(checkpoint, "offsets")}
        return plans, numbered(checkpoint, "commits")

    def data_files(self) -> set[Path]:
        return {file for table in AUDIT_TABLES for file in table_path(self.folder.delta, table).glob("*=*/*.parquet")}

    def mentioned_files(self) -> set[Path]:
        """Those that a commit has added: none of them has been compacted yet."""
        return {file for table in AUDIT_TABLES for file in live_files(table_path(self.folder.delta, table))}


def begun_of(attempts: Path) -> dict[int, int]:
    """How far the log was decided when the last attempt began.

    Nothing if no attempt is counted, as after a second one that succeeded, or if the process died while it noted it.
    """
    try:
        return msgspec.json.decode(attempts.read_bytes(), type=Begun).next_offset
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def numbered(checkpoint: Path, folder: str) -> set[int]:
    """The micro-batches that Spark has a file of."""
    return {int(file.name) for file in (checkpoint / folder).glob("*") if file.name.isdigit()}


@pytest.fixture(scope="module")
def disturbed(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disturbed]:
    scene = Scene(broker.bootstrap_servers, "matrix", tmp_path_factory.mktemp("matrix"), run_with(spark))
    disturbed = Disturbed(scene)
    yield disturbed
    disturbed.job.__exit__(None, None, None)


# How it dies.


def at(point: str) -> Callable[[Disturbed], None]:
    """Python and its JVM, where a fail-point is passed."""

    def die(disturbed: Disturbed) -> None:
        with disturbed.clients_at_work():
            disturbed.job.kill_at(f"!{point}")
            disturbed.expect_death()

    return die


def as_it_starts(disturbed: Disturbed) -> None:
    """Clients have sent more while there was no job."""
    with disturbed.clients_at_work():
        disturbed.job.kill()
        disturbed.run(failpoint="!start")
        disturbed.expect_death()


def in_idleness(disturbed: Disturbed) -> None:
    with disturbed.clients_at_work():
        pass
    wait_for(disturbed.has_noted_all)
    disturbed.job.kill()


def while_it_commits(disturbed: Disturbed) -> None:
    """As soon as there is a data file that no commit mentions."""
    with disturbed.clients_at_work():
        before = disturbed.data_files()
        wait_for(lambda: disturbed.data_files() - before, patience_s=PATIENCE_S, look_each_s=0.001)
        disturbed.job.kill()


# What is damaged then.


def nothing(_: Disturbed) -> None:
    """Leave what is there as it is."""


def tear_wal(disturbed: Disturbed) -> None:
    """Cut the newest write-ahead log until the last WriteBatch is torn, as a machine that loses power does."""
    before = disturbed.left().applied.apply_seq
    newest = max(disturbed.folder.state.glob("*.log"), key=lambda path: int(path.stem))
    while disturbed.left().applied.apply_seq == before:
        size = newest.stat().st_size
        assert size > 64
        with newest.open("r+b") as file:
            file.truncate(size - 7)


def forget_commit(disturbed: Disturbed) -> None:
    """Take away Spark's note of the newest micro-batch that is decided."""
    left = disturbed.left()
    (decided,) = (number for number, end in left.plans.items() if end == left.applied.next_offset)
    checkpoint = max(disturbed.folder.spark.iterdir(), key=lambda path: int(path.name))
    for number in left.committed:
        if number >= decided:
            (checkpoint / "commits" / str(number)).unlink()


# What it leaves.


def is_not_planned(left: Left) -> bool:
    return not left.plans and left.applied.next_offset != left.log_end


def is_planned_and_all_before_is_decided(left: Left) -> bool:
    newest = max(left.plans)
    return newest not in left.committed and left.plans.get(newest - 1) == left.applied.next_offset


def is_begun_and_not_written(left: Left) -> bool:
    return left.begun == left.applied.next_offset


def is_written_and_not_in_delta(left: Left) -> bool:
    rows = {entry.apply_seq for entry in left.outbox if entry.kind == EntryKind.AUDIT}
    return left.applied.apply_seq in rows and all(seq < left.applied.apply_seq for seq in left.delivered.values())


def is_in_some_tables(left: Left) -> bool:
    newest = max(left.delivered.values())
    rows = [(read_slice(entry.value)[0], entry) for entry in left.outbox if entry.kind == EntryKind.AUDIT]
    return any(left.delivered[table] < entry.apply_seq <= newest for table, entry in rows)


def is_answered_to_nobody(left: Left) -> bool:
    return left.last_answers != [] and not any(left.last_answers)


def is_answered_to_some(left: Left) -> bool:
    return any(left.last_answers) and not all(left.last_answers)


def is_answered_to_all(left: Left) -> bool:
    return left.last_answers != [] and all(left.last_answers)


def is_decided_and_not_noted(left: Left) -> bool:
    return any(end == left.applied.next_offset and n not in left.committed for n, end in left.plans.items())


def is_decided_and_noted(left: Left) -> bool:
    newest = max(left.plans)
    return newest in left.committed and left.plans[newest] == left.applied.next_offset


def is_file_without_commit(left: Left) -> bool:
    return left.orphans != set()


@pytest.mark.parametrize(
    ("die", "damage", "is_left"),
    [
        pytest.param(as_it_starts, nothing, is_not_planned, id="before offset log", marks=ONLY_IN_FULL),
        pytest.param(
            at("fetch"),
            nothing,
            is_planned_and_all_before_is_decided,
            id="after offset log, before foreachBatch body",
            marks=ONLY_IN_FULL,
        ),
        pytest.param(at("write@2"), nothing, is_begun_and_not_written, id="before WriteBatch", marks=ONLY_IN_FULL),
        pytest.param(at("publish@3"), tear_wal, is_begun_and_not_written, id="during WriteBatch (torn WAL)"),
        pytest.param(
            at("publish@2"),
            nothing,
            is_written_and_not_in_delta,
            id="after WriteBatch, before Delta",
            marks=ONLY_IN_FULL,
        ),
        pytest.param(at("flush"), nothing, is_in_some_tables, id="between Delta tables"),
        pytest.param(at("emit+200"), nothing, is_answered_to_nobody, id="before emit"),
        pytest.param(at("emit@2+200"), nothing, is_answered_to_some, id="mid emit", marks=ONLY_IN_FULL),
        pytest.param(at("commit+200"), nothing, is_answered_to_all, id="after emit", marks=ONLY_IN_FULL),
        pytest.param(at("commit@3"), forget_commit, is_decided_and_not_noted, id="before commit log"),
        pytest.param(
            in_idleness, nothing, is_decided_and_noted, id="after commit log, before next trigger", marks=ONLY_IN_FULL
        ),
        pytest.param(
            while_it_commits, nothing, is_file_without_commit, id="during Delta commit itself", marks=ONLY_IN_FULL
        ),
    ],
)
def test_killed(
    disturbed: Disturbed,
    die: Callable[[Disturbed], None],
    damage: Callable[[Disturbed], None],
    is_left: Callable[[Left], bool],
) -> None:
    for _ in range(TRIES):
        if disturbed.job.process.poll() is not None:  # of a test that failed
            disturbed.run()
        die(disturbed)
        damage(disturbed)
        left = disturbed.left()
        disturbed.orphans |= left.orphans
        disturbed.run()
        if is_left(left):
            return
    pytest.fail(f"{TRIES} deaths, and none left this")


@ONLY_IN_FULL
def test_rocksdb_ahead_of_delta_by_k_commits(disturbed: Disturbed) -> None:
    """What the outbox has kept goes to Delta with the next start."""
    disturbed.job.kill()
    disturbed.run(flush_interval_s=NEVER_S)
    at(f"publish@{BATCHES_BEHIND}")(disturbed)
    left = disturbed.left()
    assert all(left.applied.apply_seq - seq >= BATCHES_BEHIND for seq in left.delivered.values())
    disturbed.run()


def test_an_undisturbed_job_makes_the_same_of_the_log(disturbed: Disturbed) -> None:
    """After all that was chosen of the tests above."""
    with disturbed.clients_at_work():
        pass
    assert disturbed.job.stop(PATIENCE_S) == 0, disturbed.job.log_tail()
    disturbed.scene.compare(disturbed.clients)
