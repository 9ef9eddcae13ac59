"""The checks of the demo: pure functions.

Who got which message, when and in which order is judged by `check_history` over the clients' histories, and the tables
by the quality suites. The checks here add what neither can know: what was sent, what the workers processed, what was
planted, and that tables, dead letters and workers agree.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pipelines.demo.checks import Check, checks_of
from pipelines.demo.message_source import Position, Sent
from pipelines.demo.planted import Planted
from popstream.history.check import Report

__all__ = ["Contents", "Evidence", "Expected", "GroupCounts", "Letter", "Refusal", "judge"]

Contents = AbstractSet[tuple[Position, str]]
"""Messages: position and content hash."""


class Refusal(NamedTuple):
    """A row of `operations` with a code, but for pops that there was no message for."""

    partition: int
    kafka_offset: int
    reason: str
    code: int
    applied: bool


class GroupCounts(NamedTuple):
    """Messages of a group by their steps in `deliveries`."""

    acked: int = 0
    dead_lettered: int = 0
    redelivered: int = 0


class Letter(NamedTuple):
    """A record of the dead-letter topic."""

    group: str
    position: Position
    content: str


class Expected(NamedTuple):
    """The scene as it was set. In `limited_group` poison messages end as dead letters."""

    sent: Sent
    groups: Sequence[str]
    queues: int
    limited_group: str
    malformed_count: int
    refused_count: int


class Evidence(NamedTuple):
    """What a run has left; `counts` and `processed` by group, `rejected`: partition, Kafka offset, reason."""

    history: Report
    counts: Mapping[str, GroupCounts]
    refusals: Sequence[Refusal]
    rejected: Sequence[tuple[int, int, str]]
    processed: Mapping[str, Contents]
    letters: AbstractSet[Letter]
    planted: Sequence[Planted]


def judge(expected: Expected, evidence: Evidence) -> list[Check]:
    """Return every check."""
    claims = {
        "the clients' histories have no violation": _history(expected, evidence),
        "every group processed every message": lost(expected, evidence),
        "what was processed is what was sent": _altered(expected, evidence),
        "the tables say that every message is done": _done(expected, evidence),
        "poison, and nothing else, is a dead letter": _letters(expected, evidence),
        "every malformed record is in rejected": _rejected(expected, evidence),
        "every refusal is in operations with its code": _refused(expected, evidence),
    }
    return checks_of(claims)


def lost(expected: Expected, evidence: Evidence) -> Iterator[str]:
    """Yield the messages that a group neither processed nor got as dead letters."""
    for group in expected.groups:
        dead = {(letter.position, letter.content) for letter in evidence.letters if letter.group == group}
        missing = expected.sent.contents.items() - evidence.processed.get(group, set()) - dead
        for (queue_id, queue_offset), _ in sorted(missing):
            yield f"{group}/{queue_id} offset {queue_offset} was sent, and is neither processed nor a dead letter"


def _history(expected: Expected, evidence: Evidence) -> Iterator[str]:
    yield from map(str, evidence.history.violations)
    lane_count = len(expected.groups) * len({queue_id for queue_id, _ in expected.sent.contents})
    if evidence.history.lane_count < lane_count:
        yield f"only {evidence.history.lane_count} lanes of {lane_count} could be judged"


def _altered(expected: Expected, evidence: Evidence) -> Iterator[str]:
    for group, processed in evidence.processed.items():
        for (queue_id, queue_offset), content in sorted(processed - expected.sent.contents.items()):
            yield f"{group}/{queue_id} offset {queue_offset} was processed with content {content}, which was not sent"


def _done(expected: Expected, evidence: Evidence) -> Iterator[str]:
    message_count = len(expected.sent.contents)
    for group in expected.groups:
        counts = evidence.counts.get(group, GroupCounts())
        letter_count = sum(letter.group == group for letter in evidence.letters)
        if (counts.acked + counts.dead_lettered, counts.dead_lettered) != (message_count, letter_count):
            found = f"{counts.acked} acked and {counts.dead_lettered} dead-lettered"
            yield f"{group}: {found}, of {message_count} messages and {letter_count} dead letters"


def _letters(expected: Expected, evidence: Evidence) -> Iterator[str]:
    contents, poison = expected.sent
    wanted = {Letter(expected.limited_group, position, contents[position]) for position in poison}
    yield from (f"{letter} is missing" for letter in sorted(wanted - evidence.letters))
    yield from (f"{letter} is not the poison that was sent" for letter in sorted(evidence.letters - wanted))


def _rejected(expected: Expected, evidence: Evidence) -> Iterator[str]:
    planted = {(p.partition, p.kafka_offset, p.reason) for p in evidence.planted if not p.code}
    rejected = Counter(evidence.rejected)
    if len(planted) != expected.malformed_count:
        yield f"{len(planted)} malformed records were written, not {expected.malformed_count}"
    yield from (f"{record} is not in rejected" for record in sorted(planted - rejected.keys()))
    for record, count in sorted(rejected.items()):
        if count > 1 or record not in planted:
            yield f"{record} is in rejected {count} times, and was not planted so"


def _refused(expected: Expected, evidence: Evidence) -> Iterator[str]:
    planted = [p for p in evidence.planted if p.code]
    if len(planted) != expected.refused_count:
        yield f"{len(planted)} operations to refuse were written, not {expected.refused_count}"
    rows: dict[tuple[int, int], list[Refusal]] = {}
    for row in evidence.refusals:
        rows.setdefault((row.partition, row.kafka_offset), []).append(row)
    for p in planted:
        found = rows.get((p.partition, p.kafka_offset), [])
        if found != [Refusal(p.partition, p.kafka_offset, p.reason, p.code, applied=False)]:
            yield f"the table has {found} for {p}"
