"""Whether the demo went as it must: pure functions over the Delta tables' rows, the journals and the dead letters."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pipelines.demo.journal import Planted, Popped, Worker
from pipelines.demo.ledger import Delivery, JournalLane, Lane, TableLane, ledger_of_journals, ledger_of_tables
from pipelines.demo.messages import Contents
from popstream.wire.reason import Reason

__all__ = [
    "Check",
    "Evidence",
    "Expected",
    "Letter",
    "OperationFact",
    "PositionFact",
    "RejectedFact",
    "Verdict",
    "judge",
]

SAMPLES_MAX = 5
NOTHING_TO_GIVE = frozenset((Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.POLLING_FULL))
"""A pop that got nothing has a code, and was not refused."""


class OperationFact(NamedTuple):
    """A row of `operations` that leased something or has a code."""

    partition: int
    kafka_offset: int
    kind: str
    group: str | None
    queue_id: int
    op_id: str | None
    client_id: str | None
    first_offset: int | None
    last_offset: int | None
    attempt: int | None
    code: int
    reason: str
    applied: bool
    repeated: bool


class PositionFact(NamedTuple):
    """A row of `commit_positions`; in log order within a lane."""

    group: str | None
    queue_id: int
    from_offset: int
    to_offset: int
    start_offset: int
    next_offset: int
    holes: int
    acked: int
    leased: int
    available: int
    dead_lettered: int


class RejectedFact(NamedTuple):
    """A row of `rejected`."""

    partition: int
    kafka_offset: int
    reason: str
    value_bytes: int
    value_sha256: str


class Letter(NamedTuple):
    """A record of the dead-letter topic; the content as `content_hash` has it, None when the message had gone."""

    group: str
    queue_id: int
    queue_offset: int
    content: int | None


class Expected(NamedTuple):
    """What was set up. `limited_groups` have an attempt limit, and poison ends as a dead letter there."""

    contents: Contents
    groups: Sequence[str]
    queues: int
    limited_groups: frozenset[str]
    rejected_count: int
    refused_count: int
    ordered_groups: frozenset[str] = frozenset()

    @property
    def lengths(self) -> list[int]:
        """Messages of each queue."""
        return self.contents.queue_lengths(self.queues)


class Evidence(NamedTuple):
    """What was found. `ops_in_log` is what Kafka has, `ops_decided` what the job has decided."""

    operations: Sequence[OperationFact]
    deliveries: Sequence[Delivery]
    positions: Sequence[PositionFact]
    rejected: Sequence[RejectedFact]
    workers: Sequence[Worker]
    letters: Sequence[Letter]
    ops_in_log: int
    ops_decided: int


class Check(msgspec.Struct, frozen=True):
    """One claim, how often it does not hold, and examples of that."""

    name: str
    failures: int
    samples: list[str] = []

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return not self.failures


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The claims, and the numbers."""

    checks: list[Check]
    lost: int
    double_leased: int
    acked: int
    dead_lettered: int
    redelivered: int
    refused: int
    rejected: int

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(check.ok for check in self.checks)


def judge(expected: Expected, evidence: Evidence) -> Verdict:
    """Check everything."""
    lengths = expected.lengths
    tables, strange = ledger_of_tables(evidence.deliveries, expected.groups, lengths)
    journals = ledger_of_journals(evidence.workers, expected.groups, lengths)
    letters = _letters_by_lane(evidence.letters)
    refused = {
        (row.partition, row.kafka_offset)
        for row in evidence.operations
        if row.code and row.reason not in NOTHING_TO_GIVE
    }
    return Verdict(
        checks=[
            _check("every message is done, as the tables tell", _lost(tables)),
            _check("every message is done, as the consumers tell", _lost_in_journals(journals, letters)),
            _check("nothing is done twice", _done_twice(tables, journals, strange)),
            _check("no two live leases of a message", _double_leases(tables, journals)),
            _check(
                "ordered groups get the messages of a queue, and of a key, in order", _order(expected, tables, journals)
            ),
            _check("what was delivered is what was sent", _content(expected, journals, letters)),
            _check("tables and consumers agree on who got what", _pops(evidence)),
            _check("tables and consumers agree on what is done", _same_done(tables, journals, letters)),
            _check("tables and consumers agree on changes", _same_changes(tables, journals)),
            _check("poison, and only what had no attempt left, is a dead letter", _poison(expected, journals, letters)),
            _check("positions are contiguous", _positions(evidence.positions, expected)),
            _check("every message is accounted for", _conservation(evidence.positions, expected)),
            _check("every unreadable record is in rejected", _rejected(expected, evidence)),
            _check("every refusal is in operations with its code", _refused(expected, evidence)),
            _check("the whole log is decided", _log(evidence)),
        ],
        lost=max(
            sum(lane.length - sum(lane.acked) - sum(lane.dead) for lane in tables.values()),
            sum(
                sum(1 for offset in range(lane.length) if not lane.acked[offset] and offset not in letters.get(key, {}))
                for key, lane in journals.items()
            ),
        ),
        double_leased=max(
            sum(lane.double_leased for lane in tables.values()), sum(lane.double_leased for lane in journals.values())
        ),
        acked=sum(sum(lane.acked) for lane in tables.values()),
        dead_lettered=sum(sum(lane.dead) for lane in tables.values()),
        redelivered=sum(lane.redelivered for lane in tables.values()),
        refused=len(refused),
        rejected=len(evidence.rejected),
    )


def _check(name: str, findings: Iterator[str]) -> Check:
    samples: list[str] = []
    count = 0
    for finding in findings:
        count += 1
        if len(samples) < SAMPLES_MAX:
            samples.append(finding)
    return Check(name, count, samples)


def _letters_by_lane(letters: Sequence[Letter]) -> dict[Lane, dict[int, int | None]]:
    """Content of each dead letter; one that came twice is one: delivery is at least once."""
    by_lane: dict[Lane, dict[int, int | None]] = {}
    for letter in letters:
        by_lane.setdefault((letter.group, letter.queue_id), {})[letter.queue_offset] = letter.content
    return by_lane


def _name(lane: Lane) -> str:
    return f"{lane[0]}/{lane[1]}"


def _lost(tables: Mapping[Lane, TableLane]) -> Iterator[str]:
    for key, lane in tables.items():
        for offset in range(lane.length):
            if not (lane.acked[offset] or lane.dead[offset]):
                yield f"{_name(key)} offset {offset} is neither acked nor a dead letter"
        if lane.expired_from_log:
            yield f"{_name(key)}: {lane.expired_from_log} messages left the log before they were done"


def _lost_in_journals(
    journals: Mapping[Lane, JournalLane], letters: Mapping[Lane, Mapping[int, int | None]]
) -> Iterator[str]:
    for key, lane in journals.items():
        dead = letters.get(key, {})
        for offset in range(lane.length):
            if not lane.acked[offset] and offset not in dead:
                yield f"{_name(key)} offset {offset}: nobody was told that it is done"


def _done_twice(tables: Mapping[Lane, TableLane], journals: Mapping[Lane, JournalLane], strange: int) -> Iterator[str]:
    if strange:
        yield f"{strange} rows of deliveries are of no lane of the demo"
    for key, table in tables.items():
        if table.done_again or table.out_of_range:
            yield f"{_name(key)}: {table.done_again} done again, {table.out_of_range} out of range; {table.samples}"
    for key, lane in journals.items():
        twice = sum(1 for count in lane.acked if count > 1)
        if twice or lane.out_of_range:
            yield f"{_name(key)}: {twice} acked with success more than once, {lane.out_of_range} out of range"


def _double_leases(tables: Mapping[Lane, TableLane], journals: Mapping[Lane, JournalLane]) -> Iterator[str]:
    for key, table in tables.items():
        if table.double_leased:
            yield f"tables, {_name(key)}: {table.double_leased} leased twice at a time; {table.samples}"
    for key, lane in journals.items():
        if lane.double_leased or lane.acked_by_other:
            found = (
                f"{lane.double_leased} leased twice at a time, {lane.acked_by_other} acked by another than its holder"
            )
            yield f"consumers, {_name(key)}: {found}; {lane.samples}"


def _order(expected: Expected, tables: Mapping[Lane, TableLane], journals: Mapping[Lane, JournalLane]) -> Iterator[str]:
    for key, table in tables.items():
        if key[0] in expected.ordered_groups and table.overtaking:
            yield f"tables, {_name(key)}: {table.overtaking} leased before an earlier one was done or leased"
    for key, lane in journals.items():
        if lane.out_of_order:
            yield f"consumers, {_name(key)}: {lane.out_of_order} came after a later one of their key, or when done"


def _content(
    expected: Expected, journals: Mapping[Lane, JournalLane], letters: Mapping[Lane, Mapping[int, int | None]]
) -> Iterator[str]:
    sent = Counter(expected.contents.hashes)
    for group in expected.groups:
        got: Counter[int] = Counter()
        for (lane_group, queue_id), lane in journals.items():
            if lane_group != group:
                continue
            name = _name((group, queue_id))
            if lane.broken or lane.other_content:
                yield f"{name}: {lane.broken} messages broken, {lane.other_content} came with two contents"
            dead = letters.get((group, queue_id), {})
            for offset in range(lane.length):
                if lane.acked[offset] and lane.delivered[offset]:
                    got[lane.contents[offset]] += 1
                elif offset in dead:
                    content = dead[offset]
                    if content is None or (lane.delivered[offset] and lane.contents[offset] != content):
                        yield f"{name} offset {offset}: the dead letter is not the message"
                    got[content or 0] += 1
        for hashed, count in (sent - got).items():
            yield f"{group}: {count} messages with content {hashed:016x} were sent and are not done"
        for hashed, count in (got - sent).items():
            yield f"{group}: {count} messages with content {hashed:016x} are done and were not sent"


def _pops(evidence: Evidence) -> Iterator[str]:
    """Each pop that brought something: the same ranges and attempts on both sides."""
    decided: dict[str, list[tuple[int, int, int]]] = {}
    clients: dict[str, str | None] = {}
    for row in evidence.operations:
        if row.kind == "pop" and row.applied and not row.repeated and row.op_id is not None:
            decided.setdefault(row.op_id, []).append((row.first_offset or 0, row.last_offset or 0, row.attempt or 0))
            clients[row.op_id] = row.client_id
    killed = {worker.name for worker in evidence.workers if worker.was_killed}
    told: set[str] = set()
    for worker in evidence.workers:
        for event in worker.events:
            if not isinstance(event, Popped):
                continue
            told.add(event.op_id)
            found = decided.get(event.op_id, [])
            if event.unread:
                missing = _total(found) - _total(event.ranges) - event.unread
                if missing:
                    yield f"pop {event.op_id} of {worker.name}: {missing} messages more in the table"
            elif _merged(found) != _merged(event.ranges):
                yield f"pop {event.op_id} of {worker.name} brought {event.ranges}, the table has {found}"
    for op_id, ranges in decided.items():
        if op_id not in told and clients[op_id] not in killed:
            yield f"pop {op_id} of {clients[op_id]} leased {ranges}, and nobody was told"


def _total(ranges: Sequence[tuple[int, int, int]]) -> int:
    return sum(last - first + 1 for first, last, _ in ranges)


def _merged(ranges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Ranges in order, neighbours of the same attempt made one."""
    merged: list[tuple[int, int, int]] = []
    for first, last, attempt in sorted(ranges):
        if merged and merged[-1][1:] == (first - 1, attempt):
            merged[-1] = (merged[-1][0], last, attempt)
        else:
            merged.append((first, last, attempt))
    return merged


def _same_done(
    tables: Mapping[Lane, TableLane],
    journals: Mapping[Lane, JournalLane],
    letters: Mapping[Lane, Mapping[int, int | None]],
) -> Iterator[str]:
    for key, table in tables.items():
        told, dead = journals[key].acked, letters.get(key, {})
        for offset in range(table.length):
            if bool(table.acked[offset]) != bool(told[offset]):
                yield f"{_name(key)} offset {offset}: acked is {bool(table.acked[offset])} in the table only"
            if bool(table.dead[offset]) != (offset in dead):
                yield f"{_name(key)} offset {offset}: dead letter is {bool(table.dead[offset])} in the table only"


def _same_changes(tables: Mapping[Lane, TableLane], journals: Mapping[Lane, JournalLane]) -> Iterator[str]:
    for key, table in tables.items():
        lane = journals[key]
        # What could not be read in time the client gives back by itself.
        if not lane.changed <= table.changed <= lane.changed + lane.unread:
            yield f"{_name(key)}: {table.changed} leases changed in the table, consumers changed {lane.changed}"


def _poison(
    expected: Expected, journals: Mapping[Lane, JournalLane], letters: Mapping[Lane, Mapping[int, int | None]]
) -> Iterator[str]:
    poison = expected.contents.poison
    for key, lane in journals.items():
        dead = letters.get(key, {})
        if key[0] not in expected.limited_groups:
            if dead:
                yield f"{_name(key)}: {len(dead)} dead letters without an attempt limit"
            continue
        for offset in range(lane.length):
            if lane.contents[offset] in poison and offset not in dead:
                yield f"{_name(key)} offset {offset} is poison and no dead letter"


def _positions(positions: Sequence[PositionFact], expected: Expected) -> Iterator[str]:
    at: dict[tuple[str | None, int], int] = {}
    for row in positions:
        key = (row.group, row.queue_id)
        before = at.get(key, 0)
        if row.from_offset != before or row.to_offset < row.from_offset:
            yield f"{row.group or 'queue'}/{row.queue_id}: from {row.from_offset} to {row.to_offset}, was at {before}"
        at[key] = row.to_offset
    for queue_id, length in enumerate(expected.lengths):
        for group in (None, *expected.groups):
            if at.get((group, queue_id), 0) != length:
                yield f"{group or 'queue'}/{queue_id} ends at {at.get((group, queue_id), 0)}, not at {length}"


def _conservation(positions: Sequence[PositionFact], expected: Expected) -> Iterator[str]:
    last: dict[Lane, PositionFact] = {}
    for row in positions:
        if row.group is None:
            continue
        last[row.group, row.queue_id] = row
        total = row.holes + row.acked + row.leased + row.available
        if row.next_offset - row.start_offset != total:
            yield f"{row.group}/{row.queue_id}: {total} messages are accounted for in {row}"
    for queue_id, length in enumerate(expected.lengths):
        for group in expected.groups:
            end = last.get((group, queue_id))
            if length and (end is None or (end.acked, end.leased, end.available) != (length, 0, 0)):
                yield f"{group}/{queue_id} ends with {end}, not with {length} done"


def _planted(evidence: Evidence) -> list[Planted]:
    return [event for worker in evidence.workers for event in worker.events if isinstance(event, Planted)]


def _rejected(expected: Expected, evidence: Evidence) -> Iterator[str]:
    rows: dict[tuple[int, int], RejectedFact] = {}
    for row in evidence.rejected:
        if (row.partition, row.kafka_offset) in rows:
            yield f"record {row.partition}:{row.kafka_offset} is in rejected twice"
        rows[row.partition, row.kafka_offset] = row
    planted = [event for event in _planted(evidence) if event.is_rejected]
    if len(planted) != expected.rejected_count:
        yield f"{len(planted)} unreadable records were written, not {expected.rejected_count}"
    for event in planted:
        found = rows.pop((event.partition, event.kafka_offset), None)
        if found is None:
            yield f"{event.kind} at {event.partition}:{event.kafka_offset} is not in rejected"
        elif (found.reason, found.value_bytes, found.value_sha256) != (event.reason, event.value_bytes, event.sha256):
            yield f"{event.kind} at {event.partition}:{event.kafka_offset} is {event}, the table has {found}"
    for row in rows.values():
        yield f"a record that nobody made unreadable was rejected: {row}"


def _refused(expected: Expected, evidence: Evidence) -> Iterator[str]:
    rows: dict[tuple[int, int], list[OperationFact]] = {}
    for row in evidence.operations:
        rows.setdefault((row.partition, row.kafka_offset), []).append(row)
    planted = [event for event in _planted(evidence) if not event.is_rejected]
    if len(planted) != expected.refused_count:
        yield f"{len(planted)} operations to refuse were written, not {expected.refused_count}"
    for event in planted:
        # Of a pop that was answered by this record the row is here too; it is not the record's own.
        found = [
            row for row in rows.get((event.partition, event.kafka_offset), []) if row.code and not _is_granted(row)
        ]
        if [(row.code, row.reason, row.applied) for row in found] != [(event.code, event.reason, False)]:
            yield f"{event.kind} at {event.partition}:{event.kafka_offset} is {event}, the table has {found}"


def _is_granted(row: OperationFact) -> bool:
    return row.reason in NOTHING_TO_GIVE


def _log(evidence: Evidence) -> Iterator[str]:
    if evidence.ops_in_log != evidence.ops_decided:
        yield f"{evidence.ops_in_log} records are in the log, {evidence.ops_decided} are decided"
