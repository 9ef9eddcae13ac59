"""Claim: with the rights that docs/tenants.md lists two tenants work, and neither reaches anything of the other.

Method: a broker with TLS, SCRAM and Kafka's own authorizer, and the lines of the document. The jobs that decide are in
tests/integration/commands/test_secure_demo.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAuthorizationFailedError

from connectors.kafka.access_rules import rights_of_tenant
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.secured_kafka import SecuredKafka, running
from connectors.kafka.topic_admin import create_message_topic
from pipelines.job_settings import JobSettings
from pipelines.process.job_topics import ensure_job_topics
from popstream import Consumer, Invalid, Producer
from tests.support.acl_lines import rights_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popstream.kafka_connection import KafkaConnection

pytestmark = pytest.mark.integration

RIGHTS = rights_in((Path(__file__).parents[3] / "docs" / "tenants.md").read_text(encoding="utf-8"))
TENANTS = ("shop", "bank")
PAIRS = [("shop", "bank"), ("bank", "shop")]
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kafka_jar_files: list[Path]) -> Iterator[SecuredKafka]:
    with running(tmp_path_factory.mktemp("tenants"), kafka_jar_files) as broker:
        for tenant in TENANTS:
            for user in (f"{tenant}-job", f"{tenant}-app"):
                broker.add_user(user, f"password of {user}")
            create_message_topic(broker.broker.connection, f"{tenant}.orders", 1)
        broker.grant_only(RIGHTS)
        for tenant in TENANTS:
            ensure_job_topics(login(broker, tenant, "job"), settings(tenant))
        yield broker


def settings(tenant: str) -> JobSettings:
    return JobSettings(topic_prefix=tenant, message_topics=f"{tenant}.orders")


def login(broker: SecuredKafka, tenant: str, user: str) -> KafkaConnection:
    return broker.login(f"{tenant}-{user}", f"password of {tenant}-{user}")


def consumer(broker: SecuredKafka, tenant: str, prefix: str) -> Consumer:
    options = login(broker, tenant, "app").client_options
    return Consumer(**options, group="g", topics=[f"{prefix}.orders"], prefix=prefix, exit_on_sigterm=False)


def producer(broker: SecuredKafka, tenant: str, prefix: str) -> Producer:
    return Producer(**login(broker, tenant, "app").client_options, prefix=prefix)


def test_the_document_has_the_rights_of_the_code() -> None:
    made = [
        right
        for tenant in TENANTS
        for right in rights_of_tenant(tenant, f"{tenant}.orders", job=f"{tenant}-job", app=f"{tenant}-app")
    ]
    assert sorted(RIGHTS) == sorted(made)


@pytest.mark.parametrize("tenant", TENANTS)
def test_each_tenant_works(secured: SecuredKafka, tenant: str) -> None:
    with producer(secured, tenant, tenant) as sending:
        sent = sending.send(f"{tenant}.orders", tenant.encode()).result(PATIENCE_S)
    with consumer(secured, tenant, tenant) as reading:
        span = (sent.queue_offset, sent.queue_offset)
        found = reading._payloads.fetch(f"{tenant}.orders", sent.queue_id, [span], PATIENCE_S)
    assert found.payloads[sent.queue_offset].value == tenant.encode()
    log = OwnerLog(login(secured, tenant, "job"), Topics.of(tenant).owner, dict)
    with contextlib.closing(log):
        log.open_for_writing()


@pytest.mark.parametrize(("tenant", "other"), PAIRS)
def test_the_clients_of_one_are_refused_by_the_topics_of_the_other(
    secured: SecuredKafka, tenant: str, other: str
) -> None:
    said = f"Kafka does not allow User:{tenant}-app what is needed: grant "
    with pytest.raises(Invalid, match=said) as caught:
        consumer(secured, tenant, other)
    assert f"topic {other}." in str(caught.value)
    with pytest.raises(Invalid, match=said):
        producer(secured, tenant, other)
    with producer(secured, tenant, tenant) as sending:
        with pytest.raises(Invalid, match=f"does not allow describing topics {other}.orders"):
            sending.send(f"{other}.orders", b"1").result(PATIENCE_S)
        sending.send(f"{tenant}.orders", b"1").result(PATIENCE_S)


@pytest.mark.parametrize(("tenant", "other"), PAIRS)
@pytest.mark.parametrize("user", ["job", "app"])
def test_without_our_client_they_are_refused_too(secured: SecuredKafka, tenant: str, other: str, user: str) -> None:
    connect = login(secured, tenant, user).for_kafka_python()
    with contextlib.closing(KafkaAdminClient(**connect)) as admin:
        assert not [name for name in admin.list_topics() if name.startswith(f"{other}.")]
    topics = (*sorted(Topics.of(other).names), f"{other}.orders")
    with contextlib.closing(KafkaProducer(**connect, max_block_ms=5_000)) as writing:
        for topic in topics:
            with pytest.raises(TopicAuthorizationFailedError):
                writing.send(topic, value=b"{}", partition=0).get(PATIENCE_S)
    with contextlib.closing(KafkaConsumer(**connect)) as reading:
        for topic in topics:
            reading.assign([TopicPartition(topic, 0)])
            with pytest.raises(TopicAuthorizationFailedError):
                reading.beginning_offsets([TopicPartition(topic, 0)])


@pytest.mark.parametrize(("tenant", "other"), PAIRS)
def test_the_job_of_one_cannot_have_the_prefix_of_the_other(secured: SecuredKafka, tenant: str, other: str) -> None:
    connection = login(secured, tenant, "job")
    with pytest.raises(Invalid) as caught:
        ensure_job_topics(connection, settings(other))
    assert f"{other}." in str(caught.value)
    with pytest.raises(Invalid, match="grant the job Write on this transactional id"):
        OwnerLog(connection, Topics.of(other).owner, dict).open_for_writing()
