"""Claim: wherever in a micro-batch a job dies, the next start makes of it what an undisturbed job would have.

Method: the rows of the crash matrix (docs/reliability.md), each by its name: the job dies there by an exception that
nothing catches, another one decides the rest of the log on the same Spark, and `verify` decides the whole log again and
compares state and rows; copies of an answer must be identical. All rows disturb the same job, one after another.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from broker_state.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, applied_of
from checkpoints.layout import JobFolder
from checkpoints.snapshots import SnapshotStore
from connectors.delta.tables import table_path
from connectors.kafka.topics import describe
from pipelines.ops_log import found_log
from pipelines.verify import verify
from tests.crash.scene import OPS_PARTITIONS, PATIENCE_S
from tests.support.left_behind import answers_of, end_offsets, records_between
from tests.support.simulated_crash import crash_at
from tests.support.wire import start_job, wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.job import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


class Disturbed:
    """A job that dies in each test, and clients that go on sending all the time."""

    def __init__(self, spark: SparkSession, servers: str, root: Path) -> None:
        self.spark, self.servers = spark, servers
        self._died = 0
        self._image = root / "image"
        self.folder = JobFolder(root / "job")
        with_topics = self.start()
        self.topics = with_topics.topics
        with_topics.stop()

    def start(self) -> Job:
        more = {"ops_partitions": OPS_PARTITIONS, "records_per_batch_max": 100, "snapshot_interval_s": 0.0}
        return start_job(self.spark, self.servers, self.folder.root, "matrix", **more)

    def die_at(self, point: str, hit: int) -> None:
        """While clients send; they stop before the next start, so that there is an end of the log."""
        self._died += 1
        with Workload(self.servers, self.topics, OPS_PARTITIONS, seed=self._died, pause_s=0.01):
            crash_at(point, hit, self.start, PATIENCE_S, self._keep_image)
        shutil.rmtree(self.folder.state)
        self._image.rename(self.folder.state)

    def _keep_image(self) -> None:
        """The state as the dead process leaves it: closing RocksDB in order would empty its write-ahead log."""
        # Reading RocksDB's LOCK would let go of it.
        shutil.copytree(self.folder.state, self._image, ignore=shutil.ignore_patterns("LOCK"))

    def decided(self) -> int:
        """Records whose decision is in the state."""
        with RocksStore(self.folder.state, read_only=True) as store:
            return sum(applied_of(store).next_offset.values()) if store.get(META, APPLIED_KEY) is not None else 0

    def decide_the_rest(self) -> None:
        job = self.start()
        try:
            wait_for(lambda: job.apply_ops.applied.next_offset == end_offsets(self.servers, self.topics.ops), job)
        finally:
            job.stop()
        assert job.failure is None

    def verify(self) -> None:
        """See the module."""
        log = found_log(self.servers, describe(self.servers, [self.topics.ops])[self.topics.ops])
        snapshots = SnapshotStore(str(self.folder.snapshots))
        scratch = self.folder.scratch / "verify"
        state, delta = self.folder.state, self.folder.delta
        found = verify(state, log, self.servers, self.spark, delta, snapshots, scratch, signer=None)
        assert found.differences == []
        assert 0 < found.records == self.decided()
        assert found.rows["operations"] >= found.records
        assert not any(found.not_in_delta.values())
        end = end_offsets(self.servers, self.topics.results)
        answers = answers_of(record.value for record in records_between(self.servers, self.topics.results, {}, end))
        assert all(len(copies) == 1 for copies in answers.values())


@pytest.fixture(scope="module")
def disturbed(spark: SparkSession, broker: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    return Disturbed(spark, broker.bootstrap_servers, tmp_path_factory.mktemp("matrix"))


def nothing(_: Disturbed) -> None:
    """Leave what is there as it is."""


def tear_wal(disturbed: Disturbed) -> None:
    """Cut the newest write-ahead log in the middle of its last record, as a machine that loses power does."""
    newest = max(disturbed.folder.state.glob("*.log"), key=lambda path: int(path.stem))
    size = newest.stat().st_size
    assert size > 64
    with newest.open("r+b") as file:
        file.truncate(size - 7)


def leave_orphan(disturbed: Disturbed) -> None:
    """A data file of a commit that never came to be."""
    table = table_path(disturbed.folder.delta, "operations")
    written = next(table.rglob("*.parquet"))
    written.with_name("part-00000-orphan.snappy.parquet").write_bytes(written.read_bytes())


@pytest.mark.parametrize(
    ("point", "hit", "damage"),
    [
        pytest.param("start", 1, nothing, id="before offset log"),
        pytest.param("fetch", 2, nothing, id="after offset log, before foreachBatch body"),
        pytest.param("write", 2, nothing, id="before WriteBatch"),
        pytest.param("publish", 3, tear_wal, id="during WriteBatch (torn WAL)"),
        pytest.param("publish", 2, nothing, id="after WriteBatch, before Delta"),
        pytest.param("flush", 1, nothing, id="between Delta tables"),
        pytest.param("emit", 1, nothing, id="before emit"),
        pytest.param("emit", 4, nothing, id="mid emit"),
        pytest.param("commit", 1, nothing, id="after emit"),
        pytest.param("commit", 3, nothing, id="before commit log"),
        pytest.param("fetch", 4, nothing, id="after commit log, before next trigger"),
        pytest.param("flush_begin", 1, leave_orphan, id="during Delta commit itself"),
    ],
)
def test_killed(disturbed: Disturbed, point: str, hit: int, damage: Callable[[Disturbed], None]) -> None:
    disturbed.die_at(point, hit)
    damage(disturbed)
    left = disturbed.decided()
    disturbed.decide_the_rest()
    assert disturbed.decided() > left
    disturbed.verify()
