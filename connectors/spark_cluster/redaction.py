"""What Spark does not show of its settings: on its UI, which has no login, in its event log, and in its messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEFAULT_RULE", "REDACTION", "redacting"]

REDACTION: Final = "spark.redaction.regex"
DEFAULT_RULE: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's default: it is searched in names and in values."""


def redacting(hadoop_settings: Iterable[str], rule: str = DEFAULT_RULE) -> str:
    r"""Return a rule that also applies to the named settings of Hadoop, of which Spark shows each under two names.

    >>> redacting(["fs.s3a.encryption.key", "fs.defaultFS"], "salary")
    'salary|^(spark\\.hadoop\\.)?(fs\\.defaultFS|fs\\.s3a\\.encryption\\.key)$'
    """
    names = "|".join(map(re.escape, sorted(hadoop_settings)))
    return rf"{rule}|^(spark\.hadoop\.)?({names})$"
