"""A process of a verification: `python -m pipelines.recovery.verify.worker`.

It may end at any point: what is done is stored, and another process goes on there.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.builder_records import read_queues
from pipelines.recovery.ops_log import LostRecords, read_log_bounds
from pipelines.recovery.replay_source import ReplaySource
from pipelines.recovery.verify.decide_again import run_share
from pipelines.recovery.verify.plan import VerifyPlan, read_plan
from pipelines.recovery.verify.units import MessageLog, compare_units
from pipelines.recovery.verify.work_folder import WorkFolder
from pipelines.recovery.worker_process import OnProgress, partition_readers, serve
from popstream.wire.base_errors import Corrupt
from popstream.wire.queue_name import QueueName

__all__ = ["UNITS", "VerifyTask"]

UNITS = -1
"""Number of the task that compares units."""


class VerifyTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does: the share of this number, or `UNITS`."""

    work: str
    number: int
    source: ReplaySource
    with_messages: bool = True


def _plan_in(folder: WorkFolder) -> VerifyPlan:
    plan = read_plan(folder.plan)
    if plan is None:
        message = f"{folder.plan} cannot be read: run `popstream verify --fresh`"
        raise Corrupt(message, subject=str(folder.plan))
    return plan


def _run(task: VerifyTask, on_progress: OnProgress) -> object:
    folder = WorkFolder(Path(task.work))
    plan = _plan_in(folder)
    with partition_readers(task.source.connection) as between:
        if task.number == UNITS:
            return _compare_units(task, plan, folder, between, on_progress)
        share = folder.share(task.number)
        try:
            return run_share(plan, task.number, share, task.source.decoder(), task.source.records(between), on_progress)
        except LostRecords as error:
            message = f"{error.message}: begin after a newer snapshot, `popstream verify --fresh --since newest`"
            raise Corrupt(message, subject=error.subject) from error


def _compare_units(
    task: VerifyTask,
    plan: VerifyPlan,
    folder: WorkFolder,
    between: Callable[[str, int, int, int], Iterator[object]],
    on_progress: OnProgress,
) -> object:
    if plan.queues is None:
        return compare_units(plan, folder.units, {}, on_progress)
    with RocksStore(Path(plan.queues), BUILDER_FAMILIES, read_only=True) as store:
        queues = dict(read_queues(store))
    names = sorted({topic for topic, _ in queues})
    facts = describe(task.source.connection, names) if names and task.with_messages else {}
    retained = {name: read_log_bounds(task.source.connection, facts[name]) for name in facts}

    def log_of(queue: QueueName) -> MessageLog | str:
        topic, queue_id = queue
        if not task.with_messages:
            return "message topics are not read (--no-messages)"
        if topic not in facts or facts[topic].topic_id != queues[queue].topic_id:
            return f"{topic} was deleted"
        span = (retained[topic].first_offset.get(queue_id, 0), retained[topic].end_offset.get(queue_id, 0))
        return MessageLog(span, lambda first, end: between(topic, queue_id, first, end))

    logs: Mapping[QueueName, MessageLog | str] = {queue: log_of(queue) for queue in queues}
    return compare_units(plan, folder.units, logs, on_progress)


if __name__ == "__main__":
    serve(VerifyTask, _run)
