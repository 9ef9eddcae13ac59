"""Progress that Spark reports, as rates and shares of shards (query_progress.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipelines.cluster.watch.query_progress import Progress, ProgressWatch, skew_of

REPORTED: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2030-01-31T12:00:00.000Z",
    "numInputRows": 120,
    "durationMs": {"triggerExecution": 250, "addBatch": 200},
    "sources": [{"endOffset": {"p.ops": {"0": 10, "1": 5}}, "latestOffset": '{"p.ops":{"0":12,"1":5}}'}],
    "stateOperators": [{"numRowsTotal": 300, "memoryUsedBytes": 4096}, {"numRowsTotal": 1, "memoryUsedBytes": 4}],
}


class Watched:
    """A watch of one query, whose progress and clock the test sets."""

    def __init__(self, decided: dict[int, int]) -> None:
        self.query = SimpleNamespace(name="decide_ops", lastProgress=None)
        self.now_s = 100.0
        self.watch = ProgressWatch(
            lambda: [self.query], decided, "decide_ops", spark_batch_id=6, clock=lambda: self.now_s
        )

    def report(self, spark_batch_id: int, *ends: int) -> None:
        """Two seconds later the query has come so far."""
        self.now_s += 2.0
        offsets = {"p.ops": {str(partition): end for partition, end in enumerate(ends)}}
        sources = [{"endOffset": offsets, "latestOffset": offsets}]
        self.query.lastProgress = {**REPORTED, "batchId": spark_batch_id, "sources": sources}
        self.watch.sample()


def test_a_progress_says_how_far_each_partition_is() -> None:
    progress = Progress.of(REPORTED)
    assert (progress.ends, progress.lags) == ({0: 10, 1: 5}, {0: 2, 1: 0})
    assert (progress.seconds, progress.state_keys, progress.state_bytes) == (0.25, 301, 4100)
    assert progress.report("decide_ops").behind == 2


def test_before_the_first_progress_the_checkpoint_says_what_is_decided() -> None:
    watched = Watched({0: 40, 1: 7})
    watched.watch.sample()
    assert watched.watch.decided() == {0: 40, 1: 7}
    assert (watched.watch.recent(), watched.watch.points(), watched.watch.last) == ({0: 0, 1: 0}, [], {})
    assert watched.watch.operations_per_s() == 0.0


def test_samples_tell_rates_and_the_share_of_each_shard() -> None:
    watched = Watched({0: 40, 1: 7})
    watched.report(8, 60, 7)
    watched.report(8, 60, 7)
    watched.report(9, 100, 17)
    points = watched.watch.points()
    assert [(point.operations_per_s, point.micro_batches) for point in points] == [(10.0, 2), (0.0, 0), (25.0, 1)]
    assert points[0].step_ms == {"addBatch": 200.0}
    assert points[1].step_ms == {}
    assert watched.watch.operations_per_s() == round(35 / 3, 1)
    assert watched.watch.recent() == {0: 60, 1: 10}
    assert skew_of(watched.watch.recent()) == round(60 * 2 / 70, 2)


def test_a_query_that_ended_is_no_longer_told_of_and_its_offsets_stay() -> None:
    watched = Watched({})
    watched.report(0, 5)
    watched.query.lastProgress = None
    watched.watch.sample()
    assert (watched.watch.last, watched.watch.decided()) == ({}, {0: 5})
