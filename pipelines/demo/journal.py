"""What each process of the demo writes down: one JSON object a line, on its way to the disk before it is acted upon.

Offsets travel as inclusive ranges. Times are the broker's, in ms.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

__all__ = ["Acked", "Changed", "Event", "Journal", "Opened", "Planted", "Popped", "Worker", "read_journal", "runs_of"]

Run = tuple[int, int, str, bool]
"""(first, last, reason, applied)"""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """First line: who writes."""

    worker: str
    role: str
    group: str


class Popped(msgspec.Struct, frozen=True, tag="popped"):
    """Messages that a pop brought, with their content: `hashes` is 16 hex digits for each, in the order of `ranges`.

    `unread` were leased without a payload being found in time; `broken` had another content than they were sent with;
    `out_of_order` came to an orderly consumer after a later one of their key, or after they were done there.
    """

    queue_id: int
    op_id: str
    pop_time_ms: int
    next_visible_time_ms: int
    ranges: list[tuple[int, int, int]]
    hashes: str
    unread: int = 0
    broken: int = 0
    out_of_order: int = 0


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """The outcomes of an ack."""

    queue_id: int
    runs: list[Run]


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The outcomes of a change of the invisible time; 0 is a release."""

    queue_id: int
    invisible_time_ms: int
    next_visible_time_ms: int
    runs: list[Run]


class Planted(msgspec.Struct, frozen=True, tag="planted"):
    """A record of the ops topic that must be rejected (`sha256` is that of its value) or refused with `code`."""

    kind: str
    partition: int
    kafka_offset: int
    reason: str
    code: int = 0
    sha256: str = ""
    value_bytes: int = 0

    @property
    def is_rejected(self) -> bool:
        """Whether no command can be read; else it is refused."""
        return bool(self.sha256)


Event = Opened | Popped | Acked | Changed | Planted

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def runs_of(outcomes: Iterable[tuple[int, str, bool]]) -> list[Run]:
    """Outcomes of single offsets as runs of neighbours that fared alike.

    >>> runs_of([(0, "OK", True), (1, "OK", True), (2, "STALE_HANDLE", False), (4, "OK", True)])
    [(0, 1, 'OK', True), (2, 2, 'STALE_HANDLE', False), (4, 4, 'OK', True)]
    """
    runs: list[Run] = []
    for offset, reason, applied in outcomes:
        if runs and runs[-1][1] == offset - 1 and runs[-1][2:] == (reason, applied):
            runs[-1] = (runs[-1][0], offset, reason, applied)
        else:
            runs.append((offset, offset, reason, applied))
    return runs


class Journal:
    """Appends events to a file; each is out of this process when `write` returns. Safe for use by many threads."""

    def __init__(self, path: Path, opened: Opened) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = path.open("ab")
        self.write(opened)

    def write(self, event: Event) -> None:
        """Write one event."""
        line = _encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """One journal, read: who wrote it, and what. A worker that was killed may have known more than it says."""

    def __init__(self, opened: Opened, events: list[Event], *, was_killed: bool = False) -> None:
        self.name = opened.worker
        self.role = opened.role
        self.group = opened.group
        self.events = events
        self.was_killed = was_killed


def read_journal(path: Path, *, was_killed: bool = False) -> Worker:
    """Read a journal; of one whose writer was killed the last line may be cut off.

    Raises:
        ValueError: A line is no event, or the first one does not say who writes.
    """
    events = list(_events(path, was_killed=was_killed))
    opened = events[0] if events else None
    if not isinstance(opened, Opened):
        message = f"{path} does not begin with who writes it"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a caller's type
    return Worker(opened, events[1:], was_killed=was_killed)


def _events(path: Path, *, was_killed: bool) -> Iterator[Event]:
    with path.open("rb") as file:
        for line in file:
            if was_killed and not line.endswith(b"\n"):
                return
            yield _decoder.decode(line)
