"""A certificate authority with its certificates and keys in files: for trials and tests, such as `SecuredKafka`."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates, and writes them into files of a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM).decode()
        self.trust_store = folder / f"{name}.pem"
        """PEM file with its own certificate."""
        self.trust_store.write_text(self.pem)

    def key_store(
        self, name: str, *, host: str = "127.0.0.1", password: str = "", days: int = 1, as_pkcs12: bool = False
    ) -> Path:
        """Write a key and a certificate with this CN, and return the file.

        Args:
            name: The CN.
            host: The IP address that the certificate names.
            password: Locks the key; a PKCS12 store needs one.
            days: For how long it is valid, from now on; negative: since when it is not any more.
            as_pkcs12: Write PKCS12 instead of PEM.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        certificate = (
            _builder(_named(name), self._name, key.public_key(), days)
            .add_extension(addresses, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        locked = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        if as_pkcs12:
            path = self._folder / f"{name}.p12"
            path.write_bytes(pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, locked))
            return path
        path = self._folder / f"{name}.pem"
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked) + certificate.public_bytes(Encoding.PEM)
        path.write_bytes(pem)
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 1
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    end = now + days * DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - DAY)
        .not_valid_after(end)
    )
