"""Claim: where no Kafka listens, a client and a command say so at once, with the address.

Method: a port that is bound and does not listen refuses connections; a server that answers one request is a Kafka.
What a secured one refuses is in tests/integration/kafka/test_secured_kafka.py.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pipelines.cli.options import TargetOptions
from pipelines.cli.target import find_target
from popstream import ClientSettings, Consumer, Invalid, Producer, Unavailable
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from tests.support.module_time import replace_time


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


def answer_one(listening: socket.socket) -> None:
    """Answer the first request with metadata: one broker, no topics."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rwb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        stream.read(size)
        broker = struct.pack(">iiii", 0, 0, 1, 7) + struct.pack(">h4sih", 4, b"host", 9092, -1)
        answer = broker + struct.pack(">hii", -1, 7, 0)
        stream.write(struct.pack(">i", len(answer)) + answer)


@pytest.fixture
def server(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"


def test_what_is_ignored_in_the_file_is_said_once(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=5\nclient.id=tools\n")
    caplog.set_level("INFO", "popstream")
    for _ in range(2):
        with pytest.raises(Unavailable, match="no Kafka accepts connections"):
            Producer(server, kafka_config=file, connect_timeout_ms=1)
    assert caplog.messages == [f"{file} has settings that popstream chooses itself, and ignores: client.id, linger.ms"]


@pytest.mark.parametrize(
    "make",
    [
        lambda server: Consumer(server, group="billing", connect_timeout_ms=1),
        lambda server: Producer(server, connect_timeout_ms=1),
        lambda server: Producer(server, dispatch=True, connect_timeout_ms=1),
    ],
    ids=["consumer", "producer", "dispatching producer"],
)
def test_a_client_names_the_address_that_refuses(make: Callable[[str], object], server: str) -> None:
    with pytest.raises(Unavailable, match=rf"no Kafka accepts connections at {server} \(.*refused\)") as raised:
        make(server)
    assert raised.value.subject == server


def test_a_command_names_the_address_that_refuses(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.target.reach_kafka", partial(reach_kafka, timeout_s=0))
    with pytest.raises(Unavailable, match=f"no Kafka accepts connections at {server}"):
        find_target(TargetOptions(bootstrap_servers=server))


def test_a_broker_that_listens_while_it_is_waited_for_is_found(
    bound: socket.socket, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = threading.Thread(target=answer_one, args=[bound])

    def start_broker(_pause_s: float) -> None:
        if not answering.is_alive():
            bound.listen()
            answering.start()

    replace_time(monkeypatch, "popstream.reach_kafka", sleep=start_broker)
    reach_kafka(KafkaConnection(server), timeout_s=60)
    answering.join()


def test_one_of_several_brokers_is_enough(bound: socket.socket, server: str) -> None:
    bound.listen()
    answering = threading.Thread(target=answer_one, args=[bound])
    answering.start()
    reach_kafka(KafkaConnection(f"127.0.0.1:1,{server}"), timeout_s=0)
    answering.join()


def test_a_server_that_closes_the_connection_is_named(
    bound: socket.socket, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a listener does that wants another protocol."""
    monkeypatch.setattr("popstream.reach_kafka.PAUSE_S", 0.0)
    bound.listen()

    def close_one() -> None:
        bound.accept()[0].close()

    closing = threading.Thread(target=close_one)
    closing.start()
    with pytest.raises(Unavailable, match=f"Kafka at {server} closes the connection: its listener may require"):
        reach_kafka(KafkaConnection(server), timeout_s=0)
    closing.join()


def test_of_a_connection_with_settings_of_kafka_python_only_the_port_is_tried(
    bound: socket.socket, server: str
) -> None:
    bound.listen()
    reach_kafka(KafkaConnection(server, kafka_python={"security_protocol": "SSL"}), timeout_s=0)


def test_brokers_behind_a_proxy_are_not_asked(server: str) -> None:
    behind = ClientSettings(bootstrap_servers=server, client_id="c1", kafka={"proxy_url": "socks5://localhost:1080"})
    behind.reach_kafka()


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9092", "localhost:kafka", "localhost:70000", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match=f"'{address}' is not an address of a Kafka broker: write host:port"):
        reach_kafka(KafkaConnection(address))
