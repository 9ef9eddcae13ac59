"""Answers requests about the running job: one implementation for the control socket and for the HTTP API."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec
import structlog

from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.control.lane_pages import lane_page, queue_page
from pipelines.control.lane_views import selected_queues
from pipelines.control.messages import (
    Answer,
    Image,
    ImageRequest,
    JobReport,
    Policies,
    PoliciesRequest,
    RebuildRequest,
    Rebuilt,
    Request,
    SnapshotRequest,
    StatusRequest,
)
from pipelines.control.micro_batch_history import MicroBatchHistory
from pipelines.control.page_messages import LanesRequest, QueuesRequest, RatesRequest
from pipelines.control.policy_views import policies_in
from pipelines.control.status_report import StatusReporter
from pipelines.recovery.take_snapshot import take_image
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from broker_state.store.rocks_store import RocksStore
    from checkpoints.layout import JobFolder
    from checkpoints.snapshot_store import Snapshot
    from pipelines.build_consume_queue.service import BuilderService
    from pipelines.control.lane_watch import LaneWatch
    from pipelines.control.metrics import Metrics
    from popstream.kafka_connection import KafkaConnection

__all__ = ["AnsweringJob", "Answers", "JobAnswers"]

_log = structlog.get_logger(__name__)

DETACH_S_MAX = 30.0


class AnsweringJob(Protocol):
    """The part of a job that answers need."""

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""

    @property
    def connection(self) -> KafkaConnection:
        """The Kafka of the job."""

    @property
    def store(self) -> RocksStore:
        """The state. RocksDB shows other threads a whole micro-batch or nothing of it."""

    @property
    def builder(self) -> BuilderService | None:
        """The builder of consume queues, if the job has one."""

    @property
    def lane_watch(self) -> LaneWatch | None:
        """What follows the lanes, if the job serves metrics or the API."""

    def report(self) -> JobReport:
        """Return the progress of the job. Also works after the job has stopped."""

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot and store it."""


class Answers(Protocol):
    """What the HTTP API needs to answer for a job: this one, or one on a cluster."""

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Invalid: The request names something that there is not, or that this job cannot tell.
            Unavailable: The job cannot answer now.
            Corrupt: Stored data are damaged.
        """

    def tables(self, message: str) -> Path:
        """Return the folder of the audit tables. Raises Invalid if they are not on this machine.

        Args:
            message: The message that is looked for, as `popstream why` takes it.
        """

    def kafka(self) -> tuple[KafkaConnection, str]:
        """Return the Kafka and the prefix of the job. Raises Unavailable if it has not started yet."""


class JobAnswers:
    """Answers for the job of a process; safe to use from several threads.

    Args:
        job: The job that answers; `detach` and `attach` replace it.
        metrics: Counts of the process, which outlive its jobs.
    """

    def __init__(self, job: AnsweringJob, metrics: Metrics) -> None:
        self._job = job
        self._reporter = StatusReporter(metrics)
        self._history = MicroBatchHistory(metrics)
        self._answering = threading.Condition()
        self._in_flight = 0
        self._not_ready_reason: str | None = None
        """Why no job runs; None: a job is attached."""

    @property
    def job(self) -> AnsweringJob:
        """The job that answers now, or answered last."""
        return self._job

    def detach(self, reason: str) -> None:
        """From now on report `reason` as why no job runs, and refuse every other request.

        Waits until the requests in flight are answered, at most 30 s.
        """
        with self._answering:
            self._not_ready_reason = reason
            if not self._answering.wait_for(lambda: not self._in_flight, DETACH_S_MAX):
                _log.warning("control_requests_abandoned", count=self._in_flight)

    def attach(self, job: AnsweringJob) -> None:
        """Answer for another job."""
        with self._answering:
            self._job, self._not_ready_reason = job, None

    def tables(self, message: str) -> Path:  # noqa: ARG002 - only a job on a cluster names it
        """See `Answers.tables`."""
        return self._job.folder.delta

    def kafka(self) -> tuple[KafkaConnection, str]:
        """Return the Kafka and the prefix of the job. Raises Unavailable if it has not started yet."""
        prefix = self._job.report().prefix
        if prefix is None:
            message = "the job has not started yet"
            raise Unavailable(message)
        return self._job.connection, prefix

    def sample(self) -> None:
        """Note the counts of now, for rates; the control socket does it twice a second."""
        self._reporter.rate.sample()
        self._history.sample()

    def operations_per_s(self) -> float:
        """Return the operations decided per second, over the last ten seconds."""
        return self._reporter.rate.per_s()

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Invalid: The request names something that there is not.
            Unavailable: No job runs now.
            Corrupt: Stored data are damaged.
        """
        if isinstance(request, RatesRequest):
            return self._history.points()
        with self._answering:
            reason = self._not_ready_reason
            self._in_flight += reason is None
        if reason is not None:
            if isinstance(request, StatusRequest):
                return self._reporter.status_without_job(self._job.report(), reason)
            raise Unavailable(reason)
        try:
            return self._answer_for_job(request)
        finally:
            with self._answering:
                self._in_flight -= 1
                self._answering.notify_all()

    def _answer_for_job(self, request: Request) -> Answer:
        assert not isinstance(request, RatesRequest), "answered without a job"
        job = self._job
        match request:
            case StatusRequest():
                queues, is_cut = selected_queues(job.store, request.group, request.topic, request.limit, request.skip)
                return msgspec.structs.replace(self._reporter.status_of(job.report()), queues=queues, is_cut=is_cut)
            case PoliciesRequest():
                return Policies(*policies_in(job.store, request.topic, request.group, request.limit, request.skip))
            case LanesRequest():
                return lane_page(job.store, _watch_of(job), request)
            case QueuesRequest():
                return queue_page(job.store, _watch_of(job), job.builder, request)
            case SnapshotRequest():
                return job.take_snapshot()
            case ImageRequest():
                # The builder's store first: what has left its outbox is then in the state.
                built = None if job.builder is None else str(take_image(job.builder.store, job.folder.scratch))
                return Image(folder=str(take_image(job.store, job.folder.scratch)), queues=built)
            case RebuildRequest():
                return Rebuilt(_builder_of(job).query.rebuild((request.topic, request.queue_id), request.from_offset))
            case QueueRequest():
                return _builder_of(job).views(job.store, request)
            case _:
                assert_never(request)


def _builder_of(job: AnsweringJob) -> BuilderService:
    if job.builder is None:
        message = "this job builds no queues: it has no message_topics"
        raise Invalid(message)
    return job.builder


def _watch_of(job: AnsweringJob) -> LaneWatch:
    if job.lane_watch is None:
        message = "this job does not follow its lanes: it has neither api_port nor metrics_port"
        raise Invalid(message)
    return job.lane_watch
