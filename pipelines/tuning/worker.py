"""A process that replays some partitions: `python -m pipelines.tuning.worker`."""

from pathlib import Path

import msgspec

from pipelines.recovery.ops_log import LostRecords
from pipelines.recovery.replay_source import ReplaySource
from pipelines.recovery.worker_process import OnProgress, partition_readers, serve
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.share import PartitionRange, ReplayResult, run_share
from popstream.wire.base_errors import Unavailable

__all__ = ["ReplayTask"]


class ReplayTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does. `base`: folder of the state to begin with, if any."""

    source: ReplaySource
    partitions: list[PartitionRange]
    base: str | None
    folder: str
    settings: OtherSettings


def _run(task: ReplayTask, on_progress: OnProgress) -> ReplayResult:
    with partition_readers(task.source.connection) as between:
        try:
            return run_share(
                task.partitions,
                None if task.base is None else Path(task.base),
                Path(task.folder),
                task.settings,
                task.source.decoder(),
                task.source.records(between),
                on_progress,
            )
        except LostRecords as error:
            message = f"{error.message}: the same command finds what there is now"
            raise Unavailable(message, subject=error.subject) from error


if __name__ == "__main__":
    serve(ReplayTask, _run)
