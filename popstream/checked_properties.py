"""The settings of a `client.properties`, checked while they are read; an error names the file and the line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from popstream.key_stores import StoreError, is_jks, pem_certificates, pkcs12_certificates
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popstream.java_properties import Property

__all__ = ["CheckedProperties"]

STORE_TYPES = ("PEM", "PKCS12", "JKS")


class CheckedProperties:
    """Settings of one file, or those inside one of them. What is wrong raises `Invalid`, without values of secrets.

    Args:
        path: The file.
        found: The settings by name.
        inside: The setting that they are part of, if any.
    """

    def __init__(self, path: Path, found: Mapping[str, Property], inside: str = "") -> None:
        self.path = path
        self.found = found
        self._of = f" of {inside}" if inside else ""

    def value(self, name: str, default: str = "") -> str:
        """Return a value without blanks around it."""
        return self.found[name].value.strip() if name in self.found else default

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return a value, which must be one of those that are allowed."""
        value = self.value(name, default)
        if value not in allowed:
            self.refuse(name, f"must be one of {', '.join(allowed)}, not {value}")
        return value

    def trusted_pem(self) -> str:
        """Return the certificates of the trust store as PEM text; empty: none is set."""
        inline, location = "ssl.truststore.certificates", "ssl.truststore.location"
        if inline in self.found:
            self.require_pem("ssl.truststore.type", inline)
            with self.store_errors(inline):
                return pem_certificates(self.value(inline))
        if location not in self.found:
            return ""
        content = self.store(location)
        with self.store_errors(location):
            if self.is_pem("ssl.truststore.type", location, content):
                return pem_certificates(content.decode("ascii", "replace"))
            return pkcs12_certificates(content, self.value("ssl.truststore.password"))

    def store(self, name: str) -> bytes:
        """Return the content of a store that Python can read, by the setting that names it."""
        path = Path(self.value(name)).absolute()
        try:
            content = path.read_bytes()
        except OSError as error:
            self.refuse(name, f"names {path}, which cannot be read: {error.strerror}", error)
        if is_jks(content):
            target = path.with_suffix(".p12")
            convert = (
                f"keytool -importkeystore -srckeystore {path} -srcstoretype JKS"
                f" -destkeystore {target} -deststoretype PKCS12"
            )
            self.refuse(
                name, f"names a JKS store, which only Java can read: convert it with `{convert}`, and name {target}"
            )
        return content

    def is_pem(self, type_name: str, name: str, content: bytes) -> bool:
        """Return whether a store is PEM; Java opens a PKCS12 store also as JKS, which is the default type."""
        is_pem = self.one_of(type_name, STORE_TYPES, "JKS") == "PEM"
        if not is_pem and b"-----BEGIN" in content:
            self.refuse(name, f"names a PEM store: set {type_name}=PEM")
        return is_pem

    def require_pem(self, type_name: str, name: str) -> None:
        """Refuse PEM text in the file whose type says something else."""
        if self.one_of(type_name, STORE_TYPES, "JKS") != "PEM":
            self.refuse(name, f"is PEM text: set {type_name}=PEM")

    @contextlib.contextmanager
    def store_errors(self, name: str) -> Iterator[None]:
        """Refuse the setting whose store cannot be opened."""
        try:
            yield
        except StoreError as error:
            self.refuse(name, str(error), error)

    def refuse(self, name: str, what: str, cause: Exception | None = None) -> NoReturn:
        """Refuse a setting, which may be missing.

        Args:
            name: Its name.
            what: What is wrong; completes the name.
            cause: What has shown it.

        Raises:
            Invalid: Always; with the line, if there is one.
        """
        what = f"{name}{self._of} {what}"
        if name in self.found:
            self.refuse_line(self.found[name].line, what, cause)
        message = f"{self.path}: {what}"
        raise Invalid(message, subject=str(self.path)) from cause

    def refuse_line(self, line: int, what: str, cause: Exception | None = None) -> NoReturn:
        """Refuse a line.

        Raises:
            Invalid: Always.
        """
        message = f"{self.path}, line {line}: {what}"
        raise Invalid(message, subject=str(self.path)) from cause
