"""The verdict can fail: from a good run, one thing is made wrong at a time, and exactly the checks for it say so.

The good run: three messages in two queues. `plain` processes all; in `limited` one message is poison and a dead letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from expectations.report import ExpectationResult, QualityReport
from pipelines.demo.demo_summary import Measurements, Phases, examine, summarize
from pipelines.demo.demo_verdict import Evidence, Expected, GroupCounts, Letter, Refusal, judge
from pipelines.demo.message_source import Sent
from pipelines.demo.planted import Planted
from popstream.history import check
from popstream.history.check import Violation, ViolationKind

if TYPE_CHECKING:
    from collections.abc import Callable

SENT = Sent({(0, 0): "a", (0, 1): "c", (1, 0): "b"}, frozenset([(0, 1)]))
EXPECTED = Expected(SENT, ["plain", "limited"], 2, "limited", malformed_count=1, refused_count=1)

HISTORY = "the clients' histories have no violation"
LOST = "every group processed every message"
CONTENT = "what was processed is what was sent"
DONE = "the tables say that every message is done"
POISON = "poison, and nothing else, is a dead letter"
REJECTED = "every malformed record is in rejected"
REFUSED = "every refusal is in operations with its code"

TWO_LEASES = Violation(
    kind=ViolationKind.TWO_LIVE_LEASES,
    topic="t",
    queue_id=0,
    group="plain",
    first=0,
    last=1,
    op_ids=("x", "y"),
    detail="held twice",
)


def history(violations: list[Violation], lane_count: int = 4) -> check.Report:
    return check.Report(
        violations=violations,
        event_count=9,
        operation_count=4,
        unknown_count=0,
        lane_count=lane_count,
        unjudged_lane_count=0,
        delivery_count=6,
    )


def good() -> dict[str, Any]:
    return {
        "history": history([]),
        "counts": {"plain": GroupCounts(3, 0, 1), "limited": GroupCounts(2, 1, 5)},
        "refusals": [Refusal(1, 51, "NO_PERMISSION", 16, applied=False), Refusal(0, 7, "BELOW_MIN", 13, applied=False)],
        "rejected": [(1, 50, "EMPTY")],
        "processed": {
            "plain": {((0, 0), "a"), ((0, 1), "c"), ((1, 0), "b")},
            "limited": {((0, 0), "a"), ((1, 0), "b")},
        },
        "letters": {Letter("limited", (0, 1), "c")},
        "planted": [Planted(1, 50, "EMPTY", 0), Planted(1, 51, "NO_PERMISSION", 16)],
    }


def failed(run: dict[str, Any]) -> set[str]:
    return {found.name for found in judge(EXPECTED, Evidence(**run)) if found.failures}


def test_a_good_run_passes_every_check() -> None:
    assert failed(good()) == set()
    names = [found.name for found in judge(EXPECTED, Evidence(**good()))]
    assert names == [HISTORY, LOST, CONTENT, DONE, POISON, REJECTED, REFUSED]


def violation(run: dict[str, Any]) -> None:
    run["history"] = history([TWO_LEASES])


def lane_without_history(run: dict[str, Any]) -> None:
    run["history"] = history([], lane_count=3)


def not_processed(run: dict[str, Any]) -> None:
    run["processed"]["plain"].remove(((0, 0), "a"))


def group_without_workers(run: dict[str, Any]) -> None:
    del run["processed"]["plain"]


def other_content(run: dict[str, Any]) -> None:
    run["processed"]["plain"] ^= {((0, 0), "a"), ((0, 0), "z")}


def two_contents(run: dict[str, Any]) -> None:
    run["processed"]["plain"].add(((0, 0), "z"))


def message_nobody_sent(run: dict[str, Any]) -> None:
    run["processed"]["plain"].add(((1, 9), "a"))


def not_acked_in_the_table(run: dict[str, Any]) -> None:
    run["counts"]["plain"] = GroupCounts(2, 0, 1)


def acked_twice_in_the_table(run: dict[str, Any]) -> None:
    run["counts"]["plain"] = GroupCounts(4, 0, 1)


def no_letter(run: dict[str, Any]) -> None:
    run["letters"] = set()


def letter_with_other_content(run: dict[str, Any]) -> None:
    run["letters"] = {Letter("limited", (0, 1), "z")}


def letter_of_a_good_message(run: dict[str, Any]) -> None:
    run["letters"].add(Letter("plain", (0, 0), "a"))


def poison_is_processed(run: dict[str, Any]) -> None:
    run["letters"] = set()
    run["processed"]["limited"].add(((0, 1), "c"))
    run["counts"]["limited"] = GroupCounts(3, 0, 5)


def not_rejected(run: dict[str, Any]) -> None:
    run["rejected"].clear()


def rejected_for_another_reason(run: dict[str, Any]) -> None:
    run["rejected"] = [(1, 50, "NOT_JSON")]


def rejected_twice(run: dict[str, Any]) -> None:
    run["rejected"] *= 2


def rejected_without_cause(run: dict[str, Any]) -> None:
    run["rejected"].append((1, 99, "NOT_JSON"))


def not_all_was_planted(run: dict[str, Any]) -> None:
    run["planted"] = run["planted"][1:]
    run["rejected"].clear()


def no_refusal_was_planted(run: dict[str, Any]) -> None:
    run["planted"] = run["planted"][:1]


def not_refused(run: dict[str, Any]) -> None:
    run["refusals"].pop(0)


def refused_with_another_code(run: dict[str, Any]) -> None:
    run["refusals"][0] = Refusal(1, 51, "NO_PERMISSION", 13, applied=False)


def refused_for_another_reason(run: dict[str, Any]) -> None:
    run["refusals"][0] = Refusal(1, 51, "STALE_HANDLE", 16, applied=False)


def refused_and_applied(run: dict[str, Any]) -> None:
    run["refusals"][0] = Refusal(1, 51, "NO_PERMISSION", 16, applied=True)


def refused_twice(run: dict[str, Any]) -> None:
    run["refusals"] *= 2


@pytest.mark.parametrize(
    ("spoil", "checks"),
    [
        (violation, {HISTORY}),
        (lane_without_history, {HISTORY}),
        (not_processed, {LOST}),
        (group_without_workers, {LOST}),
        (other_content, {LOST, CONTENT}),
        (two_contents, {CONTENT}),
        (message_nobody_sent, {CONTENT}),
        (not_acked_in_the_table, {DONE}),
        (acked_twice_in_the_table, {DONE}),
        (no_letter, {LOST, DONE, POISON}),
        (letter_with_other_content, {LOST, POISON}),
        (letter_of_a_good_message, {DONE, POISON}),
        (poison_is_processed, {POISON}),
        (not_rejected, {REJECTED}),
        (rejected_for_another_reason, {REJECTED}),
        (rejected_twice, {REJECTED}),
        (rejected_without_cause, {REJECTED}),
        (not_all_was_planted, {REJECTED}),
        (no_refusal_was_planted, {REFUSED}),
        (not_refused, {REFUSED}),
        (refused_with_another_code, {REFUSED}),
        (refused_for_another_reason, {REFUSED}),
        (refused_and_applied, {REFUSED}),
        (refused_twice, {REFUSED}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_one_thing_wrong_fails_exactly_its_checks(spoil: Callable[[dict[str, Any]], None], checks: set[str]) -> None:
    run = good()
    spoil(run)
    assert failed(run) == checks


UNMET = ExpectationResult("deliveries", "expect_something", "", 1, success=False, unexpected_count=2, sample=[])


@pytest.mark.parametrize(
    ("spoil", "unmet", "wanted"),
    [(lambda _: None, 0, "ok"), (violation, 0, "failed"), (lambda _: None, 1, "failed")],
)
def test_the_summary_is_ok_only_when_everything_is(
    spoil: Callable[[dict[str, Any]], None], unmet: int, wanted: str
) -> None:
    run = good()
    spoil(run)
    measured = Measurements(ops=100, seconds=9.96, cpu_seconds=8.0, phase_seconds=Phases(load=2.04))
    findings = examine(EXPECTED, Evidence(**run))
    summary = summarize(findings, QualityReport(None, {}, [UNMET] * unmet), measured)  # type: ignore[arg-type]
    assert summary.verdict == wanted
    assert (summary.messages, summary.groups, summary.ops, summary.seconds) == (3, 2, 100, 10.0)
    assert summary.phase_seconds.load == 2.0
    assert (summary.lost, summary.acked, summary.dead_lettered, summary.redelivered) == (0, 5, 1, 6)
    assert (summary.refused, summary.rejected, summary.expectations_failed) == (2, 1, unmet)
    assert summary.double_leased == (2 if spoil is violation else 0)
    text = summary.as_text()
    assert f"verdict: {wanted}" in text
    assert text.count("FAILED") == unmet + (spoil is violation)


def test_losses_are_counted() -> None:
    run = good()
    group_without_workers(run)
    assert examine(EXPECTED, Evidence(**run)).counts.lost == 3
