"""Claim: of two drivers on one checkpoint one decides on, the other fails by Spark's own log of offsets.

Method: what keeps a second driver away comes before Spark, the owner of the prefix; here two processes start the query
alone. Both have caught up when the log goes on, so both plan the next micro-batch. The answers that have left them, and
the state, are compared with the kernel.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from broker_state.store.memory_kv import MemoryKv
from connectors.local_servers.process_tree import kill_tree
from popstream.kafka_connection import KafkaConnection
from tests.cluster.conftest import ROOT, driver_variables
from tests.cluster.job_here import LIMIT_S
from tests.cluster.second_query import CAUGHT_UP
from tests.support.cluster_log import Left, Log, decided_entries, left_by, start_deciding, stored_families
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

CONFLICTS = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
"""What Spark says, where the other one's file was there already, and where both made it at once."""


def answers_in(log: Log) -> Counter[Any]:
    """The answers that are in the results topic, with how often each is there."""
    found = Left()
    for record in log.read(log.topics.results):
        found.add_frame(record.partition, record.value)
    return found.kinds["answers"]


def test_of_two_queries_on_a_checkpoint_one_fails_and_the_log_is_decided_once(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records_of(7, 600))
    kv = MemoryKv()
    wanted = left_by(decided_entries(kv, log.records))["answers"]
    checkpoint = str(tmp_path / "checkpoint")
    third = len(log.records) // 3
    log.write(log.records[:third])
    first = start_deciding(cluster_spark, log.connection, log.prefix, "first", checkpoint, 100)
    first.processAllAvailable()
    arguments = [kafka.bootstrap_servers, topic_prefix, checkpoint, str(tmp_path / "crash.log")]
    command = [sys.executable, "-m", "tests.cluster.second_query", *arguments]
    variables = driver_variables()
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        try:
            assert any(CAUGHT_UP in line for line in iter(second.stdout.readline, "")), "it has ended"
            log.write(log.records[third : 2 * third])
            deadline_s = time.monotonic() + LIMIT_S
            while first.exception() is None and second.poll() is None:
                assert time.monotonic() < deadline_s, "both decide"
                time.sleep(0.1)
            failed = second.stdout.read() if first.exception() is None else str(first.exception())
            assert any(conflict in failed for conflict in CONFLICTS), failed
            log.write(log.records[2 * third :])
            while answers_in(log) != wanted:  # the other one goes on
                assert time.monotonic() < deadline_s, "neither decides"
                time.sleep(0.5)
        finally:
            kill_tree(second.pid)
            first.stop()
    last = start_deciding(cluster_spark, log.connection, log.prefix, "last", checkpoint, 100)
    last.processAllAvailable()
    last.stop()
    assert answers_in(log) == wanted, "each is sent once"
    families = stored_families(cluster_spark, checkpoint)
    for name in KERNEL_FAMILIES:
        assert families[name] == kv.families.get(name, {}), name
