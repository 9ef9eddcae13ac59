"""The details of a lane for `popstream status --lane`, read while the job writes."""

from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from pipelines.cli.app import app
from pipelines.control.lane_views import lane_detail, queues_in
from pipelines.control.policy_views import PolicyView, policies_in
from popstream.wire.command import Ack, AckEntry, Command, Declare, Dispatch, HandleRef, Policy, Pop, WrittenRange

QUEUE: dict[str, Any] = {"topic": "orders", "queue_id": 0, "v": 1}


class Writer:
    """Writes to the store like the job."""

    def __init__(self, store: RocksStore) -> None:
        self.store = store
        self.overlay = Overlay(store)
        self.decision = Decision()
        self.touched: set[QueueState] = set()
        self.number = 0

    def do(self, command: Command) -> None:
        self.number += 1
        self.decision = Decision()
        command = msgspec.structs.replace(command, op_id=command.op_id or f"op-{self.number}")
        record = OpRecord(0, self.number, 1_000 + self.number, command, self.number.to_bytes(8, "big"))
        self.touched = fold(self.overlay, [record], self.decision)
        self.store.write(self.overlay)

    def pop(self, **fields: Any) -> None:
        self.do(Pop(**QUEUE, group="g", order=True, max_messages=3, invisible_time_ms=10_000, **fields))


def test_a_lane_shows_its_pop_batch_and_parked_pops(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = Writer(store)
        job.do(Declare(**QUEUE, topic_id="t"))
        job.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 9)]))
        job.pop(attempt_id="a")
        handle = job.decision.operations[0].handle_after
        assert handle is not None
        job.do(Ack(**QUEUE, handles=[HandleRef("g", handle)], entries=[AckEntry(0, [(1, 1)])]))
        job.pop(client_id="second", poll_time_ms=5_000)
        job.pop(client_id="third", poll_time_ms=5_000)

        detail = lane_detail(store, "orders", 0, "g")
        assert detail is not None
        assert detail.batch is not None
        assert (detail.batch.first, detail.batch.last, detail.batch.members, detail.batch.acked) == (0, 2, 3, 1)
        assert detail.batch.attempt_id == "a"
        assert detail.batch.free_at_ms == 1_003 + 10_000
        assert [(run.first, run.last, run.next_visible_ms) for run in detail.batch.unacked] == [
            (0, 0, 11_003),
            (2, 2, 11_003),
        ]
        assert [pop.client_id for pop in detail.waiting] == ["second", "third"]
        [queue] = queues_in(store)
        assert queue.lanes[0].orderly


def test_a_missing_lane_is_none(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        assert lane_detail(store, "orders", 0, "g") is None
        job = Writer(store)
        job.do(Declare(**QUEUE, topic_id="t"))
        assert lane_detail(store, "orders", 0, "g") is None
        job.pop()
        detail = lane_detail(store, "orders", 0, "g")
        assert detail is not None
        assert (detail.batch, detail.waiting) == (None, [])


def test_a_frozen_state_does_not_see_what_is_written_later(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = Writer(store)
        frozen = store.frozen()
        job.do(Declare(**QUEUE, topic_id="t"))
        assert list(queues_in(store))
        assert frozen.get("state", b"\x06orders\x00\x00\x00\x00Q") is None
        assert store.frozen().get("state", b"\x06orders\x00\x00\x00\x00Q") is not None


def test_status_of_a_lane_shows_what_blocks_it(tmp_path: Path) -> None:
    with RocksStore(JobFolder(tmp_path).state) as store:
        job = Writer(store)
        job.do(Declare(**QUEUE, topic_id="t"))
        job.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 9)]))
        job.pop(attempt_id="a")
        job.pop(client_id="second", poll_time_ms=5_000)
    result = CliRunner().invoke(app, ["status", "--lane", "g", "--folder", str(tmp_path)])
    shown = " ".join(result.stdout.split())
    assert "popped 3 messages in 0..2 at 1970-01-01 00:00:01.003Z, 0 acked, attempt id a" in shown
    assert "free at 1970-01-01 00:00:11.003Z, or when all are acked" in shown
    assert "not acked 0..2 until 1970-01-01 00:00:11.003Z, attempt 1" in shown
    assert "waiting second for 3 until 1970-01-01 00:00:06.004Z" in shown
    assert "popped" not in CliRunner().invoke(app, ["status", "--folder", str(tmp_path)]).stdout


def test_a_lane_shows_what_holds_pops_back(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = Writer(store)
        job.do(Declare(**QUEUE, topic_id="t"))
        job.do(Policy(**QUEUE, in_flight_max=7, queue_pops_per_s_max=50, client_pops_per_s_max=5))
        job.pop()
        detail = lane_detail(store, "orders", 0, "g")
        assert detail is not None
        assert (detail.paused_until_ms, detail.in_flight_max) == (0, 7)
        assert detail.quotas == {"client_pops_per_s_max": 5, "queue_pops_per_s_max": 50}

        job.do(Policy(**QUEUE, group="g", in_flight_max=3, pops_per_s_max=9))
        detail = lane_detail(store, "orders", 0, "g")
        assert detail is not None
        assert detail.in_flight_max == 3
        assert detail.quotas == {"pops_per_s_max": 9, "queue_pops_per_s_max": 50}


def test_policies_say_whose_rules_hold(tmp_path: Path) -> None:
    def shown(view: PolicyView) -> tuple[object, ...]:
        return view.group, view.origin, view.max_attempts, view.in_flight_max, view.quotas

    with RocksStore(JobFolder(tmp_path).state) as store:
        job = Writer(store)
        job.do(Declare(**QUEUE, topic_id="t"))
        job.do(Policy(**QUEUE, in_flight_max=7, queue_pops_per_s_max=50, pops_per_s_max=5, new_lanes_per_min_max=9))
        job.pop()
        job.do(Policy(**QUEUE, group="own", max_attempts=3))
        job.do(Pop(**QUEUE, group="declares", max_messages=1, invisible_time_ms=1, max_attempts=2))
        of_queue = {"queue_pops_per_s_max": 50, "new_lanes_per_min_max": 9}
        assert [shown(view) for view in policies_in(store, "orders", None)[0]] == [
            (None, "queue", 0, 7, {"pops_per_s_max": 5, **of_queue}),
            ("declares", "consumers", 2, 7, {"pops_per_s_max": 5, **of_queue}),
            ("g", "queue", 0, 7, {"pops_per_s_max": 5, **of_queue}),
            ("own", "group", 3, 0, of_queue),
        ]
        assert [view.group for view in policies_in(store, None, "own")[0]] == ["own"]
        assert policies_in(store, "parcels", None) == ([], False)
    result = CliRunner().invoke(app, ["policy", "orders", "--folder", str(tmp_path), "--json"])
    assert result.exit_code == 3
    assert len(msgspec.json.decode(result.stdout, type=list[PolicyView])) == 4
