"""The job file, `job.json`: what other commands need to reach a running job and its Kafka."""

import os
from pathlib import Path
from typing import Self

import msgspec
import structlog

from popstream.kafka_connection import KafkaConnection
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["JobFile"]

_log = structlog.get_logger(__name__)


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """Written to the job's folder when the job is ready, and removed when it stops. Only the job's user may read it.

    Attributes:
        pid: The process.
        bootstrap_servers: The Kafka of the job.
        kafka_config: The file that says how to connect to it; empty: none is needed.
        prefix: Prefix of the job's topics.
        folder: The job's folder.
        address: The control socket: path of a Unix socket, or `127.0.0.1:port`.
        token: Secret that each request to the control socket carries.
        started_at: Unix time in seconds.
    """

    pid: int
    bootstrap_servers: str
    prefix: str
    folder: str
    address: str
    token: str
    started_at: float
    kafka_config: str = ""

    @property
    def connection(self) -> KafkaConnection:
        """How to connect to the Kafka of the job."""
        return KafkaConnection(self.bootstrap_servers, self.kafka_config)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        unfinished = path.with_name(f".{path.name}.{self.pid}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)))
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the job file at `path`, or None when it is missing or unreadable.

        A job file proves that a job was started, not that it still runs: a killed job leaves its file behind.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (OSError, *DECODE_ERRORS) as error:
            _log.warning("job_file_unreadable", path=str(path), error=str(error))
            return None
