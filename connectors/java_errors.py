"""The text of an error that a JVM raised, which PySpark asks it for: it is lost with the JVM."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError

__all__ = ["JVM_ERRORS", "first_line", "java_text"]

JVM_ERRORS: Final = (Py4JError, ConnectionRefusedError)
"""What a call into a JVM raises. The second one: the JVM has ended, and py4j connects anew for the call."""

_LINE_MAX: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"


def java_text(error: BaseException) -> str:
    """Return the text of an error of Java or PySpark, without the place in this program; empty: its JVM has ended."""
    try:
        return str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    except Exception:  # noqa: BLE001 - py4j raises errors of many types then
        return ""


def first_line(error: BaseException) -> str:
    r"""Return the first line of that text, or that of the error of Python that is behind it; 500 characters at most.

    Where Spark had called code of this project, its own first line says only that a traceback follows.

    >>> first_line(ValueError("no such folder\nat java.io")), first_line(ValueError())
    ('no such folder', 'it gave no reason')
    """
    text = java_text(error)
    _, traceback, raised = text.rpartition(_TRACEBACK)
    of_python = [line for line in raised.splitlines() if line[:1].strip()] if traceback else []
    first, *_ = of_python or text.strip().splitlines() or ["it gave no reason"]
    return first[:_LINE_MAX]
