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

import difflib
import ssl
from pathlib import Path

import msgspec

from popstream.checked_properties import CheckedProperties
from popstream.ignored_properties import IGNORED
from popstream.jaas_login import parse_jaas
from popstream.java_properties import Property, PropertyError, parse_properties
from popstream.key_stores import TLS_VERSIONS, KeyPair, TlsVersions, pem_key_pair, pkcs12_key_pair, tls_context
from popstream.oauth_properties import CLIENT_SECRET, JAAS, OAUTH_SETTINGS, TokenRequest, read_token_request
from popstream.wire.base_errors import Invalid

__all__ = ["SECRETS", "ClientProperties", "read_client_properties"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS = (*LOGIN_MODULES, "OAUTHBEARER")
TLS_NAMES = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OLD_TLS_NAMES = ("TLSv1", "TLSv1.1")
"""Files from before Kafka 2.6 allow them as well. Nothing here uses them, nor does Java 17."""
DNS_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
SECRETS = frozenset(
    (
        *(CLIENT_SECRET, JAAS, "ssl.key.password", "ssl.keystore.key"),
        *("ssl.keystore.password", "ssl.truststore.password"),
    )
)
"""Names whose values stay in the file."""
NAMES = (
    OAUTH_SETTINGS
    | SECRETS
    | {
        "bootstrap.servers",
        "client.dns.lookup",
        "sasl.mechanism",
        "security.protocol",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)


class ClientProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file and of the stores that it names.

    Attributes:
        entries: Names and values as they are in the file, without those that are ignored.
        ignored: Names of settings that popstream chooses itself.
        security_protocol: One of `PROTOCOLS`.
        sasl_mechanism: One of `MECHANISMS`; empty without SASL.
        username: Of a mechanism with passwords only.
        password: Of a mechanism with passwords only.
        token_request: Of OAUTHBEARER only.
        trusted_pem: Certificates that sign those of brokers; empty: those that the system trusts.
        key_pair: The client's own, if it has any.
        ssl_context: Of the two above, for Python; None without TLS.
    """

    entries: dict[str, str]
    ignored: tuple[str, ...] = ()
    security_protocol: str
    sasl_mechanism: str = ""
    username: str = ""
    password: str = ""
    token_request: TokenRequest | None = None
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


class _File(CheckedProperties):
    """One file, whose entries are checked as they are read."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._entries: dict[str, Property] = {}
        super().__init__(path, self._entries)
        try:
            for entry in parse_properties(content):
                self._add(entry)
        except PropertyError as error:
            self.refuse_line(error.line, str(error), error)

    def read(self) -> ClientProperties:
        """Return what the file says."""
        protocol = self.one_of("security.protocol", PROTOCOLS, "PLAINTEXT")
        self.one_of("client.dns.lookup", DNS_LOOKUPS, DNS_LOOKUPS[0])
        mechanism, username, password, token_request = "", "", "", None
        if protocol.startswith("SASL_"):
            mechanism = self._mechanism()
            if mechanism in LOGIN_MODULES:
                username, password = self._login(mechanism)
            else:
                token_request = read_token_request(self)
        trusted_pem, key_pair, context = "", None, None
        if protocol.endswith("SSL"):
            trusted_pem, key_pair = self.trusted_pem(), self._key_pair()
            context = self._context(trusted_pem, key_pair)
        self._refuse_unused(protocol, mechanism)
        return ClientProperties(
            entries={name: entry.value for name, entry in self.found.items() if name not in IGNORED},
            ignored=tuple(sorted(IGNORED & self.found.keys())),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            username=username,
            password=password,
            token_request=token_request,
            trusted_pem=trusted_pem,
            key_pair=key_pair,
            ssl_context=context,
        )

    def _add(self, entry: Property) -> None:
        name = entry.name
        known = NAMES | IGNORED
        if name not in known:
            similar = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
            hint = f"did you mean {similar[0]}?" if similar else "remove it"
            self.refuse_line(entry.line, f"unknown connection setting {name}: {hint}")
        if name in self._entries:
            self.refuse_line(entry.line, f"{name} is set in line {self._entries[name].line} already")
        self._entries[name] = entry

    def _mechanism(self) -> str:
        mechanism = self.value("sasl.mechanism")
        if mechanism not in MECHANISMS:
            found = f", not {mechanism}" if mechanism else ""
            self.refuse("sasl.mechanism", f"must be one of {', '.join(MECHANISMS)}{found}")
        return mechanism

    def _login(self, mechanism: str) -> tuple[str, str]:
        """Return name and password."""
        module = LOGIN_MODULES[mechanism]
        example = f'{module} required username="..." password="...";'
        options = parse_jaas(self.value(JAAS), module)
        if options is None:
            self.refuse(JAAS, f"must be {example}")
        if options.keys() != {"username", "password"}:
            self.refuse(JAAS, f"must have a username and a password, and nothing else: {example}")
        return options["username"], options["password"]

    def _key_pair(self) -> KeyPair | None:
        inline, chain, location = "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.keystore.location"
        if inline in self.found or chain in self.found:
            self.require_pem("ssl.keystore.type", inline if inline in self.found else chain)
            with self.store_errors(inline):
                return pem_key_pair(self.value(chain), self.value(inline), self.value("ssl.key.password"))
        if location not in self.found:
            return None
        content = self.store(location)
        with self.store_errors(location):
            if self.is_pem("ssl.keystore.type", location, content):
                text = content.decode("ascii", "replace")
                return pem_key_pair(text, text, self.value("ssl.key.password"))
            return pkcs12_key_pair(content, self.value("ssl.keystore.password"))

    def _context(self, trusted_pem: str, key_pair: KeyPair | None) -> ssl.SSLContext:
        algorithm = "ssl.endpoint.identification.algorithm"
        checks_host_name = self.value(algorithm, "https").lower() == "https"
        if not checks_host_name and self.value(algorithm):
            self.refuse(algorithm, "must be https, or empty: then the host names of brokers are not verified")
        versions = self._tls_versions()
        trusts = "ssl.truststore." + ("certificates" if "ssl.truststore.certificates" in self.found else "location")
        with self.store_errors(trusts):
            context = tls_context(trusted_pem, None, checks_host_name=checks_host_name, versions=versions)
        if key_pair is None:
            return context
        with self.store_errors("ssl.keystore.key" if "ssl.keystore.key" in self.found else "ssl.keystore.location"):
            return tls_context(trusted_pem, key_pair, checks_host_name=checks_host_name, versions=versions)

    def _tls_versions(self) -> TlsVersions:
        enabled, protocol = "ssl.enabled.protocols", "ssl.protocol"
        names = [name.strip() for name in self.value(enabled, ",".join(TLS_NAMES)).split(",")]
        if not {*names} <= {*TLS_NAMES, *OLD_TLS_NAMES}:
            self.refuse(enabled, f"must be a list of {', '.join(TLS_NAMES)}, not {', '.join(names)}")
        versions = [TLS_NAMES[name] for name in names if name in TLS_NAMES]
        if not versions:
            self.refuse(enabled, f"has none of {', '.join(TLS_NAMES)}, and popstream uses no others")
        highest = TLS_NAMES.get(self.one_of(protocol, ("TLS", *TLS_NAMES), "TLS"), TLS_VERSIONS.highest)
        if highest < min(versions):
            self.refuse(protocol, f"excludes all of {enabled}: set it to TLSv1.3, or remove it")
        return TlsVersions(min(versions), min(max(versions), highest))

    def _refuse_unused(self, protocol: str, mechanism: str) -> None:
        """Refuse settings that Kafka would ignore: a password that is not used protects nothing."""
        for name in self.found:
            if name.startswith("sasl.") and not protocol.startswith("SASL_"):
                self.refuse(name, f"has no effect with security.protocol={protocol}: use SASL_SSL, or remove it")
            if name.startswith("ssl.") and not protocol.endswith("SSL"):
                self.refuse(name, f"has no effect with security.protocol={protocol}: use an SSL one, or remove it")
            if name in OAUTH_SETTINGS and mechanism != "OAUTHBEARER":
                self.refuse(name, f"has no effect with sasl.mechanism={mechanism}: use OAUTHBEARER, or remove it")
