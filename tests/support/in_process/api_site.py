"""A job without Spark and Kafka behind its real HTTP server: a state with lanes, tables of a message, dead letters."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import pyarrow as pa

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import Applied
from checkpoints.layout import JobFolder
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.apply_ops.micro_batch import MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.control.answers import JobAnswers
from pipelines.control.lane_metrics import LaneMetrics
from pipelines.control.lane_views import scan_queues
from pipelines.control.lane_watch import LaneWatch
from pipelines.control.messages import JobReport, OwnerView
from pipelines.control.metrics import Metrics
from pipelines.control.micro_batch_history import POINTS_MAX, STEP_S, MicroBatchHistory
from pipelines.http_api.api_app import api_app
from pipelines.http_api.http_server import HttpServer, Listener
from pipelines.http_api.letters import Letters
from pipelines.http_api.metrics_app import metrics_app
from pipelines.laps import Lap
from popstream.kafka_connection import KafkaConnection
from popstream.testing import MemoryJob
from popstream.wire.command import Command, Declare, Dispatch, Policy, Pop, WrittenRange
from popstream.wire.signing import AdminKey
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from checkpoints.snapshot_store import Snapshot
    from popstream import DeadLetters

__all__ = ["ADMIN_KEY", "TIMEOUT_S", "TOKEN", "ApiSite", "Reply", "SiteJob"]

TOKEN = "a-token-of-the-tests-0123456789"  # noqa: S105 - of no other use
ADMIN_KEY = AdminKey("2030", "a secret of the tests")
TIMEOUT_S = 30.0


class Reply(NamedTuple):
    """An answer: status, headers by lower-case name, and content."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the content."""
        return msgspec.json.decode(self.content)


class SiteJob:
    """A job that is its stored state and its report, with as many lanes as wanted.

    Args:
        folder: An empty folder.
        now_ms: The time at which it all happens, in ms since 1970.
    """

    builder = None
    connection = KafkaConnection("kafka:9092")

    def __init__(self, folder: Path, now_ms: int) -> None:
        self.folder = JobFolder(folder)
        self.now_ms = now_ms
        self.store = RocksStore(self.folder.state)
        self.metrics = Metrics()
        self.lane_watch = LaneWatch(self.store, LaneMetrics(), 200)
        self.not_ready_reasons: list[str] = []
        self.write_micro_batch_ms = 0.0
        self._overlay = Overlay(self.store)
        self._number = 0

    def do(self, *commands: Command, age_s: float = 0.0) -> None:
        """Decide commands as of some seconds ago."""
        at_ms = self.now_ms - round(age_s * 1000)
        records = []
        for command in commands:
            self._number += 1
            named = msgspec.structs.replace(command, op_id=f"op-{self._number}")
            records.append(OpRecord(0, self._number, at_ms, named, self._number.to_bytes(8, "big")))
        fold(self._overlay, records, Decision())
        self.store.write(self._overlay)

    def look(self) -> None:
        """Let the watch of the lanes read them."""
        self.lane_watch.load(scan_queues(self.store))

    def fill(self, lanes: int, *, groups: int = 4) -> None:
        """Make lanes of several groups in queues of `orders`: some lag, some have leases, one is blocked."""
        queues = -(-lanes // groups)
        for first in range(0, queues, 100):
            numbers = range(first, min(first + 100, queues))
            self.do(*(Declare(v=1, topic="orders", queue_id=n, topic_id="t") for n in numbers), age_s=600)
            self.do(
                *(Dispatch(v=1, topic="orders", queue_id=n, ranges=[WrittenRange(0, 99 + n % 7)]) for n in numbers),
                age_s=300,
            )
            pops = [
                Pop(
                    v=1,
                    topic="orders",
                    queue_id=n,
                    group=f"group-{number}",
                    client_id=f"worker-{n % 3}",
                    max_messages=10 + n % 5,
                    invisible_time_ms=600_000,
                    order=number == 0,
                )
                for n in numbers
                for number in range(groups)
                if n * groups + number < lanes
            ]
            self.do(*pops, age_s=120)
        again = Pop(v=1, topic="orders", queue_id=0, group="group-0", max_messages=1, invisible_time_ms=1, order=True)
        waits = msgspec.structs.replace(again, client_id="waiting-1", poll_time_ms=600_000)
        limit = Policy(v=1, topic="orders", queue_id=0, group="group-1", max_attempts=3, in_flight_max=5)
        self.do(waits, limit, age_s=60)

    def report(self) -> JobReport:
        """Return what the job says of itself."""
        owner = OwnerView(
            prefix="shop",
            state="0123abcd",
            since_ms=self.now_ms - 7_200_000,
            host="host-b",
            pid=7,
            folder=str(self.folder.root),
            term=3,
            took_over_from="process 5 on host-a, folder /old",
        )
        return JobReport(
            folder=str(self.folder.root),
            apply_seq=412,
            kernel_form="compiled",
            bootstrap_servers="kafka:9092",
            prefix="shop",
            owner=owner,
            delta_seq=409,
            outbox_bytes=123_456,
            ops_lag=17,
            totals=self.metrics.totals(),
            not_ready_reasons=list(self.not_ready_reasons),
        )

    def take_snapshot(self) -> Snapshot:
        """Take none: no test of the API asks for one."""
        message = "the job of these tests takes no snapshots"
        raise AssertionError(message)

    def write_tables(self) -> None:
        """Write the tables of `orders/0`, whose first message was leased, expired and acked twice."""
        history = KernelHistory()
        first = history.pop(1, "slow")
        second = history.pop(31, "b")
        history.ack(33.1, "slow", first)
        history.ack(34, "b", second)
        for name, rows in history.tables().items():
            create_table(self.folder.delta, name)
            append_audit_rows(self.folder.delta, name, rows, 1)
        create_table(self.folder.delta, "consume_queue")
        units = [unit_row("orders", offset, store_time_ms=NOON_MS - 500) for offset in range(10)]
        rows = pa.Table.from_pylist(units, schema=arrow_schema(CONSUME_QUEUE))
        append_rows(self.folder.delta, "consume_queue", rows)


class ApiSite:
    """The job behind its API, from entry to exit.

    Args:
        folder: An empty folder.
        token: Token of the API; empty: none.

    Attributes:
        job: The job.
        letters: Where dead letters come from: those of a job in memory.
        letter_options: How the API has connected to them last.
        url: Address of the API.
        metrics_url: Address of the metrics and probes alone.
    """

    def __init__(self, folder: Path, token: str = TOKEN) -> None:
        self.job = SiteJob(folder, round(time.time() * 1000))
        self.letters = MemoryJob(now_ms=self.job.now_ms - 900_000)
        self.letter_options: dict[str, object] = {}
        self.answers = JobAnswers(self.job, self.job.metrics)
        self._token = token
        self._stack = contextlib.ExitStack()
        app = api_app(
            self.answers,
            self.job.metrics.registry,
            lambda: self.job.not_ready_reasons,
            token=token,
            letters=Letters(lambda: (self.job.connection, "popstream"), ADMIN_KEY, self._dead_letters),
        )
        probes = metrics_app(self.job.metrics.registry, lambda: self.job.not_ready_reasons)
        self._server = HttpServer(
            [Listener("127.0.0.1", 0, app, "api_port"), Listener("127.0.0.1", 0, probes, "metrics_port")]
        )
        self.url, self.metrics_url = (f"http://127.0.0.1:{port}" for port in self._server.ports)

    def __enter__(self) -> Self:
        self._stack.callback(self.job.store.close)
        self._stack.enter_context(self.letters)
        self._stack.enter_context(self._server)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _dead_letters(self, **options: object) -> DeadLetters:
        self.letter_options = options
        return self.letters.dead_letters()

    def decide_for_minutes(self) -> None:
        """Let the job have decided micro-batches in the last ten minutes."""
        outbox = Outbox(self.job.store)
        clock = SimpleNamespace(now_s=time.time() - POINTS_MAX * STEP_S)
        self.answers._history = history = MicroBatchHistory(self.job.metrics, lambda: clock.now_s)
        for number in range(POINTS_MAX):
            clock.now_s += STEP_S
            report = MicroBatchReport(
                Lap("fetch"), Applied(state_epoch="e", ops_topic="popstream.ops", ops_topic_id="t")
            )
            report.apply_seq = number + 1
            report.records = report.operations = 900 + 400 * (number % 90) // 90 + 37 * (number % 11)
            report.refused["QUOTA_EXCEEDED"] = number % 40 == 0
            report.rejected["NOT_SIGNED"] = number % 100 == 0
            steps = {"fetch": 4, "decode": 3, "order": 1, "prefetch": 6, "decide": 21, "write": 9, "publish": 5}
            for step, ms in steps.items():
                report.lap.part(step).seconds = (ms + number % 7 / 2) / 1000
            self.job.metrics.record(report, outbox, number)
            history.sample()

    def give_up(self, *values: bytes, group: str = "baristas", why: str = "no milk") -> None:
        """Make dead letters of some values."""
        self.letters.write("orders", 0, list(values), headers=[("trace", b"<b>bold</b>")])
        with self.letters.consumer(group) as consumer:
            while messages := consumer.pop("orders").messages:
                consumer.reject(messages, why)

    def get(self, path: str, *, token: str | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask for a path; `token` None: with the right one."""
        return self._ask(path, None, token, headers)

    def post(self, path: str, content: object, *, token: str | None = None) -> Reply:
        """Send JSON to a path, likewise; bytes are sent as they are."""
        return self._ask(path, content if isinstance(content, bytes) else msgspec.json.encode(content), token, None)

    def _ask(self, path: str, body: bytes | None, token: str | None, headers: Mapping[str, str] | None) -> Reply:
        given = self._token if token is None else token
        sent = {**({"Authorization": f"Bearer {given}"} if given else {}), **(headers or {})}
        request = urllib.request.Request(self.url + path, data=body, headers=sent)  # noqa: S310 - it is HTTP
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status or 0, found, answer.read())
