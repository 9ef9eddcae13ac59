"""Claim: through librdkafka what is passed over has no record, and each error is one of kafka-python's.

Method: a scripted consumer that returns what a test has put into its queue; the settings against the real librdkafka.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from popstream import Invalid
from popstream.payload import librdkafka_reader
from popstream.payload.librdkafka_config import translate
from popstream.payload.librdkafka_reader import LibrdkafkaReader
from popstream.payload.partition_reader import IDLE_MAX
from popstream.payload.payload_reader import make_reader
from popstream.payload.shared_payloads import _FETCHERS, shared_payloads
from popstream.settings import ClientSettings, FetchClient

SETTINGS = ClientSettings(bootstrap_servers="kafka:1,kafka:2", client_id="c", fetch_client="librdkafka")
QUEUE = ("orders", 0)


class Received:
    """A message, an end or an error, as confluent-kafka tells of them."""

    def __init__(self, offset: int, code: int | None = None, queue: tuple[str, int] = QUEUE, size: int = 1) -> None:
        self._offset, self._queue, self._value = offset, queue, b"x" * size
        self._error = None if code is None else KafkaError(code)

    def __len__(self) -> int:
        return len(self._value)

    def topic(self) -> str:
        return self._queue[0]

    def partition(self) -> int:
        return self._queue[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 7


class Scripted:
    """A consumer with what a test has put into `queue`; the rest of it is received by later calls."""

    made: ClassVar[list[Scripted]]
    unreachable: ClassVar[KafkaError | None]

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self.config = config
        self.queue: list[Received] = []
        self.assigned: dict[tuple[str, int], int] = {}
        self.assignments = 0
        self.low: int | None = 0
        self.is_closed = False
        self.made.append(self)

    def list_topics(self, topic: str, timeout: float) -> None:
        assert topic
        assert timeout > 0
        if self.unreachable is not None:
            self.config["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
            raise KafkaException(self.unreachable)

    def incremental_assign(self, partitions: list[Any]) -> None:
        for one in partitions:
            assert (one.topic, one.partition) not in self.assigned
            self.assigned[one.topic, one.partition] = one.offset
            self.assignments += 1

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self.assigned[one.topic, one.partition]

    def poll(self, timeout: float) -> Received | None:
        assert timeout >= 0
        return self.queue.pop(0) if self.queue else None

    def consume(self, count: int, timeout: float) -> list[Received]:
        assert timeout == 0
        received, self.queue = self.queue[:count], self.queue[count:]
        return received

    def get_watermark_offsets(self, _: Any, *, timeout: float, cached: bool) -> tuple[int, int]:
        assert timeout > 0
        assert not cached
        if self.low is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.low, 1_000

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[LibrdkafkaReader]:
    monkeypatch.setattr(librdkafka_reader, "Consumer", Scripted)
    Scripted.made, Scripted.unreachable = [], None
    made = LibrdkafkaReader(SETTINGS)
    yield made
    made.close()
    assert all(consumer.is_closed for consumer in Scripted.made)


def enqueue(reader: LibrdkafkaReader, *received: Received, target: int = 0) -> Scripted:
    """Connect, turn to an offset of the queue, and put something behind it."""
    reader.read({QUEUE: target})
    consumer = Scripted.made[-1]
    consumer.queue += received
    return consumer


def spans(blocks: dict[tuple[str, int], Any]) -> dict[tuple[str, int], tuple[int, int, list[int]]]:
    return {queue: (block.first, block.end, block.offsets) for queue, block in blocks.items()}


def test_what_is_between_records_and_before_the_end_has_no_record(reader: LibrdkafkaReader) -> None:
    enqueue(reader, Received(1), Received(4), Received(9, KafkaError._PARTITION_EOF))
    assert spans(reader.read({QUEUE: 0})) == {QUEUE: (0, 9, [1, 4])}
    assert reader.is_at(QUEUE, 9)
    assert reader.read({QUEUE: 9}) == {}
    assert reader.records_read == 2


def test_what_comes_twice_is_given_once(reader: LibrdkafkaReader) -> None:
    enqueue(reader, Received(0), Received(1), Received(0), Received(1), Received(2))
    assert spans(reader.read({QUEUE: 0})) == {QUEUE: (0, 3, [0, 1, 2])}


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError._BAD_MSG, CorruptRecordError),
        (KafkaError._BAD_COMPRESSION, CorruptRecordError),
        (KafkaError._NOT_IMPLEMENTED, UnsupportedCodecError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationFailedError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, NotLeaderForPartitionError),
        (KafkaError.REQUEST_TIMED_OUT, RequestTimedOutError),
        (KafkaError._TRANSPORT, KafkaConnectionError),
    ],
)
def test_an_error_comes_after_what_is_before_it_and_hides_what_is_behind(
    reader: LibrdkafkaReader, code: int, raised: type[Exception]
) -> None:
    """Behind a damaged batch librdkafka goes on: the offsets of the batch must not be taken for gone."""
    enqueue(reader, Received(0), Received(1), Received(2, code), Received(7))
    assert spans(reader.read({QUEUE: 0})) == {QUEUE: (0, 2, [0, 1])}
    for _ in range(2):
        with pytest.raises(raised):
            reader.read({QUEUE: 2})
        assert reader.is_at(QUEUE, 2)


def test_an_error_of_one_queue_waits_for_no_other(reader: LibrdkafkaReader) -> None:
    """Who asked is not kept waiting while there is always something of another queue."""
    other = ("orders", 1)
    reader.read({QUEUE: 0, other: 0})
    Scripted.made[-1].queue += [Received(0, KafkaError._BAD_MSG), Received(0, queue=other)]
    with pytest.raises(CorruptRecordError):
        reader.read({other: 0, QUEUE: 0})


def test_what_is_before_the_start_of_the_log_is_gone(reader: LibrdkafkaReader) -> None:
    consumer = enqueue(reader, Received(3), Received(4, KafkaError._AUTO_OFFSET_RESET), target=3)
    consumer.low = 50
    assert spans(reader.read({QUEUE: 3})) == {QUEUE: (3, 4, [3])}
    assert spans(reader.read({QUEUE: 4})) == {QUEUE: (4, 50, [])}
    reader.read({QUEUE: 50})
    assert consumer.assigned == {QUEUE: 50}


@pytest.mark.parametrize("low", [0, 7, None])
def test_what_is_beyond_the_end_is_asked_for_again_later(reader: LibrdkafkaReader, low: int | None) -> None:
    consumer = enqueue(reader, Received(7, KafkaError._AUTO_OFFSET_RESET), target=7)
    consumer.low = low
    assert reader.read({QUEUE: 7}) == {}
    assert consumer.assigned == {}
    while not consumer.assigned:
        assert reader.read({QUEUE: 7}) == {}
    assert consumer.assigned == {QUEUE: 7}
    consumer.queue.append(Received(7))
    assert spans(reader.read({QUEUE: 7})) == {QUEUE: (7, 8, [7])}


@pytest.mark.parametrize(
    "code", [KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART]
)
def test_a_queue_that_does_not_exist_does_not_move(
    reader: LibrdkafkaReader, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(librdkafka_reader, "UNKNOWN_PAUSE_S", 0.01)
    consumer = enqueue(reader, Received(-1001, code))
    assert reader.read({QUEUE: 0}) == {}
    while consumer.assignments < 2:
        assert reader.read({QUEUE: 0}) == {}


def test_what_is_told_of_no_queue_or_of_one_given_up_is_ignored(reader: LibrdkafkaReader) -> None:
    enqueue(
        reader,
        Received(0, KafkaError.GROUP_AUTHORIZATION_FAILED, ("", -1)),
        Received(5, queue=("orders", 8)),
        Received(0),
    )
    assert spans(reader.read({QUEUE: 0})) == {QUEUE: (0, 1, [0])}


def test_it_seeks_backwards_and_over_large_gaps_only(reader: LibrdkafkaReader) -> None:
    consumer = enqueue(reader, Received(100), target=100)
    reader.read({QUEUE: 100})
    reader.read({QUEUE: 600})
    assert (consumer.assigned, consumer.assignments) == ({QUEUE: 100}, 1)
    reader.read({QUEUE: 602})
    assert (consumer.assigned, consumer.assignments) == ({QUEUE: 602}, 2)
    reader.read({QUEUE: 601})
    assert (consumer.assigned, consumer.assignments) == ({QUEUE: 601}, 3)


def test_a_queue_that_nobody_wants_is_read_ahead_so_far(reader: LibrdkafkaReader) -> None:
    large, other = librdkafka_reader.READ_AHEAD_BYTES // 2, ("orders", 1)
    consumer = enqueue(reader)
    reader.read({other: 0})
    consumer.queue += [Received(offset, size=large) for offset in range(3)]
    reader.read({other: 0})
    assert {*consumer.assigned} == {QUEUE, other}
    reader.read({other: 0})
    assert {*consumer.assigned} == {other}
    # What has arrived is kept, and the others are asked for when it is wanted.
    assert [spans(reader.read({QUEUE: at})) for at in (0, 2)] == [{QUEUE: (0, 2, [0, 1])}, {QUEUE: (2, 3, [2])}]
    assert consumer.assigned[QUEUE] == 3


def test_queues_that_nobody_wants_are_given_up(reader: LibrdkafkaReader) -> None:
    for queue_id in range(100):
        reader.read({("orders", queue_id): 0})
    (consumer,) = Scripted.made
    assert len(consumer.assigned) == len(reader._places) == IDLE_MAX + 1
    reader.rest()
    assert consumer.assigned == {}
    assert reader.read({("orders", 99): 0}) == {}
    assert consumer.assigned == {("orders", 99): 0}


def test_an_error_while_it_rests_ends_the_connection_and_not_the_thread(
    reader: LibrdkafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    reader.read({QUEUE: 0})
    with monkeypatch.context() as patch:
        patch.setattr(Scripted, "consume", fail)
        reader.rest()
    assert not reader.is_connected
    reader.read({QUEUE: 0})
    assert reader.is_connected


def test_bytes_are_counted_over_connections(reader: LibrdkafkaReader) -> None:
    for total in (700, 500):
        reader.read({QUEUE: 0})
        Scripted.made[-1].config["stats_cb"](msgspec.json.encode({"name": "c", "rx_bytes": total}).decode())
        reader.close()
    assert reader.bytes_read == 1_200


def test_kafka_that_is_not_there_is_told_with_its_cause(reader: LibrdkafkaReader) -> None:
    Scripted.unreachable = KafkaError(KafkaError._TRANSPORT, "no broker")
    with pytest.raises(KafkaConnectionError, match="no broker; wrong password"):
        reader.read({QUEUE: 0})
    assert not reader.is_connected
    Scripted.unreachable = None
    reader.read({QUEUE: 0})
    assert reader.is_connected


# --- the settings ---

COMMON = {*KafkaConsumer.DEFAULT_CONFIG} & {*KafkaProducer.DEFAULT_CONFIG} & {*KafkaAdminClient.DEFAULT_CONFIG}
"""What `kafka` may have for all clients."""


def test_settings_that_librdkafka_does_not_have_are_refused_by_name() -> None:
    with pytest.raises(Invalid) as raised:
        translate(dict.fromkeys(COMMON - {"bootstrap_servers"}))
    assert {*raised.value.details} == {
        "api_version", "kafka_client", "max_in_flight_requests_per_connection", "proxy_url",
        "sasl_kerberos_domain_name", "sasl_kerberos_name", "sasl_oauth_token_provider", "selector", "socket_options",
        "socks5_proxy", "ssl_context",
    }  # fmt: skip
    settings = msgspec.structs.replace(SETTINGS, kafka={"ssl_context": object(), "proxy_url": "p", "client_id": "c"})
    with pytest.raises(Invalid, match="does not know these `kafka` settings") as raised_again:
        shared_payloads(settings)
    assert raised_again.value.details == ("proxy_url", "ssl_context")


@pytest.mark.parametrize(
    "kafka",
    [
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "ssl_check_hostname": False,
         "sasl_plain_username": "u", "sasl_plain_password": "p"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "u",
         "sasl_plain_password": "p", "sasl_kerberos_service_name": "kafka"},
        {"security_protocol": "SSL", "ssl_check_hostname": True, "ssl_password": "p", "client_rack": "r"},
        {"client_dns_lookup": "use_all_dns_ips", "connections_max_idle_ms": 60_000, "metadata_max_age_ms": 60_000,
         "receive_buffer_bytes": 65_536, "send_buffer_bytes": 65_536, "receive_message_max_bytes": 100_000_000,
         "reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 500, "request_timeout_ms": 30_000,
         "retry_backoff_ms": 100, "client_id": "c"},
    ],
)  # fmt: skip
def test_librdkafka_takes_the_settings_that_it_gets(kafka: dict[str, Any]) -> None:
    Consumer({**translate(kafka), "group.id": "g", "log_level": 0}).close()


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_crlfile", "ssl_keyfile"])
def test_librdkafka_looks_for_the_files_that_it_is_told(name: str) -> None:
    with pytest.raises(KafkaException, match=r"failed|No such file"):
        Consumer({**translate({"security_protocol": "SSL", name: "/nowhere"}), "group.id": "g", "log_level": 0})


def test_a_value_that_librdkafka_refuses_is_told() -> None:
    reader = LibrdkafkaReader(
        msgspec.structs.replace(SETTINGS, kafka={"sasl_mechanism": "NONE", "security_protocol": "X"})
    )
    with pytest.raises(Invalid, match=r"librdkafka refuses its settings.*security\.protocol"):
        reader.read({QUEUE: 0})


def test_that_there_is_no_token_is_told_at_once(tmp_path: Path) -> None:
    """librdkafka itself waits for ten seconds, and does not say why."""
    file = tmp_path / "client.properties"
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.oauthbearer.client.credentials.client.id=c\nsasl.oauthbearer.client.credentials.client.secret=s\n"
        "sasl.oauthbearer.token.endpoint.url="
    )
    reader = LibrdkafkaReader(msgspec.structs.replace(SETTINGS, kafka_config=file))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        file.write_text(f"{text}http://127.0.0.1:{closed.getsockname()[1]}/")
    with pytest.raises(KafkaConnectionError, match=r"token endpoint http://127.* cannot be reached"):
        reader.read({QUEUE: 0})
    file.write_text("\n".join((*text.splitlines()[:2], f"{text.splitlines()[-1]}file://{tmp_path}/token")))
    with pytest.raises(Invalid, match=r"token cannot be read: No such file"):
        reader.read({QUEUE: 0})
    assert not reader.is_connected


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(Invalid, match="out of range") as raised:
        ClientSettings(bootstrap_servers="k:1", client_id="c", fetch_client="java")  # type: ignore[arg-type]
    assert raised.value.details == ("fetch_client must be one of kafka-python, librdkafka, not java",)


def test_both_clients_do_not_share_a_fetcher() -> None:
    shares: list[Any] = [
        shared_payloads(msgspec.structs.replace(SETTINGS, fetch_client=name)) for name in get_args(FetchClient)
    ]
    assert len({id(_FETCHERS.of(share)) for share in shares}) == 2
    for share in shares:
        share.close()


def test_without_its_package_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["confluent_kafka"] = None
from popstream import Invalid
from popstream.payload.payload_reader import make_reader
from popstream.settings import ClientSettings
make_reader(ClientSettings(bootstrap_servers="k:1", client_id="c"))
try:
    make_reader(ClientSettings(bootstrap_servers="k:1", client_id="c", fetch_client="librdkafka"))
except Invalid as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("needs confluent-kafka: pip install 'popstream[librdkafka]'\n")


def test_kafka_python_is_the_default() -> None:
    default = make_reader(ClientSettings(bootstrap_servers="k:1", client_id="c"))
    assert type(default).__name__ == "PartitionReader"
