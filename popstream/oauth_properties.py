"""Reads from a `client.properties` how a client gets its token (`sasl.mechanism=OAUTHBEARER`).

Either of a token endpoint, by the client credentials grant (RFC 6749, section 4.4), or from a file. Client id, secret
and scope are options of `sasl.jaas.config`, which all versions of Kafka's Java client take, or, since Kafka 4.1,
settings of their own.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from popstream.checked_properties import CheckedProperties
from popstream.jaas_login import parse_jaas
from popstream.java_properties import Property
from popstream.key_stores import tls_context

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CLIENT_ID",
    "CLIENT_SECRET",
    "HANDLER",
    "HANDLER_CLASS",
    "JAAS",
    "MODULE",
    "OAUTH_SETTINGS",
    "SCOPE",
    "TokenRequest",
    "read_token_request",
]

JAAS = "sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "sasl.login.callback.handler.class"
HANDLER_CLASS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
"""What gets tokens in Kafka's Java client; its default makes unsigned ones itself."""
URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - the name of the setting
SCOPE = "sasl.oauthbearer.scope"
ENCODE = "sasl.oauthbearer.header.urlencode"
OAUTH_SETTINGS = frozenset(
    (
        *(HANDLER, URL, CLIENT_ID, CLIENT_SECRET, SCOPE, ENCODE),
        # By these Java looks for claims in a token before it sends it.
        *("sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name"),
    )
)
"""Names of settings that have an effect with OAUTHBEARER only."""

EXTENSION = "extension_"
OPTIONS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
"""Options of the login module, and the settings that say the same."""
STORE_OPTIONS = frozenset(f"ssl.truststore.{name}" for name in ("location", "password", "type"))


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a token is, and what to show for it.

    Attributes:
        url: That of the token endpoint; empty: the token is in a file.
        file: Path of a file that has the token, and nothing else.
        client_id: For an endpoint only.
        client_secret: For an endpoint only.
        scope: For an endpoint only; may be empty.
        encodes_credentials: Whether id and secret are encoded in the request as RFC 6749 says. Kafka's default is
            that they are not.
        extensions: What is sent to the broker with the token (RFC 7628, section 3.1).
        ssl_context: For an endpoint with https only.
    """

    url: str = ""
    file: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    encodes_credentials: bool = False
    extensions: dict[str, str] = {}
    ssl_context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"TokenRequest({self})"

    def __str__(self) -> str:
        return f"client {self.client_id} of {self.url.partition('?')[0]}" if self.url else f"file {self.file}"


def read_token_request(settings: CheckedProperties) -> TokenRequest:
    """Return how the client of a file gets its token.

    Raises:
        Invalid: A setting is wrong or missing, contradicts another one, or names a store that cannot be opened.
    """
    settings.one_of(HANDLER, [HANDLER_CLASS], HANDLER_CLASS)
    encodes_credentials = settings.one_of(ENCODE, ["true", "false"], "false") == "true"
    options = _options(settings)
    extensions = {
        name.removeprefix(EXTENSION): options.value(name) for name in options.found if name.startswith(EXTENSION)
    }
    scheme, place = _place(settings)
    for option in sorted(STORE_OPTIONS & options.found.keys()):
        if scheme != "https":
            options.refuse(option, f"has no effect with {scheme} in {URL}: remove it")
    if scheme == "file":
        for option, name in OPTIONS.items():
            for of, found in ((options, option), (settings, name)):
                if found in of.found:
                    of.refuse(found, f"has no effect with a file in {URL}: remove it")
        return TokenRequest(file=place, extensions=extensions)
    client_id, client_secret, scope = (_credential(settings, options, option) for option in OPTIONS)
    return TokenRequest(
        url=place,
        client_id=client_id,
        client_secret=client_secret,
        scope=scope,
        encodes_credentials=encodes_credentials,
        extensions=extensions,
        ssl_context=_context(options) if scheme == "https" else None,
    )


def _options(settings: CheckedProperties) -> CheckedProperties:
    """Return the options of the login module as settings in the same line."""
    if JAAS not in settings.found:
        return CheckedProperties(settings.path, {}, JAAS)
    found = parse_jaas(settings.value(JAAS), MODULE)
    example = f'{MODULE} required clientId="..." clientSecret="...";'
    if found is None:
        settings.refuse(JAAS, f"must be {example}")
    known = OPTIONS.keys() | STORE_OPTIONS
    unknown = [name for name in found if name not in known and not name.startswith(EXTENSION)]
    if unknown:
        allowed = ", ".join((*OPTIONS, f"{EXTENSION}...", *sorted(STORE_OPTIONS)))
        settings.refuse(JAAS, f"has the unknown option {unknown[0]}: the options are {allowed}")
    line = settings.found[JAAS].line
    return CheckedProperties(settings.path, _as_properties(found, line), JAAS)


def _as_properties(options: Mapping[str, str], line: int) -> dict[str, Property]:
    return {name: Property(line, name, value) for name, value in options.items()}


def _place(settings: CheckedProperties) -> tuple[str, str]:
    """Return the scheme, and the URL of the endpoint or the path of the file."""
    wanted = "must be the URL of a token endpoint, https://..., or file:///... of a file that has a token"
    url = settings.value(URL)
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        settings.refuse(URL, wanted, error)
    if parts.username is not None:
        settings.refuse(URL, f"must not have a name or a password: clientId and clientSecret belong in {JAAS}")
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return parts.scheme, parts.path  # as it is, for so does Java
    if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port or not url.isprintable():
        settings.refuse(URL, wanted)
    return parts.scheme, url


def _credential(settings: CheckedProperties, options: CheckedProperties, option: str) -> str:
    """Return client id, secret or scope, which must be in one place."""
    name = OPTIONS[option]
    if name in settings.found and option in options.found:
        settings.refuse(name, f"and {option} of {JAAS} say the same: remove one of them")
    value = settings.value(name) or options.value(option)
    if not value and option != "scope":
        settings.refuse(JAAS, f'must have {option}="...", or set {name}')
    return value


def _context(options: CheckedProperties) -> ssl.SSLContext:
    """Return how the endpoint is trusted: as in Java, by the options of the login module, not by the file's stores."""
    trusted_pem = options.trusted_pem()
    with options.store_errors("ssl.truststore.location"):
        return tls_context(trusted_pem, None, checks_host_name=True)
