"""Claim: a `client.properties` is understood as Kafka's tools do; what is wrong in it is named with file and line.

And never with a value that may be a secret.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from connectors.kafka.certificates import Authority
from popstream.client_properties import NAMES, ClientProperties, read_client_properties
from popstream.ignored_properties import IGNORED
from popstream.wire.base_errors import Invalid
from tests.support.secured_site import pkcs12_trust_store

if TYPE_CHECKING:
    from pathlib import Path

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
SECRET = "canary-7f3a"  # noqa: S105 - not one
LOGIN = f"""\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={SCRAM} required username="job" password="{SECRET}";
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def read(file: Path, text: str) -> ClientProperties:
    file.write_text(text, encoding="utf-8")
    return read_client_properties(file)


def one_line(text: str) -> str:
    return text.replace("\n", "\\n\\\n")


@pytest.mark.parametrize(
    ("jaas", "expected"),
    [
        (f'{SCRAM} required username="u" password="p q";', ("u", "p q")),
        (f"{SCRAM} required \\\n  username=u \\\n  password=p ;", ("u", "p")),
        (rf'{SCRAM} required password="a\\"b\\\\c;d=" username = "u";', ("u", 'a"b\\c;d=')),
        (rf'{SCRAM} required username="u" password="\u00e9";', ("u", "é")),
    ],
)
def test_the_login_is_that_of_jaas(file: Path, jaas: str, expected: tuple[str, str]) -> None:
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}\n"
    found = read(file, text)
    assert (found.username, found.password) == expected
    assert (found.sasl_mechanism, found.ssl_context) == ("SCRAM-SHA-256", None)


def test_an_empty_file_is_a_connection_without_anything(file: Path) -> None:
    found = read(file, "\n")
    assert (found.security_protocol, found.sasl_mechanism, found.ssl_context) == ("PLAINTEXT", "", None)


def test_what_it_prints_has_no_secret(file: Path, authority: Authority) -> None:
    store = authority.key_store("printed", password=SECRET)
    text = (
        f"{LOGIN.replace('SASL_PLAINTEXT', 'SASL_SSL')}ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
        f"ssl.key.password={SECRET}\n"
    )
    found = read(file, text)
    assert found.key_pair is not None
    assert SECRET not in f"{found!r} {found} {found.key_pair!r} {found.key_pair}"


def test_stores_are_pem_files_pem_text_or_pkcs12(file: Path, authority: Authority) -> None:
    """Java opens a PKCS12 store by the type JKS, too, which is the default."""
    trust, pem = authority.trust_store, authority.key_store("pem", password=SECRET)
    p12 = authority.key_store("p12", password=SECRET, as_pkcs12=True)
    key, certificate = pem.read_text().split("-----BEGIN CERTIFICATE")
    in_files = read(
        file,
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={trust}\nssl.keystore.location={pem}\nssl.key.password={SECRET}\n",
    )
    in_text = read(
        file,
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.certificates={one_line(authority.pem)}\n"
        f"ssl.keystore.key={one_line(key)}\nssl.key.password={SECRET}\n"
        f"ssl.keystore.certificate.chain={one_line('-----BEGIN CERTIFICATE' + certificate)}\n",
    )
    assert (in_files.trusted_pem, in_files.key_pair) == (in_text.trusted_pem, in_text.key_pair)
    in_pkcs12 = read(
        file,
        f"security.protocol=SSL\nssl.truststore.type=PKCS12\nssl.truststore.password={SECRET}\n"
        f"ssl.truststore.location={pkcs12_trust_store(authority, SECRET)}\n"
        f"ssl.keystore.location={p12}\nssl.keystore.password={SECRET}\n",
    )
    assert in_pkcs12.trusted_pem == in_files.trusted_pem
    assert in_pkcs12.key_pair is not None
    assert "ENCRYPTED PRIVATE KEY" in in_pkcs12.key_pair.key_pem
    for found in (in_files, in_text, in_pkcs12):
        assert found.ssl_context is not None
        assert found.ssl_context.check_hostname
        assert found.ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert found.ssl_context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_host_names_are_not_verified_if_the_algorithm_is_empty(file: Path) -> None:
    found = read(file, "security.protocol=SSL\nssl.endpoint.identification.algorithm=\n")
    assert found.ssl_context is not None
    assert not found.ssl_context.check_hostname
    assert found.ssl_context.verify_mode is ssl.CERT_REQUIRED


V1_2, V1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (V1_2, V1_3)),
        ("ssl.enabled.protocols=TLSv1.3, TLSv1.2\nssl.protocol=TLSv1.3\n", (V1_2, V1_3)),
        ("ssl.enabled.protocols=TLSv1.2,TLSv1.1,TLSv1\nssl.protocol=TLS\n", (V1_2, V1_2)),
        ("ssl.enabled.protocols=TLSv1.3\n", (V1_3, V1_3)),
        ("ssl.protocol=TLSv1.2\n", (V1_2, V1_2)),
    ],
)
def test_versions_of_tls_are_those_of_both_settings(
    file: Path, text: str, expected: tuple[ssl.TLSVersion, ssl.TLSVersion]
) -> None:
    context = read(file, f"security.protocol=SSL\n{text}").ssl_context
    assert context is not None
    assert (context.minimum_version, context.maximum_version) == expected


SHARED = """\
client.id=billing-tools
request.timeout.ms=60000
retries=3
linger.ms=5
acks=all
group.id=billing
auto.offset.reset=earliest
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
"""


def test_settings_that_popstream_chooses_itself_may_be_there(file: Path) -> None:
    found = read(file, LOGIN + SHARED)
    assert found.entries.keys() == {"security.protocol", "sasl.mechanism", "sasl.jaas.config"}
    assert found.ignored == tuple(sorted(line.partition("=")[0] for line in SHARED.splitlines()))
    assert not IGNORED & NAMES


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (
            "\nssl.trustore.location=x",
            2,
            "unknown connection setting ssl.trustore.location: did you mean ssl.truststore.location",
        ),
        ("ack=all", 1, "unknown connection setting ack: did you mean acks?"),
        ("schema.registry.url=x", 1, "unknown connection setting schema.registry.url: remove it"),
        ("config.providers=env", 1, "unknown connection setting config.providers: remove it"),
        ("acks=all\nacks=1", 2, "acks is set in line 1 already"),
        ("security.protocol=SSL\nsecurity.protocol=SSL", 2, "security.protocol is set in line 1 already"),
        ("security.protocol=TLS", 1, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not TLS"),
        ("client.dns.lookup=default", 1, "must be one of use_all_dns_ips"),
        ("a\\u12=b", 1, "four hexadecimal digits"),
        (
            LOGIN.replace("SCRAM-SHA-512", "GSSAPI"),
            2,
            "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, not GSSAPI",
        ),
        (LOGIN.replace("SCRAM-SHA-512", "PLAIN"), 3, f"must be {PLAIN} required username"),
        (LOGIN.replace('";', '"'), 3, "sasl.jaas.config must be"),
        (LOGIN.replace('username="job"', ""), 3, "must have a username and a password, and nothing else"),
        (LOGIN.replace('username="job"', 'username="job" tokenauth="true"'), 3, "and nothing else"),
        (
            LOGIN.replace("SASL_PLAINTEXT", "PLAINTEXT"),
            2,
            "sasl.mechanism has no effect with security.protocol=PLAINTEXT",
        ),
        (
            f"{LOGIN}ssl.key.password={SECRET}",
            4,
            "ssl.key.password has no effect with security.protocol=SASL_PLAINTEXT",
        ),
        ("security.protocol=SSL\nssl.truststore.location=/nowhere", 2, "names /nowhere, which cannot be read: No such"),
        ("security.protocol=SSL\nssl.truststore.certificates=x", 2, "is PEM text: set ssl.truststore.type=PEM"),
        (
            "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.certificates=x",
            3,
            "has no certificate in PEM",
        ),
        ("security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.key=x", 3, "has no private key in PEM"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=ldaps", 2, "must be https, or empty"),
        (
            "security.protocol=SSL\nssl.enabled.protocols=TLSv1.2,TLS1.3",
            2,
            "must be a list of TLSv1.2, TLSv1.3, not TLS",
        ),
        ("security.protocol=SSL\nssl.enabled.protocols=TLSv1.1,TLSv1", 2, "has none of TLSv1.2, TLSv1.3"),
        ("security.protocol=SSL\nssl.protocol=SSLv3", 2, "must be one of TLS, TLSv1.2, TLSv1.3, not SSLv3"),
        (
            "security.protocol=SSL\nssl.enabled.protocols=TLSv1.3\nssl.protocol=TLSv1.2",
            3,
            "ssl.protocol excludes all of ssl.enabled.protocols: set it to TLSv1.3",
        ),
        ("ssl.protocol=TLSv1.2", 1, "ssl.protocol has no effect with security.protocol=PLAINTEXT"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(file: Path, text: str, line: int, what: str) -> None:
    require_named(file, text, line, what)


def require_named(file: Path, text: str, line: int, what: str) -> None:
    with pytest.raises(Invalid, match=what) as raised:
        read(file, text)
    assert str(raised.value).startswith(f"{file}, line {line}: ")
    assert SECRET not in str(raised.value)
    assert raised.value.subject == str(file)


def oauth(text: str = "", options: str = "", url: str = "https://login.example/token") -> str:
    """What a file says of OAUTHBEARER: the endpoint is in line 3, the login module in line 4, the text after them."""
    return (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\nsasl.jaas.config={OAUTH} required {options};\n{text}"
    )


CREDENTIALS = f'clientId="job" clientSecret="{SECRET}"'
ID, SECRET_OF_ID = (f"sasl.oauthbearer.client.credentials.client.{name}" for name in ("id", "secret"))


@pytest.mark.parametrize(
    "text",
    [
        oauth(options=f'{CREDENTIALS} scope="a b" extension_pool="p"'),
        oauth(f"{ID}=job\n{SECRET_OF_ID}={SECRET}\nsasl.oauthbearer.scope=a b\n", 'extension_pool="p"'),
        oauth(f"sasl.login.callback.handler.class={HANDLER}\n", f'{CREDENTIALS} scope="a b" extension_pool=p'),
    ],
)
def test_the_credentials_of_a_token_are_in_the_login_module_or_beside_it(file: Path, text: str) -> None:
    found = read(file, text)
    assert (found.sasl_mechanism, found.username, found.password) == ("OAUTHBEARER", "", "")
    request = found.token_request
    assert request is not None
    assert (request.url, request.file) == ("https://login.example/token", "")
    assert (request.client_id, request.client_secret, request.scope) == ("job", SECRET, "a b")
    assert (request.extensions, request.encodes_credentials) == ({"pool": "p"}, False)
    assert request.ssl_context is not None
    assert request.ssl_context.check_hostname
    assert SECRET not in f"{found!r} {request!r} {request}"


def test_the_login_module_may_be_missing_where_it_says_nothing(file: Path) -> None:
    lines = oauth(f"{ID}=job\n{SECRET_OF_ID}={SECRET}\nsasl.oauthbearer.header.urlencode=true\n", url="http://h/t")
    request = read(file, lines.replace(f"sasl.jaas.config={OAUTH} required ;\n", "")).token_request
    assert request is not None
    assert (request.client_id, request.encodes_credentials, request.ssl_context) == ("job", True, None)


def test_a_token_may_be_in_a_file(file: Path) -> None:
    request = read(file, oauth(url="file:///run/token%20of/job")).token_request
    assert request is not None
    assert (request.file, request.url) == ("/run/token%20of/job", "")  # Java does not decode it either


WANTED = r"must be the URL of a token endpoint, https://\.\.\., or file:///\.\.\. of a file that has a token"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (oauth(options=CREDENTIALS, url="login.example/token"), 3, WANTED),
        (oauth(options=CREDENTIALS, url="ftp://login.example/token"), 3, WANTED),
        (oauth(options=CREDENTIALS, url="https:///token"), 3, WANTED),
        (oauth(options=CREDENTIALS, url="https://login.example:x/token"), 3, WANTED),
        (oauth(url="file://host/token"), 3, WANTED),
        (oauth(options=CREDENTIALS, url=f"https://job:{SECRET}@login.example/"), 3, "must not have a name or a pass"),
        (oauth(), 4, f'sasl.jaas.config must have clientId="...", or set {ID}'),
        (oauth(options="clientId=job"), 4, f'sasl.jaas.config must have clientSecret="...", or set {SECRET_OF_ID}'),
        (oauth(f"{ID}=job\n"), 4, f'sasl.jaas.config must have clientSecret="...", or set {SECRET_OF_ID}'),
        (oauth(f"{ID}=job\n", CREDENTIALS), 5, f"{ID} and clientId of sasl.jaas.config say the same: remove one of"),
        (oauth(f"{SECRET_OF_ID}=x\n", CREDENTIALS), 5, "and clientSecret of sasl.jaas.config say the same"),
        (oauth("sasl.oauthbearer.scope=a", f"{CREDENTIALS} scope=b"), 5, "and scope of sasl.jaas.config say the same"),
        (oauth(options=CREDENTIALS, url="file:///token"), 4, "clientId of sasl.jaas.config has no effect with a file"),
        (oauth("sasl.oauthbearer.scope=a", url="file:///token"), 5, "scope has no effect with a file in sasl.oauthb"),
        (oauth(options=f"{CREDENTIALS} tokenauth=true"), 4, "has the unknown option tokenauth"),
        (oauth(options=CREDENTIALS).replace(OAUTH, SCRAM), 4, f"must be {OAUTH} required clientId="),
        (
            oauth("sasl.login.callback.handler.class=my.Handler", CREDENTIALS),
            5,
            f"must be one of {HANDLER}, not my.Handler",
        ),
        (oauth("sasl.oauthbearer.header.urlencode=yes", CREDENTIALS), 5, "must be one of true, false, not yes"),
        (
            oauth("sasl.oauthbearer.jwt.retriever.class=my.One", CREDENTIALS),
            5,
            "unknown connection setting sasl.oauthbearer.jwt",
        ),
        (
            oauth(options=f"{CREDENTIALS} ssl.truststore.location=/nowhere"),
            4,
            "ssl.truststore.location of sasl.jaas.config names /nowhere, which cannot be read",
        ),
        (
            oauth(options=f"{CREDENTIALS} ssl.truststore.location=/ca.pem", url="http://login.example/token"),
            4,
            "ssl.truststore.location of sasl.jaas.config has no effect with http in sasl.oauthbearer.token.endpoint",
        ),
        (f"{LOGIN}sasl.oauthbearer.scope=a", 4, "scope has no effect with sasl.mechanism=SCRAM-SHA-512: use OAUTHB"),
        (f"{LOGIN}sasl.login.callback.handler.class={HANDLER}", 4, "has no effect with sasl.mechanism=SCRAM-SHA-512"),
        ("security.protocol=SSL\nsasl.oauthbearer.scope=a", 2, "has no effect with security.protocol=SSL"),
    ],
)
def test_what_is_wrong_with_oauthbearer_is_named_with_its_line(file: Path, text: str, line: int, what: str) -> None:
    require_named(file, text, line, what)


def test_a_token_needs_a_place(file: Path) -> None:
    with pytest.raises(Invalid, match=f"^{file}: sasl.oauthbearer.token.endpoint.url {WANTED}"):
        read(file, "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n")


def test_a_login_needs_its_settings(file: Path) -> None:
    with pytest.raises(Invalid, match=f"{file}: sasl.mechanism must be one of"):
        read(file, "security.protocol=SASL_SSL")


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(Invalid, match=f"the Kafka configuration {file} cannot be read: No such file"):
        read_client_properties(file)


def test_stores_that_cannot_be_opened(file: Path, authority: Authority, tmp_path: Path) -> None:
    pem = authority.key_store("locked", password=SECRET)
    p12 = authority.key_store("locked", password=SECRET, as_pkcs12=True)
    jks = tmp_path / "trust.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    keys = Authority(tmp_path / "other").key_store("other").read_text().split("-----BEGIN CERTIFICATE")[0]
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(keys + authority.pem)
    wrong = {
        f"ssl.keystore.type=PEM\nssl.keystore.location={pem}\nssl.key.password=x{SECRET}": "is ssl.key.password right?",
        f"ssl.keystore.type=PEM\nssl.keystore.location={pem}": "is ssl.key.password right?",
        f"ssl.keystore.type=PEM\nssl.keystore.location={mixed}": "a private key that is not the key of the certificate",
        f"ssl.keystore.location={pem}": "names a PEM store: set ssl.keystore.type=PEM",
        f"ssl.keystore.location={p12}\nssl.keystore.password=x{SECRET}": "its password is wrong",
        f"ssl.truststore.location={jks}": (
            f"convert it with `keytool -importkeystore -srckeystore {jks} -srcstoretype JKS"
            f" -destkeystore {jks.with_suffix('.p12')} -deststoretype PKCS12`, and name {jks.with_suffix('.p12')}"
        ),
        f"ssl.truststore.location={file}": "is not a PKCS12 store",
    }
    for text, what in wrong.items():
        with pytest.raises(Invalid) as raised:
            read(file, f"security.protocol=SSL\n{text}\n")
        assert what in str(raised.value)
        assert SECRET not in str(raised.value)
