"""Spans of a job for OpenTelemetry: a trace for each micro-batch, flush, snapshot and maintenance.

They are made of laps (pipelines/laps.py) when these have ended, and exported in batches by a thread of the SDK: neither
a slow nor an absent collector delays the job. The SDK drops what it cannot export.

The variables OTEL_... configure them as they do everywhere. `opentelemetry-instrument` is not needed for that.
"""

from __future__ import annotations

import os
import threading
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import structlog
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from popstream import __version__
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

    from checkpoints.applied import Applied
    from pipelines.apply_ops.micro_batch import MicroBatchReport
    from pipelines.laps import Fact, Lap

__all__ = ["JobTraces", "tracer_provider"]

_log = structlog.get_logger(__name__)

CLOSE_S = 5.0
EXPORTERS = "opentelemetry_traces_exporter"
"""The group of entry points in which packages name their exporters."""
OTLP = {"": ("otlp_proto_http", "otlp_proto_grpc"), "http/protobuf": ("otlp_proto_http",), "grpc": ("otlp_proto_grpc",)}
"""The names of OpenTelemetry's own exporter, by protocol; the first one that is installed is taken."""


class JobTraces:
    """Makes spans of what a job has done. Safe for use by several threads; its methods neither wait nor raise.

    Args:
        provider: Where the spans go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("popstream.job", __version__)
        self._has_failed = False

    def micro_batch(self, report: MicroBatchReport) -> None:
        """Make the trace of a micro-batch."""
        before, after = report.before, report.after
        facts: dict[str, Fact] = {
            "records": report.records,
            "operations": report.operations,
            "refused": report.refused.total(),
            "rejected": report.rejected.total(),
            "queues": len(report.touched),
            "state_epoch": after.state_epoch,
            "apply_seq": after.apply_seq,
            "offsets": _offset_ranges(before, after),
        }
        messaging: dict[str, Fact] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": after.ops_topic,
            "messaging.batch.message_count": report.records,
        }
        self._make(report.lap, SpanKind.CONSUMER, {**messaging, **_attributes(facts)})

    def work(self, lap: Lap) -> None:
        """Make the trace of another piece of work, such as a flush."""
        self._make(lap, SpanKind.INTERNAL, {})

    def close(self) -> None:
        """Export what has ended, for 5 seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="close-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            _log.warning("traces_not_exported", after_s=CLOSE_S)

    def _make(self, lap: Lap, kind: SpanKind, attributes: Mapping[str, Fact]) -> None:
        try:
            # Laps are measured by a clock that nobody sets.
            self._add(lap, None, kind, attributes, time.time_ns() - time.perf_counter_ns())
        except Exception as error:  # noqa: BLE001 - of the SDK or a sampler of the user, which must not end the job
            if not self._has_failed:
                self._has_failed = True
                _log.exception("traces_failed", error=str(error))

    def _add(
        self, lap: Lap, parent: Context | None, kind: SpanKind, attributes: Mapping[str, Fact], clock_ns: int
    ) -> None:
        """Add a lap and its parts."""
        span = self._tracer.start_span(
            lap.name,
            parent,
            kind=kind,
            attributes={**attributes, **_attributes(lap.facts)},
            start_time=_ns(lap.began_s, clock_ns),
        )
        if span.is_recording():
            within = set_span_in_context(span)
            for part in lap.parts:
                self._add(part, within, SpanKind.INTERNAL, {}, clock_ns)
            if lap.error is not None:
                _note_error(span, lap.error, _ns(lap.ended_s, clock_ns))
        span.end(_ns(lap.ended_s, clock_ns))


def tracer_provider(prefix: str) -> TracerProvider:
    """Return a provider as the variables OTEL_... configure it; the service is `popstream` unless they name it.

    Args:
        prefix: Prefix of the job's topics.

    Raises:
        Invalid: An exporter is not installed, or a value cannot work.
    """
    resource = Resource.create({SERVICE_VERSION: __version__, "popstream.prefix": prefix})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "popstream"}))
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in _exporters():
            provider.add_span_processor(BatchSpanProcessor(exporter))
    except Invalid:
        raise
    except Exception as error:
        message = f"OpenTelemetry cannot work as the variables OTEL_... say: {error}"
        raise Invalid(message, subject="traces") from error
    return provider


def _exporters() -> Iterator[SpanExporter]:
    names = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    for name in (each.strip() for each in names.split(",")):
        if name and name != "none":
            yield _exporter(name)


def _exporter(name: str) -> SpanExporter:
    wanted: tuple[str, ...] = (name,)
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((value for each in variables if (value := os.environ.get(each, "").strip())), "")
        wanted = OTLP.get(protocol, ())
        if not wanted:
            message = f"OpenTelemetry's exporter does not support {protocol} here: use http/protobuf or grpc"
            raise Invalid(message, subject="traces")
    for found in (entry for each in wanted for entry in entry_points(group=EXPORTERS, name=each)):
        exporter: SpanExporter = found.load()()
        return exporter
    hint = (
        "pip install 'popstream[traces]', or for grpc opentelemetry-exporter-otlp-proto-grpc"
        if name == "otlp"
        else "install the package that has it, or set OTEL_TRACES_EXPORTER to another one, to console or to none"
    )
    message = f"traces = true needs OpenTelemetry's exporter {name}, which is not installed: {hint}"
    raise Invalid(message, subject="traces")


def _offset_ranges(before: Applied, after: Applied) -> list[str]:
    """Return the offsets by which the log is applied further, as `partition/first-last`.

    >>> from checkpoints.applied import Applied
    >>> before = Applied(state_epoch="e", ops_topic="t", ops_topic_id="i", next_offset={0: 7, 1: 3})
    >>> _offset_ranges(before, before.after({0: 9, 2: 1}, "query", 4))
    ['0/7-8', '2/0-0']
    """
    return [
        f"{partition}/{first}-{end - 1}"
        for partition, end in sorted(after.next_offset.items())
        if end > (first := before.next_offset.get(partition, 0))
    ]


def _attributes(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"popstream.{name}": fact for name, fact in facts.items()}


def _note_error(span: Span, error: BaseException, at_ns: int) -> None:
    span.record_exception(error, timestamp=at_ns)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.set_attribute("error.type", type(error).__qualname__)


def _ns(seconds: float, clock_ns: int) -> int:
    """Return a time of `time.perf_counter` in nanoseconds since 1970."""
    return int(seconds * 1e9) + clock_ns
