"""Where the job of a demo runs: what the demo needs of it, and the embedded job as the one that it has by default."""

import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from pyspark.sql import SparkSession

from connectors.kafka.own_topics import Topics
from pipelines.control.client import ask
from pipelines.control.messages import Status, StatusRequest
from pipelines.demo.demo_summary import PeakMemory
from pipelines.demo.processes import peak_mib
from pipelines.demo.view import View, as_line
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from pipelines.process.jvm import jvm_pid
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable

__all__ = ["EmbeddedSite", "JobSite", "Progress"]


class Progress(NamedTuple):
    """How far a job is.

    Attributes:
        done: Messages below the commit offsets of all lanes.
        dead_lettered: Messages that became dead letters.
        line: The same for people, and more.
    """

    done: int
    dead_lettered: int
    line: str


class JobSite(Protocol):
    """A running job, from entry to exit as a context manager."""

    @property
    def settle_s(self) -> float:
        """Seconds in which the tables have all rows, once nothing more is written."""

    @property
    def connection(self) -> KafkaConnection:
        """The Kafka."""

    @property
    def topics(self) -> Topics:
        """The job's own topics."""

    @property
    def delta(self) -> Path:
        """Folder of the tables."""

    @property
    def spark(self) -> SparkSession:
        """A session that reads the tables."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""

    def require_running(self) -> None:
        """Raise Unavailable if the job has ended."""

    def progress(self, topic: str, lanes_max: int) -> Progress:
        """Return how far the job is with a message topic."""

    def disturb(self, share_done: float) -> None:
        """Do to the job what this demo does to it, when `share_done` of all messages are done."""

    def is_settled(self, records: int) -> bool:
        """Return whether all records of the ops topic are decided, and their rows in the tables."""

    def peak_memory(self) -> PeakMemory:
        """Return the peaks of what runs on this machine."""


class EmbeddedSite:
    """The embedded job, in this process."""

    settle_s = 120.0

    def __init__(self, settings: JobSettings, *, var: Path, view: View) -> None:
        self._host = Host(settings, var=var, on_progress=view.say)

    @property
    def connection(self) -> KafkaConnection:
        """See `JobSite`."""
        return self._host.connection

    @property
    def topics(self) -> Topics:
        """See `JobSite`."""
        return self._host.job.topics

    @property
    def delta(self) -> Path:
        """See `JobSite`."""
        return self._host.job.folder.delta

    @property
    def spark(self) -> SparkSession:
        """See `JobSite`."""
        return self._host.spark

    def __enter__(self) -> Self:
        """Start."""
        self._host.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._host.__exit__(kind, error, trace)

    def require_running(self) -> None:
        """See `JobSite`.

        Raises:
            Unavailable: The job has ended.
        """
        if self._host.job.wait(0):
            failure = self._host.job.failure
            message = f"the job has ended: {failure or 'the streaming query stopped by itself'}"
            raise Unavailable(message) from failure

    def progress(self, topic: str, lanes_max: int) -> Progress:
        """See `JobSite`."""
        status = self._status(StatusRequest(topic=topic, limit=lanes_max))
        lanes = [lane for queue in status.queues for lane in queue.lanes]
        done, dead_lettered = sum(lane.commit_offset for lane in lanes), sum(lane.dead_lettered for lane in lanes)
        return Progress(done, dead_lettered, as_line(status))

    def disturb(self, share_done: float) -> None:
        """Do nothing: the workers of this demo disturb each other."""

    def is_settled(self, records: int) -> bool:
        """See `JobSite`."""
        status = self._status(StatusRequest(limit=1))
        is_decided = sum(self._host.job.applied.next_offset.values()) >= records
        return is_decided and (status.delta_seq or 0) >= status.apply_seq

    def peak_memory(self) -> PeakMemory:
        """See `JobSite`."""
        kafka = self._host.kafka
        return PeakMemory(
            python=peak_mib(os.getpid()), jvm=peak_mib(jvm_pid()), kafka=0 if kafka is None else peak_mib(kafka.pid)
        )

    def _status(self, request: StatusRequest) -> Status:
        assert self._host.job_file is not None, "the job runs"
        return ask(self._host.job_file, request, Status)
