"""Claim: a job on a cluster is operated as an embedded one: it answers by the same API, what it has committed is read,
verified and kept by the same commands, and a state that is lost is decided again.

Method: a job on local threads with message topics and a consumer; then its checkpoint, in this process and by commands.
"""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

import msgspec
import pytest
from kafka import KafkaProducer

from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.erasure import Wanted, erase
from connectors.delta.tables import TABLES
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest
from pipelines.cli.cluster.state_place import StatePlace, owned
from pipelines.cluster.checkpoint_identity import stored_identity
from pipelines.cluster.kept_query import KeptQuery
from pipelines.control.messages import Policies, PoliciesRequest, Status, StatusRequest
from pipelines.control.page_messages import LanePage, LanesRequest
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.verify import Verified
from popstream.wire.base_errors import Fenced, Invalid

if TYPE_CHECKING:
    from tests.cluster.operated_site import OperatedSite

pytestmark = pytest.mark.cluster

MESSAGES = 60


def test_a_running_job_answers_by_the_api(site: OperatedSite) -> None:
    with site.job() as job:
        site.send(MESSAGES)
        site.take(MESSAGES // 2)
        site.follow(job)
        status = site.ask(StatusRequest(topic=site.topic), Status)
        assert (status.running, status.prefix, status.not_ready_reasons) == (True, site.prefix, [])
        assert status.owner.folder == status.folder == str(site.root / "state")
        assert [queue.commit_position for queue in status.queues] != []
        assert sum(queue.commit_position for queue in status.queues) == MESSAGES
        assert {lane.group for queue in status.queues for lane in queue.lanes} == {"billing"}
        assert [shard.partition for shard in status.cluster.shards] == [0, 1]
        assert sum(shard.recent for shard in status.cluster.shards) > 0
        assert status.cluster.skew >= 1
        assert site.ask(StatusRequest(group="billing"), Status).queues[0].lanes[0].detail is not None
        views = site.ask(QueueRequest(topic=site.topic, queue_offset=3), list[ConsumeQueueView])
        assert sum(view.end_offset for view in views) == MESSAGES
        assert all(view.found[0].unit.queue_offset == 3 for view in views)
        assert len(site.ask(PoliciesRequest(group="billing"), Policies).policies) == 2
        with pytest.raises(Invalid, match="does not follow lanes and queues one by one"):
            site.ask(LanesRequest(), LanePage)
        with pytest.raises(Invalid, match="no queue of unknown is built"):
            site.ask(QueueRequest(topic="unknown"), list[ConsumeQueueView])
        for path, wanted in (("/ready", "ok"), ("/metrics", "popstream_ready 1.0"), ("/api/v1/rates", "at_ms")):
            with urllib.request.urlopen(f"http://localhost:{site.port}{path}", timeout=60) as answer:
                assert wanted in answer.read().decode()
        # A command on the state does not take the prefix from a job that runs.
        identity = stored_identity(site.spark, str(site.root / "state"))
        assert identity is not None
        ops = describe(site.connection, [f"{site.prefix}.ops"])[f"{site.prefix}.ops"]
        place = StatePlace(
            site.connection, ops, read_log_bounds(site.connection, ops), site.spark, str(site.root / "state")
        )
        with (
            pytest.raises(Fenced, match="another job runs with the prefix"),
            owned(site.settings(), place, identity.epochs, if_lost="run it again"),
        ):
            pass
        assert job.failure is None


def test_what_is_committed_is_verified_and_a_lost_state_is_decided_again(
    site: OperatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.job() as job:
        site.send(MESSAGES)
        site.take(MESSAGES // 2)
        site.follow(job)
    found = site.verified()
    assert (found.differences, found.base) == ([], "an empty state")
    assert found.keys > 0
    assert found.rows == {name: site.rows("state", name) for name in found.rows}
    assert found.units is not None
    assert (found.units.in_delta, found.units.in_log) == (MESSAGES, MESSAGES)

    # What waits in the audit topic is compared, too. It stays there, as when the driver is killed.
    with site.job(flush_interval_s=3600) as job, monkeypatch.context() as patched:
        patched.setattr(KeptQuery, "_drain", lambda _: None)
        site.send(MESSAGES, MESSAGES)
        site.take(1)
        site.follow(job, is_written=False)
        site.take(1)
        job.stop()
    # Nobody else would write it, so no state goes elsewhere without it.
    with pytest.raises(Invalid, match=r"entries of .*\.cluster_audit are not in the tables .* it writes what waits"):
        site.require_delivered()
    found = site.verified()
    assert found.differences == []
    assert sum(found.not_in_delta.values()) > 0
    assert found.units is not None
    assert found.units.in_log == 2 * MESSAGES

    # A job that is stopped in order writes it, whatever its interval is.
    with site.job(flush_interval_s=3600):
        pass
    found = site.verified()
    assert found.differences == []
    assert sum(found.not_in_delta.values()) == 0
    site.require_delivered()

    # Another checkpoint begins with the log, and does not take the entries of the lost one for its own.
    with pytest.raises(Invalid, match="belongs to another state"):
        site.job("again").start()
    with pytest.raises(Invalid, match="would have them twice: name other --tables"):
        site.job("again", "state", take_over=True).start()
    with site.job("again", take_over=True) as job:
        site.follow(job)
    again = site.verified("again")
    assert again.differences == []
    assert sum(again.rows.values()) >= sum(found.rows.values())

    # A row that somebody has deleted.
    table = f"delta.`{site.root / 'again' / 'tables' / 'operations'}`"
    site.spark.sql(f"DELETE FROM {table} WHERE kafka_offset = 0")  # noqa: S608 - our own path
    found = site.verified("again")
    assert any("rows of operations are missing" in line for line in found.differences)


def test_commands_read_a_checkpoint(site: OperatedSite) -> None:
    with site.job() as job:
        site.send(MESSAGES)
        site.take(MESSAGES // 2)
        site.follow(job)
    checkpoint = ["--checkpoint", str(site.root / "state")]
    done = site.command("status", "--json", *checkpoint)
    assert done.returncode == 0, done.stderr
    status = msgspec.json.decode(done.stdout, type=Status)
    assert sum(queue.commit_position for queue in status.queues) == MESSAGES
    assert (status.running, status.ops_lag, status.prefix) == (False, 0, site.prefix)
    done = site.command("queue", site.topic, "--json", *checkpoint)
    assert done.returncode == 0, done.stderr
    assert len(msgspec.json.decode(done.stdout, type=list[ConsumeQueueView])) == 2
    done = site.command("snapshot", *checkpoint)
    assert done.returncode == 0, done.stderr
    (snapshot,) = SnapshotStore(str(site.root / "snapshots")).list()
    # The next verification may begin with it.
    with site.job() as job:
        site.take(1)
        site.follow(job)
    done = site.command("verify", "--since", snapshot.id, "--json", *checkpoint)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=Verified)
    assert (found.base, found.differences) == (f"snapshot {snapshot.id}", [])
    assert found.records > 0
    # And another checkpoint goes on with it.
    done = site.command("migrate", "to-cluster", "--snapshot", snapshot.id, "--checkpoint", str(site.root / "restored"))
    assert done.returncode == 0, done.stderr
    with site.job("restored") as job:
        site.follow(job)
    restored = site.verified("restored")
    assert (restored.differences, restored.base) == ([], "an empty state")
    assert restored.rows["operations"] > 0


def test_tables_in_a_folder_are_maintained_while_the_job_is_stopped(site: OperatedSite) -> None:
    with KafkaProducer(**site.connection.for_kafka_python()) as producer, site.job() as job:
        producer.send(f"{site.prefix}.ops", b"alice@example.com is no operation", partition=0).get(60)
        for first in range(0, MESSAGES, MESSAGES // 3):
            site.send(MESSAGES // 3, first)
            site.take(MESSAGES // 3)
            site.follow(job)
    tables = site.root / "state" / "tables"
    before = site.rows("state", "operations")
    done = site.command("maintain", "--json", "--tables", str(tables))
    assert done.returncode == 0, done.stderr
    assert sum(each["compacted"] for each in json.loads(done.stdout)) > 0
    erased = [
        erase(tables, name, Wanted(text="alice@example.com"), dry_run=False)
        for name, table in TABLES.items()
        if table.quoting_columns
    ]
    assert sum(each.values for each in erased) > 0
    assert site.rows("state", "operations") == before
    assert site.verified().differences == []
    with site.job() as job:
        site.send(1, MESSAGES)
        site.take(1)
        site.follow(job)
    assert site.rows("state", "operations") > before
    assert site.verified().differences == []
