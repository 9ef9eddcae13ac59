"""Metrics for Prometheus, and probes for supervisors such as Docker and Kubernetes.

| path | answer |
|---|---|
| `/metrics` | the metrics |
| `/live` | 200 while the process answers |
| `/ready` | 200, or 503 with what keeps the job from deciding or delivering, a line for each reason |

A probe by `popstream status --ready` says the same, and starts a Python each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pipelines.http_api.thread_share import ThreadShare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request
    from starlette.types import ASGIApp

__all__ = ["COMPRESSED_FROM_BYTES", "PROBE_THREADS", "metrics_app", "metrics_routes"]

COMPRESSED_FROM_BYTES = 2_000
PROBE_THREADS = 2
"""For `/metrics`, and for `/ready`, of each port."""
_FRESH = {"Cache-Control": "no-store"}


def metrics_app(registry: CollectorRegistry, not_ready_reasons: Callable[[], Sequence[str]]) -> ASGIApp:
    """Return what answers for metrics and probes alone.

    Args:
        registry: The metrics.
        not_ready_reasons: Returns what keeps the job from deciding or delivering; empty: it is ready.
    """
    compressed = Middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=1)
    return Starlette(routes=metrics_routes(registry, not_ready_reasons), middleware=[compressed])


def metrics_routes(registry: CollectorRegistry, not_ready_reasons: Callable[[], Sequence[str]]) -> list[Route]:
    """Return the routes of `metrics_app`. No other request keeps them waiting: a supervisor ends a job that is late."""
    scrapes, probes = ThreadShare(PROBE_THREADS), ThreadShare(PROBE_THREADS)

    def encoded(accept: str, names: list[str]) -> Response:
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # what it asks for is no version of a format
            encode, content_type = choose_encoder("")
        chosen = registry.restricted_registry(names) if names else registry
        return Response(encode(chosen), headers={"Content-Type": content_type, **_FRESH})

    async def metrics(request: Request) -> Response:
        return await scrapes.run(encoded, request.headers.get("accept", ""), request.query_params.getlist("name[]"))

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_FRESH)

    async def ready(_: Request) -> Response:
        reasons = await probes.run(not_ready_reasons)
        text = "".join(f"{line}\n" for line in reasons or ["ok"])
        return PlainTextResponse(text, 503 if reasons else 200, headers=_FRESH)

    return [Route("/metrics", metrics), Route("/live", live), Route("/ready", ready)]
