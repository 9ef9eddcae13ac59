"""The API and the status page of a job."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest
from pipelines.control.api_paths import API_PATHS, API_ROOT
from pipelines.control.letter_facts import LetterContent
from pipelines.control.messages import (
    ApiPoliciesRequest,
    ApiStatusRequest,
    Failure,
    Policies,
    PoliciesRequest,
    Status,
    StatusRequest,
)
from pipelines.control.micro_batch_history import RatePoint
from pipelines.control.page_messages import LanePage, LanesRequest, QueuePage, QueuesRequest, RatesRequest
from pipelines.http_api.access import PAGE_ROOT, Access, SecurityHeaders
from pipelines.http_api.endpoint import Endpoint, route_of
from pipelines.http_api.json_response import JsonResponse
from pipelines.http_api.letters import LetterPage, LetterRequest, Letters, LettersRequest, RedriveReport, RedriveRequest
from pipelines.http_api.message_life import MessageLife, MessageLives, MessageRequest
from pipelines.http_api.metrics_app import COMPRESSED_FROM_BYTES, metrics_routes
from pipelines.http_api.openapi import openapi_document
from pipelines.http_api.thread_share import ThreadShare
from pipelines.web_style import stylesheet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from pipelines.control.answers import Answers
    from popstream.wire.signing import AdminKey

__all__ = ["API_THREADS", "api_app", "endpoints_of"]

API_THREADS = 16
"""For all requests of the API; those that wait for another one hold some of them (`OneAtATime`)."""
BODY_BYTES_MAX = 256 * 1024
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def api_app(
    answers: Answers,
    registry: CollectorRegistry,
    not_ready_reasons: Callable[[], Sequence[str]],
    *,
    token: str,
    admin_key: AdminKey | None = None,
    letters: Letters | None = None,
) -> ASGIApp:
    """Return what answers on the port of the API: the API, the page, metrics and probes.

    Args:
        answers: What answers about the job, for the control socket as well.
        registry: The metrics.
        not_ready_reasons: Returns what keeps the job from deciding or delivering; empty: it is ready.
        token: What a request has to carry; empty: nothing, but it has to come from this machine.
        admin_key: Signs the operations of redrives; None: the job has no keys.
        letters: The dead letters, for tests; None: those of the job.
    """
    endpoints = endpoints_of(answers, letters or Letters(answers.kafka, admin_key))
    document = openapi_document(endpoints)
    threads = ThreadShare(API_THREADS)
    routes = [
        *_page_routes(),
        Route(f"{API_ROOT}/openapi.json", _constant(lambda: JsonResponse(document))),
        *metrics_routes(registry, not_ready_reasons),
        *(route_of(endpoint, threads, has_token=bool(token)) for endpoint in endpoints),
    ]
    middleware = [
        Middleware(SecurityHeaders),
        Middleware(Access, token=token),
        Middleware(RequestBodyLimitMiddleware, max_body_size=BODY_BYTES_MAX),
        Middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=1),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={404: _not_found, 405: _not_found})


def _page_routes() -> list[Route]:
    """Return the routes of the page and its files, which are read once."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in files(__package__).joinpath("page").iterdir()}
    home = texts.pop("page.html")
    texts["popstream.css"] = stylesheet()
    return [
        Route("/", _file(home, "text/html")),
        *(Route(PAGE_ROOT + name, _file(text, MEDIA_TYPES[Path(name).suffix])) for name, text in texts.items()),
    ]


def endpoints_of(answers: Answers, letters: Letters) -> list[Endpoint]:
    """Return all endpoints of the API."""
    lives = MessageLives(answers.tables)

    def ask(
        request: StatusRequest | PoliciesRequest | QueueRequest | LanesRequest | QueuesRequest | RatesRequest, _: str
    ) -> object:
        return answers.answer(request)

    def of_job(summary: str, request: type, reply: object, bounded: type | None = None) -> Endpoint:
        return Endpoint("GET", API_PATHS[request], summary, bounded or request, reply, ask)

    return [
        of_job("The job, and a page of its queues with their lanes", StatusRequest, Status, ApiStatusRequest),
        of_job("A page of the limits of queues, groups and clients", PoliciesRequest, Policies, ApiPoliciesRequest),
        of_job("How far the queues of a topic are built, and single units", QueueRequest, list[ConsumeQueueView]),
        of_job(
            "A page of all lanes: lag, in flight, oldest message, who waits, what blocks it", LanesRequest, LanePage
        ),
        of_job("A page of all queues, with their positions", QueuesRequest, QueuePage),
        of_job("Rates and durations of micro-batches in the last ten minutes", RatesRequest, list[RatePoint]),
        Endpoint("GET", f"{API_ROOT}/message", "The history of a message", MessageRequest, MessageLife, lives.tell),
        Endpoint("GET", f"{API_ROOT}/dead-letters", "A page of dead letters", LettersRequest, LetterPage, letters.page),
        Endpoint(
            "GET",
            f"{API_ROOT}/dead-letter",
            "One dead letter with its message",
            LetterRequest,
            LetterContent,
            letters.show,
            needs_token=True,
        ),
        Endpoint(
            "POST",
            f"{API_ROOT}/redrive",
            "Send the messages of dead letters again",
            RedriveRequest,
            RedriveReport,
            letters.redrive,
            needs_token=True,
        ),
    ]


def _file(text: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    # Revalidated at each load, so that a page never meets the script of another version.
    return _constant(lambda: Response(text, media_type=media_type, headers={"Cache-Control": "no-cache"}))


def _constant(response: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return response()

    return answer


def _not_found(request: Request, _: Exception) -> Response:
    return JsonResponse(Failure(f"there is no {request.method} {request.url.path}; /api/v1/openapi.json has all"), 404)
