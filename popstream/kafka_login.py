"""One connection to a broker, up to the first answer to a request; says why it does not come about.

kafka-python reports a refused login or certificate as a lost connection, and tries again until it times out.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalSaslStateError, NoError, UnsupportedSaslMechanismError, for_code
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from popstream.certificate_errors import why_not_trusted
from popstream.oauth_tokens import TokenProvider, get_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRWPair

    from popstream.client_properties import ClientProperties

__all__ = ["ClosedError", "RefusedError", "log_in"]

# Versions that all brokers since Kafka 1.0 understand.
METADATA, HANDSHAKE, AUTHENTICATE = 4, 1, 0
ANSWER_BYTES_MAX = 1024 * 1024
INT32 = struct.Struct(">i")

NOT_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"))


class RefusedError(Exception):
    """One side refuses the other: to try again cannot help. Its text completes "Kafka at ..."."""


class ClosedError(Exception):
    """The broker has closed the connection instead of answering. Its text completes "Kafka at ..."."""


def log_in(opened: socket.socket, host: str, properties: ClientProperties | None) -> None:
    """Encrypt a connection and log in, as the properties say, and make a request.

    Args:
        opened: The connection, with a time-out.
        host: The host that the broker's certificate must name.
        properties: None: without encryption and login.

    Raises:
        RefusedError: A certificate, the login, or its mechanism is refused.
        ClosedError: The broker closes the connection.
        Invalid: There is no token for the login, as of `get_token`.
        Unavailable: Likewise, for now.
        OSError: It does not answer, or has not started yet.
    """
    with (
        _encrypted(opened, host, properties) as connection,
        _errors_of_answers(properties),
        connection.makefile("rwb") as stream,
    ):
        if properties is not None and properties.sasl_mechanism:
            _authenticate(stream, host, properties)
        request = MetadataRequest(topics=MetadataRequest.NO_TOPICS, version=METADATA)
        answer = _ask(stream, request, MetadataResponse)
    if not answer.brokers:
        message = "the broker has not started yet"
        raise ConnectionError(message)


@contextlib.contextmanager
def _encrypted(opened: socket.socket, host: str, properties: ClientProperties | None) -> Iterator[socket.socket]:
    if properties is None or properties.ssl_context is None:
        yield opened
        return
    try:
        encrypted = properties.ssl_context.wrap_socket(opened, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(why_not_trusted(error, host, "broker", "ssl.truststore.location")) from error
    except ssl.SSLError as error:
        if not error.reason or error.reason in NOT_TLS or isinstance(error, ssl.SSLEOFError):
            raise ClosedError(_not_its_protocol(properties)) from error
        message = f"does not agree on TLS: {error.reason}"
        raise RefusedError(message) from error
    except ConnectionError as error:
        raise ClosedError(_not_its_protocol(properties)) from error
    with encrypted:
        yield encrypted


@contextlib.contextmanager
def _errors_of_answers(properties: ClientProperties | None) -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError, ssl.SSLEOFError) as error:
        raise ClosedError(_not_its_protocol(properties)) from error
    except ssl.SSLError as error:  # with TLS 1.3 the broker looks at the client's certificate after the handshake
        has_key = properties is not None and properties.key_pair is not None
        message = (
            f"refuses the client's certificate ({error.reason}): is it valid, and signed by an authority that the"
            " broker trusts? Renew that of ssl.keystore.location"
            if has_key
            else "requires a certificate of the client: set ssl.keystore.location"
        )
        raise RefusedError(message) from error


def _authenticate(stream: BufferedRWPair, host: str, properties: ClientProperties) -> None:
    mechanism = properties.sasl_mechanism
    answer = _ask(stream, SaslHandshakeRequest(mechanism=mechanism, version=HANDSHAKE), SaslHandshakeResponse)
    refusal = for_code(answer.error_code)
    if refusal is UnsupportedSaslMechanismError:
        message = f"does not support sasl.mechanism={mechanism}, but {', '.join(answer.mechanisms)}"
        raise RefusedError(message)
    if refusal is IllegalSaslStateError:
        message = f"expects no login: security.protocol={properties.security_protocol} is not that of its listener"
        raise RefusedError(message)
    _require(refusal, answer)
    login = _login(host, properties)
    while not login.is_done():
        request = SaslAuthenticateRequest(login.auth_bytes(), version=AUTHENTICATE)
        answer = _ask(stream, request, SaslAuthenticateResponse)
        if for_code(answer.error_code) is not NoError:
            raise RefusedError(_why_refused(properties, answer.error_message))
        try:
            login.receive(answer.auth_bytes)
        except ValueError as error:
            message = f"does not prove that it knows the password of the user {properties.username}: {error}"
            raise RefusedError(message) from error


def _login(host: str, properties: ClientProperties) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Return kafka-python's state of a login."""
    request, provider = properties.token_request, None
    if request is not None:
        token = get_token(request)
        provider = TokenProvider(lambda: token, request.extensions)
    return get_sasl_mechanism(properties.sasl_mechanism)(
        host=host,
        security_protocol=properties.security_protocol,
        sasl_mechanism=properties.sasl_mechanism,
        sasl_plain_username=properties.username,
        sasl_plain_password=properties.password,
        sasl_oauth_token_provider=provider,
    )


def _why_refused(properties: ClientProperties, reason: str) -> str:
    if properties.token_request is not None:
        return (
            f"refuses the token of the {properties.token_request} ({reason}): does it accept tokens of this issuer, for"
            " this audience, and are the clocks right?"
        )
    return (
        f"refuses the login of the user {properties.username} ({reason}): correct user or password in"
        " sasl.jaas.config, or create the user"
    )


def _ask(stream: BufferedRWPair, request: Any, answer: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Send a request and return its answer, an object of the class `answer`."""
    request.with_header(client_id="popstream")
    stream.write(request.encode(framed=True, header=True))
    stream.flush()
    size = stream.read(INT32.size)
    if len(size) < INT32.size or not 0 < INT32.unpack(size)[0] <= ANSWER_BYTES_MAX:
        raise EOFError  # closed, or no Kafka protocol
    return answer.decode(stream.read(*INT32.unpack(size)), version=request.API_VERSION, header=True)


def _require(error: type[Exception], answer: object) -> None:
    if error is not NoError:
        message = f"refuses the login: {error.__name__}: {answer}"
        raise RefusedError(message)


def _not_its_protocol(properties: ClientProperties | None) -> str:
    if properties is None:
        return (
            "closes the connection: its listener may require encryption or a login, which the file of `kafka_config`"
            " would set"
        )
    return f"closes the connection: is security.protocol={properties.security_protocol} that of its listener?"
