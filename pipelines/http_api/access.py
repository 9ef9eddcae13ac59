"""Who may use the API: any client with the token, and without one programs on this machine that use a local name.

A page of another site, open in a browser on this machine, cannot read answers: the API allows no other origin. It could
only by a name of its own that it lets point to 127.0.0.1, which is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from pipelines.control.api_paths import API_ROOT
from pipelines.control.messages import Failure
from pipelines.http_api.json_response import JsonResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["OPEN_PATHS", "PAGE_ROOT", "Access", "SecurityHeaders", "is_loopback"]

PAGE_ROOT = "/page/"
OPEN_PATHS = frozenset(("/", "/live", "/ready", f"{API_ROOT}/openapi.json"))
"""What needs no token, beside the files of the page, which has no data in it."""

_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))

_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", "10.0.0.7", "job")]
    [True, True, True, False, False, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Refuses requests without the token, but for the open paths.

    Args:
        app: What answers the others.
        token: The token; empty: there is none.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the app do so."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> JsonResponse | None:
        headers = Headers(scope=scope)
        if not self._token:
            if _named_host(headers.get("host", "")) in _LOCAL_NAMES:
                return None
            return JsonResponse(Failure("without api_token the API is for localhost, by this name, alone"), 403)
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE_ROOT):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Of bytes: a header may have characters that compare_digest refuses in text.
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        if kind.lower() == "bearer" and is_right:
            return None
        said = "the token is wrong" if given else "a token is required: Authorization: Bearer ..."
        return JsonResponse(Failure(said), 401, headers={"WWW-Authenticate": "Bearer"})


class SecurityHeaders:
    """Adds to every answer what keeps a browser from running, embedding or storing anything that is not ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _named_host(header: str) -> str:
    """Return the host of a `Host` header.

    >>> [_named_host(header) for header in ("localhost:9465", "[::1]:9465", "127.0.0.1", "evil.example:80")]
    ['localhost', '::1', '127.0.0.1', 'evil.example']
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
