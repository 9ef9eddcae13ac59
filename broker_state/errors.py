"""Errors for operators, grouped by what to do next. A refused operation is not among them: it is an answer.

    PopstreamError
    ├── UnavailableError    try again later: something outside does not answer
    ├── InvalidError        fix the configuration or the call
    ├── CorruptError        restore a snapshot: stored state contradicts itself
    │   └── CorruptValueError
    └── FencedError         stop: another process owns this state
"""

__all__ = ["CorruptError", "CorruptValueError", "FencedError", "InvalidError", "PopstreamError", "UnavailableError"]


class PopstreamError(Exception):
    """Root of every error the project raises on purpose."""


class UnavailableError(PopstreamError):
    """Something outside does not answer; retrying may help."""


class InvalidError(PopstreamError):
    """A setting or a call is wrong; nothing helps but to change it."""


class CorruptError(PopstreamError):
    """Stored state contradicts itself or the log; restore a snapshot or rebuild."""


class CorruptValueError(CorruptError):
    """A stored value that no known format explains."""

    def __init__(self, what: str, value: bytes) -> None:
        super().__init__(f"unreadable {what}: {value[:16].hex()}")
        self.what = what
        self.value = value


class FencedError(PopstreamError):
    """Another process owns the state; this one must stop."""
