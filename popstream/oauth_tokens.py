"""Gets tokens for the mechanism OAUTHBEARER: from a token endpoint (RFC 6749, section 4.4), or from a file.

The clients of a process share the token of an endpoint until shortly before it expires. A file is read for each
connection, as something else renews it.
"""

from __future__ import annotations

import base64
import http.client
import math
import os
import re
import ssl
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from popstream.certificate_errors import why_not_trusted
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popstream.oauth_properties import TokenRequest

__all__ = ["Token", "TokenProvider", "get_token"]

TIMEOUT_S = 5.0
"""For the connection to the endpoint, and for each read."""
ANSWER_BYTES_MAX = 1024 * 1024
MARGIN_S = 30.0
"""How long before its end a token is renewed; of a short-lived one, at the last fifth."""
LIFETIME_S = 60.0
"""Of a token that does not say when it expires."""
STORE = "ssl.truststore.location of sasl.jaas.config"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, section 2.1."""
_REASON = re.compile(r"[\w.-]{1,64}", re.ASCII)
_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS = 408, 429
_TEMPORARY = frozenset((_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS))


class Token(NamedTuple):
    """A token, and the end of its life in seconds since 1970."""

    text: str
    expires_s: float

    def __repr__(self) -> str:
        return "Token(...)"


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives tokens to the clients of kafka-python.

    Args:
        get: Returns a token, as `get_token` does.
        extensions: What is sent to the broker with it.
    """

    def __init__(self, get: Callable[[], Token], extensions: Mapping[str, str]) -> None:
        super().__init__()
        self._get = get
        self._extensions = dict(extensions)

    def token(self) -> str:
        """Return a token, with the errors by which kafka-python knows that it has no connection.

        Raises:
            SaslAuthenticationFailedError: As `Invalid` in `get_token`.
            KafkaConnectionError: As `Unavailable` there.
        """
        try:
            return self._get().text
        except Invalid as error:
            raise SaslAuthenticationFailedError(str(error)) from error
        except Unavailable as error:
            raise KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """Return what is sent with the token."""
        return self._extensions


class _Held:
    """The token that clients share; the lock lets one of them renew it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token: Token | None = None
        self.renewal_s = -math.inf


_held: dict[tuple[str | bool, ...], _Held] = {}
# A lock that was held during a fork would stay so in the child.
os.register_at_fork(after_in_child=_held.clear)


def get_token(request: TokenRequest) -> Token:
    """Return a token that can be sent now.

    Raises:
        Invalid: The endpoint refuses the client, is none, or has a certificate that is not trusted; or the file cannot
            be read, or has no token.
        Unavailable: The endpoint cannot be reached or does not answer within `TIMEOUT_S`; or the token in the file has
            expired.
    """
    if not request.url:
        return _read(request.file)
    key = (request.url, request.client_id, request.client_secret, request.scope, request.encodes_credentials)
    held = _held.setdefault(key, _Held())
    with held.lock:
        if held.token is None or _now_s() >= held.renewal_s:
            held.token = _ask(request)
            lifetime_s = held.token.expires_s - _now_s()
            held.renewal_s = held.token.expires_s - min(MARGIN_S, lifetime_s / 5)
        return held.token


def _now_s() -> float:
    return time.time()


def _read(file: str) -> Token:
    where = f"the token file {file}"
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        text = ""
    except OSError as error:
        message = f"{where} cannot be read: {error.strerror}"
        raise Invalid(message, subject=file) from error
    if not _TOKEN.fullmatch(text):
        message = f"{where} has no token: write one into it, and nothing else"
        raise Invalid(message, subject=file)
    expires_s = _expiry_s(text)
    if expires_s is not None and expires_s <= _now_s():
        message = f"{where} has a token that has expired: write a new one into it"
        raise Unavailable(message, subject=file)
    return Token(text, _now_s() + LIFETIME_S if expires_s is None else expires_s)


class _Answer(msgspec.Struct):
    """RFC 6749, section 5.1; some endpoints give the number as text."""

    access_token: str = ""
    expires_in: float | str | None = None


class _Refusal(msgspec.Struct):
    """RFC 6749, section 5.2, without the description, which could repeat what was sent."""

    error: str = ""


class _Claims(msgspec.Struct):
    exp: float | None = None


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would carry id and secret to another place."""

    def redirect_request(
        self,
        req: Request,  # noqa: ARG002 - all of these are the base class's
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: http.client.HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None


def _ask(request: TokenRequest) -> Token:
    """Request a token of the endpoint."""
    try:
        opener = build_opener(_NoRedirects, HTTPSHandler(context=request.ssl_context))
        with opener.open(_post(request), timeout=TIMEOUT_S) as response:
            content = response.read(ANSWER_BYTES_MAX)
    except HTTPError as error:
        with error:
            _refuse(request, error)
    except (OSError, http.client.HTTPException) as error:
        _fail(request, error)
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except msgspec.MsgspecError:
        answer = _Answer()
    if not _TOKEN.fullmatch(answer.access_token):
        message = f"{_name(request)} answers without a token: is it the URL of the token endpoint?"
        raise Invalid(message, subject=_endpoint(request))
    return Token(answer.access_token, _end_s(answer))


def _post(request: TokenRequest) -> Request:
    client_id, secret = request.client_id, request.client_secret
    if request.encodes_credentials:
        client_id, secret = quote_plus(client_id), quote_plus(secret)
    fields = {"grant_type": "client_credentials", **({"scope": request.scope} if request.scope else {})}
    headers = {
        "Accept": "application/json",
        "Authorization": f"Basic {base64.b64encode(f'{client_id}:{secret}'.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return Request(request.url, urlencode(fields).encode(), headers)  # noqa: S310 - http or https, as was checked


def _refuse(request: TokenRequest, error: HTTPError) -> NoReturn:
    """Raise the error that an answer other than 200 means."""
    try:
        reason = msgspec.json.decode(error.read(ANSWER_BYTES_MAX), type=_Refusal).error
    except (msgspec.MsgspecError, OSError, http.client.HTTPException):
        reason = ""
    said = f"{error.code} {reason}" if _REASON.fullmatch(reason) else f"{error.code}"
    if error.code in _TEMPORARY or error.code >= http.client.INTERNAL_SERVER_ERROR:
        message = f"{_name(request)} gives no token at present ({said})"
        raise Unavailable(message, subject=_endpoint(request)) from error
    what = f"refuses the client {request.client_id} ({said}): correct its id, secret or scope in the file of"
    if error.code < http.client.BAD_REQUEST or error.code in {http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED}:
        what = f"answers {said}: correct sasl.oauthbearer.token.endpoint.url in the file of"
    message = f"{_name(request)} {what} `kafka_config`"
    raise Invalid(message, subject=_endpoint(request)) from error


def _fail(request: TokenRequest, error: Exception) -> NoReturn:
    """Raise the error that no answer means."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        host = urlsplit(request.url).hostname or ""
        message = f"{_name(request)} {why_not_trusted(cause, host, 'server', STORE)}"
        raise Invalid(message, subject=_endpoint(request)) from error
    if isinstance(cause, ssl.SSLError) and cause.reason:
        message = f"{_name(request)} does not agree on TLS: {cause.reason}"
        raise Invalid(message, subject=_endpoint(request)) from error
    message = f"{_name(request)} cannot be reached ({cause or type(cause).__name__})"
    raise Unavailable(" ".join(message.split()), subject=_endpoint(request)) from error


def _name(request: TokenRequest) -> str:
    return f"the token endpoint {_endpoint(request)}"


def _endpoint(request: TokenRequest) -> str:
    """Return the URL without its query, which may be secret."""
    return request.url.partition("?")[0]


def _end_s(answer: _Answer) -> float:
    """Return when a token expires: what the endpoint says, or what is in it."""
    now_s = _now_s()
    try:
        lifetime_s = float(answer.expires_in or "")
    except ValueError:
        lifetime_s = math.nan
    if math.isfinite(lifetime_s):
        return now_s + lifetime_s
    expires_s = _expiry_s(answer.access_token)
    return now_s + LIFETIME_S if expires_s is None else expires_s


def _expiry_s(token: str) -> float | None:
    """Return when a JSON Web Token expires, in seconds since 1970; None: it does not say, or is another token.

    >>> _expiry_s("e30." + base64.b64encode(b'{"exp":1700000000}').decode() + ".x")
    1700000000.0
    >>> _expiry_s("opaque")
    """
    parts = token.split(".")
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "==")
        return msgspec.json.decode(claims, type=_Claims).exp
    except (IndexError, ValueError, msgspec.MsgspecError):
        return None
