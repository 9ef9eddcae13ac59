"""Claims: the broker is real, keeps its data, and never outlives us. Method: start it, end its parent in every way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from connectors.kafka import broker_folder
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic, describe
from popstream.exchange.partitioner import partition_of
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
# A broker that stops in order takes about a second; the rest is for a busy machine.
GONE_WITHIN_S = 60.0
# A background job of a shell starts with Ctrl-C ignored, and these tests may be one.
PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1]), jars=kafka_jars(Path("var")), heap_mb=256, java_options=SHORT_LIVED_JVM) as kafka:
    print(kafka.pid, flush=True)
    time.sleep(600)
"""


def send(broker: EmbeddedKafka, topic: str, *values: bytes) -> None:
    """Write to partition 0 and wait for the acknowledgement."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    try:
        for sent in [producer.send(topic, value, partition=0) for value in values]:
            sent.get(30)
    finally:
        producer.close()


def values_of(broker: EmbeddedKafka, topic: str, count: int) -> list[bytes]:
    """Read the first records of partition 0."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed")
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        values: list[bytes] = []
        deadline = time.monotonic() + GONE_WITHIN_S
        while len(values) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_gone_soon(pid: int) -> bool:
    """Wait for a process to end."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_records_survive_stop_kill_and_move_to_other_ports(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """Restarts in one process keep the address; a new object finds the same cluster."""
    with EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=256, java_options=SHORT_LIVED_JVM) as broker:
        created = create_message_topic(broker.connection, "kept", 2)
        send(broker, "kept", b"before")
        address, first_pid = broker.bootstrap_servers, broker.pid
        broker.restart()
        assert broker.bootstrap_servers == address
        assert broker.pid != first_pid
        send(broker, "kept", b"after restart")
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert values_of(broker, "kept", 2) == [b"before", b"after restart"]
    with EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=256, java_options=SHORT_LIVED_JVM) as broker:
        assert describe(broker.connection, ["kept", "unknown"]) == {"kept": created}
        assert values_of(broker, "kept", 2) == [b"before", b"after restart"]


def test_two_brokers_know_nothing_of_each_other(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    kafka_jar_files: list[Path],
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the second cannot use the folder of the first."""
    monkeypatch.setattr(broker_folder, "LOCK_WAIT_S", 0.2)
    create_message_topic(kafka.connection, topic_prefix, 1)
    with EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=256, java_options=SHORT_LIVED_JVM) as other:
        assert other.bootstrap_servers != kafka.bootstrap_servers
        assert describe(other.connection, [topic_prefix]) == {}
        send(kafka, topic_prefix, b"here")
        assert values_of(kafka, topic_prefix, 1) == [b"here"]
    with pytest.raises(Invalid, match="another broker runs in"):
        EmbeddedKafka(kafka.folder, jars=kafka_jar_files).start()


def test_listens_on_loopback_only(kafka: EmbeddedKafka) -> None:
    """No listener of the broker has another address (Linux shows them)."""
    with Path(f"/proc/{kafka.pid}/net/tcp").open(encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    inodes = {str(link.readlink()) for link in Path(f"/proc/{kafka.pid}/fd").iterdir() if link.is_symlink()}
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    listening6 = Path(f"/proc/{kafka.pid}/net/tcp6").read_text(encoding="ascii").splitlines()[1:]
    mapped = [row.split()[1] for row in listening6 if row.split()[3] == "0A" and f"socket:[{row.split()[9]}]" in inodes]
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")
    assert len(listening + mapped) == len(("clients", "controller"))
    assert all(address.startswith(loopback) for address in listening + mapped)


@pytest.mark.parametrize("parameter", ["port", "controller_port"])
def test_taken_port_is_named(parameter: str, tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """One sentence: which port, and what to do; before any Java runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ports = {parameter: port}
        with pytest.raises(Invalid, match=f"port {port} on 127.0.0.1 is taken: stop .*, or give another {parameter} "):
            EmbeddedKafka(tmp_path, jars=kafka_jar_files, **ports).start()


def test_a_start_that_fails_shows_the_log(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """A JVM that ends at once is the shortest of such starts."""
    broker = EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=1)
    with pytest.raises(Unavailable, match="ended while starting, with exit code 1") as caught:
        broker.start()
    assert any("heap" in line for line in caught.value.details)
    assert not broker.is_running


def test_settings_that_kafka_refuses_are_invalid(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """The tool that formats reads them first; the next start can format again."""
    broker = EmbeddedKafka(tmp_path, jars=kafka_jar_files, settings={"num.io.threads": "none"})
    with pytest.raises(Invalid, match="formatting") as caught:
        broker.start()
    assert any("num.io.threads" in line for line in caught.value.details)
    assert not (tmp_path / "data").exists()


def test_an_incomplete_folder_is_corrupt(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """It is never formatted over."""
    (tmp_path / "data").mkdir()
    with pytest.raises(Corrupt, match="incomplete folder of a broker"):
        EmbeddedKafka(tmp_path, jars=kafka_jar_files).start()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_broker_ends_with_its_parent(ending: signal.Signals, tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """Its folder is free again at once, also for a start that comes too early."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        # To the group, as a terminal does: the broker must hear of it from its parent alone.
        os.killpg(parent.pid, ending)
        assert parent.wait(GONE_WITHIN_S) != 0
    if ending == signal.SIGKILL:
        with EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=256, java_options=SHORT_LIVED_JVM):
            assert not is_alive(pid)
    assert is_gone_soon(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of the death of its parent")
def test_broker_ends_with_its_watchdog(tmp_path: Path, kafka_jar_files: list[Path]) -> None:
    """The process between us and the broker may be killed too, and we notice."""
    with EmbeddedKafka(tmp_path, jars=kafka_jar_files, heap_mb=256, java_options=SHORT_LIVED_JVM) as broker:
        pid = broker.pid
        watchdog_pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        os.kill(watchdog_pid, signal.SIGKILL)
        assert is_gone_soon(pid)
        assert not broker.is_running


def test_console_tools_agree_with_us(kafka: EmbeddedKafka, kafka_jar_files: list[Path], topic_prefix: str) -> None:
    """Kafka's own producer puts keys where `partition_of` says; its own consumer reads them."""
    classes = f"{CONSOLE_PRODUCER.replace('.', '/')}.class"
    if not any(classes in zipfile.ZipFile(jar).namelist() for jar in kafka_jar_files):
        pytest.skip("org.apache.kafka:kafka-tools is not among the jars")
    create_message_topic(kafka.connection, topic_prefix, 8)
    keys = [f"key-{number}" for number in range(20)]
    to_topic = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic_prefix]
    sent = kafka.run_tool(
        CONSOLE_PRODUCER,
        [*to_topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"],
        input_text="".join(f"{key}:value\n" for key in keys),
    )
    assert sent.returncode == 0, sent.stderr
    read = kafka.run_tool(
        CONSOLE_CONSUMER,
        [
            *to_topic,
            *("--from-beginning", "--max-messages", str(len(keys)), "--timeout-ms", "30000"),
            *("--formatter-property", "print.key=true", "--formatter-property", "print.partition=true"),
        ],
    )
    assert read.returncode == 0, read.stderr
    assert sorted(read.stdout.split("\n")[:-1]) == sorted(
        f"Partition:{partition_of(key.encode(), 8)}\t{key}\tvalue" for key in keys
    )


def test_deleted_and_recreated_topic_has_another_id(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    """The name alone would not tell."""
    first = create_message_topic(kafka.connection, topic_prefix, 1)
    assert create_message_topic(kafka.connection, topic_prefix, 1) == first
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_topics([topic_prefix])
    deadline = time.monotonic() + GONE_WITHIN_S
    while describe(kafka.connection, [topic_prefix]) and time.monotonic() < deadline:
        time.sleep(0.1)
    second = create_message_topic(kafka.connection, topic_prefix, 3)
    assert second.topic_id != first.topic_id
    with pytest.raises(Invalid, match="exists with 3 partitions, not 4"):
        create_message_topic(kafka.connection, topic_prefix, 4)
