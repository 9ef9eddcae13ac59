"""What a load has written about each message, and what follows from it: the account, the rate, the latencies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipelines.cli.clients.perf.ledger import quantiles_of

__all__ = [
    "Account",
    "LedgerFile",
    "LoadLine",
    "Window",
    "account_of",
    "drain_window",
    "paced_window",
    "read_ledger",
]

WARM_WINDOW_S_MIN = 1.0


class LoadLine(msgspec.Struct, frozen=True, kw_only=True):
    """The line that a load prints when a workload has ended.

    Attributes:
        workload: Which one.
        messages: How many there are.
        end: `drained`: all are acked; `time`: time was up; `stalled`: nothing moved any more; `failure`.
        takes: Pops or polls that brought messages.
        take_max: The most messages that one of them brought.
        began_ns: Of `paced`: when message 0 was due.
        interval_ns: Of `paced`: time between messages.
        failure: Why it failed; empty: it did not.
    """

    workload: str
    messages: int
    end: str
    takes: int
    take_max: int
    began_ns: int = 0
    interval_ns: int = 0
    failure: str = ""


class LedgerFile(msgspec.Struct, frozen=True):
    """What happened to each message, by number.

    Attributes:
        deliveries: How often the client got it.
        acks: How often an ack of it was confirmed.
        received_ns: When it was delivered first.
        acked_ns: When an ack of it was first confirmed.
    """

    deliveries: NDArray[np.uint8]
    acks: NDArray[np.uint8]
    received_ns: NDArray[np.int64]
    acked_ns: NDArray[np.int64]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages of a workload.

    Attributes:
        sent: Messages that the broker has confirmed.
        acked: Messages whose ack was confirmed.
        duplicates: Deliveries beyond the first one of each message.
        unacked: Messages that were delivered, and no ack of which was confirmed.
        missing: Messages that were not delivered, though the load waited for them, or a later one of their queue was.
        left: Messages that were not delivered, for the time was up.
    """

    sent: int
    acked: int
    duplicates: int
    unacked: int
    missing: int
    left: int

    @property
    def is_balanced(self) -> bool:
        """Whether each message that was taken was acked, and none was passed over."""
        return not self.unacked and not self.missing


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part of a workload.

    Attributes:
        begin_ns: The end of the warm-up.
        end_ns: The end of the measured time, or the last confirmed ack.
        messages: Messages acked in it.
        is_warm: False: too little was left after the warm-up, so all is measured, from the first delivery on.
    """

    begin_ns: int
    end_ns: int
    messages: int
    is_warm: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / 1e9


def read_ledger(file: Path, messages: int) -> LedgerFile:
    """Read what a load has written: four columns, one after the other."""
    data = file.read_bytes()
    times = np.frombuffer(data, "<i8", offset=2 * messages)
    return LedgerFile(
        np.frombuffer(data, np.uint8, count=messages),
        np.frombuffer(data, np.uint8, count=messages, offset=messages),
        times[:messages],
        times[messages:],
    )


def account_of(ledger: LedgerFile, *, queues: int, is_cut: bool) -> Account:
    """Account for every message.

    Args:
        ledger: What happened to each; message n was sent to the queue n % queues, in order.
        queues: Queues of the topic.
        is_cut: The time was up, so messages at the ends of the queues may be left.
    """
    delivered = ledger.deliveries > 0
    undelivered = int(np.count_nonzero(~delivered))
    missing = undelivered
    if is_cut:
        columns = (delivered[queue_id::queues] for queue_id in range(queues))
        missing = sum(_holes(column) for column in columns)
    return Account(
        sent=len(delivered),
        acked=int(np.count_nonzero(ledger.acks)),
        duplicates=int(ledger.deliveries.sum(dtype=np.int64)) - int(np.count_nonzero(delivered)),
        unacked=int(np.count_nonzero(delivered & (ledger.acks == 0))),
        missing=missing,
        left=undelivered - missing,
    )


def drain_window(ledger: LedgerFile, *, warm_up_s: float, window_s: float) -> Window | None:
    """The measured part of a workload that drains a backlog; None: no ack was confirmed.

    Acks come in bursts, so a window that began or ended with one of them would count too many: its length is fixed,
    unless the backlog is drained before its end.
    """
    acked_ns = ledger.acked_ns[ledger.acks > 0]
    if not len(acked_ns):
        return None
    begin_ns = int(acked_ns.min() + warm_up_s * 1e9)
    end_ns = min(int(begin_ns + window_s * 1e9), int(acked_ns.max()))
    is_warm = end_ns - begin_ns >= WARM_WINDOW_S_MIN * 1e9
    if not is_warm:
        begin_ns, end_ns = int(ledger.received_ns[ledger.deliveries > 0].min()), int(acked_ns.max())
    messages = int(np.count_nonzero((acked_ns > begin_ns) & (acked_ns <= end_ns)))
    return Window(begin_ns=begin_ns, end_ns=end_ns, messages=messages, is_warm=is_warm)


def paced_window(ledger: LedgerFile, line: LoadLine, *, warm_up_s: float) -> tuple[Window | None, dict[str, float]]:
    """The measured part of `paced`, and its latencies, from the time at which a message was due to be sent.

    A sender that is late makes them longer, as it would for its users. None: nothing was received and acked.
    """
    warm_up = round(warm_up_s * 1e9 / line.interval_ns)
    is_warm = warm_up < line.messages
    # Message 0 waited for the consumer.
    numbers = np.arange(warm_up if is_warm else 1, line.messages)
    numbers = numbers[ledger.acks[numbers] > 0]
    if not len(numbers):
        return None, {}
    due_ns, acked_ns = line.began_ns + numbers * line.interval_ns, ledger.acked_ns[numbers]
    latencies: dict[str, float] = {}
    for event, times_ns in (("received", ledger.received_ns[numbers]), ("acked", acked_ns)):
        quantiles = quantiles_of(((times_ns - due_ns) / 1e6).tolist()) or {}
        latencies |= {f"{event}_{name}_ms": quantiles[name] for name in ("p50", "p99")}
    begin_ns, end_ns = int(due_ns[0]), int(acked_ns.max())
    return Window(begin_ns=begin_ns, end_ns=end_ns, messages=len(numbers), is_warm=is_warm), latencies


def _holes(delivered: NDArray[np.bool_]) -> int:
    """Messages of a queue that were not delivered, though a later one was."""
    found = np.flatnonzero(delivered)
    return int(found[-1] + 1 - len(found)) if len(found) else 0
