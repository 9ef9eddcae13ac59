"""Claim: queues are visited fairly, and the room is never exceeded. Method: the plan itself, and random histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from popstream.pop.next_queue import NextQueue
from popstream.wire.queue_name import QueueName

QUEUES: list[QueueName] = [("orders", queue_id) for queue_id in range(4)]


def counts(visits: NextQueue, room: int, now_s: float = 0.0) -> dict[int, int]:
    return {visit.queue[1]: visit.max_messages for visit in visits.plan(room, now_s)}


def test_nothing_known_means_equal_shares() -> None:
    assert counts(NextQueue(QUEUES), 10) == {0: 3, 1: 3, 2: 2, 3: 2}


def test_a_queue_has_one_visit_at_a_time() -> None:
    visits = NextQueue(QUEUES)
    visits.plan(8, 0.0)
    assert visits.plan(8, 0.0) == []


def test_a_promising_queue_gets_most_of_the_room_and_the_others_a_place_to_wait() -> None:
    visits = NextQueue(QUEUES)
    visits.plan(8, 0.0)
    for queue in QUEUES:
        visits.ended(queue, asked_count=2, got_count=2 if queue[1] == 2 else 0)
    assert counts(visits, 100) == {0: 1, 1: 1, 3: 1, 2: 97}


def test_who_is_left_out_is_first_next_time() -> None:
    visits = NextQueue(QUEUES)
    seen: list[int] = []
    for _ in range(6):
        (visit,) = visits.plan(1, 0.0)
        seen.append(visit.queue[1])
        visits.ended(visit.queue, asked_count=1, got_count=0)
    assert seen == [0, 1, 2, 3, 0, 1]


def test_a_notified_queue_is_visited_next() -> None:
    visits = NextQueue(QUEUES)
    visits.notified(("orders", 3))
    visits.notified(("unknown", 0))
    assert counts(visits, 1) == {3: 1}


def test_a_queue_is_left_alone_until_its_time() -> None:
    visits = NextQueue(QUEUES[:1])
    visits.plan(1, 0.0)
    visits.ended(QUEUES[0], asked_count=1, got_count=0, not_before_s=5.0)
    assert counts(visits, 1, 4.9) == {}
    assert counts(visits, 1, 5.0) == {0: 1}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 12)), max_size=60))
def test_the_room_is_never_exceeded_and_no_queue_is_forgotten(history: list[tuple[int, int, int]]) -> None:
    visits = NextQueue(QUEUES)
    in_flight: dict[QueueName, int] = {}
    for room, place, got in history:
        planned = visits.plan(room, 0.0)
        assert sum(visit.max_messages for visit in planned) <= room
        assert all(visit.max_messages >= 1 and visit.queue not in in_flight for visit in planned)
        in_flight |= {visit.queue: visit.max_messages for visit in planned}
        assert len(visits) == len(QUEUES)
        if in_flight:
            queue = sorted(in_flight)[place % len(in_flight)]
            asked = in_flight.pop(queue)
            visits.ended(queue, asked_count=asked, got_count=min(got, asked))
    for queue, asked in in_flight.items():
        visits.ended(queue, asked_count=asked, got_count=0)
    assert {visit.queue for visit in visits.plan(1_000, 0.0)} == set(QUEUES)
