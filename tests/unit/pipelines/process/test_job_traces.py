"""Claim: with `traces` each micro-batch, flush and snapshot is a trace, also one that fails; without it none is made.

Method: the applier of micro-batches without Spark; OpenTelemetry's SDK with its exporter in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker_state.store.rocks_store import RocksStore
from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.snapshot_store import SnapshotStore
from pipelines import laps
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.job_settings import JobSettings
from pipelines.laps import Lap
from pipelines.process import job_traces
from pipelines.process.job_traces import JobTraces, tracer_provider
from pipelines.process.open_traces import open_traces
from pipelines.recovery.snapshot_loop import SnapshotLoop
from popstream.wire.base_errors import Invalid, Unavailable
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER",
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Traced:
    """Traces that stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = JobTraces(provider)

    def trees(self) -> list[Any]:
        """The traces so far, each span as [name, parts...], in the order of their start."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

        def tree(span: ReadableSpan) -> list[Any]:
            parts = [each for each in spans if each.parent is not None and each.parent.span_id == id_of(span)]
            return [span.name, *(tree(part) for part in parts)]

        return [tree(span) for span in spans if span.parent is None]

    def span(self, name: str) -> Any:
        """The last span of a name."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name][-1]


def id_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context.span_id


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def job(tmp_path: Path, traced: Traced) -> Iterator[SmallJob]:
    with RocksStore(tmp_path / "state") as store:
        yield SmallJob(tmp_path, store, traced.traces.micro_batch)


def test_a_micro_batch_is_a_trace_of_its_steps(traced: Traced, job: SmallJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laps, "AT_ONCE_S", 60.0)  # also on a machine that is slow
    began_ns = time.time_ns()
    job.run(DECLARE, written_to(0, 9), POP, POP)
    slice_steps = [["order"], ["decode"], ["prefetch"], ["decide"], ["fetch"]]
    written = [["write", ["encode"], ["write_batch"]], ["publish"]]
    assert traced.trees() == [["micro_batch", ["fetch"], *slice_steps, *slice_steps, *written]]
    root, write, batch = traced.span("micro_batch"), traced.span("write"), traced.span("write_batch")
    assert root.kind.name == "CONSUMER"
    assert dict(root.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "popstream.ops",
        "messaging.batch.message_count": 4,
        "popstream.records": 4,
        "popstream.operations": 4,
        "popstream.refused": 0,
        "popstream.rejected": 0,
        "popstream.queues": 1,
        "popstream.state_epoch": "e",
        "popstream.apply_seq": 1,
        "popstream.offsets": ("0/0-3",),
    }
    rows = write.attributes["popstream.rows"]
    assert dict(write.attributes) == {"popstream.apply_seq": 1, "popstream.records": 4, "popstream.rows": rows}
    assert rows >= 4  # each operation has one
    assert batch.attributes["popstream.bytes"] == job.reports[-1].write_batch_bytes > 0
    assert began_ns - 1_000_000_000 < root.start_time <= write.start_time <= batch.start_time
    assert batch.end_time <= write.end_time <= root.end_time < time.time_ns() + 1_000_000_000
    lasted_s = sum((span.end_time - span.start_time) / 1e9 for span in [write])
    assert lasted_s == pytest.approx(job.reports[-1].seconds["write"], abs=1e-5)


def test_a_micro_batch_that_fails_is_a_trace_with_the_error_at_its_step(
    traced: Traced, job: SmallJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        message = "Kafka does not take it"
        raise Unavailable(message)

    job.run(DECLARE)
    monkeypatch.setattr(job.apply_ops, "_publish", fail)
    with pytest.raises(Unavailable):
        job.run(written_to(0, 9))
    for name in ("micro_batch", "publish"):
        span = traced.span(name)
        assert (span.status.status_code.name, span.status.description) == ("ERROR", "Kafka does not take it")
        assert span.attributes["error.type"] == "Unavailable"
        assert [event.attributes["exception.message"] for event in span.events] == ["Kafka does not take it"]
    assert traced.span("write").status.status_code.name == "UNSET"


def test_an_attempt_that_is_repeated_is_in_the_trace(
    traced: Traced, job: SmallJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = job.apply_ops._decider
    calls = iter([ValueError("once")])
    prefetch = decider.prefetch

    def fail_once(ordered: Any) -> None:
        for error in calls:
            raise error
        prefetch(ordered)

    monkeypatch.setattr(decider, "prefetch", fail_once)
    job.run(DECLARE)
    found = [span for span in traced.exporter.get_finished_spans() if span.name == "prefetch"]
    assert [span.status.status_code.name for span in found] == ["ERROR", "UNSET"]
    assert traced.span("micro_batch").status.status_code.name == "UNSET"


class Tables:
    """Takes rows, unless it has an error."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def delivered(self, _table: str) -> int:
        return -1

    def flush(self, _table: str, slices: Iterable[tuple[int, bytes]], _upto: int) -> int:
        if self.error is not None:
            raise self.error
        return sum(1 for _ in slices)


def test_a_flush_is_a_trace_and_so_is_one_that_fails(traced: Traced, job: SmallJob) -> None:
    tables = Tables()
    flush = DeltaFlush(
        job.outbox, tables, applied_seq=lambda: job.apply_ops.applied.apply_seq, on_lap=traced.traces.work
    )
    flush.flush()
    assert traced.trees() == []
    job.run(DECLARE, written_to(0, 9))
    traced.exporter.clear()
    tables.error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        flush.flush()
    assert traced.span("flush").status.description == "disk full"
    tables.error = None
    flush.flush()
    attributes = dict(traced.span("flush").attributes)
    assert attributes.pop("popstream.bytes") > 0
    assert attributes == {"popstream.apply_seq": 1, "popstream.rows": flush.flushed_rows}
    assert traced.trees() == [["flush"], ["flush"]]


def test_a_snapshot_that_fails_is_a_trace(traced: Traced, tmp_path: Path) -> None:
    def take(_: object) -> Any:
        message = "the bucket is gone"
        raise Unavailable(message)

    loop = SnapshotLoop(
        take,
        SnapshotStore(str(tmp_path / "snapshots")),
        interval_s=0,
        retention=SnapshotRetention(newest=1, hourly=0, daily=0, weekly=0),
        decided=lambda: 1,
        last_done=tmp_path,
        on_lap=traced.traces.work,
    )
    with pytest.raises(Unavailable):
        loop.take_now()
    assert traced.span("snapshot").attributes["error.type"] == "Unavailable"


def test_what_fails_in_the_sdk_is_logged_and_raises_nothing(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "sampler"
        raise RuntimeError(message)

    monkeypatch.setattr(traced.traces._tracer, "start_span", fail)
    with Lap("flush", traced.traces.work):
        pass
    assert traced.trees() == []


def test_a_collector_that_hangs_delays_neither_the_work_nor_the_end_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    exporter = InMemorySpanExporter()

    def export(_: object) -> None:
        hangs.wait()

    monkeypatch.setattr(exporter, "export", export)
    monkeypatch.setattr(job_traces, "_exporter", lambda _: exporter)
    monkeypatch.setattr(job_traces, "CLOSE_S", 0.2)
    traces = JobTraces(tracer_provider("popstream"))
    began_s = time.perf_counter()
    for _ in range(5_000):  # more than the queue of the SDK
        with Lap("flush", traces.work):
            pass
    traces.close()
    assert time.perf_counter() - began_s < 30
    hangs.set()


def test_closing_exports_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(job_traces, "_exporter", lambda _: exporter)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=shop")
    traces = JobTraces(tracer_provider("coffee"))
    with Lap("flush", traces.work):
        pass
    traces.close()
    (span,) = exporter.get_finished_spans()
    found = span.resource.attributes
    assert found["service.name"] == "popstream"
    assert (found["popstream.prefix"], found["deployment.environment"]) == ("coffee", "shop")


def test_the_variables_of_opentelemetry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(job_traces, "_exporter", lambda _: exporter)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "till")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    provider = tracer_provider("popstream")
    assert provider.resource.attributes["service.name"] == "till"
    traces = JobTraces(provider)
    with Lap("flush", traces.work):
        pass
    traces.close()
    assert exporter.get_finished_spans() == ()


def test_the_console_is_an_exporter(tmp_path: Path) -> None:
    code = (
        "from pipelines.job_settings import JobSettings\n"
        "from pipelines.laps import Lap\n"
        "from pipelines.process.open_traces import open_traces\n"
        "traces = open_traces(JobSettings(traces=True))\n"
        "with Lap('flush', traces.work): pass\n"
        "traces.close()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"OTEL_TRACES_EXPORTER": "console", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["name"] == "flush"


def test_no_exporter_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    traces = open_traces(JobSettings(traces=True))
    assert traces is not None
    traces.close()


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "needs OpenTelemetry's exporter zipkin, which is not installed: install"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OpenTelemetry's exporter does not support http/json here"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "as the variables OTEL_... say: max_"),
    ],
)
def test_variables_that_cannot_work_end_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], why: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=why):
        open_traces(JobSettings(traces=True))


def test_an_exporter_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_traces, "entry_points", lambda **_: ())
    with pytest.raises(Invalid, match=r"exporter otlp, which is not installed: pip install 'popstream\[traces\]'"):
        open_traces(JobSettings(traces=True))


def test_without_opentelemetry_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pipelines.process.job_traces")
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Invalid, match=r"needs OpenTelemetry: pip install 'popstream\[traces\]'"):
        open_traces(JobSettings(traces=True))


def test_without_the_setting_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys\n"
        "import pipelines.process.host\n"
        "from pipelines.job_settings import JobSettings\n"
        "from pipelines.process.open_traces import open_traces\n"
        "assert open_traces(JobSettings()) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
