"""Claim: whatever goes wrong with a request, its caller gets an answer that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import msgspec
import pytest

from pipelines.control.messages import Failure, StatusRequest
from pipelines.control.server import ControlServer
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


class Answers:
    """Answers of a job that fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def answer(self, _request: object) -> Never:
        raise self._error

    def sample(self) -> None:
        """Nothing is counted."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("Kafka is away"), "Kafka is away"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (KeyError("lane"), "KeyError"),
    ],
)
def test_an_error_is_an_answer(tmp_path: Path, error: Exception, said: str) -> None:
    with ControlServer(Answers(error), tmp_path) as server:  # type: ignore[arg-type]
        line = msgspec.json.encode({**msgspec.to_builtins(StatusRequest()), "token": server.token})
        assert said in msgspec.json.decode(server.answer(line), type=Failure).error
