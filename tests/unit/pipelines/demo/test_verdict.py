"""The verdict can fail: from a good run, one thing is made wrong at a time, and the check for it says so.

The good run: queue 0 holds m0 m2 m4, queue 1 holds m1 m3. In `plain` all is acked, m0 after it expired once. In
`limited` m3 is poison and becomes a dead letter, the rest is acked; m4 is changed twice before.
"""

from __future__ import annotations

import copy
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.demo.journal import Acked, Changed, Event, Opened, Planted, Popped, Worker
from pipelines.demo.ledger import Delivery
from pipelines.demo.messages import Contents
from pipelines.demo.verdict import Evidence, Expected, Letter, OperationFact, PositionFact, RejectedFact, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENTS = Contents(array("Q", [10, 11, 12, 13, 14]), frozenset([13]))
EXPECTED = Expected(
    CONTENTS, ["plain", "limited"], queues=2, limited_groups=frozenset(["limited"]), rejected_count=1, refused_count=1
)
QUEUES = {0: [10, 12, 14], 1: [11, 13]}

DONE_TABLES = "every message is done, as the tables tell"
DONE_CONSUMERS = "every message is done, as the consumers tell"
TWICE = "nothing is done twice"
LEASES = "no two live leases of a message"
CONTENT = "what was delivered is what was sent"
POPS = "tables and consumers agree on who got what"
SAME_DONE = "tables and consumers agree on what is done"
CHANGES = "tables and consumers agree on changes"
POISON = "poison, and only what had no attempt left, is a dead letter"
POSITIONS = "positions are contiguous"
CONSERVATION = "every message is accounted for"
REJECTED = "every unreadable record is in rejected"
REFUSED = "every refusal is in operations with its code"
LOG = "the whole log is decided"
ORDER = "ordered groups get the messages of a queue, and of a key, in order"


class Run:
    """A run as lists that a test can spoil."""

    def __init__(self) -> None:
        self.operations: list[OperationFact] = []
        self.deliveries: list[Delivery] = []
        self.positions: list[PositionFact] = []
        self.rejected: list[RejectedFact] = []
        self.letters: list[Letter] = []
        self.events: dict[str, list[Event]] = {"plain-a": [], "limited-a": [], "doomed": [], "intruder": []}
        self.groups = {"plain-a": "plain", "limited-a": "limited", "doomed": "plain", "intruder": "plain"}
        self.killed = {"doomed"}
        self.ops_in_log = self.ops_decided = 100
        self._at = 0

    def evidence(self) -> Evidence:
        workers = [
            Worker(Opened(name, "role", self.groups[name]), events, was_killed=name in self.killed)
            for name, events in self.events.items()
        ]
        return Evidence(
            self.operations,
            self.deliveries,
            self.positions,
            self.rejected,
            workers,
            self.letters,
            self.ops_in_log,
            self.ops_decided,
        )

    def step(self, group: str, queue_id: int, step: str, first: int, last: int, **more: Any) -> None:
        fields = {"attempt": 1, "at_ms": 0, "deadline_ms": None, "cause": "", "client_id": None, **more}
        self.deliveries.append(Delivery(group, queue_id, step, first, last, **fields))

    def pop(
        self,
        name: str,
        queue_id: int,
        first: int,
        last: int,
        *,
        at: int,
        until: int,
        attempt: int = 1,
        told: bool = True,
    ) -> None:
        self._at += 1
        group = self.groups[name]
        op_id = f"pop-{self._at}"
        self.step(group, queue_id, "leased", first, last, attempt=attempt)
        self.operations.append(
            OperationFact(
                0,
                self._at,
                "pop",
                group,
                queue_id,
                op_id,
                name,
                first,
                last,
                attempt,
                0,
                "OK",
                applied=True,
                repeated=False,
            )
        )
        if told:
            self.events[name].append(
                Popped(
                    queue_id=queue_id,
                    op_id=op_id,
                    pop_time_ms=at,
                    next_visible_time_ms=until,
                    ranges=[(first, last, attempt)],
                    hashes=hashes(*QUEUES[queue_id][first : last + 1]),
                )
            )

    def ack(self, name: str, queue_id: int, first: int, last: int) -> None:
        self.step(self.groups[name], queue_id, "acked", first, last)
        self.events[name].append(Acked(queue_id=queue_id, runs=[(first, last, "OK", True)]))

    def change(self, name: str, queue_id: int, offset: int, *, at: int, by: int) -> None:
        group = self.groups[name]
        self.step(group, queue_id, "changed" if by else "released", offset, offset, cause="change_invisible")
        self.events[name].append(
            Changed(
                queue_id=queue_id,
                invisible_time_ms=by,
                next_visible_time_ms=at + by,
                runs=[(offset, offset, "OK", True)],
            )
        )


def good() -> Run:
    run = Run()
    run.pop("doomed", 0, 0, 0, at=100, until=200)
    run.step("plain", 0, "expired", 0, 0, at_ms=200, cause="deadline")
    run.pop("plain-a", 0, 0, 0, at=200, until=900, attempt=2)
    run.pop("plain-a", 0, 1, 2, at=210, until=910)
    run.pop("plain-a", 1, 0, 1, at=220, until=920)
    run.ack("plain-a", 0, 0, 2)
    run.ack("plain-a", 1, 0, 1)
    run.pop("limited-a", 0, 0, 2, at=300, until=400)
    run.change("limited-a", 0, 2, at=310, by=500)
    run.change("limited-a", 0, 2, at=320, by=50)
    run.ack("limited-a", 0, 0, 2)
    run.pop("limited-a", 1, 0, 1, at=330, until=930)
    run.ack("limited-a", 1, 0, 0)
    run.change("limited-a", 1, 1, at=340, by=0)
    run.step("limited", 1, "dead_lettered", 1, 1)
    run.letters.append(Letter("limited", 1, 1, 13))
    for group, dead in ((None, 0), ("plain", 0), ("limited", 1)):
        for queue_id, length in ((0, 3), (1, 2)):
            account = (0, length, 0, length if group else 0, 0, 0, dead if queue_id else 0)
            halfway = (0, length, 0, 1, length - 1, 0, 0)
            run.positions += [
                PositionFact(group, queue_id, 0, 1, *halfway),
                PositionFact(group, queue_id, 1, length, *account),
            ]
    run.events["intruder"] += [
        Planted("empty", 1, 50, "EMPTY", sha256="aa", value_bytes=0),
        Planted("forged", 1, 51, "NO_PERMISSION", code=16),
    ]
    run.rejected.append(RejectedFact(1, 50, "EMPTY", 0, "aa"))
    run.operations.append(refusal(51, 16, "NO_PERMISSION"))
    return run


def refusal(offset: int, code: int, reason: str, *, applied: bool = False) -> OperationFact:
    return OperationFact(
        1, offset, "ack", "plain", 0, None, None, 0, 0, None, code, reason, applied=applied, repeated=False
    )


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if not check.ok}


def test_a_good_run_passes_and_is_counted() -> None:
    verdict = judge(EXPECTED, good().evidence())
    assert failed(verdict) == set()
    assert verdict.ok
    assert (verdict.lost, verdict.double_leased, verdict.acked, verdict.dead_lettered) == (0, 0, 9, 1)
    assert (verdict.redelivered, verdict.refused, verdict.rejected) == (1, 1, 1)


def drop_table_ack(run: Run) -> None:
    run.deliveries.remove(next(row for row in run.deliveries if row.step == "acked" and row.queue_id == 1))


def drop_told_ack(run: Run) -> None:
    run.events["plain-a"].remove(next(event for event in run.events["plain-a"] if isinstance(event, Acked)))


def drop_both_acks(run: Run) -> None:
    drop_table_ack(run)
    run.events["plain-a"].remove([event for event in run.events["plain-a"] if isinstance(event, Acked)][1])


def lease_while_leased(run: Run) -> None:
    row = next(row for row in run.deliveries if row.step == "leased" and row.last_offset == 2)
    run.deliveries.insert(run.deliveries.index(row) + 1, row)


def lease_when_done(run: Run) -> None:
    run.step("plain", 1, "leased", 0, 0, attempt=2)


def pop_before_the_end(run: Run) -> None:
    events = run.events["plain-a"]
    first = events[0]
    assert isinstance(first, Popped)
    events[0] = popped(first, pop_time_ms=199)


def pop_after_the_ack(run: Run) -> None:
    run.pop("doomed", 1, 0, 0, at=950, until=990, attempt=2)


def pop_before_a_change_ends(run: Run) -> None:
    # The change to 820 was followed by one to 370; without it m4 is held until 820.
    events = run.events["limited-a"]
    events.remove([event for event in events if isinstance(event, Changed)][1])
    run.groups["doomed"] = "limited"
    events_of_doomed = run.events["doomed"]
    events_of_doomed[:] = [
        Popped(queue_id=0, op_id="x", pop_time_ms=500, next_visible_time_ms=600, ranges=[(2, 2, 2)], hashes=hashes(14))
    ]


def ack_twice_told(run: Run) -> None:
    run.events["plain-a"].append(Acked(queue_id=1, runs=[(0, 0, "OK", True)]))


def ack_twice_in_table(run: Run) -> None:
    run.step("plain", 1, "acked", 0, 0)


def key_overtaken(run: Run) -> None:
    first = run.events["plain-a"][0]
    assert isinstance(first, Popped)
    run.events["plain-a"][0] = popped(first, out_of_order=1)


def leases(*ranges: tuple[int, int]) -> list[Delivery]:
    return [Delivery("plain", 0, "leased", first, last, 1, 0, None, "", None) for first, last in ranges]


@pytest.mark.parametrize(
    ("rows", "overtaking"),
    [
        (leases((0, 1), (2, 2)), 0),
        (leases((1, 2)), 2),
        ([*leases((0, 1)), leases((0, 1))[0]._replace(step="expired"), *leases((2, 2))], 1),
        ([*leases((0, 1)), leases((0, 1))[0]._replace(step="acked"), *leases((2, 2))], 0),
    ],
    ids=["after what is leased", "the first is left out", "after what is free again", "after what is done"],
)
def test_an_ordered_group_must_not_lease_past_what_is_not_done(rows: list[Delivery], overtaking: int) -> None:
    expected = EXPECTED._replace(ordered_groups=frozenset(["plain"]))
    run = Run()
    run.deliveries = rows
    assert (ORDER in failed(judge(expected, run.evidence()))) == bool(overtaking)
    assert ORDER not in failed(judge(EXPECTED, run.evidence()))


def other_content(run: Run) -> None:
    events = run.events["plain-a"]
    first = events[1]
    assert isinstance(first, Popped)
    events[1] = popped(first, hashes=hashes(12, 99))


def broken_content(run: Run) -> None:
    first = run.events["plain-a"][0]
    assert isinstance(first, Popped)
    run.events["plain-a"][0] = popped(first, broken=1)


def other_letter(run: Run) -> None:
    run.letters[0] = run.letters[0]._replace(content=12)


def gone_letter(run: Run) -> None:
    run.letters[0] = run.letters[0]._replace(content=None)


def no_letter(run: Run) -> None:
    run.letters.clear()


def letter_of_an_acked_message(run: Run) -> None:
    run.letters.append(Letter("plain", 0, 0, 10))


def poison_is_acked(run: Run) -> None:
    run.letters.clear()
    run.deliveries = [row for row in run.deliveries if row.step != "dead_lettered"]
    run.ack("limited-a", 1, 1, 1)


def pop_that_the_table_does_not_know(run: Run) -> None:
    run.operations = [row for row in run.operations if row.op_id != "pop-3"]


def pop_with_another_range(run: Run) -> None:
    row = next(row for row in run.operations if row.op_id == "pop-3")
    run.operations[run.operations.index(row)] = row._replace(last_offset=1)


def pop_with_another_attempt(run: Run) -> None:
    row = next(row for row in run.operations if row.op_id == "pop-3")
    run.operations[run.operations.index(row)] = row._replace(attempt=3)


def pop_that_nobody_was_told(run: Run) -> None:
    run.operations.append(run.operations[2]._replace(op_id="secret"))


def change_that_the_table_does_not_know(run: Run) -> None:
    run.deliveries.remove(next(row for row in run.deliveries if row.step == "changed"))


def change_that_nobody_was_told(run: Run) -> None:
    row = next(row for row in run.deliveries if row.step == "changed")
    run.deliveries.insert(run.deliveries.index(row), row)


def position_falls(run: Run) -> None:
    run.positions += [
        PositionFact("plain", 0, 3, 2, 0, 3, 0, 3, 0, 0, 0),
        PositionFact("plain", 0, 2, 3, 0, 3, 0, 3, 0, 0, 0),
    ]


def position_leaps(run: Run) -> None:
    del run.positions[0]


def position_ends_early(run: Run) -> None:
    # The row of the queue itself: the account of no lane is touched.
    del run.positions[1]


def account_does_not_add_up(run: Run) -> None:
    row = run.positions[4]
    run.positions[4] = row._replace(leased=row.leased - 1)


def leases_left_at_the_end(run: Run) -> None:
    row = run.positions[5]
    run.positions[5] = row._replace(acked=row.acked - 1, leased=1)


def not_rejected(run: Run) -> None:
    run.rejected.clear()


def rejected_for_another_reason(run: Run) -> None:
    run.rejected[0] = run.rejected[0]._replace(reason="NOT_JSON")


def rejected_with_another_value(run: Run) -> None:
    run.rejected[0] = run.rejected[0]._replace(value_sha256="bb")


def rejected_twice(run: Run) -> None:
    run.rejected.append(run.rejected[0])


def rejected_without_cause(run: Run) -> None:
    run.rejected.append(RejectedFact(1, 99, "NOT_JSON", 3, "cc"))


def not_all_was_planted(run: Run) -> None:
    run.events["intruder"].pop(0)
    run.rejected.clear()


def not_refused(run: Run) -> None:
    run.operations.pop()


def refused_with_another_code(run: Run) -> None:
    run.operations[-1] = refusal(51, 13, "NO_PERMISSION")


def refused_for_another_reason(run: Run) -> None:
    run.operations[-1] = refusal(51, 16, "STALE_HANDLE")


def refused_and_applied(run: Run) -> None:
    run.operations[-1] = refusal(51, 16, "NO_PERMISSION", applied=True)


def refused_twice(run: Run) -> None:
    run.operations.append(run.operations[-1])


def log_goes_on(run: Run) -> None:
    run.ops_in_log += 1


def lost_to_retention(run: Run) -> None:
    run.step("plain", 1, "expired_from_log", 0, 0)


def row_of_no_lane(run: Run) -> None:
    run.step("nobody", 0, "leased", 0, 0)


def row_out_of_range(run: Run) -> None:
    run.step("plain", 0, "expired", 2, 3)


def hashes(*contents: int) -> str:
    return b"".join(content.to_bytes(8, "big") for content in contents).hex()


def popped(event: Popped, **changes: Any) -> Popped:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return Popped(**{**fields, **changes})


@pytest.mark.parametrize(
    ("spoil", "checks"),
    [
        (drop_table_ack, {DONE_TABLES, SAME_DONE}),
        (drop_told_ack, {DONE_CONSUMERS, SAME_DONE, CONTENT}),
        (drop_both_acks, {DONE_TABLES, DONE_CONSUMERS, CONTENT}),
        (lease_while_leased, {LEASES}),
        (lease_when_done, {TWICE}),
        (pop_before_the_end, {LEASES}),
        (pop_after_the_ack, {LEASES, TWICE}),
        (pop_before_a_change_ends, {LEASES, POPS, CHANGES}),
        (ack_twice_told, {TWICE}),
        (ack_twice_in_table, {TWICE}),
        (other_content, {CONTENT}),
        (broken_content, {CONTENT}),
        (other_letter, {CONTENT}),
        (gone_letter, {CONTENT}),
        (no_letter, {DONE_CONSUMERS, SAME_DONE, CONTENT, POISON}),
        (letter_of_an_acked_message, {SAME_DONE, POISON}),
        (poison_is_acked, {POISON}),
        (pop_that_the_table_does_not_know, {POPS}),
        (pop_with_another_range, {POPS}),
        (pop_with_another_attempt, {POPS}),
        (pop_that_nobody_was_told, {POPS}),
        (change_that_the_table_does_not_know, {CHANGES}),
        (change_that_nobody_was_told, {CHANGES}),
        (position_falls, {POSITIONS}),
        (position_leaps, {POSITIONS}),
        (position_ends_early, {POSITIONS}),
        (account_does_not_add_up, {CONSERVATION}),
        (leases_left_at_the_end, {CONSERVATION}),
        (not_rejected, {REJECTED}),
        (rejected_for_another_reason, {REJECTED}),
        (rejected_with_another_value, {REJECTED}),
        (rejected_twice, {REJECTED}),
        (rejected_without_cause, {REJECTED}),
        (not_all_was_planted, {REJECTED}),
        (not_refused, {REFUSED}),
        (refused_with_another_code, {REFUSED}),
        (refused_for_another_reason, {REFUSED}),
        (refused_and_applied, {REFUSED}),
        (refused_twice, {REFUSED}),
        (log_goes_on, {LOG}),
        (key_overtaken, {ORDER}),
        (lost_to_retention, {DONE_TABLES}),
        (row_of_no_lane, {TWICE}),
        (row_out_of_range, {TWICE}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_one_thing_wrong_fails_exactly_its_checks(spoil: Callable[[Run], None], checks: set[str]) -> None:
    run = good()
    spoil(run)
    verdict = judge(EXPECTED, run.evidence())
    assert failed(verdict) == checks
    assert not verdict.ok


def test_every_check_can_fail() -> None:
    names = {DONE_TABLES, DONE_CONSUMERS, TWICE, LEASES, CONTENT, POPS, SAME_DONE, CHANGES, POISON, POSITIONS}
    names |= {CONSERVATION, REJECTED, REFUSED, LOG, ORDER}
    assert {check.name for check in judge(EXPECTED, good().evidence()).checks} == names


def test_what_is_wrong_is_counted() -> None:
    run = good()
    drop_both_acks(run)
    assert judge(EXPECTED, run.evidence()).lost == 2
    run = good()
    lease_while_leased(run)
    assert judge(EXPECTED, run.evidence()).double_leased == 2


@pytest.mark.parametrize("reason", ["NO_MESSAGE", "POLLING_TIMEOUT"])
def test_a_pop_that_got_nothing_was_not_refused(reason: str) -> None:
    run = good()
    run.operations += [refusal(60, 210, reason), refusal(51, 210, reason)]
    verdict = judge(EXPECTED, run.evidence())
    assert verdict.ok
    assert verdict.refused == 1


def test_a_killed_consumer_may_not_have_written_down_its_last_pop() -> None:
    run = good()
    run.events["doomed"].clear()
    assert judge(EXPECTED, run.evidence()).ok


def test_a_message_given_back_may_be_popped_in_the_same_moment() -> None:
    run = good()
    base = copy.deepcopy(run.events["limited-a"])
    run.events["limited-a"] = [event for event in base if not (isinstance(event, Acked) and event.queue_id == 0)]
    run.deliveries = [row for row in run.deliveries if (row.group, row.queue_id, row.step) != ("limited", 0, "acked")]
    run.change("limited-a", 0, 0, at=350, by=0)
    run.ack("limited-a", 0, 1, 2)
    run.groups["doomed-2"], run.events["doomed-2"] = "limited", []
    run.pop("doomed-2", 0, 0, 0, at=350, until=950, attempt=2)
    run.ack("doomed-2", 0, 0, 0)
    assert failed(judge(EXPECTED, run.evidence())) == set()


def test_what_could_not_be_read_in_time_may_be_given_back_by_the_client() -> None:
    run = good()
    events = run.events["plain-a"]
    first = events[1]
    assert isinstance(first, Popped)
    # m2 came without m4, which the client gave back; then it came again.
    events[1] = popped(first, ranges=[(1, 1, 1)], hashes=hashes(12), unread=1)
    acked = next(row for row in run.deliveries if row.step == "acked" and row.group == "plain")
    at = run.deliveries.index(acked)
    more = Run()
    more.step("plain", 0, "changed", 2, 2, cause="change_invisible")
    more.step("plain", 0, "expired", 2, 2)
    more.step("plain", 0, "leased", 2, 2)
    run.deliveries[at:at] = more.deliveries
    again = Popped(
        queue_id=0, op_id="again", pop_time_ms=400, next_visible_time_ms=950, ranges=[(2, 2, 1)], hashes=hashes(14)
    )
    events.append(again)
    run.operations.append(run.operations[2]._replace(op_id="again", first_offset=2))
    assert failed(judge(EXPECTED, run.evidence())) == set()
