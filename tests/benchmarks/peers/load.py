"""A load in Python: it runs the workloads, and writes what happened to each message; Load.java does the same."""

from __future__ import annotations

import argparse
import json
import math
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["TAKE_MAX", "TIMEOUT_S", "Ledger", "LoadClient", "load_parser", "run_load"]

TAKE_MAX = 32
TIMEOUT_S = 30.0
LOOK_S = 0.01
_NUMBER = struct.Struct(">i")


class Ledger:
    """What happened to each message of a workload, by number. Times are those of CLOCK_MONOTONIC, as in Java.

    Args:
        messages: How many there are.
        limit_s: Seconds from the first ack until the time is up.
        stall_s: Seconds without any progress until it has failed.
    """

    def __init__(self, messages: int, *, limit_s: float, stall_s: float) -> None:
        self._messages = messages
        self._limit_s = limit_s
        self._stall_s = stall_s
        self._deliveries = bytearray(messages)
        self._acks = bytearray(messages)
        self._received_ns = array("q", bytes(8 * messages))
        self._acked_ns = array("q", bytes(8 * messages))
        self._lock = threading.Lock()
        self._takes = self._take_max = 0
        self._first_ack_ns = 0
        self._moved_ns = time.monotonic_ns()
        self._failure = ""
        self._end = ""
        self.acked_count = 0
        self._delivered_count = 0

    def received(self, values: Sequence[bytes]) -> list[int]:
        """Note what one take brought; return the numbers of these messages."""
        numbers = [_NUMBER.unpack_from(value)[0] for value in values]
        with self._lock:
            now_ns = self._moved_ns = time.monotonic_ns()
            self._takes += 1
            self._take_max = max(self._take_max, len(values))
            for number in numbers:
                if not self._deliveries[number]:
                    self._received_ns[number] = now_ns
                    self._delivered_count += 1
                self._deliveries[number] += 1
        return numbers

    def acked(self, numbers: Sequence[int]) -> None:
        """Note that the acks of these messages were confirmed."""
        with self._lock:
            now_ns = self._moved_ns = time.monotonic_ns()
            self._first_ack_ns = self._first_ack_ns or now_ns
            for number in numbers:
                if not self._acks[number]:
                    self._acked_ns[number] = now_ns
                    self.acked_count += 1
                self._acks[number] += 1

    def fail(self, error: object) -> None:
        """Note that the workload has failed."""
        self._failure = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)

    def is_over(self) -> bool:
        """Whether nothing more is to be taken: all is acked, the time is up, nothing moves, or something failed."""
        now_ns = time.monotonic_ns()
        if not self._end:
            if self._failure:
                self._end = "failure"
            elif self.acked_count == self._messages:
                self._end = "drained"
            elif self._first_ack_ns and now_ns - self._first_ack_ns > self._limit_s * 1e9:
                self._end = "time"
            elif now_ns - self._moved_ns > self._stall_s * 1e9:
                self._end = "stalled"
        return bool(self._end)

    def wait(self) -> None:
        """Return when it is over."""
        while not self.is_over():
            time.sleep(LOOK_S)

    def wait_for_acks(self) -> None:
        """Return when every message that was received is acked, or after a time that is long enough for any ack."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.acked_count < self._delivered_count and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)

    def write(self, folder: Path, workload: str, *, began_ns: int = 0, interval_ns: int = 0) -> None:
        """Write the file that `accounting.read_ledger` reads, and print the line that says so."""
        self.is_over()
        with (folder / f"{workload}.ledger").open("wb") as file:
            for column in (self._deliveries, self._acks, self._received_ns, self._acked_ns):
                file.write(column)
        line = {
            "workload": workload,
            "messages": self._messages,
            "end": self._end,
            "takes": self._takes,
            "take_max": self._take_max,
            "began_ns": began_ns,
            "interval_ns": interval_ns,
            "failure": self._failure,
        }
        print(json.dumps(line), flush=True)


class LoadClient(Protocol):
    """A client of a contender. Its workloads end when the ledger is over and every ack has its answer."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic."""

    def send(self, topic: str, queue_id: int, value: bytes) -> None:
        """Send a message; may return before it is confirmed."""

    def flush(self) -> None:
        """Return when every message is confirmed; raise when one was refused."""

    def loop(self, topic: str, ledger: Ledger) -> None:
        """Take at most 32 messages, ack each, and wait for all of these acks before more are taken."""

    def each(self, topic: str, ledger: Ledger) -> None:
        """Take messages as they come, and ack each, as this client does by default."""

    def bulk(self, topic: str, ledger: Ledger) -> None:
        """Take and ack messages as fast as this client can."""


def load_parser() -> argparse.ArgumentParser:
    """The options of every load."""
    parser = argparse.ArgumentParser()
    for name in ("messages", "queues", "message-bytes", "paced-messages", "rate"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("backlog-limit-s", "stall-s"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workloads", required=True)
    parser.add_argument("--bootstrap", required=True)
    return parser


def run_load(client: LoadClient, options: argparse.Namespace) -> None:
    """Run the workloads that the options name."""
    workloads = options.workloads.split(",")
    consumes = {"loop": client.loop, "each": client.each, "bulk": client.bulk}
    if consumes.keys() & set(workloads):
        client.create_topic("backlog", options.queues)
        for number in range(options.messages):
            _send(client, "backlog", number, options)
        client.flush()
    for workload in workloads:
        if workload == "paced":
            _run_paced(client, options)
        else:
            ledger = Ledger(options.messages, limit_s=options.backlog_limit_s, stall_s=options.stall_s)
            _consume(consumes[workload], "backlog", ledger)
            ledger.write(options.folder, workload)


def _run_paced(client: LoadClient, options: argparse.Namespace) -> None:
    """Message 0 waits until the consumer is there; each other one has a time at which it is sent."""
    interval_ns = 1_000_000_000 // options.rate
    client.create_topic("paced", options.queues)
    ledger = Ledger(options.paced_messages, limit_s=math.inf, stall_s=options.stall_s)
    consuming = threading.Thread(target=_consume, args=(client.each, "paced", ledger))
    consuming.start()
    _send(client, "paced", 0, options)
    client.flush()
    while not ledger.acked_count and not ledger.is_over():
        time.sleep(LOOK_S)
    began_ns = time.monotonic_ns()
    for number in range(1, options.paced_messages):
        if ledger.is_over():
            break
        time.sleep(max(0, began_ns + number * interval_ns - time.monotonic_ns()) / 1e9)
        _send(client, "paced", number, options)
    client.flush()
    consuming.join()
    ledger.write(options.folder, "paced", began_ns=began_ns, interval_ns=interval_ns)


def _send(client: LoadClient, topic: str, number: int, options: argparse.Namespace) -> None:
    client.send(topic, number % options.queues, _NUMBER.pack(number).ljust(options.message_bytes, b"\0"))


def _consume(consume: Callable[[str, Ledger], None], topic: str, ledger: Ledger) -> None:
    try:
        consume(topic, ledger)
    except Exception as error:  # noqa: BLE001 - whatever it is, the ledger reports it
        ledger.fail(error)
