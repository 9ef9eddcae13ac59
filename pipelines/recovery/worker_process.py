"""A process that does a part of the work on the log: `python -m MODULE`, whose module calls `serve`.

Reads a task as a line of JSON from standard input, and prints progress, result or failure as lines of JSON. Ends when
standard input ends, at any point.
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from connectors.local_servers.end_with_parent import end_with_parent
from pipelines.recovery.ops_log import OpsPartitionReader
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError, Unavailable
from popstream.wire.queue_name import QueueName

__all__ = ["Done", "Failed", "Message", "Noted", "OnProgress", "partition_readers", "run_task", "serve"]

OnProgress = Callable[[str, int, int], None]
"""Is called with what is being done, and how much is done, and in all."""

_Task = TypeVar("_Task", bound=msgspec.Struct)


class Noted(msgspec.Struct, frozen=True, tag=True):
    """How far the process is."""

    doing: str
    done: int
    total: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """The task is complete; `result` is its JSON."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The task cannot be completed: the fields of a PopstreamError, and the name of its class."""

    kind: str
    message: str
    subject: str
    details: list[str]


Message = Noted | Done | Failed


def run_task(run: Callable[[OnProgress], object], send: Callable[[Message], None]) -> None:
    """Run a task, and send what there is to say; every error is said, too."""
    try:
        result = run(lambda *noted: send(Noted(*noted)))
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
        send(Failed("PopstreamError", f"it failed: {type(error).__name__}: {error}{at}", "", []))


def _kind(error: PopstreamError) -> str:
    for kind in (Corrupt, Invalid, Unavailable):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__


@contextlib.contextmanager
def partition_readers(connection: KafkaConnection) -> Iterator[Callable[[str, int, int, int], Iterator[object]]]:
    """Yield a function that reads the records of (topic, partition, first, end), by a connection for each partition."""
    readers: dict[QueueName, OpsPartitionReader] = {}

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


def serve(task_type: type[_Task], run: Callable[[_Task, OnProgress], object]) -> None:
    """Run the task that standard input has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    os.umask(0o077)
    gc.disable()  # deciding creates many objects and no cycles
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    if not line:
        return
    end_with_parent()

    def send(message: Message) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    task = msgspec.json.decode(line, type=task_type)
    run_task(lambda on_progress: run(task, on_progress), send)
