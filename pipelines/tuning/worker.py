"""A process that replays some partitions: `python -m pipelines.tuning.worker`."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.recovery.ops_log import LostRecords, ops_record
from pipelines.recovery.worker_process import OnProgress, partition_readers, serve
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.share import PartitionRange, ShareResult, run_share
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from popstream.wire.handle import Signer
from popstream.wire.signing import KeyRing, OperationVerifier

__all__ = ["ReplayTask"]


class ReplayTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does. `base`: folder of the state to begin with, if any. The rings are the job's."""

    topic: str
    partition_count: int
    partitions: list[PartitionRange]
    base: str | None
    folder: str
    settings: OtherSettings
    connection: KafkaConnection
    handle_ring: KeyRing | None = None
    admin_ring: KeyRing | None = None


def _run(task: ReplayTask, on_progress: OnProgress) -> ShareResult:
    verifier = OperationVerifier.of(task.admin_ring, task.topic)
    decoder = Decoder(task.partition_count, Signer.of(task.handle_ring), verifier)
    with partition_readers(task.connection) as between:

        def records(partition: int, first: int, end: int) -> Iterator[KafkaRecord]:
            return map(ops_record, between(task.topic, partition, first, end))

        try:
            return run_share(
                task.partitions,
                None if task.base is None else Path(task.base),
                Path(task.folder),
                task.settings,
                decoder,
                records,
                on_progress,
            )
        except LostRecords as error:
            message = f"{error.message}: the same command finds what there is now"
            raise Unavailable(message, subject=error.subject) from error


if __name__ == "__main__":
    serve(ReplayTask, _run)
