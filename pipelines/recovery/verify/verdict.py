"""What a verification has found, from what its processes have found."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from connectors.delta.row_comparison import Comparison
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from pipelines.recovery.candidates import NO_SNAPSHOT
from pipelines.recovery.verify.base import name_of_base
from pipelines.recovery.verify.decide_again import ShareResult
from pipelines.recovery.verify.state_comparison import KeyComparison
from pipelines.recovery.verify.units import DifferentQueue, UnitResult

__all__ = ["EMBEDDED", "Advice", "UnitCounts", "Verified", "verdict"]


QUEUES_MAX = 3
"""Queues to read again that are named."""


class Advice(NamedTuple):
    """What is to be done where something is wrong.

    Attributes:
        table: A table, `{name}`.
        units: The builder, in these queues.
        state: The state, which this base does not lead to: the id of a snapshot; None: an empty state.
    """

    table: str
    units: Callable[[Sequence[DifferentQueue]], str]
    state: Callable[[str | None], str]


def _rebuild_queues(queues: Sequence[DifferentQueue]) -> str:
    commands = [
        f"`popstream queue {each.topic} --queue {each.queue_id} --rebuild-from {each.first_offset}`"
        for each in queues[:QUEUES_MAX]
    ]
    more = len(queues) - len(commands)
    others = f", then the same with {more:,} more queues, which `popstream verify` names" if more else ""
    return f"if the builder is wrong, read again while the job runs: {', '.join(commands)}{others}"


def _restore_base(snapshot: str | None) -> str:
    """Return the only command that is known to lead to what the log leads to: later snapshots may be wrong as well."""
    return f"if the state is wrong, stop the job and run `popstream restore --snapshot {snapshot or NO_SNAPSHOT}`"


EMBEDDED = Advice(
    table="if {name} is wrong, stop the job and run `popstream restore --rebuild {name}`",
    units=_rebuild_queues,
    state=_restore_base,
)


class UnitCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Units of the builder's store: equal ones in Delta and in message topics, and those that are not in Delta yet.

    `not_in_log` names the queues that were not compared with their log, and why; `not_in_store` the rows of the table
    that were not compared, because the store does not have their queues.
    """

    in_delta: int
    in_outbox: int
    in_log: int
    not_in_log: list[str]
    not_in_store: list[str]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison.

    Attributes:
        base: The state before the first record: an empty state, or a snapshot.
        records: Number of records decided again.
        keys: Number of keys of the state that are equal, byte for byte.
        rows: Number of equal rows in Delta, by table.
        not_in_delta: Number of equal rows that are still in the outbox, by table.
        units: Of the builder; None: it has built nothing, and the table has no rows.
        differences: What differs: a line "N of M" for each kind with the first differences of it, and then what to do.
            Empty: nothing differs.
        cpu_us_a_record: Microseconds of CPU a record, by step, in the processes that decide.
    """

    base: str
    records: int
    keys: int
    rows: dict[str, int]
    not_in_delta: dict[str, int]
    units: UnitCounts | None
    differences: list[str]
    cpu_us_a_record: dict[str, float]


def verdict(
    base: str | None, shares: Iterable[ShareResult], units: UnitResult | None, advice_for: Advice = EMBEDDED
) -> Verified:
    """Put the results of all processes together; `base` is as in `VerifyPlan`."""
    keys = KeyComparison()
    records = 0
    rows = {name: Comparison() for name in AUDIT_TABLES}
    in_outbox = dict.fromkeys(AUDIT_TABLES, 0)
    cpu_s: dict[str, float] = {}
    for share in shares:
        records += share.records
        keys.add(share.keys)
        for name, result in share.rows.items():
            rows[name].add(result.compared)
            in_outbox[name] += result.in_outbox
        for step, seconds in share.cpu_s.items():
            cpu_s[step] = cpu_s.get(step, 0.0) + seconds
    differences, advice = [], []
    tables = rows if units is None else {**rows, CONSUME_QUEUE.name: units.in_delta}
    for name, compared in tables.items():
        differences += compared.lines(f"rows of {name}")
        if not compared.is_equal:
            advice.append(advice_for.table.format(name=name))
    if units is not None:
        differences += units.in_log.lines("units of the builder, compared with the message topics,")
        if not units.in_log.is_equal:
            advice.append(advice_for.units(units.different_queues))
    if keys.different:
        advice.append(advice_for.state(base))
    return Verified(
        base=name_of_base(base),
        records=records,
        keys=keys.equal,
        rows={name: max(0, compared.equal - in_outbox[name]) for name, compared in rows.items()},
        not_in_delta={name: count for name, count in in_outbox.items() if count},
        units=None
        if units is None
        else UnitCounts(
            in_delta=units.in_delta.equal,
            in_outbox=units.in_outbox,
            in_log=units.in_log.equal,
            not_in_log=units.not_in_log,
            not_in_store=units.not_in_store,
        ),
        differences=[*keys.lines(), *differences, *advice],
        cpu_us_a_record={step: round(1e6 * seconds / max(1, records), 1) for step, seconds in cpu_s.items()},
    )
