"""Claim: what a broker's certificate lacks is named, and a broker that dies meanwhile is taken for no refusal.

Method: a server with TLS, of one connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from connectors.kafka.certificates import Authority
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.contextmanager
def hanging_up(key_store: Path, trust_store: Path) -> Iterator[KafkaConnection]:
    """A server that closes the connection after the handshake, without a word."""
    file = key_store.with_name("client.properties")
    file.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust_store}\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key_store)

    def accept_one() -> None:
        accepted, _ = listening.accept()
        with accepted, contextlib.suppress(OSError):  # the client hangs up when it does not trust the certificate
            context.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=accept_one)
        serving.start()
        yield KafkaConnection(f"127.0.0.1:{listening.getsockname()[1]}", str(file))
        serving.join()


def test_a_certificate_that_has_expired(authority: Authority) -> None:
    """Kafka does not start with one: it expires while it runs."""
    with hanging_up(authority.key_store("broker", days=-1), authority.trust_store) as connection:
        with pytest.raises(Invalid, match=r"has a certificate that has expired: renew it on the broker$") as raised:
            reach_kafka(connection, timeout_s=60)
        assert raised.value.subject == connection.bootstrap_servers


def test_a_certificate_of_another_address(authority: Authority) -> None:
    store = authority.key_store("broker", host="127.0.0.2")
    with (
        hanging_up(store, authority.trust_store) as connection,
        pytest.raises(Invalid, match=r"has a certificate that does not name 127\.0\.0\.1"),
    ):
        reach_kafka(connection, timeout_s=60)


def test_a_certificate_of_an_authority_that_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "other")
    with (
        hanging_up(authority.key_store("broker"), other.trust_store) as connection,
        pytest.raises(Invalid, match=r"has a certificate that is not trusted"),
    ):
        reach_kafka(connection, timeout_s=60)


def test_a_broker_that_dies_is_unavailable(authority: Authority) -> None:
    with (
        hanging_up(authority.key_store("broker"), authority.trust_store) as connection,
        pytest.raises(Unavailable, match=r"closes the connection: is security\.protocol=SSL that of its listener\?"),
    ):
        reach_kafka(connection, timeout_s=0)
