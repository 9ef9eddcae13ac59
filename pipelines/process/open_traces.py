"""Opens the traces of a job if they are wanted; without them nothing of OpenTelemetry is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pipelines.job_settings import JobSettings
    from pipelines.process.job_traces import JobTraces

__all__ = ["open_traces"]


def open_traces(settings: JobSettings) -> JobTraces | None:
    """Return where the spans of a job go; None: `traces` is not set.

    Raises:
        Invalid: OpenTelemetry is not installed, or its OTEL_... variables cannot work.
    """
    if not settings.traces:
        return None
    try:
        from pipelines.process.job_traces import JobTraces, tracer_provider  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        message = "traces = true needs OpenTelemetry: pip install 'popstream[traces]'"
        raise Invalid(message, subject="traces") from error
    return JobTraces(tracer_provider(settings.topic_prefix))
