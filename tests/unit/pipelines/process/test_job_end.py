"""Claim: the first failure ends a job, an error of Spark is kept as text, and what a stopping job cancels is none."""

from __future__ import annotations

from py4j.protocol import Py4JError

from connectors.delta.spark_errors import SparkError
from pipelines.process.job_end import JobEnd


def test_the_first_failure_ends_the_job() -> None:
    end, first = JobEnd(), OSError("first")
    assert not end.wait(0)
    end.fail_unless_stopping(first)
    end.fail(OSError("second"))
    assert end.failure is first
    assert end.wait(0)


def test_an_error_of_spark_is_kept_as_text_because_its_own_is_lost_with_the_jvm() -> None:
    end = JobEnd()
    end.fail(Py4JError("gone\nat Java"))
    assert isinstance(end.failure, SparkError)
    assert str(end.failure) == "Spark failed (Py4JError): gone"


def test_while_a_job_stops_only_what_it_cannot_do_without_is_a_failure() -> None:
    end, needed = JobEnd(), OSError("needed")
    end.is_stopping = True
    end.fail_unless_stopping(OSError("cancelled"))
    assert end.failure is None
    assert not end.wait(0)
    end.fail(needed)
    assert end.failure is needed


def test_a_job_that_ends_by_itself_has_no_failure() -> None:
    end = JobEnd()
    end.set()
    assert end.wait(0)
    assert end.failure is None
