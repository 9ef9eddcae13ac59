"""What a client call can raise, below the errors every part of popstream shares (`popstream.wire.failures`).

```
PopstreamError
├── Unavailable
│   ├── AnswerTimeout     nobody answered in time: the outcome is unknown
│   ├── NotDeclared       the queue is not known to the job yet
│   ├── PayloadMissing    leased, but the record could not be read in time
│   ├── NotDispatched     written, but not known to be poppable
│   ├── NotWritten        a message is not in its topic: it may be sent again
│   └── OutcomeUnknown    a message may be in its topic, or may not
├── Invalid
│   ├── Refused           the job decided against the operation, and repeating it cannot help
│   └── ClientClosed      the client was closed before, or while it waited
└── Corrupt
    └── AnswerUnreadable  the answer does not fit the request
```

A refusal of single messages is no exception: it is an `Outcome` with `applied` False.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.wire.failures import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.outcome import Outcome
    from popstream.wire.answer import Answer
    from popstream.wire.reason import Reason

__all__ = [
    "AnswerTimeout",
    "AnswerUnreadable",
    "ClientClosed",
    "NotDeclared",
    "NotDispatched",
    "NotWritten",
    "OutcomeUnknown",
    "PayloadMissing",
    "Refused",
]


class AnswerTimeout(Unavailable):
    """No answer came within the deadline: the operation was decided, will be decided, or was lost; nobody here knows.

    The same operation again is safe with the same op_id and the same bytes only. `in_log` tells whether Kafka has
    confirmed the record: then it is decided as soon as the job gets to it.

    Attributes:
        op_ids: The operations without an answer.
        in_log: True when Kafka has confirmed every one of them.
        outcomes: For a call about several messages: what is known of each, in the caller's order; None is unknown.
    """

    def __init__(self, message: str, *, op_ids: Sequence[str], in_log: bool, subject: str = "") -> None:
        """Keep the op_ids: with them the audit tables tell what came of it."""
        super().__init__(message, subject=subject)
        self.op_ids = tuple(op_ids)
        self.in_log = in_log
        self.outcomes: tuple[Outcome | None, ...] = ()


class NotDeclared(Unavailable):
    """The job does not know the queue (TOPIC_NOT_EXIST): nobody has declared it, or not yet."""


class PayloadMissing(Unavailable):
    """Messages were leased whose records could not be read in time; they were given back."""


class NotDispatched(Unavailable):
    """Messages are written to their topic, but not known to be poppable; `dispatch_existing` makes up for it.

    Attributes:
        ranges: For each (topic, queue_id) the inclusive ranges of queue offsets concerned.
    """

    def __init__(self, message: str, *, ranges: dict[tuple[str, int], list[tuple[int, int]]]) -> None:
        """List the ranges below the message, one line a queue."""
        details = [f"{topic}/{queue_id}: {spans}" for (topic, queue_id), spans in sorted(ranges.items())]
        super().__init__(message, details=details)
        self.ranges = ranges


class NotWritten(Unavailable):
    """It is proven that the message is not in its topic and never will be: to send it again makes no second one."""


class OutcomeUnknown(Unavailable):
    """Kafka did not say whether it has written the message. Sent again it may be there twice."""


class Refused(Invalid):
    """The job decided against the operation as a whole.

    Attributes:
        answer: All of it; `reason` and `code` are taken from it.
    """

    def __init__(self, answer: Answer) -> None:
        """Say what was refused and why."""
        detail = f": {answer.detail}" if answer.detail else ""
        queue = f"{answer.topic}/{answer.queue_id}"
        super().__init__(f"{answer.type} on {queue} is refused: {answer.reason} ({answer.code}){detail}", subject=queue)
        self.answer = answer

    @property
    def reason(self) -> Reason:
        """Why, in one word."""
        return self.answer.reason

    @property
    def code(self) -> int:
        """RocketMQ's number for it."""
        return self.answer.code


class ClientClosed(Invalid):
    """The client was closed: before the call, or while the call waited, so that its outcome is unknown."""


class AnswerUnreadable(Corrupt):
    """The answer does not fit the request: it leaves out messages that the request named."""
