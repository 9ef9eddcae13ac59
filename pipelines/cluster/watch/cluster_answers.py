"""Answers requests about a job on a cluster, in its driver, as `JobAnswers` does for an embedded one."""

import os
import shlex
import time
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from connectors.delta.session import join_pool
from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.cluster.watch.checkpoint_view import answer_from_checkpoint
from pipelines.cluster.watch.driver_watch import DriverWatch
from pipelines.control.messages import Answer, PoliciesRequest, Request, Status, StatusRequest
from pipelines.control.page_messages import RatesRequest
from pipelines.http_api.endpoint import OneAtATime
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid

__all__ = ["ClusterAnswers"]

POOL = "api"
WAIT_S = 30.0


class ClusterAnswers:
    """Answers from what the driver knows, and about queues and lanes from the checkpoint, one request at a time.

    Args:
        spark: The session of the job.
        checkpoint: Path or URL of its state.
        connection: Its Kafka.
        watch: Follows the job.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, connection: KafkaConnection, watch: DriverWatch) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._connection = connection
        self._watch = watch
        self._turn = OneAtATime("the state of the cluster", WAIT_S)
        self._began_s = time.monotonic()

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Invalid: The request names something that there is not, or asks for what the driver does not follow.
            Unavailable: The checkpoint cannot be read now, or another request reads it.
            Corrupt: A stored value cannot be decoded.
        """
        match request:
            case StatusRequest():
                return self._status(request)
            case PoliciesRequest() | QueueRequest():
                with self._turn:
                    join_pool(self._spark, POOL)
                    return answer_from_checkpoint(self._spark, self._checkpoint, request)
            case RatesRequest():
                return self._watch.progress.points()
        message = (
            "a job on a cluster does not follow lanes and queues one by one:"
            f" `popstream status --checkpoint {shlex.quote(self._checkpoint)}` reads them from its checkpoint"
        )
        raise Invalid(message)

    def tables(self, message: str) -> Path:
        """Raise Invalid, with the command that reads the tables: the driver may not reach them as files."""
        command = f"popstream why {message} --tables {self._tables()}"
        raise Invalid(f"the driver of a job on a cluster reads no tables: run `{command}`")

    def kafka(self) -> tuple[KafkaConnection, str]:
        """See `Answers.kafka`."""
        return self._connection, self._watch.report().prefix or ""

    def _status(self, request: StatusRequest) -> Status:
        status = Status(
            running=True,
            pid=os.getpid(),
            up_s=round(time.monotonic() - self._began_s, 1),
            operations_per_s=self._watch.progress.operations_per_s(),
            **msgspec.structs.asdict(self._watch.report()),
        )
        if not request.limit:
            return status
        with self._turn:
            join_pool(self._spark, POOL)
            found = answer_from_checkpoint(self._spark, self._checkpoint, request)
        return msgspec.structs.replace(status, queues=found.queues, is_cut=found.is_cut)

    def _tables(self) -> str:
        cluster = self._watch.report().cluster
        return "URL" if cluster is None else cluster.tables
