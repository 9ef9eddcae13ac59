"""Claim: the text of an error of Java is short, and asking for it never raises. Method: errors without a JVM."""

from __future__ import annotations

import pytest

from connectors.java_errors import first_line, java_text
from tests.support.java_error import ended_java_error, java_error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (java_error("java.io.IOException: no\n\tat x"), "java.io.IOException: no"),
        (java_error("x" * 501), "x" * 500),
        (java_error(" \n"), "it gave no reason"),
        (ended_java_error(), "it gave no reason"),
    ],
    ids=["lines", "long", "empty", "ended"],
)
def test_an_error_has_one_short_line(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_the_whole_text_is_there_until_the_jvm_ends() -> None:
    assert java_text(java_error("java.io.IOException: no\n\tat x")) == "java.io.IOException: no\n\tat x"
    assert java_text(ended_java_error()) == ""
