"""Claim: one value says the same to kafka-python, to librdkafka and to Spark, and has no secrets itself."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path

import confluent_kafka
import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from connectors.kafka.certificates import Authority
from connectors.kafka.spark_source import source_options
from popstream import ClientSettings
from popstream.kafka_connection import KafkaConnection, chosen_connection
from popstream.wire.base_errors import Invalid

SECRET = "canary-51c0"  # noqa: S105 - not one
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="job" password="{SECRET}";'


@pytest.fixture
def secured(tmp_path: Path) -> KafkaConnection:
    authority = Authority(tmp_path)
    lines = {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust_store),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.key_store("job", password=SECRET, as_pkcs12=True)),
        "ssl.keystore.password": SECRET,
        "client.dns.lookup": "use_all_dns_ips",
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return KafkaConnection("kafka:9092,kafka:9093", str(file))


def test_the_value_has_no_secrets(secured: KafkaConnection) -> None:
    everything = f"{secured!r} {secured} {msgspec.json.encode(secured)!r} {pickle.dumps(secured)!r}"
    assert SECRET not in everything
    assert msgspec.json.decode(msgspec.json.encode(secured), type=KafkaConnection) == secured


def test_settings_of_kafka_python_are_not_shown() -> None:
    assert SECRET not in repr(KafkaConnection("kafka:9092", kafka_python={"sasl_plain_password": SECRET}))


def test_kafka_python_gets_its_own_names(secured: KafkaConnection) -> None:
    found = secured.for_kafka_python()
    known = {*KafkaConsumer.DEFAULT_CONFIG} & {*KafkaProducer.DEFAULT_CONFIG} & {*KafkaAdminClient.DEFAULT_CONFIG}
    assert found.keys() <= known
    context = found.pop("ssl_context")
    assert context.check_hostname
    assert found == {
        "bootstrap_servers": ["kafka:9092", "kafka:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "job",
        "sasl_plain_password": SECRET,
        "client_dns_lookup": "use_all_dns_ips",
    }


def test_settings_of_kafka_python_override_the_file(secured: KafkaConnection) -> None:
    more = msgspec.structs.replace(secured, kafka_python={"security_protocol": "SSL", "client_rack": "r"})
    found = more.for_kafka_python()
    assert (found["security_protocol"], found["client_rack"]) == ("SSL", "r")


def test_librdkafka_takes_its_form(secured: KafkaConnection) -> None:
    found = secured.for_librdkafka()
    assert found["sasl.username"] == "job"
    assert found["ssl.endpoint.identification.algorithm"] == "https"
    assert found["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE-----\n")
    confluent_kafka.Consumer({**found, "group.id": "g"}).close()  # it refuses a key that the password does not open


def test_settings_of_other_programs_reach_no_library(secured: KafkaConnection) -> None:
    def settings() -> list[set[str]]:
        return [{*found} for found in (secured.for_kafka_python(), secured.for_librdkafka())]

    before, of_spark = settings(), source_options(secured)
    with Path(secured.config_file).open("a") as file:
        file.write("client.id=tools\nrequest.timeout.ms=9\nfetch.max.wait.ms=9\nlinger.ms=9\n")
    assert settings() == before
    assert source_options(secured) == of_spark


def test_versions_of_tls_are_those_of_the_file_or_the_library_is_refused(secured: KafkaConnection) -> None:
    with Path(secured.config_file).open("a") as file:
        file.write("ssl.enabled.protocols=TLSv1.3\n")
    assert secured.for_kafka_python()["ssl_context"].minimum_version is ssl.TLSVersion.TLSv1_3
    assert source_options(secured)["kafka.ssl.enabled.protocols"] == "TLSv1.3"
    with pytest.raises(
        Invalid, match=r"fetch_client='librdkafka' uses TLS 1\.2 and 1\.3: allow both .*, or use 'kafka-"
    ):
        secured.for_librdkafka()


def test_spark_gets_references_instead_of_secrets(secured: KafkaConnection) -> None:
    found = source_options(secured)
    assert SECRET not in "".join(found.values())
    assert found["kafka.bootstrap.servers"] == "kafka:9092,kafka:9093"
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.jaas.config"] == f"${{popstream:{secured.config_file}:sasl.jaas.config}}"
    assert found["kafka.ssl.keystore.password"] == f"${{popstream:{secured.config_file}:ssl.keystore.password}}"


OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
CREDENTIAL = "sasl.oauthbearer.client.credentials.client"


def with_tokens(tmp_path: Path, *lines: str) -> KafkaConnection:
    file = tmp_path / "client.properties"
    url = "sasl.oauthbearer.token.endpoint.url=http://login/token"
    file.write_text("\n".join(("security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER", url, *lines)))
    return KafkaConnection("kafka:9092", str(file))


def test_libraries_get_a_way_to_get_tokens(tmp_path: Path) -> None:
    connection = with_tokens(tmp_path, f"{CREDENTIAL}.id=job", f"{CREDENTIAL}.secret={SECRET}")
    for_python, for_librdkafka = connection.for_kafka_python(), connection.for_librdkafka()
    assert for_python["sasl_mechanism"] == for_librdkafka["sasl.mechanism"] == "OAUTHBEARER"
    assert {"sasl_plain_username", "sasl.username"}.isdisjoint(for_python.keys() | for_librdkafka.keys())
    for_python.pop("ssl_context")
    assert SECRET not in f"{for_python} {for_librdkafka}"


def test_spark_gets_the_login_module_of_the_file(tmp_path: Path) -> None:
    connection = with_tokens(tmp_path, f'sasl.jaas.config={OAUTH} required clientId="job" clientSecret="{SECRET}";')
    found = source_options(connection)
    assert found["kafka.sasl.jaas.config"] == f"${{popstream:{connection.config_file}:sasl.jaas.config}}"
    assert found["kafka.sasl.oauthbearer.token.endpoint.url"] == "http://login/token"
    assert found["kafka.sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")


def test_spark_gets_a_login_module_with_what_is_said_beside_it(tmp_path: Path) -> None:
    """Spark's Kafka client is older than these settings."""
    lines = (f'{CREDENTIAL}.id=my "job"', f"{CREDENTIAL}.secret={SECRET}", "sasl.oauthbearer.scope=a b")
    connection = with_tokens(tmp_path, *lines, f"sasl.jaas.config={OAUTH} required extension_pool=p;")
    found = source_options(connection)
    secret = f"${{popstream:{connection.config_file}:{CREDENTIAL}.secret}}"
    assert found["kafka.sasl.jaas.config"] == (
        rf'{OAUTH} required extension_pool="p" clientId="my \"job\"" scope="a b" clientSecret="{secret}";'
    )
    assert not [name for name in found if "credentials" in name or name.endswith(".scope")]
    assert SECRET not in "".join(found.values())


def test_what_spark_cannot_join_is_refused(tmp_path: Path) -> None:
    module = f"sasl.jaas.config={OAUTH} required"
    for lines in (
        (f"{CREDENTIAL}.id=job", f'{CREDENTIAL}.secret={SECRET}"', f"{module};"),
        (f"{CREDENTIAL}.id=job", f"{module} clientSecret={SECRET};"),
    ):
        with pytest.raises(
            Invalid, match=r'cannot join .*client\.id.*: write clientId="\.\.\." clientSecret='
        ) as raised:
            source_options(with_tokens(tmp_path, *lines))
        assert SECRET not in str(raised.value)


def test_a_key_that_java_cannot_open_is_refused(secured: KafkaConnection, tmp_path: Path) -> None:
    """Its consumers in Spark would only say that they cannot be made. Python and librdkafka can open it."""
    store = Authority(tmp_path / "other").key_store("job", password=SECRET)
    file = Path(secured.config_file)
    file.write_text(
        f"security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={store}\nssl.key.password={SECRET}\n"
    )
    with pytest.raises(Invalid, match=f"{file}: Java cannot open a PEM key that is locked by PBES2.*PBE-SHA1-3DES"):
        source_options(secured)
    store.write_bytes(Authority(tmp_path / "third").key_store("job").read_bytes())
    assert "kafka.ssl.keystore.location" in source_options(secured)


def test_a_path_that_a_reference_cannot_have_is_refused(secured: KafkaConnection) -> None:
    odd = Path(secured.config_file).rename(Path(secured.config_file).with_name("a:b.properties"))
    with pytest.raises(Invalid, match=f"{odd}: Kafka's consumers in Spark cannot read a file with : or }} in its path"):
        source_options(KafkaConnection("kafka:9092", str(odd)))


def test_clients_say_the_same(secured: KafkaConnection) -> None:
    settings = ClientSettings(**secured.client_options, client_id="c")
    assert settings.connection == secured


def test_the_file_may_name_the_servers(secured: KafkaConnection, tmp_path: Path) -> None:
    file = Path(secured.config_file)
    assert str(chosen_connection("", file)) == "kafka:9093"
    assert str(chosen_connection("mine:1", file)) == "mine:1"
    assert chosen_connection("", None) is None
    empty = tmp_path / "empty.properties"
    empty.write_text("")
    with pytest.raises(Invalid, match=r"names no servers: add bootstrap\.servers, or give --bootstrap-servers"):
        chosen_connection("", empty)


def test_the_text_of_client_settings_has_no_secrets() -> None:
    settings = ClientSettings(bootstrap_servers="kafka:9092", client_id="c", kafka={"sasl_plain_password": SECRET})
    assert SECRET not in repr(settings)
    assert "client_id='c'" in repr(settings)
    assert "kafka=['sasl_plain_password']" in repr(settings)
