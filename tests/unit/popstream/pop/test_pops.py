"""A pop that is given up is cancelled; where the cancel cannot be sent, the log says what comes of its messages."""

from __future__ import annotations

from typing import Any

import pytest

from popstream.pop.pops import Pops
from popstream.wire.base_errors import Unavailable
from popstream.wire.command import Cancel


class FullTransport:
    """In place of a transport whose send window stays full."""

    def __init__(self) -> None:
        self.refused: list[Any] = []

    def post(self, command: Cancel) -> None:
        self.refused.append(command)
        message = "Kafka has not confirmed what was sent before"
        raise Unavailable(message)


def test_a_cancel_that_cannot_be_sent_is_logged_with_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    transport: Any = FullTransport()
    unused: Any = None
    pops = Pops(transport, unused, unused, client_id="c", settler=unused, retries=unused, releases_earlier_of=None)
    pops.abandon("orders", 3, "a")
    assert transport.refused == [Cancel(v=1, topic="orders", queue_id=3, target_op_id="a")]
    (record,) = caplog.records
    assert record.getMessage() == "could not cancel pop a on orders/3: what it leases comes again when the lease ends"
    assert "Kafka has not confirmed" in caplog.text
