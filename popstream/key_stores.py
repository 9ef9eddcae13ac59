"""Reads the stores of keys and certificates that Kafka's clients know: PEM, and PKCS12 with `popstream[pkcs12]`.

Everything becomes PEM text, which Python's `ssl` and librdkafka both take.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "TLS_VERSIONS",
    "KeyPair",
    "StoreError",
    "TlsVersions",
    "is_jks",
    "is_locked_by_pbes2",
    "pem_certificates",
    "pem_key_pair",
    "pkcs12_certificates",
    "pkcs12_key_pair",
    "tls_context",
]

_PEM = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+([^-]*)-+END \1-+")
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_LINE = 64
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier 1.2.840.113549.1.5.13, as DER."""


class StoreError(ValueError):
    """A store cannot be opened. Its text completes "ssl.keystore.location ..."."""


class KeyPair(NamedTuple):
    """A private key and the certificates that prove it, the client's own first. `password` opens the key."""

    certificates_pem: str
    key_pem: str
    password: str

    def __repr__(self) -> str:
        return "KeyPair(...)"


class TlsVersions(NamedTuple):
    """The versions of TLS that a client offers: these two, and what is between them."""

    lowest: ssl.TLSVersion
    highest: ssl.TLSVersion


TLS_VERSIONS = TlsVersions(ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
"""All that are used."""


def is_jks(content: bytes) -> bool:
    """Return whether a store has Java's own old format, which nothing but Java reads."""
    return content.startswith(_JKS_MAGIC)


def is_locked_by_pbes2(key_pem: str) -> bool:
    """Return whether a private key is locked by PBES2 (RFC 8018), as OpenSSL does today.

    >>> is_locked_by_pbes2("-----BEGIN PRIVATE KEY----- MIGHAgEAMBMG -----END PRIVATE KEY-----")
    False
    """
    return any(
        label == "ENCRYPTED PRIVATE KEY" and _PBES2 in base64.b64decode("".join(block.splitlines()[1:-1]))
        for label, block in _blocks(key_pem)
    )


def pem_certificates(text: str) -> str:
    """Return the certificates in a PEM text, one line of base64 for each 64 characters, as OpenSSL wants them.

    Kafka also takes PEM text whose lines are separated by spaces, as it is in a properties file.

    >>> print(pem_certificates("-----BEGIN CERTIFICATE----- TUlJQg== -----END CERTIFICATE-----"))
    -----BEGIN CERTIFICATE-----
    TUlJQg==
    -----END CERTIFICATE-----
    <BLANKLINE>

    Raises:
        StoreError: There is none.
    """
    found = [block for label, block in _blocks(text) if label == "CERTIFICATE"]
    if not found:
        message = "has no certificate in PEM format"
        raise StoreError(message)
    return "".join(found)


def pem_key_pair(certificates: str, key: str, password: str) -> KeyPair:
    """Return the key in one PEM text and the certificates in another, which may be the same.

    Raises:
        StoreError: There is no key, or no certificate.
    """
    keys = [block for label, block in _blocks(key) if label in {"PRIVATE KEY", "ENCRYPTED PRIVATE KEY"}]
    if not keys:
        message = "has no private key in PEM format (PKCS8: BEGIN PRIVATE KEY or BEGIN ENCRYPTED PRIVATE KEY)"
        raise StoreError(message)
    return KeyPair(pem_certificates(certificates), keys[0], password)


def pkcs12_certificates(content: bytes, password: str) -> str:
    """Return all certificates of a PKCS12 store as PEM text.

    Raises:
        StoreError: It cannot be opened, or has none.
    """
    _, certificates = _pkcs12(content, password)
    if not certificates:
        message = "has no certificate"
        raise StoreError(message)
    return certificates


def pkcs12_key_pair(content: bytes, password: str) -> KeyPair:
    """Return the key of a PKCS12 store, locked with another password, and its certificates.

    Raises:
        StoreError: It cannot be opened, or has no key or no certificate.
    """
    key_pem, certificates = _pkcs12(content, password, key_password := secrets.token_hex(16))
    if not key_pem or not certificates:
        message = "has no private key with a certificate"
        raise StoreError(message)
    return KeyPair(certificates, key_pem, key_password)


def tls_context(
    trusted_pem: str, key_pair: KeyPair | None, *, checks_host_name: bool, versions: TlsVersions = TLS_VERSIONS
) -> ssl.SSLContext:
    """Return a context of Python's `ssl`.

    Args:
        trusted_pem: Certificates that sign those of servers; empty: those that the system trusts.
        key_pair: The client's own, if it has any.
        checks_host_name: Whether the certificate of a server must name its host.
        versions: Versions of TLS.

    Raises:
        StoreError: The certificates are none, or the password does not open the key, or the key is of another
            certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.maximum_version = versions
    context.check_hostname = checks_host_name
    try:
        if trusted_pem:
            context.load_verify_locations(cadata=trusted_pem)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        message = "has a certificate that cannot be read"
        raise StoreError(message) from error
    if key_pair is not None:
        _load(context, key_pair)
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    # `ssl` takes a key from a file only. It is as well locked there as in its store, and for this moment.
    with tempfile.TemporaryDirectory(prefix="popstream-") as folder:
        file = Path(folder, "key.pem")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write(pair.key_pem + pair.certificates_pem)
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(file, password=lambda: pair.password)
        except (ssl.SSLError, ValueError) as error:
            is_other = "KEY_VALUES_MISMATCH" in str(error)
            what = "is not the key of the certificate" if is_other else "cannot be opened: is ssl.key.password right?"
            message = f"has a private key that {what}"
            raise StoreError(message) from error


def _blocks(pem: str) -> list[tuple[str, str]]:
    """Return label and normalized text of each block of PEM."""
    found = []
    for label, body in _PEM.findall(pem):
        text = "".join(body.split())
        lines = "".join(f"{text[at : at + _LINE]}\n" for at in range(0, len(text), _LINE))
        found.append((label, f"-----BEGIN {label}-----\n{lines}-----END {label}-----\n"))
    return found


def _pkcs12(content: bytes, password: str, key_password: str = "") -> tuple[str, str]:
    """Return the key, locked with `key_password`, and all certificates of a store; each may be empty."""
    try:
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - an optional dependency
            BestAvailableEncryption,
            Encoding,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        message = "is a PKCS12 store, which needs cryptography: pip install 'popstream[pkcs12]', or use PEM"
        raise StoreError(message) from error
    try:
        store = pkcs12.load_pkcs12(content, password.encode())
    except ValueError as error:
        message = "is not a PKCS12 store, or its password is wrong"
        raise StoreError(message) from error
    certificates = [*([store.cert] if store.cert else []), *store.additional_certs]
    chain = b"".join(found.certificate.public_bytes(Encoding.PEM) for found in certificates)
    if store.key is None or not key_password:
        return "", chain.decode()
    encryption = BestAvailableEncryption(key_password.encode())
    return store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode(), chain.decode()
