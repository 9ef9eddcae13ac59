"""The ports that a job serves, as its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.http_api.api_app import api_app
from pipelines.http_api.http_server import Listener
from pipelines.http_api.metrics_app import metrics_app

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from pipelines.control.answers import Answers
    from pipelines.job_settings import JobSettings

__all__ = ["listeners_of"]


def listeners_of(
    settings: JobSettings,
    answers: Answers,
    registry: CollectorRegistry,
    not_ready_reasons: Callable[[], Sequence[str]],
) -> list[Listener]:
    """Return what is served by HTTP: metrics and probes at `metrics_port`, and the API at `api_port`; none: nothing.

    Args:
        settings: Those of the job.
        answers: What answers about it.
        registry: Its metrics.
        not_ready_reasons: Returns what keeps it from deciding or delivering; empty: it is ready.
    """
    found = []
    if settings.metrics_port:
        app = metrics_app(registry, not_ready_reasons)
        found.append(Listener(settings.metrics_host, settings.metrics_port, app, "metrics_port"))
    if settings.api_port:
        app = api_app(answers, registry, not_ready_reasons, token=settings.api_secret, admin_key=settings.admin_key)
        found.append(Listener(settings.api_host, settings.api_port, app, "api_port"))
    return found
