"""A process of a verification: `python -m pipelines.recovery.verify.worker`.

Reads a task as a line of JSON from standard input, and prints progress, result or failure as lines of JSON. Ends when
standard input ends, at any point: what is done is stored, and another process goes on there.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from connectors.kafka.topic_admin import describe
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.recovery.ops_log import LostRecords, OpsPartitionReader, found_log, ops_record
from pipelines.recovery.verify.decide_again import ShareResult, run_share
from pipelines.recovery.verify.plan import VerifyPlan, read_plan
from pipelines.recovery.verify.work_folder import WorkFolder
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, PopstreamError, Unavailable
from popstream.wire.handle import Signer
from popstream.wire.signing import KeyRing, OperationVerifier

__all__ = ["Done", "Failed", "Message", "Noted", "VerifyTask", "run_task"]

PARENT_IS_GONE = 3
UNITS = -1
"""Number of the task that compares units."""


class VerifyTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does: the share of this number, or `UNITS`. The rings are the job's."""

    work: str
    number: int
    connection: KafkaConnection
    handle_ring: KeyRing | None = None
    admin_ring: KeyRing | None = None
    with_messages: bool = True


class Noted(msgspec.Struct, frozen=True, tag=True):
    """How far the process is."""

    doing: str
    done: int
    total: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """The task is complete; `result` is JSON of a ShareResult or UnitResult."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The task cannot be completed: the fields of a PopstreamError, and the name of its class."""

    kind: str
    message: str
    subject: str
    details: list[str]


Message = Noted | Done | Failed


def run_task(task: VerifyTask, send: Callable[[Message], None]) -> None:
    """Run a task, and send what there is to say; every error is said, too."""
    try:
        folder = WorkFolder(Path(task.work))
        result = _run(task, _plan_in(folder), folder, lambda *noted: send(Noted(*noted)))
        send(Done(msgspec.Raw(msgspec.json.encode(result))))
    except PopstreamError as error:
        send(Failed(_kind(error), error.message, error.subject, list(error.details)))
    except OSError as error:
        send(Failed("Unavailable", str(error), str(error.filename or ""), []))
    except MemoryError:
        send(Failed("Unavailable", "there is not enough memory", "", []))
    except Exception as error:  # noqa: BLE001 - a traceback would say less than where it happened
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = "" if where is None else f" ({Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno})"
        send(Failed("PopstreamError", f"the comparison failed: {type(error).__name__}: {error}{at}", "", []))


def _plan_in(folder: WorkFolder) -> VerifyPlan:
    plan = read_plan(folder.plan)
    if plan is None:
        message = f"{folder.plan} cannot be read: run `popstream verify --fresh`"
        raise Corrupt(message, subject=str(folder.plan))
    return plan


def _kind(error: PopstreamError) -> str:
    for kind in (Corrupt, Unavailable):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__


def _run(
    task: VerifyTask, plan: VerifyPlan, folder: WorkFolder, on_progress: Callable[[str, int, int], None]
) -> object:
    with _readers(task.connection) as between:
        if task.number == UNITS:
            return _compare_units(task, plan, folder, between, on_progress)
        verifier = OperationVerifier.of(task.admin_ring, plan.topic)
        decoder = Decoder(len(plan.first), Signer.of(task.handle_ring), verifier)
        try:
            return _decide_share(task, plan, folder, decoder, between, on_progress)
        except LostRecords as error:
            message = f"{error.message}: begin after a newer snapshot, `popstream verify --fresh --since newest`"
            raise Corrupt(message, subject=error.subject) from error


def _decide_share(
    task: VerifyTask,
    plan: VerifyPlan,
    folder: WorkFolder,
    decoder: Decoder,
    between: Callable[[str, int, int, int], Iterator[object]],
    on_progress: Callable[[str, int, int], None],
) -> ShareResult:
    def records(partition: int, first: int, end: int) -> Iterator[KafkaRecord]:
        return map(ops_record, between(plan.topic, partition, first, end))

    return run_share(plan, task.number, folder.share(task.number), decoder, records, on_progress)


def _compare_units(
    task: VerifyTask,
    plan: VerifyPlan,
    folder: WorkFolder,
    between: Callable[[str, int, int, int], Iterator[object]],
    on_progress: Callable[[str, int, int], None],
) -> object:
    # These need PySpark's classes, which the other processes do not load.
    from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore  # noqa: PLC0415
    from pipelines.build_consume_queue.builder import Queue, read_queues  # noqa: PLC0415
    from pipelines.recovery.verify.units import MessageLog, compare_units  # noqa: PLC0415

    assert plan.queues is not None
    with RocksStore(Path(plan.queues), BUILDER_FAMILIES, read_only=True) as store:
        queues = dict(read_queues(store))
    names = sorted({topic for topic, _ in queues})
    facts = describe(task.connection, names) if names and task.with_messages else {}
    retained = {name: found_log(task.connection, facts[name]) for name in facts}

    def log_of(queue: Queue) -> MessageLog | str:
        topic, queue_id = queue
        if not task.with_messages:
            return "message topics are not read (--no-messages)"
        if topic not in facts or facts[topic].topic_id != queues[queue].topic_id:
            return f"{topic} was deleted"
        span = (retained[topic].first_offset.get(queue_id, 0), retained[topic].end_offset.get(queue_id, 0))
        return MessageLog(span, lambda first, end: between(topic, queue_id, first, end))

    logs: Mapping[Queue, MessageLog | str] = {queue: log_of(queue) for queue in queues}
    return compare_units(plan, folder.units, logs, on_progress)


@contextlib.contextmanager
def _readers(connection: KafkaConnection) -> Iterator[Callable[[str, int, int, int], Iterator[object]]]:
    readers: dict[tuple[str, int], OpsPartitionReader] = {}

    def between(topic: str, partition: int, first: int, end: int) -> Iterator[object]:
        place = (topic, partition)
        if place not in readers:
            readers[place] = OpsPartitionReader(connection, topic, partition)
        return readers[place].between(first, end)

    try:
        yield between
    finally:
        for reader in readers.values():
            reader.close()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(PARENT_IS_GONE)


def main() -> None:
    """Run the task that standard input has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    os.umask(0o077)
    gc.disable()  # deciding creates many objects and no cycles
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    if not line:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def send(message: Message) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    run_task(msgspec.json.decode(line, type=VerifyTask), send)


if __name__ == "__main__":
    main()
