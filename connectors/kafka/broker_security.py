"""TLS, SCRAM, OAUTHBEARER and Kafka's ACLs for an embedded broker, as in a cluster that is run for others.

The user `admin` may do everything, and makes users and ACLs; the password is in `admin.properties` in the broker's
folder. Broker and controller prove themselves to each other with the broker's certificate.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from base64 import b64encode
from pathlib import Path
from typing import Literal

import msgspec

from popstream.client_properties import read_client_properties
from popstream.oauth_properties import MODULE as OAUTH

__all__ = ["ADMIN", "SCRAM", "BrokerSecurity"]

ADMIN = "admin"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Property of a JVM since Kafka 4.0: what it may ask for keys and for tokens, separated by commas."""
ITERATIONS = 4096
"""Kafka's least number."""


class BrokerSecurity(msgspec.Struct, frozen=True):
    """What a broker needs for encrypted connections.

    Attributes:
        key_store: PEM file with the broker's key, as PKCS8, and its certificate, which must name 127.0.0.1.
        trust_store: PEM file with the certificates that sign those of the broker and of clients.
        name: Common name (CN) in the broker's certificate.
        protocol: `SASL_SSL`: users log in with SCRAM. `SSL`: clients bring certificates; the CN is the user.
        has_anonymous: With `SSL`: a client may come without a certificate, and is the user `ANONYMOUS`.
        jwks: With `SASL_SSL`: file with a JSON Web Key Set (RFC 7517), by whose keys tokens are signed. Users may also
            log in with OAUTHBEARER then; the claim `sub` is the user.
    """

    key_store: Path
    trust_store: Path
    name: str
    protocol: Literal["SASL_SSL", "SSL"] = "SASL_SSL"
    has_anonymous: bool = False
    jwks: Path | None = None

    @property
    def java_options(self) -> list[str]:
        """Flags that the broker's JVM needs."""
        return [f"-D{ALLOWED_URLS}={_url(self.jwks)}"] if self.jwks is not None else []

    def write_admin(self, path: Path) -> None:
        """Write the file by which clients connect as `admin`, unless it is there."""
        if path.exists():
            return
        lines = {"security.protocol": self.protocol, **_stores("truststore", self.trust_store)}
        if self.protocol == "SSL":
            lines |= _stores("keystore", self.key_store)
        else:
            lines["sasl.mechanism"] = "SCRAM-SHA-512"
            lines["sasl.jaas.config"] = f'{SCRAM} required username="{ADMIN}" password="{secrets.token_urlsafe(24)}";'
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.writelines(f"{name}={value}\n" for name, value in lines.items())

    def format_arguments(self, admin: Path) -> list[str]:
        """Return arguments of Kafka's storage tool that create the user `admin`."""
        if self.protocol == "SSL":
            return []
        # Salted, because everybody on the machine may see the arguments of a process.
        salt, password = secrets.token_bytes(16), read_client_properties(admin).password
        salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
        fields = {
            "name": ADMIN,
            "iterations": str(ITERATIONS),
            "salt": _base64(salt),
            "saltedpassword": _base64(salted),
        }
        return ["--add-scram", f"SCRAM-SHA-512=[{','.join(f'{name}={value}' for name, value in fields.items())}]"]

    def server_settings(self, listener: str, admin: Path) -> dict[str, str]:
        """Return the broker's settings, with `listener` as the name of the one for clients."""
        clients = f"listener.name.{listener.lower()}"
        settings = {
            "listener.security.protocol.map": f"{listener}:{self.protocol},CONTROLLER:SSL",
            "inter.broker.listener.name": listener,
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:{self.name}",
            **_stores("keystore", self.key_store),
            **_stores("truststore", self.trust_store),
        }
        if self.protocol == "SSL":
            return settings | {f"{clients}.ssl.client.auth": "requested" if self.has_anonymous else "required"}
        if self.jwks is not None:
            settings |= {
                f"{clients}.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
                f"{clients}.oauthbearer.sasl.jaas.config": f"{OAUTH} required;",
                "sasl.oauthbearer.jwks.endpoint.url": _url(self.jwks),
            }
        return settings | {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256" + (",OAUTHBEARER" if self.jwks else ""),
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            f"{clients}.scram-sha-512.sasl.jaas.config": read_client_properties(admin).entries["sasl.jaas.config"],
            f"{clients}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        }


def _stores(kind: str, path: Path) -> dict[str, str]:
    return {f"ssl.{kind}.type": "PEM", f"ssl.{kind}.location": str(path.absolute())}


def _url(path: Path) -> str:
    return f"file://{path.absolute()}"  # not percent-encoded, as Kafka does not decode it


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")
