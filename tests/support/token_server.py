"""A token endpoint on 127.0.0.1 (RFC 6749, section 4.4), whose tokens are JSON Web Tokens."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Answer", "Asked", "TokenServer", "write_private"]

KEY_ID = "of this test"


class Asked(NamedTuple):
    """What a request has said."""

    authorization: str
    fields: dict[str, list[str]]


class Answer(NamedTuple):
    """An answer instead of a token."""

    status: int
    content: bytes = b""
    location: str = ""


class TokenServer:
    """Gives tokens to clients that know their secret; as a context manager, from entry to exit.

    Args:
        secrets: The secret of each client.
        key_store: PEM file with key and certificate; None: http.
        lifetime_s: For how many seconds a token is valid.
    """

    def __init__(self, secrets: Mapping[str, str], key_store: Path | None = None, *, lifetime_s: float = 600) -> None:
        self.secrets = dict(secrets)
        self.lifetime_s = lifetime_s
        self.asked: list[Asked] = []
        self.issued: list[str] = []
        self.answer: Answer | None = None
        self.more: dict[str, Any] = {}
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._scheme = "http" if key_store is None else "https"
        if key_store is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(key_store)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """URL of the endpoint."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def write_keys(self, path: Path) -> Path:
        """Write the key by which brokers verify tokens, as a JSON Web Key Set, and return the file."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": KEY_ID,
            "n": _bytes(numbers.n),
            "e": _bytes(numbers.e),
        }
        path.write_text(json.dumps({"keys": [key]}))
        return path

    def issue(self, client: str, **claims: object) -> str:
        """Return a new token."""
        now_s = int(time.time())
        end = {"exp": now_s + int(self.lifetime_s)}
        payload = {"sub": client, "iss": self.url, "aud": "kafka", "scope": "kafka", "iat": now_s, **end, **claims}
        payload["jti"] = str(len(self.issued))
        signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": KEY_ID}, payload))
        token = f"{signed}.{_base64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
        self.issued.append(token)
        return token

    def respond(self, asked: Asked) -> Answer:
        """Return the answer to a request."""
        self.asked.append(asked)
        if self.answer is not None:
            return self.answer
        client, _, secret = base64.b64decode(asked.authorization.removeprefix("Basic ")).decode().partition(":")
        if asked.fields.get("grant_type") != ["client_credentials"]:
            return Answer(400, b'{"error":"unsupported_grant_type"}')
        if self.secrets.get(client) != secret:
            return Answer(401, json.dumps({"error": "invalid_client", "error_description": f"not {secret}"}).encode())
        answer = {"access_token": self.issue(client), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return Answer(200, json.dumps(answer | self.more).encode())


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, and return it."""
    path.touch(0o600)
    path.write_text(text)
    return path


def _handler_of(server: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            answer = server.respond(Asked(self.headers["Authorization"], parse_qs(body)))
            self.send_response(answer.status)
            if answer.location:
                self.send_header("Location", answer.location)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


def _bytes(number: int) -> str:
    return _base64(number.to_bytes((number.bit_length() + 7) // 8))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
