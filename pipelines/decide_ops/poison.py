"""Poison records: when every runner quarantines one, and what it says of it. Rows and answers quote that text."""

from typing import Final

__all__ = ["ALONE_ATTEMPTS_MAX", "PROCESS_ENDED", "quarantine_reason"]

ALONE_ATTEMPTS_MAX: Final = 2
"""Attempts at one record by itself, after the process ended."""

PROCESS_ENDED: Final = "the process ended each time this record was decided"
"""Why a record is quarantined that raises nothing."""

_CHARACTERS_MAX = 400


def quarantine_reason(error: str) -> str:
    r"""Return what is kept of the error that deciding a record raised: bounded, and without what cannot be encoded.

    >>> quarantine_reason("ValueError: \ud800")
    'ValueError: ?'
    """
    return error[:_CHARACTERS_MAX].encode(errors="replace").decode()
