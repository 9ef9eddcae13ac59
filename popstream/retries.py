"""How often and when a message is delivered again whose handler fails, and the exceptions by which a handler decides.

```python
def handle(message: Message) -> None:
    try:
        charge(message.value)
    except RateLimited as error:
        raise Retry(after_s=error.seconds) from error   # at another time than the back-off says
    except NoSuchCustomer as error:
        raise Reject("no such customer") from error   # to the dead letters, now
```

Anything else that a handler raises releases its message, for as long as the back-off of its attempt says.
"""

from __future__ import annotations

import random
from typing import Self

import msgspec

from popstream.back_off import back_off_s
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import BACK_OFF_STEPS_MAX, INVISIBLE_TIME_MS_MAX

__all__ = ["CAUSE_CHARACTERS", "MAX_ATTEMPTS", "BackOff", "Reject", "Retry", "bounded_cause", "describe_error"]

MAX_ATTEMPTS = 16
"""Deliveries of a message before it is a dead letter; RocketMQ's number of retries."""
CAUSE_CHARACTERS = 256
"""Why a message was released or rejected is cut after these."""
ROCKETMQ_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""RocketMQ's delay levels 3 to 18, which its retries take one after the other."""


class Retry(Exception):  # noqa: N818 - a decision
    """Raised by a handler: deliver its message again, `after_s` from now; None: after the back-off.

    The delivery counts as an attempt. What it was raised `from` is recorded, else `reason`.

    Raises:
        Invalid: `after_s` is negative, or more than 12 hours.
    """

    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_ms = None if after_s is None else _milliseconds(after_s, "after_s")


class Reject(Exception):  # noqa: N818 - a decision
    """Raised by a handler: send its message to the dead-letter topic now.

    `reason` is recorded with it, and what it was raised `from`; both together are cut after 256 characters.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BackOff(msgspec.Struct, frozen=True):
    """The time between a failed delivery and the next one.

    Without jitter it is declared to the job with `max_attempts`, and holds for leases that expire, too. With jitter
    each failed message gets a time of its own, which a declared back-off would replace; a message whose lease expires
    is offered again at once.

    Args:
        steps_s: Seconds after the first, second, ... attempt; the last value repeats. Empty: at once.
        jitter: Up to this part of the time, 0..1, is left out, at random: what failed together comes apart.

    >>> BackOff((1, 5, 30)).delay_ms(attempt=2), BackOff((1, 5, 30)).delay_ms(attempt=9)
    (5000, 30000)
    """

    steps_s: tuple[float, ...] = ()
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            Invalid: There are more than 32 steps, one is negative or more than 12 hours, or `jitter` is not in 0..1.
        """
        for step_s in self.steps_s:
            _milliseconds(step_s, "a step of a back-off")
        if len(self.steps_s) > BACK_OFF_STEPS_MAX or not 0 <= self.jitter <= 1:
            message = f"a back-off has at most {BACK_OFF_STEPS_MAX} steps, and a jitter of 0 to 1"
            raise Invalid(message, subject="back_off")

    @classmethod
    def exponential(cls, first_s: float = 1.0, max_s: float = 600.0, *, jitter: float = 0.5) -> Self:
        """Return a back-off that doubles, from `first_s` to `max_s` seconds.

        >>> BackOff.exponential(1, 60).steps_s
        (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60)
        """
        steps_s: list[float] = []
        while len(steps_s) < BACK_OFF_STEPS_MAX and (not steps_s or 0 < steps_s[-1] < max_s):
            steps_s.append(back_off_s(len(steps_s) + 1, first_s=first_s, max_s=max_s))
        return cls(tuple(steps_s), jitter)

    @classmethod
    def rocketmq(cls) -> Self:
        """Return the table by which RocketMQ delays the retries of a consumer: 10 s, 30 s, 1 to 10 min, ... 2 h.

        >>> [BackOff.rocketmq().delay_ms(attempt) // 1_000 for attempt in (1, 2, 3, 16)]
        [10, 30, 60, 7200]
        """
        return cls(ROCKETMQ_DELAYS_S)

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds after delivery number `attempt`, from 1."""
        if not self.steps_s:
            return 0
        delay_s = self.steps_s[min(attempt, len(self.steps_s)) - 1]
        return round(delay_s * (1 - self.jitter * random.random()) * 1000)  # noqa: S311 - to spread retries


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error.

    >>> describe_error(ValueError("no milk")), describe_error(TimeoutError())
    ('ValueError: no milk', 'TimeoutError')
    """
    kind, text = type(error).__name__, str(error)
    return f"{kind}: {text}" if text else kind


def bounded_cause(text: str) -> str:
    """Return the beginning of a text, in characters that UTF-8 can encode: what an operation can carry.

    >>> bounded_cause("no milk"), len(bounded_cause("x" * 1_000)), bounded_cause(chr(0xDC80))
    ('no milk', 256, '?')
    """
    return text[:CAUSE_CHARACTERS].encode(errors="replace").decode()


def _milliseconds(seconds: float, what: str) -> int:
    if not 0 <= seconds * 1000 <= INVISIBLE_TIME_MS_MAX:
        message = f"{what} takes 0..{INVISIBLE_TIME_MS_MAX // 1000} seconds, not {seconds}"
        raise Invalid(message, subject="retries")
    return round(seconds * 1000)
