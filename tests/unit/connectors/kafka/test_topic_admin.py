"""Claim: transient errors of Kafka's administration are retried, all others are reported at once."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import LeaderNotAvailableError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from connectors.kafka import topic_admin
from connectors.kafka.topic_admin import NewTopic, TopicAdmin
from popstream.wire.base_errors import Invalid

LEADERLESS = LeaderNotAvailableError.errno
FORBIDDEN = TopicAuthorizationFailedError.errno
ORDERS = {"name": "orders", "topic_id": "id-1", "partitions": [0, 1]}


class Admin:
    """Answers each request with the next of its error codes; an exception is raised."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)

    def _next(self) -> int:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        return [{**ORDERS, "error_code": self._next()}]

    def create_topics(self, request: dict[str, Any], *, raise_errors: bool) -> dict[str, Any]:
        assert not raise_errors
        return {"topics": [{"name": name, "error_code": self._next(), "error_message": "no"} for name in request]}

    def delete_topics(self, names: list[str], *, raise_errors: bool) -> dict[str, Any]:
        assert not raise_errors
        return {"topics": [{"name": name, "error_code": self._next()} for name in names]}

    def wait_for_topics(self, names: list[str]) -> None:
        assert names == ["orders"]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "RETRY_S", 0.001)


def test_transient_errors_are_retried() -> None:
    admin = TopicAdmin(Admin(LEADERLESS, LeaderNotAvailableError(), 0))
    assert admin.describe(["orders"])["orders"].partition_count == 2


def test_a_topic_that_does_not_exist_counts_as_deleted() -> None:
    TopicAdmin(Admin(LEADERLESS, UnknownTopicOrPartitionError.errno)).delete("orders")


def test_a_permanent_error_is_reported_at_once() -> None:
    with pytest.raises(Invalid, match="does not allow describing topic orders: grant Describe on it"):
        TopicAdmin(Admin(FORBIDDEN)).describe(["orders"])
    with pytest.raises(Invalid, match="refuses to create 1 of 1 topics") as caught:
        TopicAdmin(Admin(FORBIDDEN)).create([NewTopic("orders", 2, -1, {})])
    with pytest.raises(Invalid, match="does not allow deleting topic orders: grant Delete on it"):
        TopicAdmin(Admin(FORBIDDEN)).delete("orders")
    assert caught.value.details == ("orders: grant Create on this topic, or create it first",)


def test_the_last_transient_error_is_raised_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "TIMEOUT_S", 0.0)
    with pytest.raises(LeaderNotAvailableError):
        TopicAdmin(Admin(LeaderNotAvailableError())).describe(["orders"])


def test_nothing_is_asked_when_there_is_nothing_to_create() -> None:
    TopicAdmin(Admin()).create([])
