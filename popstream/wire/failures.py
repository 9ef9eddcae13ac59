"""What can go wrong, grouped by what the operator does next. A refused operation is not among it: that is an answer.

```
PopstreamError
├── Unavailable   retry: something we need does not answer now
├── Invalid       fix the configuration: retrying cannot help
├── Corrupt       restore: stored bytes are not what was written
└── Fenced        stop: another process owns this now
```
"""

from collections.abc import Sequence

__all__ = ["RESTORE", "Corrupt", "Fenced", "Invalid", "PopstreamError", "Unavailable"]


RESTORE = "stop the job and run `popstream restore`"
"""What most of those that are Corrupt end with."""


class PopstreamError(Exception):
    """Root of the errors an operator meets.

    Args:
        message: One sentence: what is wrong and what to do.
        subject: The thing it is about: a topic, an address, a port, a folder.
        details: Every finding, one line each; shown below the message.

    >>> print(Invalid("2 settings are wrong", subject="popstream.ops", details=["first", "second"]))
    2 settings are wrong
      first
      second
    """

    def __init__(self, message: str, *, subject: str = "", details: Sequence[str] = ()) -> None:
        """Keep the parts as attributes, so that logs and metrics need not parse the text."""
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.details = tuple(details)

    def __str__(self) -> str:
        """Give the message, and below it one indented line for each detail."""
        return "\n  ".join((self.message, *self.details))


class Unavailable(PopstreamError):  # noqa: N818 - named by what to do next
    """Something we need does not answer now: retry, later or elsewhere."""


class Invalid(PopstreamError):  # noqa: N818 - named by what to do next
    """The configuration cannot work: fix it, then start again."""


class Corrupt(PopstreamError):  # noqa: N818 - named by what to do next
    """Stored bytes are not what was written: restore a snapshot or start from an empty folder."""


class Fenced(PopstreamError):  # noqa: N818 - named by what to do next
    """Another process owns this now: stop."""
