"""The settings that all clients share."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import socket
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import RECORD_BYTES_MAX
from popstream.wire.signing import AdminKey

__all__ = ["ClientSettings", "new_client_id", "read_admin_key"]

LOG = logging.getLogger(__name__)

RESEND_WINDOW_MS = 8 * 60_000
"""Operations are not sent again later than this after the first send.

The job remembers an op_id for at least 9 minutes of record time, and a re-send may wait in the Kafka producer for
`delivery_timeout_ms`. After that the same operation could be decided twice.
"""


_made_ids = itertools.count(1)


def new_client_id() -> str:
    """Return the host name and the process id, and for all but the first id of a process a number.

    >>> new_client_id().startswith(f"{socket.gethostname()}-{os.getpid()}"), new_client_id() == new_client_id()
    (True, False)
    """
    number = next(_made_ids)
    return f"{socket.gethostname()}-{os.getpid()}" + (f"-{number}" if number > 1 else "")


@functools.cache
def _note_ignored(config_file: str, names: tuple[str, ...]) -> None:
    """Say it once for all clients of a process."""
    LOG.info("%s has settings that popstream chooses itself, and ignores: %s", config_file, ", ".join(names))


def read_admin_key(path: Path) -> AdminKey:
    """Read a file of one line, `ID:SECRET`.

    Raises:
        Invalid: It cannot be read, or has something else. The message does not quote it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"the admin key {path} cannot be read: {why}"
        raise Invalid(message, subject=str(path)) from error
    key_id, separator, secret = lines[0].strip().partition(":") if len(lines) == 1 else ("", "", "")
    if not separator:
        message = f"{path} must have one line: the id of the admin key, a colon, and its secret"
        raise Invalid(message, subject=str(path))
    try:
        return AdminKey(key_id, secret)
    except Invalid as error:
        message = f"{path}: {error.message}"
        raise Invalid(message, subject=str(path)) from error


FetchClient = Literal["kafka-python", "librdkafka"]
DELIVERY_TIMEOUT_MS_MAX = 60_000


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one client.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name in Kafka's logs, in the audit tables, and for `return_client`; must be unique among the clients
            of a group. `new_client_id` is unique where host names and process ids are: not among containers that share
            the name of their host, each of which has a process 1.
        prefix: Name of the job: its topics are `<prefix>.ops`, `<prefix>.results` and so on.
        ops_topic: Name of the topic of operations, if it has no such name.
        results_topic: Name of the topic of answers, likewise.
        notifications_topic: Name of the topic of notifications, likewise.
        connect_timeout_ms: How long a client waits, when it is made, until a broker accepts a connection. Longer: it
            may start before Kafka.
        answer_timeout_ms: How long a call waits for its answer (a pop: beyond its poll time) before it raises
            `AnswerTimeout`.
        resend_after_ms: How long to wait for an answer before the operation is sent again, with the same op_id and the
            same bytes; the wait doubles each time. Shorter: a lost answer is replaced sooner; longer: fewer records
            while the job is down.
        resend_after_ms_max: Upper bound of that wait.
        delivery_timeout_ms: How long the Kafka producer tries to deliver a record.
        ops_bytes_max: Maximum size of an operation record, in bytes; the job refuses more than 4 MiB.
        kafka_config: A file that says how to connect to a secured Kafka, in the format of Kafka's own tools
            (`client.properties`).
        kafka: More settings for all kafka-python clients, such as `client_rack`, which override those of the file;
            librdkafka gets its own names of them.
        fetch_client: Which Kafka client a consumer reads the records of messages with: "kafka-python", or "librdkafka",
            which takes less CPU time and needs `popstream[librdkafka]`. Operations, answers and sends go through
            kafka-python with both.
        admin_key: Signs operations on queues and groups, for a job that has `admin_keys`: an `AdminKey`, or the path
            of a file with one line, `ID:SECRET`, which is read when the client is made. Consumers need none; a producer
            with `dispatch=True` does.
        history_file: File to record every operation and its answer in, for `popstream history check`; None: no record.
    """

    bootstrap_servers: str
    client_id: str
    prefix: str = "popstream"
    ops_topic: str = ""
    results_topic: str = ""
    notifications_topic: str = ""
    connect_timeout_ms: int = 2_000
    answer_timeout_ms: int = 60_000
    resend_after_ms: int = 5_000
    resend_after_ms_max: int = 60_000
    delivery_timeout_ms: int = 30_000
    ops_bytes_max: int = RECORD_BYTES_MAX
    kafka_config: str | Path | None = None
    kafka: dict[str, Any] = {}
    fetch_client: FetchClient = "kafka-python"
    admin_key: AdminKey | str | Path | None = None
    history_file: Path | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            Invalid: Some settings are out of range; `details` has a line for each.
        """
        wrong = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in (
                "connect_timeout_ms",
                "answer_timeout_ms",
                "resend_after_ms",
                "resend_after_ms_max",
                "delivery_timeout_ms",
                "ops_bytes_max",
            )
            if getattr(self, name) < 1
        ]
        wrong += [
            f"{name} must not be empty"
            for name in ("bootstrap_servers", "client_id", "prefix")
            if not getattr(self, name)
        ]
        if self.fetch_client not in get_args(FetchClient):
            wrong.append(f"fetch_client must be one of {', '.join(get_args(FetchClient))}, not {self.fetch_client}")
        if self.delivery_timeout_ms > DELIVERY_TIMEOUT_MS_MAX:
            wrong.append(
                f"delivery_timeout_ms must be at most {DELIVERY_TIMEOUT_MS_MAX}, not {self.delivery_timeout_ms}:"
                " an operation that is sent again could come too late"
            )
        if wrong:
            message = "the client settings are out of range"
            raise Invalid(message, subject=self.client_id, details=wrong)

    def __repr__(self) -> str:
        """Return the settings, and of `kafka`, which may have secrets, the names alone."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__} | {"kafka": sorted(self.kafka)}
        return f"ClientSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def reach_kafka(self) -> None:
        """Wait until a broker accepts a connection and, with `kafka_config`, the login.

        Raises:
            Invalid: An address or `kafka_config` is wrong, or broker and client refuse each other.
            Unavailable: No broker does in time.
        """
        connection = self.connection
        if (properties := connection.properties) is not None and properties.ignored:
            _note_ignored(connection.config_file, properties.ignored)
        reach_kafka(connection, timeout_s=self.connect_timeout_ms / 1000)

    def find_admin_key(self) -> AdminKey | None:
        """Return the admin key, read from its file if it is in one.

        Raises:
            Invalid: The file cannot be read, or has no key.
        """
        found = self.admin_key
        return read_admin_key(Path(found)) if isinstance(found, (str, Path)) else found

    @property
    def connection(self) -> KafkaConnection:
        """How to connect to Kafka."""
        config_file = "" if self.kafka_config is None else str(Path(self.kafka_config).absolute())
        return KafkaConnection(self.bootstrap_servers, config_file, self.kafka)

    @property
    def operations(self) -> str:
        """Name of the topic of operations."""
        return self.ops_topic or f"{self.prefix}.ops"

    @property
    def results(self) -> str:
        """Name of the topic of answers."""
        return self.results_topic or f"{self.prefix}.results"

    @property
    def notifications(self) -> str:
        """Name of the topic of notifications."""
        return self.notifications_topic or f"{self.prefix}.notifications"

    @property
    def queue_types(self) -> str:
        """Name of the topic with the queue types of message topics."""
        return f"{self.prefix}.queue_types"
