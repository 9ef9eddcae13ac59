"""Claim: with the rights that docs/security.md lists a job and its clients work; without one of them, or with a wrong
login, certificate or protocol, one line says within seconds what to correct.

Method: a broker with TLS, SCRAM and Kafka's own authorizer. The rights are the lines of the document, all but one. A
whole job with exactly these rights runs in tests/integration/job/test_secured_job.py.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from kafka import KafkaProducer, TopicPartition

from connectors.kafka.access_rules import Right
from connectors.kafka.broker_security import SCRAM
from connectors.kafka.certificates import Authority
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.secured_kafka import SecuredKafka, running
from connectors.kafka.topic_admin import create_message_topic, open_admin
from pipelines.http_api.letters import Letters, LettersRequest, RedriveRequest
from pipelines.job_settings import JobSettings
from pipelines.process.job_topics import ensure_job_topics
from popstream import Consumer, DeadLetters, Invalid, PopstreamError, Producer, Unavailable
from popstream.dead_letters.kafka_letter_topics import KafkaLetterTopics
from popstream.kafka_connection import KafkaConnection
from popstream.payload.payload_reader import make_reader
from popstream.reach_kafka import reach_kafka
from popstream.settings import ClientSettings, FetchClient
from popstream.topics.access_rights import require_rights
from popstream.topics.message_topics import TopicReader
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of
from tests.support.acl_lines import rights_in
from tests.support.processes.up_process import run_for
from tests.support.redrive_answers import ok_answer
from tests.support.secured_site import pkcs12_trust_store, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from connectors.kafka.embedded import EmbeddedKafka
    from popstream.wire.answer import Answer
    from popstream.wire.command import Redrive

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
RIGHTS = rights_in((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
USERS = ("job", "consumer", "producer")
OWN = Topics.of("popstream")
PATIENCE_S = 20.0
"""On a machine that does much else; it takes less than a second."""


def of(user: str) -> list[Right]:
    return [right for right in RIGHTS if right.user == user]


def named(right: Right) -> str:
    return f"{right.user}: {right}"


@contextlib.contextmanager
def within_seconds() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < PATIENCE_S


def refusal(attempt: Callable[[], object]) -> PopstreamError:
    """The error that an attempt ends with: one line."""
    with within_seconds(), pytest.raises(PopstreamError) as raised:
        attempt()
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kafka_jar_files: list[Path]) -> Iterator[SecuredKafka]:
    with running(tmp_path_factory.mktemp("secured"), kafka_jar_files) as broker:
        for user in USERS:
            broker.add_user(user, f"password of {user}")
        create_message_topic(broker.broker.connection, "orders", 1)
        broker.grant_only(RIGHTS)
        ensure_job_topics(login(broker, "job"), JobSettings(message_topics="orders"))
        yield broker


def login(broker: SecuredKafka, user: str) -> KafkaConnection:
    return broker.login(user, f"password of {user}")


def consumer(broker: SecuredKafka, fetch_client: FetchClient = "kafka-python") -> Consumer:
    file = login(broker, "consumer").config_file
    return Consumer(
        broker.servers,
        group="g",
        topics=["orders"],
        kafka_config=file,
        fetch_client=fetch_client,
        exit_on_sigterm=False,
    )


def producer(broker: SecuredKafka) -> Producer:
    return Producer(broker.servers, kafka_config=login(broker, "producer").config_file)


@pytest.mark.parametrize("right", of("job"), ids=named)
def test_a_job_names_the_right_that_it_lacks(secured: SecuredKafka, right: Right) -> None:
    secured.grant_only(other for other in RIGHTS if other is not right)
    connection = login(secured, "job")
    if right.resource == "TransactionalId":
        found = refusal(OwnerLog(connection, OWN.owner, dict).open_for_writing)
        assert str(found).endswith("grant the job Write on this transactional id")
        return
    if right.operation == "Create":
        with open_admin(secured.broker.connection) as admin:
            admin.delete(OWN.dead_letters)
        wait_until_gone(secured, OWN.dead_letters)
    with within_seconds(), pytest.raises(Invalid) as raised:
        ensure_job_topics(connection, JobSettings(message_topics="orders"))
    assert raised.value.details == (
        (f"{OWN.dead_letters}: grant Create on this topic, or create it first",) if right.operation == "Create" else ()
    )
    if right.operation != "Create":
        # Read includes Describe, without which Kafka does not say what else is allowed.
        granted = "Read and DescribeConfigs" if (right.operation, right.name) == ("Read", "orders") else right.operation
        topics = ", ".join(sorted(OWN.names)) if right.name == "popstream." else right.name
        said = f"Kafka does not allow User:job what is needed: grant {granted} on topic {topics}"
        assert str(raised.value) == said
    secured.grant_only(RIGHTS)
    ensure_job_topics(connection, JobSettings(message_topics="orders"))


@pytest.mark.parametrize("right", of("consumer"), ids=named)
def test_a_consumer_names_the_right_that_it_lacks(secured: SecuredKafka, right: Right) -> None:
    secured.grant_only(other for other in RIGHTS if other is not right)
    found = refusal(lambda: consumer(secured))
    assert isinstance(found, Invalid)
    what = f"grant {right.operation} on topic {right.name}"
    assert str(found) == f"Kafka does not allow User:consumer what is needed: {what}"


def test_a_producer_names_the_right_that_it_lacks(secured: SecuredKafka) -> None:
    write, read = of("producer")
    describe = Right("producer", "Describe", "Topic", "orders", "literal")
    secured.grant_only(other for other in RIGHTS if other is not read)
    assert str(refusal(lambda: producer(secured))).endswith(f"grant Read on topic {OWN.queue_types}")
    secured.grant_only(other for other in RIGHTS if other is not write)
    with producer(secured) as made:
        found = refusal(lambda: made.send("orders", b"1").result(PATIENCE_S))
    assert isinstance(found, Invalid)
    assert str(found).endswith("does not allow describing topics orders: grant Read to a consumer, Write to a producer")
    secured.grant_only([*(other for other in RIGHTS if other is not write), describe])
    with producer(secured) as made:
        found = refusal(lambda: made.send("orders", b"1").result(PATIENCE_S))
    assert str(found).endswith("ClusterAuthorizationFailedError'): grant Write on topic orders")
    elsewhere = Right("producer", "Write", "Topic", "payments", "literal")
    secured.grant_only([*(other for other in RIGHTS if other is not write), describe, elsewhere])
    with producer(secured) as made:
        found = refusal(lambda: made.send("orders", b"1").result(PATIENCE_S))
    assert isinstance(found, Invalid)
    assert str(found) == "Kafka does not allow this client to send to orders: grant Write on topic orders"


def give_up(broker: SecuredKafka, value: bytes) -> None:
    """Write a dead letter of a topic that the job builds, as the job does."""
    connection = broker.broker.connection
    with TopicReader(connection, client_id="test") as reader:
        topic_id = reader.read(["orders"])["orders"].topic_id
    with contextlib.closing(QueueTypesPublisher(connection, OWN.queue_types)) as publisher:
        publisher.publish({("orders", topic_id, "simple")})
    letter = DeadLetter("orders", 0, "g", 0, 0, "rejected", 1, 1, 5, 6, 0, 0)
    message = SimpleNamespace(key=value, value=value, headers=[])
    copied = copy_of(letter, 0, message)
    with contextlib.closing(KafkaProducer(**connection.for_kafka_python())) as sending:
        sending.send(OWN.dead_letters, copied.value, copied.key, list(copied.headers)).get(PATIENCE_S)


class Announced(KafkaLetterTopics):
    """The topics of a job that answers; there is none here."""

    def announce(self, redrives: Sequence[Redrive]) -> list[Answer]:
        return [ok_answer(redrive) for redrive in redrives]


def test_a_redrive_by_the_api_names_the_right_that_the_job_lacks(secured: SecuredKafka) -> None:
    """The rights of the document's row about the user of the job: of what is sent, and of the transaction."""
    connection = login(secured, "job")

    def connect(**options: Any) -> DeadLetters:
        return DeadLetters(**options, topics=Announced(ClientSettings(**options)))

    letters = Letters(lambda: (connection, "popstream"), None, connect)

    def redrive() -> int:
        return letters.redrive(RedriveRequest(), "127.0.0.1").letters

    give_up(secured, b"mocha")
    transaction = Right("job", "Write", "TransactionalId", OWN.dead_letters_handled, "literal")
    write = Right("job", "Write", "Topic", "orders", "literal")
    for granted, lacking in (
        ([write], f"Write on transactional id {OWN.dead_letters_handled}"),
        ([transaction], "Write on topic orders"),
    ):
        secured.grant_only([*RIGHTS, *granted])
        found = refusal(redrive)
        assert isinstance(found, Invalid)
        assert str(found) == f"Kafka does not allow User:job what is needed: grant {lacking}"
        assert len(letters.page(LettersRequest(), "127.0.0.1").letters) == 1
    secured.grant_only([*RIGHTS, write, transaction])
    assert redrive() == 1
    assert letters.page(LettersRequest(), "127.0.0.1").letters == []
    with DeadLetters(secured.servers, kafka_config=connection.config_file) as dead_letters:
        found = refusal(dead_letters.erase)
        assert str(found) == f"Kafka does not allow User:job what is needed: grant Delete on topic {OWN.dead_letters}"
        secured.grant_only([*RIGHTS, Right("job", "Delete", "Topic", OWN.dead_letters, "literal")])
        assert dead_letters.erase() != {}


@pytest.mark.parametrize("fetch_client", get_args(FetchClient))
def test_with_all_of_them_messages_are_sent_and_read(secured: SecuredKafka, fetch_client: FetchClient) -> None:
    secured.grant_only(RIGHTS)
    with producer(secured) as sending:
        sent = sending.send("orders", fetch_client.encode()).result(PATIENCE_S)
    with consumer(secured, fetch_client) as reading:
        offset = sent.queue_offset
        found = reading._payloads.fetch("orders", sent.queue_id, [(offset, offset)], PATIENCE_S)
    assert found.payloads[offset].value == fetch_client.encode()


def changed(broker: SecuredKafka, **lines: str | None) -> KafkaConnection:
    return broker.login("job", "password of job", **lines)


def other_authority(broker: SecuredKafka) -> str:
    return str(Authority(broker.folder / "other").trust_store)


@pytest.mark.parametrize(
    ("connect", "said"),
    [
        pytest.param(
            lambda broker: broker.login("job", "wrong"),
            "refuses the login of the user job .*correct user or password in sasl.jaas.config",
            id="wrong password",
        ),
        pytest.param(
            lambda broker: broker.login("nobody", "x"), "refuses the login of the user nobody", id="unknown user"
        ),
        pytest.param(
            lambda broker: changed(
                broker,
                sasl_mechanism="SCRAM-SHA-256",
                sasl_jaas_config=f'{SCRAM} required username="job" password="x";',
            ),
            "refuses the login of the user job",
            id="a mechanism that the user has no password for",
        ),
        pytest.param(
            lambda broker: changed(
                broker,
                sasl_mechanism="PLAIN",
                sasl_jaas_config="org.apache.kafka.common.security.plain.PlainLoginModule required"
                ' username="job" password="x";',
            ),
            "does not support sasl.mechanism=PLAIN, but SCRAM-SHA-512, SCRAM-SHA-256",
            id="a mechanism that the broker does not have",
        ),
        pytest.param(
            lambda broker: changed(broker, ssl_truststore_location=other_authority(broker)),
            "has a certificate that is not trusted: put .* into ssl.truststore.location",
            id="another authority",
        ),
        pytest.param(
            lambda broker: KafkaConnection(
                broker.servers.replace("127.0.0.1", "localhost"), changed(broker).config_file
            ),
            "has a certificate that does not name localhost",
            id="another host name",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    secured: SecuredKafka, connect: Callable[[SecuredKafka], KafkaConnection], said: str
) -> None:
    """At once, however long one would wait for a broker that starts."""
    connection = connect(secured)
    found = refusal(lambda: reach_kafka(connection, timeout_s=10 * PATIENCE_S))
    assert isinstance(found, Invalid)
    assert re.match(rf"Kafka at {connection} {said}", str(found))


@pytest.mark.parametrize("protocol", ["", "SASL_PLAINTEXT", "SSL"])
def test_another_protocol_is_named(secured: SecuredKafka, protocol: str) -> None:
    tls: dict[str, str | None] = {"ssl_truststore_type": None, "ssl_truststore_location": None}
    lines: dict[str, dict[str, str | None]] = {
        "SASL_PLAINTEXT": tls,
        "SSL": {"sasl_mechanism": None, "sasl_jaas_config": None},
    }
    connection = KafkaConnection(secured.servers)
    if protocol:
        connection = changed(secured, security_protocol=protocol, **lines[protocol])
    found = refusal(lambda: reach_kafka(connection, timeout_s=10 * PATIENCE_S))
    assert isinstance(found, Unavailable)
    said = f"is security.protocol={protocol} that of its listener" if protocol else "may require encryption or a login"
    assert f"Kafka at {secured.servers} closes the connection: " in str(found)
    assert said in str(found)


def test_a_listener_without_tls_is_named(secured: SecuredKafka, kafka: EmbeddedKafka) -> None:
    tls = KafkaConnection(kafka.bootstrap_servers, changed(secured).config_file)
    assert "is security.protocol=SASL_SSL that of its listener?" in str(refusal(lambda: reach_kafka(tls)))
    file = changed(
        secured, security_protocol="SASL_PLAINTEXT", ssl_truststore_type=None, ssl_truststore_location=None
    ).config_file
    found = refusal(lambda: reach_kafka(KafkaConnection(kafka.bootstrap_servers, file)))
    assert "expects no login: security.protocol=SASL_PLAINTEXT is not that of its listener" in str(found)


COMMANDS = {
    "up": ["up", "--var", str(ROOT / "var")],
    "restore": ["restore"],
    "send": ["send", "orders"],
    "consume": ["consume", "orders", "--group", "g"],
    "ops": ["ops", '{"type":"tick","topic":"orders","queue_id":0}'],
    "release": ["release", "orders", "--group", "g", "--client", "c"],
    "perf": ["perf"],
    "dead": ["dead", "list"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_in_one_line_what_is_wrong_with_the_login(
    secured: SecuredKafka, command: str, tmp_path: Path
) -> None:
    file = secured.login("job", "wrong").config_file
    done = run_for(tmp_path / "job", *COMMANDS[command], "--bootstrap-servers", secured.servers, "--kafka-config", file)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"popstream: Kafka at {secured.servers} refuses the login of the user job")


def test_clients_bring_a_certificate(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """mTLS, with PEM and with PKCS12; the CN is the user."""
    password = "a b\\c"  # noqa: S105 - of a store of this test

    def as_client(**lines: str | None) -> KafkaConnection:
        plain = {"security_protocol": "SSL", "sasl_mechanism": None, "sasl_jaas_config": None}
        return broker.login("alice", "", **{**plain, **lines})

    with running(tmp_path, kafka_jar_files, protocol="SSL") as broker:
        authority = broker.authority
        pem = {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(authority.key_store("alice", password=password)),
        }
        escaped = password.replace("\\", "\\\\")
        with_pem = as_client(**pem, ssl_key_password=escaped)
        with_pkcs12 = as_client(
            ssl_truststore_type="PKCS12",
            ssl_truststore_location=str(pkcs12_trust_store(authority, password)),
            ssl_truststore_password=escaped,
            ssl_keystore_location=str(authority.key_store("alice", password=password, as_pkcs12=True)),
            ssl_keystore_password=escaped,
        )
        create_message_topic(broker.broker.connection, "orders", 1)
        broker.grant_only([Right("alice", "Read", "Topic", "orders", "literal")])
        for connection in (with_pem, with_pkcs12):
            reach_kafka(connection)
            require_rights(connection, "alice", {"orders": ["Read"]})
            found = refusal(partial(require_rights, connection, "alice", {"orders": ["Write"]}))
            assert str(found).endswith(
                "the user of this client's certificate what is needed: grant Write on topic orders"
            )
            settings = ClientSettings(**connection.client_options, client_id="alice", fetch_client="librdkafka")
            with contextlib.closing(make_reader(settings)) as reader:
                reader.read({TopicPartition("orders", 0): 0})
                assert reader.is_connected

        without = refusal(lambda: reach_kafka(as_client()))
        assert str(without).endswith("requires a certificate of the client: set ssl.keystore.location")
        wrong = {
            "expired": authority.key_store("alice", days=-1),
            "untrusted": Authority(tmp_path / "other").key_store("alice"),
        }
        for store in wrong.values():
            found = refusal(partial(reach_kafka, as_client(**{**pem, "ssl_keystore_location": str(store)})))
            assert "refuses the client's certificate" in str(found)


def test_plain_and_the_shorter_scram(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f'{module} required user_alice="alice one";',
    }
    with running(tmp_path, kafka_jar_files, settings=settings) as broker:
        broker.add_user("bob", "bob one", "SCRAM-SHA-256")
        jaas = f'{module} required username="alice" password="alice one";'
        reach_kafka(broker.login("alice", "", sasl_mechanism="PLAIN", sasl_jaas_config=jaas))
        reach_kafka(broker.login("bob", "bob one", sasl_mechanism="SCRAM-SHA-256"), timeout_s=PATIENCE_S)
        wrong = broker.login("alice", "", sasl_mechanism="PLAIN", sasl_jaas_config=jaas.replace("one", "two"))
        assert "refuses the login of the user alice" in str(refusal(lambda: reach_kafka(wrong)))
