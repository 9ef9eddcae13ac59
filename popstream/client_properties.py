"""Reads `client.properties`: how to connect to a secured Kafka, in the format and with the names of Kafka's own tools.

```
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="job" password="...";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/popstream/ca.pem
```

Names and defaults are those of Kafka's Java client (https://kafka.apache.org/documentation/#security), so Spark's
source takes them as they are; `kafka_connection.py` translates them for kafka-python and librdkafka.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from popstream.java_properties import Property, PropertyError, parse_properties
from popstream.key_stores import (
    KeyPair,
    StoreError,
    is_jks,
    pem_certificates,
    pem_key_pair,
    pkcs12_certificates,
    pkcs12_key_pair,
    tls_context,
)
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SECRETS", "ClientProperties", "read_client_properties"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
STORE_TYPES = ("PEM", "PKCS12", "JKS")
DNS_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
SECRETS = frozenset(
    ("sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password")
)
"""Names whose values stay in the file."""
NAMES = SECRETS | {
    "bootstrap.servers",
    "client.dns.lookup",
    "sasl.mechanism",
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
}

_OPTION = r"(\w+)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|([^\s\";=]+))"
_JAAS = re.compile(rf"\s*([\w.$]+)\s+required((?:\s+{_OPTION})*)\s*;\s*", re.DOTALL)


class ClientProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file and of the stores that it names.

    Attributes:
        entries: Names and values as they are in the file.
        security_protocol: One of `PROTOCOLS`.
        sasl_mechanism: One of `LOGIN_MODULES`; empty without SASL.
        username: With SASL only.
        password: With SASL only.
        trusted_pem: Certificates that sign those of brokers; empty: those that the system trusts.
        key_pair: The client's own, if it has any.
        ssl_context: Of the two above, for Python; None without TLS.
    """

    entries: dict[str, str]
    security_protocol: str
    sasl_mechanism: str = ""
    username: str = ""
    password: str = ""
    trusted_pem: str = ""
    key_pair: KeyPair | None = None
    ssl_context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"ClientProperties({self.security_protocol})"

    @property
    def bootstrap_servers(self) -> str:
        """Servers for those who name no others; may be empty."""
        return self.entries.get("bootstrap.servers", "")


def read_client_properties(path: Path) -> ClientProperties:
    """Read a file and the stores that it names, whose paths are relative to the working directory, as in Kafka's tools.

    Raises:
        Invalid: The file cannot be read, has a setting that is unknown, wrong or missing, or names a store that cannot
            be opened. The message has the file and the line, and no value that may be a secret.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"the Kafka configuration {path} cannot be read: {error.strerror}"
        raise Invalid(message, subject=str(path)) from error
    return _File(path, content).read()


class _File:
    """One file, whose entries are checked as they are read."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._found: dict[str, Property] = {}
        try:
            for entry in parse_properties(content):
                self._add(entry)
        except PropertyError as error:
            self._refuse_line(error.line, str(error), error)

    def read(self) -> ClientProperties:
        """Return what the file says."""
        protocol = self._one_of("security.protocol", PROTOCOLS, "PLAINTEXT")
        self._one_of("client.dns.lookup", DNS_LOOKUPS, DNS_LOOKUPS[0])
        login: Mapping[str, str] = self._login() if protocol.startswith("SASL_") else {}
        trusted_pem, key_pair, context = "", None, None
        if protocol.endswith("SSL"):
            trusted_pem, key_pair = self._trusted(), self._key_pair()
            context = self._context(trusted_pem, key_pair)
        self._refuse_unused(protocol)
        return ClientProperties(
            entries={name: entry.value for name, entry in self._found.items()},
            security_protocol=protocol,
            trusted_pem=trusted_pem,
            key_pair=key_pair,
            ssl_context=context,
            **login,
        )

    def _add(self, entry: Property) -> None:
        name = entry.name
        if name not in NAMES:
            similar = difflib.get_close_matches(name, sorted(NAMES), n=1, cutoff=0.8)
            hint = f"did you mean {similar[0]}?" if similar else "remove it"
            self._refuse_line(entry.line, f"popstream knows no setting {name} of a connection: {hint}")
        if name in self._found:
            self._refuse_line(entry.line, f"{name} is set in line {self._found[name].line} already")
        self._found[name] = entry

    def _value(self, name: str, default: str = "") -> str:
        return self._found[name].value.strip() if name in self._found else default

    def _one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self._value(name, default)
        if value not in allowed:
            self._refuse(name, f"must be one of {', '.join(allowed)}, not {value}")
        return value

    def _login(self) -> dict[str, str]:
        mechanism = self._value("sasl.mechanism")
        if mechanism not in LOGIN_MODULES:
            found = f", not {mechanism}" if mechanism else ""
            self._refuse("sasl.mechanism", f"must be one of {', '.join(LOGIN_MODULES)}{found}")
        module = LOGIN_MODULES[mechanism]
        example = f'{module} required username="..." password="...";'
        jaas = _JAAS.fullmatch(self._value("sasl.jaas.config"))
        if jaas is None or jaas[1] != module:
            self._refuse("sasl.jaas.config", f"must be {example}")
        options = {name: re.sub(r"\\(.)", r"\1", quoted) or bare for name, quoted, bare in re.findall(_OPTION, jaas[2])}
        if options.keys() != {"username", "password"}:
            self._refuse("sasl.jaas.config", f"must have a username and a password, and nothing else: {example}")
        return {"sasl_mechanism": mechanism, **options}

    def _trusted(self) -> str:
        inline, location = "ssl.truststore.certificates", "ssl.truststore.location"
        if inline in self._found:
            self._require_pem("ssl.truststore.type", inline)
            with self._store_errors(inline):
                return pem_certificates(self._value(inline))
        if location not in self._found:
            return ""
        content = self._store(location)
        with self._store_errors(location):
            if self._is_pem("ssl.truststore.type", location, content):
                return pem_certificates(content.decode("ascii", "replace"))
            return pkcs12_certificates(content, self._value("ssl.truststore.password"))

    def _key_pair(self) -> KeyPair | None:
        inline, chain, location = "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.keystore.location"
        if inline in self._found or chain in self._found:
            self._require_pem("ssl.keystore.type", inline if inline in self._found else chain)
            with self._store_errors(inline):
                return pem_key_pair(self._value(chain), self._value(inline), self._value("ssl.key.password"))
        if location not in self._found:
            return None
        content = self._store(location)
        with self._store_errors(location):
            if self._is_pem("ssl.keystore.type", location, content):
                text = content.decode("ascii", "replace")
                return pem_key_pair(text, text, self._value("ssl.key.password"))
            return pkcs12_key_pair(content, self._value("ssl.keystore.password"))

    def _context(self, trusted_pem: str, key_pair: KeyPair | None) -> ssl.SSLContext:
        algorithm = "ssl.endpoint.identification.algorithm"
        checks_host_name = self._value(algorithm, "https").lower() == "https"
        if not checks_host_name and self._value(algorithm):
            self._refuse(algorithm, "must be https, or empty: then the host names of brokers are not verified")
        trusts = "ssl.truststore." + ("certificates" if "ssl.truststore.certificates" in self._found else "location")
        with self._store_errors(trusts):
            context = tls_context(trusted_pem, None, checks_host_name=checks_host_name)
        if key_pair is None:
            return context
        with self._store_errors("ssl.keystore.key" if "ssl.keystore.key" in self._found else "ssl.keystore.location"):
            return tls_context(trusted_pem, key_pair, checks_host_name=checks_host_name)

    def _store(self, name: str) -> bytes:
        path = Path(self._value(name)).absolute()
        try:
            content = path.read_bytes()
        except OSError as error:
            self._refuse(name, f"names {path}, which cannot be read: {error.strerror}", error)
        if is_jks(content):
            target = path.with_suffix(".p12")
            convert = (
                f"keytool -importkeystore -srckeystore {path} -srcstoretype JKS"
                f" -destkeystore {target} -deststoretype PKCS12"
            )
            self._refuse(name, f"names a JKS store, which only Java can read: convert it with `{convert}`")
        return content

    def _is_pem(self, type_name: str, name: str, content: bytes) -> bool:
        """Return whether a store is PEM; Java opens a PKCS12 store also as JKS, which is the default type."""
        is_pem = self._one_of(type_name, STORE_TYPES, "JKS") == "PEM"
        if not is_pem and b"-----BEGIN" in content:
            self._refuse(name, f"names a PEM store: set {type_name}=PEM")
        return is_pem

    def _require_pem(self, type_name: str, name: str) -> None:
        if self._one_of(type_name, STORE_TYPES, "JKS") != "PEM":
            self._refuse(name, f"is PEM text: set {type_name}=PEM")

    def _refuse_unused(self, protocol: str) -> None:
        """Refuse settings that Kafka would ignore: a password that is not used protects nothing."""
        for name in self._found:
            if name.startswith("sasl.") and not protocol.startswith("SASL_"):
                self._refuse(name, f"has no effect with security.protocol={protocol}: use SASL_SSL, or remove it")
            if name.startswith("ssl.") and not protocol.endswith("SSL"):
                self._refuse(name, f"has no effect with security.protocol={protocol}: use an SSL one, or remove it")

    @contextlib.contextmanager
    def _store_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._refuse(name, str(error), error)

    def _refuse(self, name: str, what: str, cause: Exception | None = None) -> NoReturn:
        if name in self._found:
            self._refuse_line(self._found[name].line, f"{name} {what}", cause)
        message = f"{self._path}: {name} {what}"
        raise Invalid(message, subject=str(self._path)) from cause

    def _refuse_line(self, line: int, what: str, cause: Exception | None = None) -> NoReturn:
        message = f"{self._path}, line {line}: {what}"
        raise Invalid(message, subject=str(self._path)) from cause
