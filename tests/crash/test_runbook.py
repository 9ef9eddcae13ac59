"""Claim: what the runbook of docs/reliability.md tells to do helps, by its commands as they are written.

Method: `popstream up` with a Kafka of its own, and clients that send, pop and ack. Each test takes a copy of the folder
that was left, does some harm to it, and from then on only gives commands: `up` refuses and says what it is to say, then
what the row tells to do, `up` again, on which clients go on, and `verify`.

By tests of their own: a log that lost its end (test_lost_log.py), a disk that is full (test_disk_full.py).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from connectors.delta.tables import AUDIT_TABLES, table_path
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED, EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.job_file import JobFile
from pipelines.process.host import KAFKA_FOLDER
from popstream.consumer import Consumer
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.producer import Producer
from tests.support.job_process import POPSTREAM, ROOT
from tests.support.left_behind import applied_of, damage, end_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

COMMAND_S = 240.0
OK, SETTING, CONTRADICTION = 0, 2, 4
UP = ("up", "--driver-memory", "600m", "--flush-interval", "1s")
OPS = Topics.of().ops
TICK = json.dumps({"v": 1, "type": "tick", "topic": "orders", "queue_id": 0}).encode()


class Site:
    """The folder of a job, and the commands that are given there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = JobFolder(root)

    def popstream(self, *words: str, code: int = OK) -> subprocess.CompletedProcess[str]:
        """One command, which has to end so."""
        done = subprocess.run(
            [POPSTREAM, *words, "--folder", str(self.root)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    @contextlib.contextmanager
    def up(self, *options: str) -> Iterator[str]:
        """A job that runs; the servers of its Kafka. It is stopped in order."""
        with (self.root.parent / "up.log").open("ab") as log:
            job = subprocess.Popen(
                [POPSTREAM, *UP, "--folder", str(self.root), *options], cwd=ROOT, stdout=log, stderr=log
            )
        try:
            yield self._servers_of(job)
            job.send_signal(signal.SIGTERM)
            assert job.wait(COMMAND_S) == OK, self.said
        finally:
            job.kill()
            job.wait()

    def _servers_of(self, job: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + COMMAND_S
        while time.monotonic() < deadline and job.poll() is None:
            card = JobFile.read(self.folder.job_file)
            if card is not None and card.pid == job.pid:
                return card.bootstrap_servers
            time.sleep(0.2)
        raise AssertionError(self.said)

    @property
    def said(self) -> str:
        return (self.root.parent / "up.log").read_text(errors="replace")[-4000:]

    def refusal(self) -> str:
        """What `popstream up` says when it does not start."""
        return self.popstream(*UP, code=CONTRADICTION).stderr

    def goes_on(self) -> None:
        """A job starts, clients work with it, and everything is what the log leads to."""
        with self.up() as servers:
            send(servers, 20)
            assert work(servers, 20) == 20
        self.popstream("verify")

    @contextlib.contextmanager
    def kafka(self) -> Iterator[str]:
        """Its broker, without a job."""
        with EmbeddedKafka(self.root / KAFKA_FOLDER, jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED) as broker:
            yield broker.bootstrap_servers


def send(servers: str, count: int) -> None:
    with Producer(servers) as producer:
        for result in [producer.send("orders", b"%d" % number) for number in range(count)]:
            result.result(60)


def work(servers: str, count: int) -> int:
    """Ack a number of messages; some more stay leased."""
    done = 0
    with Consumer(servers, group="billing", topics=["orders"], invisible_time_ms=30_000) as consumer:
        for message in consumer:
            message.ack()
            done += 1
            if done == count:
                break
    return done


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """What a healthy job left; beside it, in `half`, a backup of what it had left half-way."""
    site = Site(tmp_path_factory.mktemp("played") / "job")
    with site.up() as servers:
        create_message_topic(servers, "orders", 2)
        send(servers, 200)
        work(servers, 100)
        snapshot = site.popstream("snapshot", "--json").stdout
        send(servers, 50)
        work(servers, 50)
        assert "are equal" in site.popstream("verify").stdout, "beside the running job"
    listed = site.popstream("snapshot", "--list", "--json").stdout
    assert [one["id"] for one in json.loads(listed)] == [json.loads(snapshot)["id"]]
    for store in (site.folder.state, site.folder.queues):
        shutil.copytree(store, site.root / "half" / store.name)
    with site.up() as servers:
        send(servers, 200)
        work(servers, 150)
    return site


@pytest.fixture
def site(played: Site, tmp_path: Path) -> Site:
    shutil.copytree(played.root, tmp_path / "job", ignore=shutil.ignore_patterns("*.sock"))
    return Site(tmp_path / "job")


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
    assert "`popstream restore`" in refused
    site.popstream("restore")
    site.goes_on()


def test_the_audit_tables_have_decisions_of_another_state(site: Site) -> None:
    """The tables of one job beside the state of another that has decided the same log."""
    tables = site.root / "tables"
    site.folder.delta.rename(tables)
    shutil.rmtree(site.folder.state)
    shutil.rmtree(site.folder.queues)
    site.goes_on()
    shutil.rmtree(site.folder.delta)
    tables.rename(site.folder.delta)
    assert "the audit tables have decisions of another state" in site.refusal()
    site.popstream("restore")
    site.goes_on()


def test_a_file_of_a_tables_log_is_gone(site: Site) -> None:
    log = site.folder.delta / "operations" / "_delta_log"
    sorted(log.glob("*.json"))[1].unlink()
    refused = site.refusal()
    assert "the log of operations lacks version 1" in refused
    assert "move the table away and run `popstream restore`" in refused
    log.parent.rename(site.root / "moved away")
    site.popstream("restore")
    site.goes_on()


def test_a_table_of_another_version(site: Site, spark: SparkSession) -> None:
    table = site.folder.delta / "operations"
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (weather STRING)")
    refused = site.popstream(*UP, code=SETTING).stderr
    assert "has other columns than this version writes" in refused
    assert "move the table away and run `popstream restore`" in refused
    table.rename(site.root / "moved away")
    site.popstream("restore")
    site.goes_on()


def test_a_state_that_is_not_what_the_log_leads_to(site: Site) -> None:
    """Nothing but `verify` can tell; an older snapshot heals it."""
    with RocksStore(site.folder.state) as store:
        key, value = next(iter(store.scan(STATE, b"")))
        store.write_changes([(STATE, key, value + b"!")])
    assert "differs" in site.popstream("verify", code=CONTRADICTION).stdout
    listed = json.loads(site.popstream("snapshot", "--list", "--json").stdout)
    site.popstream("restore", "--snapshot", listed[-1]["id"])
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
    assert "`popstream restore --lossy`" in refused
    assert "`--lossy` accepts that" in site.popstream("restore", code=CONTRADICTION).stderr
    site.popstream("restore", "--lossy")
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
        site.popstream("snapshot")
    site.goes_on()


def test_rows_that_somebody_changed(site: Site, spark: SparkSession) -> None:
    bring_state_from_a_backup(site, spark)
    table = DeltaTable.forPath(spark, str(site.folder.delta / "operations"))
    whole = table.history(1).first()
    last = table.toDF().orderBy("now_ms", "partition", "kafka_offset", "ordinal").tail(1)[0]
    place = f"partition = {last['partition']} AND kafka_offset = {last['kafka_offset']}"
    table.update(f"{place} AND ordinal = {last['ordinal']}", {"code": "99"})
    site.popstream("restore")
    assert "operations has other rows than its log leads to" in site.refusal()
    told = site.popstream("verify", code=CONTRADICTION).stdout
    assert "99" in told
    assert whole is not None
    table.restoreToVersion(whole["version"])
    site.popstream("restore")
    site.goes_on()


@pytest.mark.parametrize(("kept", "sources"), [(["delta"], ("snapshot",)), ([], ("snapshot", "an empty state"))])
def test_another_disk(played: Site, tmp_path: Path, kept: list[str], sources: tuple[str, ...]) -> None:
    """With snapshots at another place, with or without a copy of the tables; the broker's data comes along."""
    site = Site(tmp_path / "job")
    for name in (KAFKA_FOLDER, *kept):
        shutil.copytree(played.root / name, site.root / name)
    elsewhere = (played.root / "snapshots").as_uri()
    source = json.loads(site.popstream("restore", "--at", elsewhere, "--json").stdout)["source"]
    # Without the tables a snapshot will do that has all its rows in its outbox.
    assert source.startswith(sources)
    site.goes_on()


def test_partitions_that_somebody_added(tmp_path: Path) -> None:
    site = Site(tmp_path / "job")
    with EmbeddedKafka(tmp_path / "kafka", jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED) as broker:
        servers = broker.bootstrap_servers
        own_kafka = ("--bootstrap-servers", servers)
        create_message_topic(servers, "orders", 2)
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
