"""The card of a running job: what other commands must know to talk to it and to its Kafka."""

import os
from pathlib import Path
from typing import Self

import msgspec

__all__ = ["JobCard"]


class JobCard(msgspec.Struct, frozen=True, kw_only=True):
    """`job.json` in the job's folder, there for as long as the job runs, readable by its user alone.

    `address` is where `status` is answered: the path of a Unix socket, or `127.0.0.1:port`. Whoever asks gives the
    `token`.
    """

    pid: int
    bootstrap_servers: str
    prefix: str
    folder: str
    address: str
    token: str
    started_at: float

    def write(self, path: Path) -> None:
        """Put the card where others find it, whole from the first moment."""
        unfinished = path.with_name(f".{path.name}.{self.pid}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)))
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The card at `path`; None when there is none, or it cannot be read.

        It says that a job was started, not that it still runs: one that was killed leaves its card behind.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None
