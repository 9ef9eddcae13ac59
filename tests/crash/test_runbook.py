"""Claim: what the runbook of docs/reliability.md tells to do helps, by its commands as they are written.

Method: `popstream up` with a Kafka of its own, and clients that send, pop and ack. Each test takes a copy of the folder
that was left, does some harm to it, and from then on only gives commands: `up` refuses and says what it is to say, then
what the row tells to do, `up` again, on which clients go on, and `verify`.

By tests of their own: a log that lost its end (test_lost_log.py), a disk that is full (test_disk_full.py).
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import RocksStore
from connectors.delta.tables import AUDIT_TABLES, table_path
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import create_message_topic
from popstream.consumer import Consumer
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from tests.crash.job_site import CONTRADICTION, SETTING, UP, Site, send, work
from tests.support.left_behind import applied_of, damage, end_offsets
from tests.support.processes.job_process import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

OPS = Topics.of().ops
TICK = json.dumps({"v": 1, "type": "tick", "topic": "orders", "queue_id": 0}).encode()


def lose_state(site: Site, _: SparkSession) -> None:
    shutil.rmtree(site.folder.state)


def bring_state_from_a_backup(site: Site, _: SparkSession) -> None:
    shutil.rmtree(site.folder.state)
    shutil.copytree(site.root / "half" / "state", site.folder.state)


def bring_queues_from_a_backup(site: Site, _: SparkSession) -> None:
    shutil.rmtree(site.folder.queues)
    shutil.copytree(site.root / "half" / "queues", site.folder.queues)


def restore_a_table(site: Site, spark: SparkSession) -> None:
    DeltaTable.forPath(spark, str(site.folder.delta / "deliveries")).restoreToVersion(1)


def lose_commits(site: Site, _: SparkSession) -> None:
    for table in AUDIT_TABLES:
        commits = sorted((table_path(site.folder.delta, table) / "_delta_log").glob("*.json"))
        for commit in commits[max(1, len(commits) // 2) :]:
            commit.unlink()
            commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
            commit.with_suffix(".crc").unlink(missing_ok=True)


def lose_a_file_of_rocksdb(site: Site, _: SparkSession) -> None:
    max(site.folder.state.glob("*.sst"), key=lambda file: file.stat().st_size).unlink()


def damage_files_of_rocksdb(site: Site, _: SparkSession) -> None:
    for table in site.folder.state.glob("*.sst"):
        damage(table, 20)  # in the first of its blocks, whose keys and values come first


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lose_state, "there is no state, but the audit tables have decisions"),
        (bring_state_from_a_backup, "Delta has rows of later decisions than the state"),
        (restore_a_table, "was RESTOREd"),
        (lose_commits, "Delta has lost commits"),
        (bring_queues_from_a_backup, "Delta holds units of later WriteBatches than the builder's store"),
        (lose_a_file_of_rocksdb, "cannot open the state in"),
        (damage_files_of_rocksdb, "the state cannot be read: Corruption"),
    ],
)
def test_restore_heals(site: Site, spark: SparkSession, harm: Callable[[Site, SparkSession], None], said: str) -> None:
    harm(site, spark)
    refused = site.refusal()
    assert said in refused
    site.follow(refused, "restore")
    site.goes_on()


def test_the_audit_tables_have_decisions_of_another_state(site: Site) -> None:
    """The tables of one job beside the state of another that has decided the same log."""
    tables = site.root / "tables"
    site.folder.delta.rename(tables)
    shutil.rmtree(site.folder.state)
    shutil.rmtree(site.folder.queues)
    site.goes_on("--take-over")  # the state that is gone may be recorded as the owner of the prefix
    shutil.rmtree(site.folder.delta)
    tables.rename(site.folder.delta)
    refused = site.refusal()
    assert "the audit tables have decisions of another state" in refused
    site.follow(refused, "restore")
    site.goes_on()


def test_a_file_of_a_tables_log_is_gone(site: Site) -> None:
    log = site.folder.delta / "operations" / "_delta_log"
    sorted(log.glob("*.json"))[1].unlink()
    refused = site.refusal()
    assert "the log of operations lacks version 1" in refused
    site.follow(refused, "restore --rebuild operations")
    site.goes_on()


def test_a_table_of_another_version(site: Site, spark: SparkSession) -> None:
    table = site.folder.delta / "operations"
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (weather STRING)")
    refused = site.popstream(*UP, code=SETTING).stderr
    assert "has other columns than this version writes" in refused
    site.follow(refused, "restore --rebuild operations")
    site.goes_on()


def test_a_state_that_is_not_what_the_log_leads_to(site: Site) -> None:
    """Nothing but `verify` can tell, and say from where on the log leads to the right one."""
    with RocksStore(site.folder.state) as store:
        key, value = next(iter(store.scan(STATE, b"")))
        store.write_changes([(STATE, key, value + b"!")])
    told = site.popstream("verify", code=CONTRADICTION).stdout
    site.follow(told, "restore --snapshot none")
    site.goes_on()


def test_lost_records_are_given_up_only_with_consent(site: Site) -> None:
    with site.kafka() as servers:
        producer = KafkaProducer(bootstrap_servers=servers)
        key = ops_key("orders", 0)
        ends = end_offsets(servers, OPS)
        place = partition_of(key, len(ends))
        for _ in range(9):
            producer.send(OPS, TICK, key, partition=place).get(30)
        producer.close()
        with KafkaAdminClient(bootstrap_servers=servers) as admin:
            admin.delete_records({TopicPartition(OPS, place): ends[place] + 5})
    refused = site.refusal()
    assert f"{OPS} has lost records that are to be decided" in refused
    assert f"`popstream restore --lossy --folder {site.root}`" in refused
    site.follow(site.popstream("restore", code=CONTRADICTION).stderr, "restore --lossy")
    site.goes_on()


def test_a_log_that_reaches_back_to_no_snapshot(site: Site) -> None:
    """Nothing is wrong, and `verify` can tell as soon as there is a base again."""
    shutil.rmtree(site.folder.root / "snapshots")
    with site.kafka() as servers, KafkaAdminClient(bootstrap_servers=servers) as admin:
        decided = applied_of(site.folder.state).next_offset
        admin.delete_records({TopicPartition(OPS, partition): offset for partition, offset in decided.items()})
    refused = site.popstream("verify", code=CONTRADICTION).stderr
    assert f"{OPS} does not reach back to its start or to any snapshot of this state" in refused
    with site.up():
        site.follow(refused, "snapshot")
    site.goes_on()


def test_rows_that_somebody_changed(site: Site, spark: SparkSession) -> None:
    bring_state_from_a_backup(site, spark)
    table = DeltaTable.forPath(spark, str(site.folder.delta / "operations"))
    whole = table.history(1).first()
    last = table.toDF().orderBy("now_ms", "partition", "kafka_offset", "ordinal").tail(1)[0]
    place = f"partition = {last['partition']} AND kafka_offset = {last['kafka_offset']}"
    table.update(f"{place} AND ordinal = {last['ordinal']}", {"code": "99"})
    site.popstream("restore")
    refused = site.refusal()
    assert "operations has other rows than its log leads to" in refused
    assert "99" in site.follow(refused, "verify", CONTRADICTION)
    assert whole is not None
    table.restoreToVersion(whole["version"])
    site.follow(site.refusal(), "restore")
    site.goes_on()


@pytest.mark.parametrize(("kept", "sources"), [(["delta"], ("snapshot",)), ([], ("snapshot", "an empty state"))])
def test_another_disk(played: Site, tmp_path: Path, kept: list[str], sources: tuple[str, ...]) -> None:
    """With snapshots at another place, with or without a copy of the tables; the broker's data comes along."""
    site = Site(tmp_path / "job")
    for name in ("kafka", *kept):
        shutil.copytree(played.root / name, site.root / name)
    elsewhere = (played.root / "snapshots").as_uri()
    source = json.loads(site.popstream("restore", "--at", elsewhere, "--json").stdout)["source"]
    # Without the tables a snapshot will do that has all its rows in its outbox.
    assert source.startswith(sources)
    site.goes_on()


def test_partitions_that_somebody_added(tmp_path: Path) -> None:
    site = Site(tmp_path / "job")
    with EmbeddedKafka(tmp_path / "kafka", jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED_JVM) as broker:
        servers = broker.bootstrap_servers
        own_kafka = ("--bootstrap-servers", servers)
        create_message_topic(KafkaConnection(servers), "orders", 2)
        with site.up(*own_kafka, "--message-topics", "orders"):
            send(servers, 20)
            assert work(servers, 20) == 20
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_partitions({OPS: 6})
        refused = site.popstream(*UP, *own_kafka, code=CONTRADICTION).stderr
        assert f"{OPS} has 6 partitions and had 4" in refused
        command = re.search(r"`popstream (up [^`]*)`", refused)
        assert command is not None
        other = Site(tmp_path / "another")
        words = shlex.split(command[1].replace("NAME", "another").replace("--folder FOLDER", ""))
        with (
            other.up(*words[1:], *own_kafka, "--message-topics", "orders"),
            Consumer(servers, group="billing", topics=["orders"], prefix="another") as consumer,
        ):
            for message in itertools.islice(consumer, 20):
                message.ack()
        other.popstream("verify", *own_kafka, "--prefix", "another")
