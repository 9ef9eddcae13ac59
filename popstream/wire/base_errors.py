"""Errors of the job and its commands, grouped by what the operator does next.

A refused operation is not an error here: it is an answer with a reason code.

```
PopstreamError
├── Unavailable   retry: a service or file that is needed does not respond
├── Invalid       fix the configuration: retrying cannot help
├── Corrupt       restore: stored bytes differ from what was written
└── Fenced        stop: another process owns the job now
```
"""

from collections.abc import Sequence
from typing import ClassVar

__all__ = [
    "RESTORE",
    "Corrupt",
    "Fenced",
    "Invalid",
    "PopstreamError",
    "Unavailable",
    "is_transient",
    "without_restore",
]


RESTORE = "stop the job and run `popstream restore`"
"""The advice with which most messages of `Corrupt` end."""


def without_restore(message: str) -> str:
    """Return a message without `RESTORE` at its end: for what follows another advice.

    >>> without_restore(f"the state is torn: {RESTORE}")
    'the state is torn'
    """
    return message.removesuffix(RESTORE).rstrip(":; ")


class PopstreamError(Exception):
    """Root of the errors that an operator meets.

    Args:
        message: One sentence that says what is wrong and what to do.
        subject: The topic, address, port or folder concerned.
        details: All findings, one line each; shown below the message.

    Attributes:
        is_transient: Whether the same work may succeed later although nobody repairs anything.

    >>> print(Invalid("2 settings are wrong", subject="popstream.ops", details=["first", "second"]))
    2 settings are wrong
      first
      second
    """

    is_transient: ClassVar[bool] = True

    def __init__(self, message: str, *, subject: str = "", details: Sequence[str] = ()) -> None:
        """Keep the parts as attributes, so that logs and metrics need not parse the text."""
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.details = tuple(details)

    def __str__(self) -> str:
        """Return the message, followed by one indented line for each detail."""
        return "\n  ".join((self.message, *self.details))


class Unavailable(PopstreamError):  # noqa: N818 - named by what to do next
    """A service or file that is needed does not respond: retry, later or elsewhere."""


class Invalid(PopstreamError):  # noqa: N818 - named by what to do next
    """The configuration cannot work: fix it, then start again."""

    is_transient = False


class Corrupt(PopstreamError):  # noqa: N818 - named by what to do next
    """Stored bytes differ from what was written: restore a snapshot, or start with an empty folder."""

    is_transient = False


class Fenced(PopstreamError):  # noqa: N818 - named by what to do next
    """Another process owns the job now: stop."""

    is_transient = False


def is_transient(failure: BaseException) -> bool:
    """Return whether the failed work may succeed later although nobody repairs anything.

    Exceptions of libraries count as transient: they report outages as they like.

    >>> is_transient(OSError("no space left on device")), is_transient(Corrupt("the log begins too late"))
    (True, False)
    >>> is_transient(KeyboardInterrupt())
    False
    """
    if isinstance(failure, PopstreamError):
        return failure.is_transient
    return isinstance(failure, Exception)
