"""Claim: a job that dies at any fail-point, with Spark and Delta as they are, leaves nothing that a start cannot heal.

Method: the job dies by an exception that nothing catches, raised at a place and a time that one seed chooses. From then
on every fail-point of every thread raises it too, so that nothing goes on as if nothing had happened; then the state is
closed and another job is started on the same Spark. In the end the scene compares (tests/crash/scene.py).

TEST_CRASHES says how many: 12 by default, 60 by `make crash`.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.crash.scene import OPS_PARTITIONS, PATIENCE_S, Scene, run_with, start_with
from tests.crash.simulated_crash import crash_at
from tests.support.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.integration,
    # The threads of a job that has died say so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

CRASHES = int(os.environ.get("TEST_CRASHES", "12"))
POINTS = [
    *("start", "fetch", "decode", "order", "prefetch", "decide"),
    *("write", "publish", "emit", "commit", "flush_begin", "flush"),
]
HITS_MAX = {"start": 1, "flush_begin": 2, "flush": 6}


@pytest.mark.timeout(300 + 60 * CRASHES)
def test_crashes_at_places_and_times_of_one_seed(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, topic_prefix: str
) -> None:
    chance = random.Random(CRASHES)
    points = [POINTS[number % len(POINTS)] for number in range(CRASHES)]
    chance.shuffle(points)
    scene = Scene(broker.bootstrap_servers, topic_prefix, tmp_path, run_with(spark))
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=CRASHES, pause_s=0.02) as clients:
        for point in points:
            start = partial(start_with, spark, scene.servers, scene.settings)
            crash_at(point, chance.randint(1, HITS_MAX.get(point, 5)), start, PATIENCE_S)
    assert clients.sent > 10 * CRASHES
    scene.compare([clients])
