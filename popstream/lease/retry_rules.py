"""What becomes of a message whose handler has raised, and what the pops of a consumer declare about that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from popstream.lease.entries import Change
from popstream.retries import BackOff, Reject, Retry, bounded_cause, describe_error
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import ATTEMPTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.wire.command import Pop

__all__ = ["RetryRules"]

LOG = logging.getLogger(__name__)


class RetryRules:
    """The retries of a consumer: what its pops declare, and what becomes of a message whose handler raised.

    Args:
        max_attempts: Deliveries of a message before it is a dead letter; 0: no limit; None: pops declare nothing.
        back_off: The time after a failed delivery, in seconds if it is a list.
        describe: Describes what a handler raised, for the audit and the dead letters.

    Raises:
        Invalid: A value is out of range.
    """

    def __init__(
        self,
        max_attempts: int | None,
        back_off: BackOff | Sequence[float],
        describe: Callable[[BaseException], str] = describe_error,
    ) -> None:
        if max_attempts is not None and not 0 <= max_attempts <= ATTEMPTS_MAX:
            message = f"max_attempts takes 0..{ATTEMPTS_MAX}, not {max_attempts}"
            raise Invalid(message, subject="max_attempts")
        self._back_off = back_off if isinstance(back_off, BackOff) else BackOff(tuple(back_off))
        self._max_attempts = max_attempts
        self._declared_ms: list[int] | None = None
        if max_attempts is not None and not self._back_off.jitter:
            self._declared_ms = [round(step_s * 1000) for step_s in self._back_off.steps_s]
        self._describe = describe

    def declared_by(self, command: Pop) -> Pop:
        """Return the pop with what it declares."""
        return msgspec.structs.replace(command, max_attempts=self._max_attempts, back_off_ms=self._declared_ms)

    def after_failure(self, error: BaseException, attempt: int) -> Change | Reject:
        """Return what becomes of a message whose handler has raised `error` in this attempt; its cause can be sent.

        >>> RetryRules(16, [1, 5]).after_failure(ValueError("no milk"), attempt=2)
        Change(invisible_time_ms=5000, suspend=False, release='back_off', cause='ValueError: no milk')
        """
        if isinstance(error, Reject):
            reason = _cause(error, str)
            raised_from = "" if error.__cause__ is None else _cause(error.__cause__, self._describe)
            return Reject(bounded_cause(": ".join(filter(None, (reason, raised_from)))))
        if not isinstance(error, Retry):
            cause = _cause(error, self._describe)
            return Change(self._back_off.delay_ms(attempt), release="back_off", cause=cause)
        cause = _cause(error, str) if error.__cause__ is None else _cause(error.__cause__, self._describe)
        if error.after_ms is None:
            return Change(self._back_off.delay_ms(attempt), release="back_off", cause=cause)
        return Change(error.after_ms, release="after", cause=cause)


def _cause(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    try:
        return bounded_cause(describe(error))
    except Exception:
        # Not its text, which the description may have been there to hide.
        LOG.exception("the description of a %s failed", type(error).__name__)
        return type(error).__name__
