"""Claim: messages that any producer writes to a topic are poppable, with a unit for each and holes for the gaps.

Method: the whole job on a real broker; topics written by plain and transactional producers, compacted, shortened by
deleteRecords, deleted and made again. What the queues say is compared with what a consumer reads from the topics.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.consume_queue import (
    ConsumeQueue,
    Unit,
    Units,
    holes,
    unit_at_or_after,
    units_between,
)
from checkpoints.snapshot_store import SnapshotStore
from connectors.kafka.topic_admin import create_message_topic, describe
from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.build_consume_queue.unit_columns import unit_columns
from pipelines.build_units.unit_tables import UNIT_SCHEMA, units_by_queue
from pipelines.cli.state.queue import opened
from pipelines.control.job_file import JobFile
from pipelines.control.lane_views import QueueView, queues_in
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.restore import restore
from popstream import Consumer, Producer, Transport, tag_hash
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.settings import ClientSettings
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.command import Pop
from popstream.wire.dedup_id import dedup_hash_of
from popstream.wire.key_hash import key_hash
from tests.support.left_behind import end_offsets, records_between, table_rows
from tests.support.wire import start_job, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.build_consume_queue.service import BuilderService
    from pipelines.process.job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class Lab:
    """A job with a builder, and a producer that only writes."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, folder: Path, prefix: str) -> None:
        self.spark = spark
        self.servers = kafka.bootstrap_servers
        self.connection = kafka.connection
        self.folder = folder
        self.prefix = prefix
        self.producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=5)
        self.admin = KafkaAdminClient(bootstrap_servers=self.servers)
        self.settings: dict[str, Any] = {
            "message_topics": f"{prefix}-*",
            "queue_types": {f"{prefix}-batches": "batch", f"{prefix}-units": "batch"},
            "build_records_per_task_max": 100,
        }
        self.job: Job = self.start()

    def start(self, **settings: Any) -> Job:
        self.settings |= settings
        return start_job(self.spark, self.servers, self.folder, self.prefix, **self.settings)

    def restart(self, **settings: Any) -> None:
        self.job.stop()
        self.job = self.start(**settings)

    def close(self) -> None:
        self.job.stop()
        self.producer.close()
        self.admin.close()

    @property
    def running(self) -> BuilderService:
        assert self.job.builder is not None
        return self.job.builder

    def topic(self, name: str, partitions: int = 1) -> str:
        topic = f"{self.prefix}-{name}"
        create_message_topic(self.connection, topic, partitions)
        return topic

    def send(self, topic: str, count: int, queue_id: int = 0, **fields: Any) -> None:
        for number in range(count):
            self.producer.send(topic, **{"value": b"value %d" % number, **fields}, partition=queue_id)
        self.producer.flush()

    def log(self, topic: str, queue_id: int = 0) -> tuple[int, list[Any], int]:
        """Where the log starts, the committed records, and its end, as a consumer sees them."""
        partition = TopicPartition(topic, queue_id)
        consumer = KafkaConsumer(bootstrap_servers=self.servers, isolation_level="read_committed")
        consumer.assign([partition])
        first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        consumer.seek(partition, first)
        records: list[Any] = []
        while consumer.position(partition) < end:
            records += consumer.poll(timeout_ms=200).get(partition, [])
        consumer.close()
        return first, records, end

    def view(self, topic: str, queue_id: int = 0) -> QueueView | None:
        return next(
            (queue for queue in queues_in(self.job.store) if (queue.topic, queue.queue_id) == (topic, queue_id)), None
        )

    def queue(self, topic: str, queue_id: int = 0) -> ConsumeQueue:
        return self.running.builder.queues[topic, queue_id]

    def units(self, topic: str, queue_id: int = 0) -> list[Unit]:
        get = self.running.builder.get((topic, queue_id))
        return list(units_between(self.queue(topic, queue_id), get, 0, 1 << 62))

    def holes(self, topic: str, queue_id: int = 0) -> list[tuple[int, int]]:
        return list(holes(self.queue(topic, queue_id), self.running.builder.get((topic, queue_id)), 0, 1 << 62))

    def wait(self, topic: str, queue_id: int = 0, topic_id: str | None = None) -> QueueView:
        """Until the queue is built and dispatched to the end of its log; it then says what the log says."""
        first, records, end = self.log(topic, queue_id)

        def built() -> QueueView | None:
            view = self.view(topic, queue_id)
            is_there = view is not None and view.commit_position >= end and topic_id in (None, view.topic_id)
            return view if is_there else None

        view: QueueView = wait_for(built, self.job)
        assert view.commit_position == end
        units = self.units(topic, queue_id)
        assert [unit.queue_offset for unit in units] == [record.offset for record in records]
        assert [unit.store_time_ms for unit in units] == [record.timestamp for record in records]
        assert [unit.size_bytes for unit in units] == [len(record.value or b"") for record in records]
        assert [unit.key_hash for unit in units] == [key_hash(record.key) for record in records]
        assert sum(high - low for low, high in self.holes(topic, queue_id)) == end - first - len(records)
        return view

    def pop_all(self, topic: str, queue_id: int = 0, **options: Any) -> list[int]:
        """The queue offsets that a new group gets, in the order in which it gets them."""
        settings = ClientSettings(bootstrap_servers=self.servers, client_id="lab", prefix=self.prefix)
        offsets: list[int] = []
        group = secrets.token_hex(4)
        with Transport(settings) as transport:
            while True:
                answer = transport.request(
                    Pop(
                        v=1,
                        topic=topic,
                        queue_id=queue_id,
                        group=group,
                        max_messages=100,
                        invisible_time_ms=600_000,
                        **options,
                    )
                )
                if not answer.messages:
                    return offsets
                for run in answer.messages:
                    offsets += range(run.first, run.last + 1)


@pytest.fixture(scope="module")
def lab(spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(spark, kafka, tmp_path_factory.mktemp("builder") / "job", f"b{secrets.token_hex(4)}")
    yield made
    made.close()


def test_messages_of_a_plain_producer_are_popped(lab: Lab) -> None:
    """Topics that come while the job runs; keys, tags, tombstones; what is popped is what a consumer reads."""
    topic = lab.topic("plain", 2)
    lab.send(topic, 300)
    lab.send(topic, 20, key=b"order-1", headers=[("popstream-tag", b"old"), ("popstream-tag", b"paid")])
    lab.send(topic, 3, key=b"order-2", value=None)
    lab.send(topic, 50, queue_id=1)
    view = lab.wait(topic)
    assert (view.queue_type, view.commit_position, view.holes) == ("simple", 323, 0)
    assert [unit.tag_hash for unit in lab.units(topic)] == [0] * 300 + [tag_hash("paid")] * 20 + [0] * 3
    assert lab.wait(topic, 1).commit_position == 50
    assert lab.pop_all(topic) == list(range(323))
    assert lab.pop_all(topic, 1) == list(range(50))
    assert lab.pop_all(topic, tags=[tag_hash("paid")]) == list(range(300, 320))


def test_times_of_delivery_are_in_units_dispatches_and_rows(lab: Lab) -> None:
    """Of plain records, also malformed ones, and of our producer; in units of a batch topic too."""
    plain, batches = lab.topic("delayed"), lab.topic("units")
    later_ms = int(time.time() * 1000) + 3_600_000
    values = (b"%d" % later_ms, b"%d" % later_ms, b"-5", b"soon", b"", b"1" * 16, b"0", b"7")
    for value in values:
        lab.send(plain, 1, headers=[("popstream-deliver-at", value)])
    lab.send(plain, 1, headers=[("popstream-deliver-at", b"5"), ("popstream-deliver-at", b"6")])
    with Producer(lab.servers, prefix=lab.prefix, queue_types={batches: "batch"}) as producer:
        for number in range(3):
            producer.send(batches, b"%d" % number, queue_id=0, deliver_at=later_ms + number // 2)
    lab.wait(plain)
    lab.wait(batches)

    times = [later_ms, later_ms, 0, 0, 0, 0, 0, 7, 6]
    assert [unit.deliver_at_ms for unit in lab.units(plain)] == times
    assert [(unit.inner_count, unit.deliver_at_ms) for unit in lab.units(batches)] == [(2, later_ms), (1, later_ms + 1)]
    said: dict[tuple[str, int], int] = {}
    ops = lab.job.topics.ops
    ends = end_offsets(lab.servers, ops)
    for record in records_between(lab.servers, ops, dict.fromkeys(ends, 0), ends):
        command = msgspec.json.decode(record.value, type=dict[str, Any])
        for written in command.get("ranges", ()):
            for queue_offset in range(written["first"], written["last"] + 1):
                said[command["topic"], queue_offset] = written.get("deliver_at_ms", 0)
    assert [said[plain, at] for at in range(len(times))] == times
    assert [said[batches, at] for at in (0, 1)] == [later_ms, later_ms + 1]
    rows = wait_for(
        lambda: (
            len(found := [row for row in table_rows(lab.job.folder.delta, "consume_queue") if row["topic"] == plain])
            == len(times)
            and found
        ),
        lab.job,
    )
    assert {row["queue_offset"]: row["deliver_at_ms"] for row in rows} == {
        at: time_ms or None for at, time_ms in enumerate(times)
    }


def test_duplicates_reach_no_group(lab: Lab) -> None:
    """Whoever sends them, in one micro-batch and in several, also across a restart; ids that are none are ignored."""
    topic = lab.topic("repeated", 2)
    with Producer(lab.servers, prefix=lab.prefix) as producer:
        sent = [producer.send(topic, b"%d" % number, dedup_id="order-17") for number in range(3)]
        producer.flush()
    (queue_id,) = {future.result().queue_id for future in sent}
    lab.wait(topic, queue_id)
    lab.restart()
    for value in (b"order-17", b"order-18", b"", b"", b"x" * 129, b"x" * 129):
        lab.send(topic, 1, queue_id, headers=[("popstream-dedup-id", value)])
    now_ms = int(time.time() * 1000)
    lab.send(topic, 1, queue_id, headers=[("popstream-dedup-id", b"order-18")], timestamp_ms=now_ms + 301_000)
    lab.wait(topic, queue_id)

    wanted = [None, 0, 0, 0, None, None, None, None, None, None]
    assert [unit.duplicate_of for unit in lab.units(topic, queue_id)] == [-1 if at is None else at for at in wanted]
    hashes = [
        unit.dedup_high.to_bytes(8, "big") + unit.dedup_low.to_bytes(8, "big") for unit in lab.units(topic, queue_id)
    ]
    seventeen, eighteen = (dedup_hash_of([("popstream-dedup-id", name)]) for name in (b"order-17", b"order-18"))
    assert hashes == [seventeen] * 4 + [eighteen] + [bytes(16)] * 4 + [eighteen]
    assert lab.pop_all(topic, queue_id) == [at for at, first in enumerate(wanted) if first is None]
    rows = wait_for(
        lambda: (
            len(found := [row for row in table_rows(lab.job.folder.delta, "consume_queue") if row["topic"] == topic])
            == len(wanted)
            and found
        ),
        lab.job,
    )
    assert {row["queue_offset"]: row["duplicate_of"] for row in rows} == dict(enumerate(wanted))


def test_what_transactions_leave_are_holes(lab: Lab) -> None:
    """Aborted records and control records, in the middle, at the end, and alone in a micro-batch."""
    topic = lab.topic("transactions")
    lab.send(topic, 5)
    producer = KafkaProducer(bootstrap_servers=lab.servers, transactional_id=secrets.token_hex(4))
    producer.init_transactions()
    for number, is_committed in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for _ in range(number + 1):
            producer.send(topic, b"in a transaction", partition=0)
        producer.flush()
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    first = lab.wait(topic)
    assert first.holes == 2 + 4 + 4  # aborted, and a marker each
    producer.begin_transaction()
    producer.send(topic, b"nobody will see this", partition=0)
    producer.flush()
    producer.abort_transaction()
    last = lab.wait(topic)
    assert last.commit_position == first.commit_position + 2
    assert last.holes == first.holes + 2
    producer.close()
    assert lab.pop_all(topic) == [record.offset for record in lab.log(topic)[1]]


def test_deleted_records_are_accounted_for(lab: Lab) -> None:
    """Leased and unread messages leave the log: positions go on, nothing blocks, the audit says what happened."""
    topic = lab.topic("deleted")
    lab.send(topic, 100)
    lab.wait(topic)
    settings = ClientSettings(bootstrap_servers=lab.servers, client_id="lab", prefix=lab.prefix)
    with Transport(settings) as transport:

        def pop(count: int) -> list[tuple[int, int]]:
            command = Pop(
                v=1, topic=topic, queue_id=0, group="g", max_messages=count, invisible_time_ms=600_000, client_id="c"
            )
            return [(run.first, run.last) for run in transport.request(command).messages]

        assert pop(10) == [(0, 9)]
        lab.admin.delete_records({TopicPartition(topic, 0): 40})
        wait_for(lambda: (lab.view(topic) or pytest.fail("gone")).min_offset == 40, lab.job)
        assert lab.queue(topic).start_offset == 40
        assert pop(100) == [(40, 99)]
    lab.wait(topic)

    def expired() -> list[tuple[int, int]]:
        rows = table_rows(lab.job.folder.delta, "deliveries")
        wanted = [row for row in rows if row["topic"] == topic and row["step"] == "expired_from_log"]
        return sorted((row["first_offset"], row["last_offset"]) for row in wanted)

    assert wait_for(expired, lab.job)[0][0] == 0
    lane = (lab.view(topic) or pytest.fail("gone")).lanes[0]
    assert (lane.commit_offset, lane.leased) == (40, 60)


def test_a_compacted_topic_is_sparse(lab: Lab) -> None:
    """What compaction took before it was read are holes; a lookup in a hole finds the next unit."""
    topic = f"{lab.prefix}_compacted"  # not chosen yet
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    create_message_topic(lab.connection, topic, 1, configs=settings)
    for number in range(40):
        lab.send(topic, 1, key=b"key %d" % (number % 4))
    deadline = time.monotonic() + 120
    while len(lab.log(topic)[1]) > 20:
        assert time.monotonic() < deadline, "the broker does not compact"
        time.sleep(0.5)
        lab.send(topic, 1, key=b"last")
    lab.restart(message_topics=f"{lab.prefix}-*,{topic}")
    view = lab.wait(topic)
    assert view.queue_type == "sparse"
    assert view.holes > 15
    get = lab.running.builder.get((topic, 0))
    first, end = lab.holes(topic)[0]
    found = unit_at_or_after(lab.queue(topic), get, first)
    assert isinstance(found, Unit)
    assert found.queue_offset == end
    assert lab.pop_all(topic) == [record.offset for record in lab.log(topic)[1]]


def test_inner_batches_are_units_and_malformed_ones_are_dead_lettered(lab: Lab) -> None:
    """On a topic of type batch; message offsets are the running count, whatever the cuts."""
    topic = lab.topic("batches")

    def batch(count: int, changed: tuple[str, bytes] = ("other", b""), **fields: Any) -> None:
        messages = [InnerMessage(b"%d" % number, 0, b"inner") for number in range(count)]
        value, headers = encode_inner_batch(messages, created_ms=0, ids=[f"a-{number:x}" for number in range(count)])
        lab.producer.send(topic, value, headers=[*headers, changed], partition=0, **fields).get(30)

    batch(3)
    batch(5, ("popstream-batch-bytes", b"4"))
    batch(5, ("popstream-batch-count", b"many"))
    lab.send(topic, 1)
    batch(10, key=b"outer")
    lab.wait(topic)
    units = lab.units(topic)
    assert [(unit.message_base, unit.inner_count, unit.is_readable) for unit in units] == [
        (0, 3, True),
        (3, 1, False),
        (4, 1, False),
        (5, 1, True),
        (6, 10, True),
    ]
    assert [unit.queue_offset for unit in units if unit.more_key_hashes] == [0, 4]
    request = QueueRequest(topic=topic, message_offset=9, key_hash=key_hash(b"inner"), limit=1)
    (seen,) = lab.running.views(lab.job.store, request)
    assert (seen.queue_type, seen.unit_count, seen.message_count, seen.end_message_base) == ("batch", 5, 16, 16)
    assert [(found.by, found.unit and found.unit.queue_offset) for found in seen.found] == [
        ("with the message", 4),
        ("with the key", 4),
    ]
    with Consumer(lab.servers, group="readers", prefix=lab.prefix) as consumer:
        popped = wait_for(lambda: consumer.pop(topic, 0, max_messages=100, invisible_time_ms=60_000).messages, lab.job)
        assert [message.queue_offset for message in popped] == [0, 0, 0, 3, *[4] * 10]
    rows = wait_for(
        lambda: [
            row
            for row in table_rows(lab.job.folder.delta, "deliveries")
            if row["topic"] == topic and row["step"] == "dead_lettered"
        ],
        lab.job,
    )
    assert [(row["first_offset"], row["last_offset"], row["cause"]) for row in rows] == [(1, 2, "UNREADABLE")]
    found = wait_for(
        lambda: [row for row in table_rows(lab.job.folder.delta, "consume_queue") if row["topic"] == topic], lab.job
    )
    assert sorted((row["message_base"], row["inner_count"], row["is_readable"]) for row in found) == [
        (unit.message_base, unit.inner_count, unit.is_readable) for unit in units
    ]


def test_a_producer_learns_the_types_and_its_messages_are_found_inside_their_units(
    lab: Lab,
) -> None:
    """From the job, through Kafka; keys and message ids are found by `popstream queue`, which reads the topic."""
    topic, simple = lab.topic("batches"), lab.topic("singles")
    lab.wait(topic)
    lab.wait(simple)
    with Producer(lab.servers, prefix=lab.prefix, batch_max_delay_ms=1_000) as producer:
        wait_for(
            lambda: producer._queue_types.of(topic) == "batch" and producer._queue_types.of(simple) == "simple", lab.job
        )
        results = [
            producer.send(topic, b"message %d" % number, key=b"till-%d" % number, queue_id=0) for number in range(20)
        ]
        producer.flush()
        places = [future.result(0) for future in results]
        assert len({place.queue_offset for place in places}) == 1
        assert [place.inner_index for place in places] == list(range(20))
        assert producer.send_and_wait(simple, b"plain").inner_index == 0
    with (
        Producer(lab.servers, prefix=lab.prefix, queue_types={topic: "simple"}) as told_wrong,
        pytest.raises(Invalid, match="is a batch topic"),
    ):
        told_wrong.send(topic, b"v").result(30)
    lab.wait(topic)
    unit = lab.units(topic)[-1]
    assert (unit.queue_offset, unit.inner_count) == (places[0].queue_offset, 20)
    job = JobFile(
        pid=0, bootstrap_servers=lab.servers, prefix=lab.prefix, folder="", address="", token="", started_at=0.0
    )
    for request, index in (
        (QueueRequest(topic=topic, key_hash=key_hash(b"till-7"), limit=1), 7),
        (QueueRequest(topic=topic, key_hash=key_hash(places[11].message_id.encode()), limit=1), 11),
        (QueueRequest(topic=topic, message_offset=unit.message_base + 13), 13),
    ):
        (view,) = lab.running.views(lab.job.store, request)
        (found,) = opened(view, request, job).found
        assert [(one.inner_index, one.message_id, one.key) for one in found.inside] == [
            (index, places[index].message_id, f"till-{index}")
        ]


def test_a_queue_tells_its_units_by_offset_time_and_key(lab: Lab) -> None:
    topic = lab.topic("told", 2)
    lab.send(topic, 10, key=b"a")
    time.sleep(0.05)
    lab.send(topic, 10, key=b"b")
    lab.wait(topic)
    at_ms = lab.units(topic)[10].store_time_ms
    request = QueueRequest(topic=topic, queue_id=0, queue_offset=7, time_ms=at_ms, key_hash=key_hash(b"a"), limit=2)
    (view,) = lab.running.views(lab.job.store, request)
    assert (view.end_offset, view.commit_position, view.lag, view.hole_count) == (20, 20, 0, 0)
    until = max(unit.queue_offset for unit in lab.units(topic) if unit.store_time_ms <= at_ms)
    assert [(found.by, found.unit and found.unit.queue_offset) for found in view.found] == [
        ("at or after the offset", 7),
        ("first since the time", 10),
        ("last until the time", until),
        ("with the key", 9),
        ("with the key", 8),
    ]
    with pytest.raises(Invalid, match="no queue of nowhere is built"):
        lab.running.views(lab.job.store, QueueRequest(topic="nowhere"))


def test_rows_of_delta_are_the_units(lab: Lab) -> None:
    """Every unit once, whether it was built by this process or by one before a restart."""
    topic = lab.topic("rows", 2)
    lab.send(topic, 30, headers=[("popstream-tag", b"t")])
    lab.wait(topic)
    lab.restart(flush_interval_s=3600)
    lab.send(topic, 30, key=b"k", queue_id=1)
    lab.wait(topic, 1)
    lab.send(topic, 10)
    lab.wait(topic)
    lab.restart(flush_interval_s=0.5)
    rows = wait_for(
        lambda: (
            len(found := [row for row in table_rows(lab.job.folder.delta, "consume_queue") if row["topic"] == topic])
            >= 70
            and found
        ),
        lab.job,
    )
    assert len(rows) == 70
    found = {(row["queue_id"], row["queue_offset"]): row for row in rows}
    for queue_id in (0, 1):
        for unit in lab.units(topic, queue_id):
            row = found.pop((queue_id, unit.queue_offset))
            assert row["topic_id"] == lab.queue(topic, queue_id).topic_id
            assert (row["size_bytes"], row["store_time_ms"]) == (unit.size_bytes, unit.store_time_ms)
            assert (row["message_base"], row["inner_count"]) == (unit.message_base, unit.inner_count)
            assert row["tag_hash"] % (1 << 64) == unit.tag_hash
            assert row["key_hash"] % (1 << 64) == unit.key_hash
            assert row["is_readable"]
    assert not found


def test_a_recreated_topic_is_another_queue(lab: Lab) -> None:
    topic = lab.topic("again")
    lab.send(topic, 20)
    before = lab.wait(topic)
    lab.admin.delete_topics([topic])
    wait_for(lambda: topic not in lab.admin.list_topics(), lab.job)
    create_message_topic(lab.connection, topic, 2)
    lab.send(topic, 30)
    wait_for(lambda: lab.queue(topic).topic_id != before.topic_id, lab.job)
    after = lab.wait(topic, topic_id=lab.queue(topic).topic_id)
    assert (after.commit_position, after.topic_id) == (30, lab.queue(topic).topic_id)
    assert lab.wait(topic, 1).commit_position == 0
    assert lab.pop_all(topic) == list(range(30))


def test_a_rebuilt_queue_has_the_same_bytes(lab: Lab) -> None:
    """Truncated in the middle of a block and read again, while the job runs; Delta gets no row twice."""
    topic = lab.topic("rebuilt")
    lab.send(topic, 2500, key=b"k")
    lab.wait(topic)

    def stored() -> dict[tuple[str, bytes], bytes]:
        store = lab.running.store
        return {(family, key): value for family in ("queues", "units") for key, value in store.scan(family, b"")}

    before = stored()
    assert lab.running.query.rebuild((topic, 0), 1300) == 1300
    wait_for(lambda: lab.queue(topic).end_offset == 2500, lab.job)
    assert stored() == before
    lab.send(topic, 10)
    lab.wait(topic)
    wait_for(lambda: lab.running.unit_flush.delivered_seq == lab.running.builder.built.build_seq, lab.job)
    offsets = sorted(
        row["queue_offset"] for row in table_rows(lab.job.folder.delta, "consume_queue") if row["topic"] == topic
    )
    assert offsets == list(range(2510))


@pytest.mark.parametrize(
    "queues",
    ["kept", "of the snapshot", "lost"],
)
@pytest.mark.long
def test_a_restore_tells_each_unit_once(lab: Lab, queues: str) -> None:
    """The builder's store is newer than the state that is restored, as old as it, or gone."""
    topic = lab.topic(f"restored-{queues.replace(' ', '-')}")
    lab.send(topic, 30)
    lab.wait(topic)
    snapshot = lab.job.snapshot_loop.take_now()
    lab.send(topic, 30)
    lab.wait(topic)
    lab.job.stop()
    folder = lab.job.folder
    shutil.rmtree(folder.state)
    if queues != "kept":
        shutil.rmtree(folder.queues)
    snapshots = SnapshotStore(str(folder.snapshots))
    if queues == "lost":  # a snapshot of the time before the job built anything
        manifest = folder.snapshots / "manifests" / f"{snapshot.id}.json"
        fields = json.loads(manifest.read_text())
        fields["files"] = [file for file in fields["files"] if not file["path"].startswith("queues/")]
        fields |= {"version": 1, "checksum": ""}
        manifest.write_text(json.dumps(fields))
    log = read_log_bounds(lab.connection, describe(lab.connection, [lab.job.topics.ops])[lab.job.topics.ops])
    restored = restore(folder, log, lab.connection, lab.spark, snapshots, lossy=False, only=snapshot.id)
    assert restored.source == f"snapshot {snapshot.id}"
    lab.job = lab.start()
    lab.send(topic, 30)
    lab.wait(topic)
    lab.job.stop()
    rows = [row["queue_offset"] for row in table_rows(folder.delta, "consume_queue") if row["topic"] == topic]
    assert sorted(rows) == list(range(90))
    lab.job = lab.start()
    assert lab.pop_all(topic) == list(range(90))


@pytest.mark.long
def test_a_builders_store_from_a_backup_is_refused_and_restored(lab: Lab, tmp_path: Path) -> None:
    """Its own state is as new as ever."""
    topic = lab.topic("backup")
    lab.send(topic, 30)
    lab.wait(topic)
    snapshot = lab.job.snapshot_loop.take_now()
    lab.send(topic, 30)
    lab.wait(topic)
    wait_for(lambda: lab.running.unit_flush.delivered_seq == lab.running.builder.built.build_seq, lab.job)
    lab.job.stop()
    folder = lab.job.folder
    snapshots = SnapshotStore(str(folder.snapshots))
    snapshots.fetch(snapshot, tmp_path)
    shutil.rmtree(folder.queues)
    shutil.move(tmp_path / "queues", folder.queues)
    with pytest.raises(Corrupt, match=r"Delta holds units of later WriteBatches .* run `popstream restore`"):
        lab.start()
    log = read_log_bounds(lab.connection, describe(lab.connection, [lab.job.topics.ops])[lab.job.topics.ops])
    restore(folder, log, lab.connection, lab.spark, snapshots, lossy=False)
    lab.job = lab.start()
    lab.send(topic, 30)
    lab.wait(topic)
    wait_for(lambda: lab.running.unit_flush.delivered_seq == lab.running.builder.built.build_seq, lab.job)
    rows = [row["queue_offset"] for row in table_rows(folder.delta, "consume_queue") if row["topic"] == topic]
    assert sorted(rows) == list(range(90))


@pytest.mark.long
def test_several_tasks_read_one_partition(lab: Lab, tmp_path: Path) -> None:
    """What they find together is what one task finds; told by a query like the builder's, with its options."""
    topic = lab.topic("tasks")
    lab.send(topic, 950, key=b"k", headers=[("popstream-tag", b"t")])
    lab.wait(topic)
    found: list[tuple[int, Units]] = []

    def take(frame: DataFrame, _batch_id: int) -> None:
        ((_, columns),) = units_by_queue(frame.toArrow())
        found.append((frame.rdd.getNumPartitions(), columns))

    options = {**lab.running.query._options, "maxOffsetsPerTrigger": "950", "subscribe": topic}
    records = lab.spark.readStream.format("kafka").options(**options).option("startingOffsets", "earliest").load()
    query = unit_columns(records).writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    ((tasks, units),) = found
    assert tasks == 10
    assert units == Units.of(lab.units(topic))


def test_one_task_reads_a_small_micro_batch(lab: Lab) -> None:
    """Of the message topics as of the ops topic: a task for each partition would take longer than to read them."""
    topic = lab.topic("small", partitions=16)  # whose dispatches are in all partitions of the ops topic
    for number in range(64):
        lab.producer.send(topic, b"value", partition=number % 16)
    for queue_id in range(16):
        lab.wait(topic, queue_id)
    tracker = lab.spark.sparkContext.statusTracker()
    for query in lab.spark.streams.active:
        jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(query.runId)]
        stages = [tracker.getStageInfo(stage_id) for job in jobs if job is not None for stage_id in job.stageIds]
        assert {stage.numTasks for stage in stages if stage is not None} == {1}, query.name


def test_only_these_columns_reach_python(lab: Lab) -> None:
    """Neither key nor value nor foreign headers: by the schema, and by looking for them in the bytes."""
    topic = lab.topic("payload")
    lab.producer.send(topic, b"SECRET-VALUE", key=b"SECRET-KEY", headers=[("trace", b"SECRET-HEADER")]).get(30)
    records = (
        lab.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", lab.servers)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    table = unit_columns(records).toArrow()
    assert table.schema.names == UNIT_SCHEMA.names
    assert [field.type for field in table.schema] == [field.type for field in UNIT_SCHEMA]
    assert table.num_rows == 1
    for column in table.columns:
        for chunk in column.chunks:
            assert not any(b"SECRET" in buffer.to_pybytes() for buffer in chunk.buffers() if buffer is not None)
