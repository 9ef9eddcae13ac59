"""Asks a job by its HTTP API."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

from pipelines.control.api_paths import query_of
from pipelines.control.messages import Failure
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from pipelines.control.messages import Request

__all__ = ["asked_by_http"]

# Not those of the system: a job is in the same network, and a proxy would get the token.
_NO_PROXY = urllib.request.ProxyHandler({})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could send the token elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's
        """Refuse it."""


def asked_by_http(url: str, token: str, request: Request, timeout_s: float) -> bytes:
    """Send a request to the API at `url`, and return the JSON of its answer or of its `Failure`.

    Raises:
        Invalid: The address is not one of HTTP, nothing of this project answers there, or the API has no such request.
        Unavailable: Nothing answers in time.
    """
    if not _is_address(url):
        message = f"{url!r} is not the address of an API: write it as http://host:9465"
        raise Invalid(message, subject=url)
    path, query = query_of(request)
    address = f"{url}{path}?{urllib.parse.urlencode(query)}"
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    opener = urllib.request.build_opener(_NO_PROXY, _NoRedirect)
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=timeout_s) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        return _failure(url, error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", error)
        message = f"the API does not answer at {url}: {why}"
        raise Unavailable(message, subject=url) from error


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        return False


def _failure(url: str, error: urllib.error.HTTPError) -> bytes:
    try:
        with error:
            content: bytes = error.read()
        failure = msgspec.json.decode(content, type=Failure)
    except (*DECODE_ERRORS, OSError, http.client.HTTPException):
        message = f"{url} answers with {error.code} {error.reason}, not as the API of a job does"
        raise Invalid(message, subject=url) from error
    if error.code == http.client.UNAUTHORIZED:
        message = f"{url}: {failure.error}; --api-token-file names the file with the token"
        raise Invalid(message, subject=url) from error
    return content
