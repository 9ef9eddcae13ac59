"""A redrive that kills itself: `python -m tests.support.processes.killed_redrive SERVERS PREFIX POINT NUMBER [KEY]`.

It dies by SIGKILL at the NUMBERth call of a method of its KafkaProducer: before `send`, before the transaction ends
(`commit`), or after Kafka has confirmed that (`committed`). KEY is the file of an admin key.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Literal

from kafka import KafkaProducer

from popstream import DeadLetters
from popstream.dead_letters import kafka_letter_writer
from popstream.exchange.transactions import commit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Point"]

Point = Literal["send", "commit", "committed"]


def kill_at(number: int, call: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    """Return the function, which kills the process when it is called so often."""
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = call(*arguments, **options)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return counted


def main(servers: str, prefix: str, point: str, number: str, admin_key: str | None = None) -> None:
    """Redrive everything, and die."""
    if point == "send":
        KafkaProducer.send = kill_at(int(number), KafkaProducer.send)
    else:
        is_after = point == "committed"
        # Where the writer looks it up.
        setattr(kafka_letter_writer, "commit", kill_at(int(number), commit, after=is_after))  # noqa: B010
    with DeadLetters(servers, prefix=prefix, admin_key=admin_key) as dead_letters:
        dead_letters.redrive()


if __name__ == "__main__":
    main(*sys.argv[1:])
