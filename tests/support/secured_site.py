"""What tests alone ask of a secured broker and of an authority."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from popstream.oauth_properties import HANDLER_CLASS, MODULE
from tests.support.threads import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.kafka.certificates import Authority
    from connectors.kafka.secured_kafka import SecuredKafka
    from popstream.kafka_connection import KafkaConnection

__all__ = ["login_by_token", "pkcs12_trust_store", "wait_until_gone"]


def login_by_token(broker: SecuredKafka, name: str, **lines: str | None) -> KafkaConnection:
    """Write the file by which a client connects with tokens (OAUTHBEARER), and return the connection.

    `lines` are more lines of it, with underscores for dots, such as where to get a token; None leaves one out.
    """
    own = {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_jaas_config": f"{MODULE} required;",
        "sasl_login_callback_handler_class": HANDLER_CLASS,
    }
    return broker.login(name, "", **(own | lines))


def wait_until_gone(broker: SecuredKafka, topic: str) -> None:
    """Wait until a topic is deleted."""
    with broker.admin() as admin:
        eventually(lambda: topic not in admin.list_topics())


def pkcs12_trust_store(authority: Authority, password: str) -> Path:
    """Write the certificate of an authority as keytool does, and return the file."""
    entry = pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(authority.pem.encode()), b"authority")
    path = authority.trust_store.parent / "trust.p12"
    path.write_bytes(pkcs12.serialize_java_truststore([entry], BestAvailableEncryption(password.encode())))
    return path
