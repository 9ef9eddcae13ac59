"""One of several builders that share the offsets of a topic: `python -m tests.support.processes.external_builder`."""

from __future__ import annotations

import random
import sys

from popstream import Transport
from popstream.settings import ClientSettings
from popstream.wire.command import Dispatch, WrittenRange

__all__ = ["BLOCK", "BUILDERS", "MESSAGES", "QUEUES"]

BUILDERS = 8
QUEUES = 2
MESSAGES = 40_000
BLOCK = 50


def run_builder(servers: str, prefix: str, topic: str, number: int, seed: int) -> None:
    """One external builder, from the start to the end or to its death; it remembers nothing of an earlier life."""
    chance = random.Random(seed)
    mine = [
        (queue_id, first)
        for queue_id in range(QUEUES)
        for first in range(number * BLOCK, MESSAGES // QUEUES, BUILDERS * BLOCK)
    ]
    chance.shuffle(mine)
    settings = ClientSettings(bootstrap_servers=servers, client_id=f"builder-{number}-{seed}", prefix=prefix)
    with Transport(settings) as transport:
        for queue_id, first in mine:
            command = Dispatch(
                v=1, topic=topic, queue_id=queue_id, ranges=[WrittenRange(at, at) for at in range(first, first + BLOCK)]
            )
            for _ in range(chance.choice((1, 1, 2))):
                answer = transport.request(command)
                assert answer.code == 0, answer


if __name__ == "__main__":
    run_builder(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
