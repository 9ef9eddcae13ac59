"""Probes for supervisors, such as Docker and Kubernetes, on the port of the metrics.

| path | answer |
|---|---|
| `/live` | 200 while the process answers |
| `/ready` | 200, or 503 with what keeps the job from deciding or delivering, a line for each reason |

A probe by `popstream status --ready` says the same, and starts a Python each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["with_probes"]


def with_probes(app: WSGIApplication, not_ready_reasons: Callable[[], Sequence[str]]) -> WSGIApplication:
    """Return a WSGI application that answers the probes itself, and passes every other path to `app`.

    Args:
        app: Answers the other paths.
        not_ready_reasons: Returns what keeps the job from deciding or delivering; empty: it is ready.
    """

    def probed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in {"/live", "/ready"}:
            return app(environ, start_response)
        reasons = not_ready_reasons() if path == "/ready" else ()
        status = "503 Service Unavailable" if reasons else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return ["".join(f"{line}\n" for line in reasons or ["ok"]).encode()]

    return probed
