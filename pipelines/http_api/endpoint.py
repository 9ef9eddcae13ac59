"""One path of the API: how its request is read, and what answers it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
import structlog
from starlette.routing import Route

from pipelines.control.messages import Failure
from pipelines.http_api.json_response import JsonResponse, failed
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from pipelines.http_api.thread_share import ThreadShare

__all__ = ["WAITING_MAX", "Endpoint", "OneAtATime", "route_of"]

_log = structlog.get_logger(__name__)

WAITING_MAX = 2
"""Requests that wait for one in progress: each holds a thread meanwhile."""

HIDDEN = frozenset(("token", "ask"))
"""Fields of requests of the control socket that have no place in an address, where logs would keep them."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path and what answers there.

    Attributes:
        method: `GET` takes the fields of the request as parameters, `POST` as a JSON object.
        path: The path.
        summary: What it is for, in one line.
        request: The type of the request.
        reply: The type of the answer.
        answer: Answers a request; it also gets the address of the caller. Raises PopstreamError.
        needs_token: Also on 127.0.0.1: it changes something, or shows contents of messages.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    request: type[msgspec.Struct]
    reply: Any
    answer: Callable[[Any, str], object]
    needs_token: bool = False

    @property
    def fields(self) -> tuple[msgspec.structs.FieldInfo, ...]:
        """The fields of the request that a caller may give."""
        return tuple(field for field in msgspec.structs.fields(self.request) if field.name not in HIDDEN)


class OneAtATime:
    """Lets one request in at a time, so that what is costly does not take all of the machine from the job.

    Args:
        what: What the requests are about, for errors.
        wait_s: How long a request waits for those before; of more than `WAITING_MAX` the others do not wait.
    """

    def __init__(self, what: str, wait_s: float) -> None:
        self._what = what
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._places = threading.Semaphore(1 + WAITING_MAX)

    def __enter__(self) -> None:
        """Wait for the requests before.

        Raises:
            Unavailable: They take too long, or are too many.
        """
        if not self._places.acquire(blocking=False):
            self._refuse(f", and {WAITING_MAX} others wait")
        if not self._lock.acquire(timeout=self._wait_s):
            self._places.release()
            self._refuse("")

    def __exit__(self, *_: object) -> None:
        """Let the next one in."""
        self._lock.release()
        self._places.release()

    def _refuse(self, others: str) -> NoReturn:
        message = f"another request about {self._what} is in progress{others}: ask again later"
        raise Unavailable(message)


def route_of(endpoint: Endpoint, threads: ThreadShare, *, has_token: bool) -> Route:
    """Return the route of an endpoint, which answers in one of the threads."""

    def answered(given: object, caller: str) -> Response:
        try:
            request = msgspec.convert(given, endpoint.request, strict=endpoint.method == "POST")
        except DECODE_ERRORS as error:
            return JsonResponse(Failure(f"{endpoint.path}: {error}"), 400)
        if endpoint.needs_token and not has_token:
            return JsonResponse(Failure("a token is required here as well: set api_token or api_token_file"), 403)
        try:
            return JsonResponse(endpoint.answer(request, caller))
        except PopstreamError as error:
            return failed(error)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next request may work
            _log.exception("api_request_failed", path=endpoint.path)
            return JsonResponse(Failure(f"unexpected {type(error).__name__}; the log of the job has more"), 500)

    async def get(request: Request) -> Response:
        try:
            given = _parameters(request, endpoint)
        except Invalid as error:
            return failed(error)
        return await threads.run(answered, given, _caller(request))

    async def post(request: Request) -> Response:
        body = await request.body()
        try:
            given = msgspec.json.decode(body or b"{}")
        except DECODE_ERRORS as error:
            return JsonResponse(Failure(f"{endpoint.path} expects a JSON object: {error}"), 400)
        return await threads.run(answered, given, _caller(request))

    return Route(endpoint.path, get if endpoint.method == "GET" else post, methods=[endpoint.method])


def _parameters(request: Request, endpoint: Endpoint) -> dict[str, str]:
    known = [field.name for field in endpoint.fields]
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known or name in found:
            message = f"{endpoint.path} has no parameter {name}, only {', '.join(known) or 'none'}"
            raise Invalid(f"{name} is given twice" if name in found else message, subject=name)
        found[name] = value
    return found


def _caller(request: Request) -> str:
    return "" if request.client is None else request.client.host
