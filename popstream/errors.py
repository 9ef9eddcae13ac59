"""The errors of a client, below those that all parts of popstream share (`popstream.wire.base_errors`).

```
PopstreamError
├── Unavailable
│   ├── AnswerTimeout     no answer came in time: the outcome is unknown
│   ├── NotDeclared       the job does not know the queue yet
│   ├── PayloadMissing    messages were leased, but their records could not be read in time
│   ├── NotDispatched     messages are written, but not known to be poppable
│   ├── NotWritten        a message is not in its topic: it may be sent again
│   └── OutcomeUnknown    a message may or may not be in its topic
├── Invalid
│   ├── Refused           the job refused the operation; repeating it does not help
│   └── ClientClosed      the client was closed, before the call or during it
└── Corrupt
    └── AnswerUnreadable  the answer does not match the request
```

A refusal of a single message is not an exception, but an `Outcome` with `applied` False.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from popstream.wire.base_errors import Corrupt, Invalid, Unavailable
from popstream.wire.queue_name import QueueName

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
    """No answer came in time: the operation was decided, will be decided, or was lost.

    Repeating the operation is safe only with the same op_id and the same bytes.

    Attributes:
        op_ids: The operations without an answer; the audit tables have their outcomes by these.
        in_log: True when Kafka has confirmed the records of all of them; the job then decides them when it reads them.
        outcomes: For a call about several messages: the outcome of each, in the caller's order; None: unknown.
    """

    def __init__(self, message: str, *, op_ids: Sequence[str], in_log: bool, subject: str = "") -> None:
        super().__init__(message, subject=subject)
        self.op_ids = tuple(op_ids)
        self.in_log = in_log
        self.outcomes: tuple[Outcome | None, ...] = ()


class NotDeclared(Unavailable):
    """The job does not know the queue (TOPIC_NOT_EXIST): it has not been declared yet."""

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Return the error for an answer with this reason."""
        queue = f"{answer.topic}/{answer.queue_id}"
        return cls(f"the job does not know {queue}: the queue has not been declared yet", subject=queue)


class PayloadMissing(Unavailable):
    """The records of leased messages could not be read in time; the messages were released."""


class NotDispatched(Unavailable):
    """Messages are written to their topic, but not known to be poppable; `dispatch_existing` dispatches them.

    Attributes:
        ranges: The inclusive ranges of queue offsets, for each (topic, queue_id).
    """

    def __init__(self, message: str, *, ranges: dict[QueueName, list[tuple[int, int]]]) -> None:
        details = [f"{topic}/{queue_id}: {spans}" for (topic, queue_id), spans in sorted(ranges.items())]
        super().__init__(message, details=details)
        self.ranges = ranges


class NotWritten(Unavailable):
    """The message is certainly not in its topic, and never will be: sending it again cannot duplicate it."""


class OutcomeUnknown(Unavailable):
    """Kafka did not confirm or refuse the message: sending it again may duplicate it."""


class Refused(Invalid):
    """The job refused the operation as a whole.

    Attributes:
        answer: The whole answer.
    """

    def __init__(self, answer: Answer) -> None:
        detail = f": {answer.detail}" if answer.detail else ""
        queue = f"{answer.topic}/{answer.queue_id}"
        super().__init__(
            f"{answer.type} on {queue} was refused: {answer.reason} ({answer.code}){detail}", subject=queue
        )
        self.answer = answer

    @property
    def reason(self) -> Reason:
        """The reason of the answer."""
        return self.answer.reason

    @property
    def code(self) -> int:
        """RocketMQ's code for the reason."""
        return self.answer.code


class ClientClosed(Invalid):
    """The client was closed before the call, or during it; then the outcome is unknown."""

    @classmethod
    def of(cls, kind: str, client_id: str | None) -> Self:
        """Return the error of a call after `close`.

        Args:
            kind: What was closed: a consumer, a producer, a transport, or the fetcher of a consumer.
            client_id: Name of the client; None: it was never opened.
        """
        name = f"the {kind}" if client_id is None else f"{kind} {client_id}"
        return cls(f"{name} is closed", subject=client_id or "")


class AnswerUnreadable(Corrupt):
    """The answer does not match the request: it has no outcome for a message that the request named."""
