"""Claim: the clients of a job in memory keep its time, which only the test moves, and not that of the machine."""

from __future__ import annotations

from popstream.testing import MemoryJob, run_handler


def test_messages_are_handed_out_when_the_test_has_run_for_longer_than_a_lease() -> None:
    # The machine's clock goes on and the job's does not: as the clients see it, its time falls behind.
    job = MemoryJob(now_ms=10_000_000)
    handled: list[bytes | None] = []
    job.write("before", 0, [b"one"])
    with job.consumer("billing", topics=["before", "after"], invisible_time_ms=30_000) as consumer:
        job.make_topic("after", 1)
        run_handler(consumer, lambda message: handled.append(message.value))
        job.now_ms -= 60_000
        job.write("after", 0, [b"two"])
        run_handler(consumer, lambda message: handled.append(message.value))
    assert handled == [b"one", b"two"]
