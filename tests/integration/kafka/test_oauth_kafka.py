"""Claim: with one file for OAUTHBEARER, clients, admin, Spark and Kafka's own tools log in by tokens of an endpoint, or
of a file; without a token, or with one that the broker does not accept, one line says within seconds what to correct.

Method: a broker that verifies tokens by the key of an endpoint of this test. Both have certificates, of two
authorities.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from connectors.kafka.broker_security import ALLOWED_URLS
from connectors.kafka.certificates import Authority
from connectors.kafka.own_topics import Topics
from connectors.kafka.secured_kafka import SecuredKafka, running
from connectors.kafka.spark_source import sink_options, source_options
from connectors.kafka.topic_admin import create_message_topic
from pipelines.job_settings import JobSettings
from pipelines.process.job_topics import ensure_job_topics
from popstream import Consumer, Invalid, PopstreamError, Producer, Unavailable
from popstream.kafka_connection import KafkaConnection
from popstream.oauth_properties import CLIENT_ID, CLIENT_SECRET, MODULE
from popstream.reach_kafka import reach_kafka
from popstream.settings import FetchClient
from tests.support.acl_lines import rights_in
from tests.support.processes.up_process import run_for
from tests.support.secured_site import login_by_token
from tests.support.token_server import Answer, TokenServer, write_private
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
RIGHTS = rights_in((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
USERS = ("job", "consumer", "producer")
PATIENCE_S = 20.0
"""On a machine that does much else; it takes less than a second."""


class Site:
    """A broker, and the endpoint whose tokens it accepts."""

    def __init__(self, broker: SecuredKafka, endpoint: TokenServer, authority: Authority) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.authority = authority
        """That of the endpoint."""

    def login(self, user: str, secret: str = "", **lines: str | None) -> KafkaConnection:
        """A file with the credentials in the login module."""
        secret = secret or self.endpoint.secrets[user]
        store = f'ssl.truststore.type="PEM" ssl.truststore.location="{self.authority.trust_store}"'
        found: dict[str, str | None] = {
            "sasl_oauthbearer_token_endpoint_url": self.endpoint.url,
            "sasl_jaas_config": f'{MODULE} required clientId="{user}" clientSecret="{secret}" scope="kafka" {store};',
        }
        return login_by_token(self.broker, user, **(found | lines))

    def login_beside(self, user: str) -> KafkaConnection:
        """A file with the credentials in settings of their own."""
        store = f'ssl.truststore.type="PEM" ssl.truststore.location="{self.authority.trust_store}"'
        credentials = {CLIENT_ID: user, CLIENT_SECRET: self.endpoint.secrets[user]}
        lines = {name.replace(".", "_"): value for name, value in credentials.items()}
        return self.login(user, sasl_jaas_config=f"{MODULE} required {store};", **lines)

    def login_by_file(self, user: str) -> KafkaConnection:
        """A file that names another one, with a token."""
        token = write_private(self.broker.folder / f"{user}.token", f"{self.endpoint.issue(user)}\n")
        return self.login(
            user,
            sasl_oauthbearer_token_endpoint_url=f"file://{token}",
            sasl_jaas_config=f"{MODULE} required;",
        )


WAYS: dict[str, Callable[[Site, str], KafkaConnection]] = {
    "in the login module": Site.login,
    "beside it": Site.login_beside,
    "in a file": Site.login_by_file,
}
ways = pytest.mark.parametrize("login", WAYS.values(), ids=WAYS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kafka_jar_files: list[Path]) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("oauth")
    authority = Authority(folder / "endpoint", "endpoint")
    secrets = {user: f"secret of {user}" for user in USERS}
    with TokenServer(secrets, authority.key_store("endpoint")) as endpoint:
        jwks = endpoint.write_keys(folder / "jwks.json")
        settings = {
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": endpoint.url,
            # After this time, or the end of the token, a connection must have shown another one (KIP-368).
            "connections.max.reauth.ms": "5000",
        }
        with running(folder / "broker", kafka_jar_files, settings=settings, jwks=jwks) as broker:
            create_message_topic(broker.broker.connection, "orders", 1)
            broker.grant_only(RIGHTS)
            made = Site(broker, endpoint, authority)
            ensure_job_topics(made.login("job"), JobSettings(message_topics="orders"))
            yield made


@ways
@pytest.mark.parametrize("fetch_client", get_args(FetchClient))
def test_clients_log_in_by_tokens(
    site: Site, login: Callable[[Site, str], KafkaConnection], fetch_client: FetchClient
) -> None:
    with Producer(site.broker.servers, kafka_config=login(site, "producer").config_file) as sending:
        sent = sending.send("orders", fetch_client.encode()).result(PATIENCE_S)
    with Consumer(
        site.broker.servers,
        group="g",
        topics=["orders"],
        kafka_config=login(site, "consumer").config_file,
        fetch_client=fetch_client,
        exit_on_sigterm=False,
    ) as reading:
        offset = sent.queue_offset
        found = reading._payloads.fetch("orders", sent.queue_id, [(offset, offset)], PATIENCE_S)
    assert found.payloads[offset].value == fetch_client.encode()


# kafka-python leaves the socket of a connection unclosed that the broker ends while it is made.
@pytest.mark.filterwarnings(r"ignore:unclosed <ssl\.SSLSocket:ResourceWarning")
def test_connections_outlive_their_tokens(site: Site) -> None:
    site.endpoint.secrets["hasty"] = "secret of hasty"
    site.broker.grant_only([*RIGHTS, *(right._replace(user="hasty") for right in RIGHTS)])
    connection, issued, lifetime_s = site.login("hasty"), len(site.endpoint.issued), site.endpoint.lifetime_s
    site.endpoint.lifetime_s = 3
    with Producer(site.broker.servers, kafka_config=connection.config_file) as producer:

        def send() -> bool:
            producer.send("orders", b"1").result(PATIENCE_S)
            return len(site.endpoint.issued) - issued >= 3

        wait_for(send)
    site.endpoint.lifetime_s = lifetime_s
    site.broker.grant_only(RIGHTS)


@ways
def test_spark_logs_in_by_tokens(
    site: Site, login: Callable[[Site, str], KafkaConnection], spark: SparkSession
) -> None:
    """Its source reads what its sink has written."""
    connection = login(site, "job")
    topic = Topics.of("popstream").ops
    rows = spark.createDataFrame([(connection.config_file,)], "value string")
    rows.write.format("kafka").options(**sink_options(connection)).option("topic", topic).save()
    read = spark.read.format("kafka").options(**source_options(connection)).option("subscribe", topic).load()
    assert connection.config_file.encode() in [bytes(row.value) for row in read.select("value").collect()]


@ways
def test_kafkas_own_tools_take_the_same_file(site: Site, login: Callable[[Site, str], KafkaConnection]) -> None:
    connection = login(site, "job")
    properties = connection.properties
    assert properties is not None
    url = properties.entries["sasl.oauthbearer.token.endpoint.url"]
    done = site.broker.broker.run_tool(
        "org.apache.kafka.tools.TopicCommand",
        ["--bootstrap-server", site.broker.servers, "--command-config", connection.config_file, "--list"],
        java_options=[f"-D{ALLOWED_URLS}={url}"],
    )
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout.splitlines()


def refusal(attempt: Callable[[], object]) -> PopstreamError:
    """The error that an attempt ends with: one line, without secrets, within seconds."""
    began_s = time.monotonic()
    with pytest.raises(PopstreamError) as raised:
        attempt()
    assert time.monotonic() - began_s < PATIENCE_S
    assert "\n" not in str(raised.value)
    assert "secret of" not in str(raised.value)
    return raised.value


@contextlib.contextmanager
def answering(endpoint: TokenServer, answer: Answer | None = None, **more: str) -> Iterator[None]:
    """The endpoint gives another answer, or other fields in it."""
    endpoint.answer, endpoint.more = answer, dict(more)
    yield
    endpoint.answer, endpoint.more = None, {}


def test_a_client_that_the_endpoint_refuses_is_named(site: Site) -> None:
    connection = site.login("job", "secret of another")
    for attempt in (
        lambda: reach_kafka(connection, timeout_s=10 * PATIENCE_S),
        lambda: Producer(site.broker.servers, kafka_config=connection.config_file),
    ):
        found = refusal(attempt)
        assert isinstance(found, Invalid)
        said = f"the token endpoint {site.endpoint.url} refuses the client job (401 invalid_client): correct its id"
        assert str(found).startswith(said)


def test_a_command_says_in_one_line_that_a_client_is_refused(site: Site, tmp_path: Path) -> None:
    file = site.login("job", "secret of another").config_file
    for command in (["up", "--var", str(ROOT / "var")], ["send", "orders"]):
        kafka = ["--bootstrap-servers", site.broker.servers, "--kafka-config", file]
        done = run_for(tmp_path / "job", *command, *kafka)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"popstream: the token endpoint {site.endpoint.url} refuses the client job (401 invalid")


def test_an_endpoint_without_tokens_is_named(site: Site) -> None:
    # A secret that no other test uses, for their tokens are kept.
    site.endpoint.secrets["late"] = "secret of late"
    connection = site.login("late")
    with answering(site.endpoint, Answer(503)):
        found = refusal(lambda: reach_kafka(connection))
    assert isinstance(found, Unavailable)
    assert str(found) == f"the token endpoint {site.endpoint.url} gives no token at present (503)"
    untrusted = re.sub("location=[^ ;]+", f'location="{site.broker.authority.trust_store}"', _jaas(connection))
    found = refusal(lambda: reach_kafka(site.login("late", sasl_jaas_config=untrusted)))
    assert isinstance(found, Invalid)
    assert "has a certificate that is not trusted: put the certificate" in str(found)


def _jaas(connection: KafkaConnection) -> str:
    properties = connection.properties
    assert properties is not None
    return properties.entries["sasl.jaas.config"]


@pytest.mark.parametrize(
    "claims", [{"aud": "another"}, {"iss": "https://another.example"}, {"exp": 1_600_000_000}], ids=str
)
def test_a_token_that_the_broker_does_not_accept_is_named(site: Site, claims: dict[str, object]) -> None:
    user = "-".join(map(str, claims))
    site.endpoint.secrets[user] = f"secret of {user}"
    with answering(site.endpoint, access_token=site.endpoint.issue(user, **claims)):
        found = refusal(lambda: reach_kafka(site.login(user), timeout_s=10 * PATIENCE_S))
    assert isinstance(found, Invalid)
    said = f"refuses the token of the client {user} of {site.endpoint.url} "
    assert str(found).startswith(f"Kafka at {site.broker.servers} {said}")
    assert "does it accept tokens of this issuer, for this audience, and are the clocks right?" in str(found)


def test_a_token_that_is_signed_by_another_key_is_refused(site: Site) -> None:
    forged = TokenServer({"job": "x"})
    with forged, answering(site.endpoint, access_token=forged.issue("job", iss=site.endpoint.url)):
        site.endpoint.secrets["forger"] = "secret of a forger"
        found = refusal(lambda: reach_kafka(site.login("forger")))
    assert "refuses the token of the client forger of" in str(found)


def test_a_right_that_a_client_lacks_is_named(site: Site) -> None:
    site.broker.grant_only(right for right in RIGHTS if right.user != "producer")
    found = refusal(lambda: Producer(site.broker.servers, kafka_config=site.login("producer").config_file))
    assert str(found).startswith("Kafka does not allow the user of this client's token what is needed: grant Read on")
    site.broker.grant_only(RIGHTS)
