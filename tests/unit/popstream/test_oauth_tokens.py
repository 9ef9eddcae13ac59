"""Claim: a token is requested with the client's credentials and used until shortly before it expires; that there is
none is one line, without secrets.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import socket
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.sasl.oauth import SaslMechanismOAuth

from connectors.kafka.certificates import Authority
from popstream import oauth_tokens
from popstream.client_properties import read_client_properties
from popstream.kafka_connection import KafkaConnection
from popstream.oauth_properties import TokenRequest
from popstream.oauth_tokens import Token, TokenProvider, get_token
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable
from tests.support.token_server import Answer, TokenServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "canary 51%c0+é"  # noqa: S105 - not one


@dataclasses.dataclass
class Clock:
    now_s: float = 1_700_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(oauth_tokens, "_now_s", lambda: clock.now_s)
    return clock


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer({"job": SECRET}) as server:
        yield server


def request_to(server: TokenServer, secret: str = SECRET) -> TokenRequest:
    return TokenRequest(url=server.url, client_id="job", client_secret=secret)


def refusal(request: TokenRequest) -> PopstreamError:
    with pytest.raises(PopstreamError) as raised:
        get_token(request)
    text = f"{raised.value} {raised.value!r} {raised.value.subject}"
    assert "\n" not in text
    assert "canary" not in text
    return raised.value


def test_the_request_is_that_of_the_grant(server: TokenServer) -> None:
    assert get_token(msgspec.structs.replace(request_to(server), scope="a b&c")).text == server.issued[0]
    (asked,) = server.asked
    assert asked.fields == {"grant_type": ["client_credentials"], "scope": ["a b&c"]}
    assert base64.b64decode(asked.authorization.removeprefix("Basic ")).decode() == f"job:{SECRET}"
    server.answer = Answer(200, b'{"access_token":"abc"}')
    get_token(msgspec.structs.replace(request_to(server), encodes_credentials=True))
    assert server.asked[1].fields == {"grant_type": ["client_credentials"]}
    encoded = base64.b64decode(server.asked[1].authorization.removeprefix("Basic ")).decode()
    assert encoded == "job:canary+51%25c0%2B%C3%A9"


def test_a_token_is_used_until_shortly_before_it_expires(server: TokenServer, clock: Clock) -> None:
    request = request_to(server)
    first = get_token(request)
    assert first.expires_s == clock.now_s + 600
    clock.now_s += 569
    assert get_token(request) is first
    clock.now_s += 1
    server.lifetime_s = 10
    second = get_token(request)
    assert second.text != first.text
    clock.now_s += 7.9
    assert get_token(request) is second
    clock.now_s += 0.1
    assert get_token(request) is not second


def test_clients_share_a_token_but_not_with_another_secret(server: TokenServer) -> None:
    threads = [threading.Thread(target=get_token, args=(request_to(server),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.issued) == 1
    assert isinstance(refusal(request_to(server, "canary of another")), Invalid)
    server.secrets["job"] = "a new one"
    assert get_token(request_to(server, "a new one")).text == server.issued[1]


@pytest.mark.parametrize(
    ("more", "lifetime_s"),
    [
        ({"expires_in": "120"}, 120),
        ({"expires_in": None}, 60),
        ({"expires_in": "soon"}, 60),
        ({"expires_in": "nan"}, 60),
        ({"expires_in": None, "access_token": "e30.eyJleHAiOjE3MDAwMDAwOTl9.x"}, 99),
    ],
)
def test_the_end_of_a_token_is_what_is_said_of_it(
    server: TokenServer, clock: Clock, more: dict[str, str | None], lifetime_s: float
) -> None:
    server.more = {"access_token": "opaque", **more}
    assert get_token(request_to(server)).expires_s == clock.now_s + lifetime_s


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (Answer(400, b'{"error":"invalid_scope"}'), Invalid, "refuses the client job (400 invalid_scope): correct its"),
        (Answer(403, b"<html>"), Invalid, "refuses the client job (403): correct its id, secret or scope in the file"),
        (Answer(401, b'{"error":"canary 51"}'), Invalid, "refuses the client job (401): "),
        (Answer(404), Invalid, "answers 404: correct sasl.oauthbearer.token.endpoint.url in the file of"),
        (Answer(302, b"", "http://127.0.0.1:1/"), Invalid, "answers 302: correct sasl.oauthbearer.token.endpoint.url"),
        (Answer(503, b"canary"), Unavailable, "gives no token at present (503)"),
        (Answer(429, b'{"error":"slow_down"}'), Unavailable, "gives no token at present (429 slow_down)"),
        (Answer(200, b'{"token":"canary"}'), Invalid, "answers without a token: is it the URL of the token endpoint?"),
        (Answer(200, b'{"access_token":"canary \\u0001"}'), Invalid, "answers without a token"),
        (Answer(200, b"<html>canary"), Invalid, "answers without a token"),
    ],
)
def test_an_answer_without_a_token_is_named(
    server: TokenServer, answer: Answer, kind: type[PopstreamError], said: str
) -> None:
    server.answer = answer
    found = refusal(msgspec.structs.replace(request_to(server), url=f"{server.url}?key=canary"))
    assert type(found) is kind
    assert str(found).startswith(f"the token endpoint {server.url} {said}")


def test_a_wrong_secret_is_refused_and_the_next_request_is_sent(server: TokenServer) -> None:
    request = request_to(server, "canary")
    assert str(refusal(request)).startswith(f"the token endpoint {server.url} refuses the client job (401 invalid_cl")
    server.secrets["job"] = "canary"
    assert get_token(request).text == server.issued[0]


def test_an_endpoint_that_cannot_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/token"
    found = refusal(TokenRequest(url=url, client_id="job", client_secret=SECRET))
    assert isinstance(found, Unavailable)
    assert str(found) == f"the token endpoint {url} cannot be reached ([Errno 111] Connection refused)"


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth_tokens, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        found = refusal(TokenRequest(url=url, client_id="job", client_secret=SECRET))
    assert isinstance(found, Unavailable)
    assert "cannot be reached (timed out)" in str(found)


def test_tls_trusts_the_store_of_the_login_module(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    with TokenServer({"job": "x"}, ours.key_store("endpoint")) as server:
        text = (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
            f"sasl.oauthbearer.token.endpoint.url={server.url}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            ' clientId="job" clientSecret="x" ssl.truststore.type="PEM" ssl.truststore.location="%s";\n'
        )

        def request_by(authority: Authority) -> TokenRequest:
            file = tmp_path / "client.properties"
            file.write_text(text % authority.trust_store)
            request = read_client_properties(file).token_request
            assert request is not None
            return request

        said = "put the certificate of the authority that signed it into ssl.truststore.location of sasl.jaas.config"
        assert str(refusal(request_by(other))).endswith(f"has a certificate that is not trusted: {said}")
        assert get_token(request_by(ours)).text == server.issued[0]
        by_name = msgspec.structs.replace(request_by(ours), url=server.url.replace("127.0.0.1", "localhost"))
        assert "has a certificate that does not name localhost" in str(refusal(by_name))
        plain = msgspec.structs.replace(request_by(ours), url=server.url.replace("https", "http"))
        assert isinstance(refusal(plain), Unavailable)


def test_a_file_is_read_each_time(tmp_path: Path, server: TokenServer) -> None:
    file = tmp_path / "token"
    request = TokenRequest(file=str(file))
    for token in (server.issue("a"), server.issue("b")):
        file.write_text(f"{token}\n")
        assert get_token(request).text == token
    assert server.asked == []


def test_a_file_without_a_token_is_named(tmp_path: Path, server: TokenServer) -> None:
    file = tmp_path / "token"
    request = TokenRequest(file=str(file))
    missing = refusal(request)
    assert (type(missing), str(missing)) == (
        Invalid,
        f"the token file {file} cannot be read: No such file or directory",
    )
    for content in (b"", b"two canaries\n", b"\xff"):
        file.write_bytes(content)
        assert str(refusal(request)) == f"the token file {file} has no token: write one into it, and nothing else"
    file.write_text(server.issue("job", exp=1_600_000_000))
    expired = refusal(request)
    assert isinstance(expired, Unavailable)
    assert str(expired).endswith("has a token that has expired: write a new one into it")


def test_what_is_printed_has_no_secret(server: TokenServer) -> None:
    request = request_to(server)
    token = get_token(request)
    provider = TokenProvider(lambda: token, {})
    printed = f"{request!r} {request} {token!r} {provider!r} {provider}"
    assert SECRET not in printed
    assert token.text not in printed


def test_kafka_python_sends_token_and_extensions() -> None:
    provider = TokenProvider(lambda: Token("abc", 0), {"logicalCluster": "lkc-1"})
    login = SaslMechanismOAuth(sasl_oauth_token_provider=provider)
    assert login.auth_bytes() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"


@pytest.mark.parametrize(
    ("error", "raised"), [(Invalid("no"), SaslAuthenticationFailedError), (Unavailable("no"), KafkaConnectionError)]
)
def test_kafka_python_gets_its_own_errors(error: PopstreamError, raised: type[Exception]) -> None:
    def fail() -> Token:
        raise error

    with pytest.raises(raised, match="no"):
        TokenProvider(fail, {}).token()


def test_both_libraries_get_the_same_token(tmp_path: Path, server: TokenServer) -> None:
    file = tmp_path / "client.properties"
    escaped = SECRET.replace("é", "\\u00e9")
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={server.url}\n"
        "sasl.oauthbearer.client.credentials.client.id=job\n"
        f"sasl.oauthbearer.client.credentials.client.secret={escaped}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        ' extension_pool="p";\n'
    )
    connection = KafkaConnection("kafka:9092", str(file))
    provider = connection.for_kafka_python()["sasl_oauth_token_provider"]
    text, expires_s, _, extensions = connection.for_librdkafka()["oauth_cb"]("")
    assert [provider.token()] == [text] == server.issued
    assert expires_s == get_token(request_to(server)).expires_s
    assert provider.extensions() == extensions == {"pool": "p"}


def test_a_child_waits_for_no_lock_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oauth_tokens._held, ("a request of the parent",), oauth_tokens._Held())
    child = os.fork()
    if not child:
        os._exit(len(oauth_tokens._held))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert oauth_tokens._held
