"""The result of a replay for people: what would have changed, and what nobody can know."""

from collections.abc import Iterator
from datetime import tzinfo

from rich.table import Table

from pipelines.times import duration_text, zoned_moment_text
from pipelines.tuning.handlings import Evidence
from pipelines.tuning.tally import LaneOutcome
from pipelines.tuning.what_if import GroupResult, WhatIf

__all__ = ["MODEL", "report_parts"]

_COUNTS = {
    "deliveries": "deliveries",
    "redeliveries": "of these redeliveries",
    "expired": "leases that expired",
    "given_back": "released by the client",
    "acked": "acked",
    "acked_late": "of these after the lease had ended",
    "acked_in_vain": "acks in vain: delivered again since",
    "dead_letters": "dead letters",
    "not_done": "not done at the end",
}

MODEL = (
    "pops come when they came, though clients would have popped at other times",
    "the n-th delivery of a message is handled as its n-th was: an ack d ms after the lease began comes d ms after it",
    "a further delivery is handled as the last one of its message was; a message without any is acked after the median",
    "a client that sent nothing sends nothing: nobody knows whether it hung or was killed",
    "where somebody renewed leases, the whole lane renews in the other rhythm, until the last sign of each message",
)
"""What is taken for granted, and so cannot be known."""

_EVIDENCE = {
    Evidence.RECORDED: "are handled as in fact",
    Evidence.REPEATED: "as the last one of their message",
    Evidence.ASSUMED: "after the median",
    Evidence.OPEN: "nobody knows how, for they were held when the range ended",
}


def report_parts(found: WhatIf, zone: tzinfo) -> Iterator[Table | str]:
    """Yield what is printed."""
    settings = ", ".join(f"{_name(name)} {_value(name, value)}" for name, value in found.settings.items())
    since, until = (zoned_moment_text(at_ms, zone) for at_ms in (found.from_ms, found.until_ms))
    yield f"{found.records:,} operations from {since} to {until}, after {found.base}"
    yield f"with {settings}"
    for group in found.groups:
        yield ""
        yield f"{group.group} in {group.topic}"
        yield _table(group)
        yield _evidence(group)
    yield ""
    yield "What cannot be known, and is taken for granted:"
    for line in MODEL:
        yield f"* {line}"


def _table(group: GroupResult) -> Table:
    table = Table()
    table.add_column("")
    for name in ("in fact", "would have been", "change"):
        table.add_column(name, justify="right")
    fact, other = group.fact, group.what_if
    for name, text in _COUNTS.items():
        _add_row(table, text, getattr(fact, name), getattr(other, name))
    moved = other.commit_offset - fact.commit_offset
    before, after = (duration_text(each.blocked_ms) for each in (fact, other))
    table.add_row("commit offset blocked", before, after, _duration_change(fact, other))
    table.add_row("commit offset" + ("s, in all" if group.lanes > 1 else ""), *_numbers(fact, other), _signed(moved))
    return table


def _add_row(table: Table, text: str, before: int, after: int) -> None:
    table.add_row(text, f"{before:,}", f"{after:,}", _signed(after - before))


def _numbers(fact: LaneOutcome, other: LaneOutcome) -> tuple[str, str]:
    return f"{fact.commit_offset:,}", f"{other.commit_offset:,}"


def _signed(change: int) -> str:
    return f"{change:+,}" if change else ""


def _duration_change(fact: LaneOutcome, other: LaneOutcome) -> str:
    change = other.blocked_ms - fact.blocked_ms
    return f"{'+' if change > 0 else '-'}{duration_text(abs(change))}" if change else ""


def _evidence(group: GroupResult) -> str:
    parts = [f"{count:,} {_EVIDENCE[Evidence(name)]}" for name, count in group.evidence.items() if count]
    return f"Of the deliveries that would have been, {', '.join(parts)}." if parts else "Nobody would have got any."


def _name(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _value(name: str, value: object) -> str:
    if name == "back_off_ms" and isinstance(value, list):
        return ",".join(duration_text(each) for each in value) or "none"
    return duration_text(value) if name == "invisible_time_ms" and isinstance(value, int) else str(value).lower()
