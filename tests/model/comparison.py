"""What is compared between the model and the kernel, and how a difference is reported as a short story."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from popstream.wire.answer import Answer
from popstream.wire.handle import decode_handle
from tests.model.generator import PARTITIONS, World
from tests.model.reference_model import MAX_OFFSET, ModelOutcome, Record, ReferenceModel, Step, WorkLimits

__all__ = ["Decided", "DifferenceError", "Subject", "compare_seed", "plain_answer", "shrink"]

LOST = ("expired_from_log", "passed_over")
LANE_HISTORY = ("dead_lettered", "expired_from_log", "passed_over", "skipped_by_reset")


class Decided(NamedTuple):
    """What the implementation under test made of one record, and the state of the record's queue after it.

    `state` has the shape of `ReferenceModel.view`, or is None where it is not asked for or the queue is not there;
    a lane's dict may leave out keys, which are then not compared. `steps` are the delivery rows message by message,
    as in `ModelOutcome.steps`; `runs` the audit's (kind, entry, first, last, code, reason, applied) of the record's own
    operation, which is there also when nobody waits for an answer. None where they are not compared.
    """

    answers: list[Answer]
    dead_letters: list[tuple[str, int, str]]
    state: dict[str, Any] | None
    steps: list[Step] | None = None
    runs: list[tuple[Any, ...]] | None = None


Item = TypeVar("Item")

Subject = Callable[[Record], Decided]
"""An implementation: one fresh one for each seed, fed record by record."""


class DifferenceError(AssertionError):
    """Model and implementation disagree."""


def plain_answer(answer: Answer) -> dict[str, Any]:
    """`answer` as the model writes it."""
    return {
        "op_id": answer.op_id,
        "type": answer.type,
        "code": answer.code,
        "reason": str(answer.reason),
        "applied": answer.applied,
        "now_ms": answer.now_ms,
        "messages": [(o, m.attempt) for m in answer.messages for o in range(m.first, m.last + 1)],
        "handle": answer.handle,
        "pop_time_ms": answer.pop_time_ms,
        "invisible_time_ms": answer.invisible_time_ms,
        "revive_queue_id": answer.revive_queue_id,
        "runs": [
            (
                run.entry,
                run.first,
                run.last,
                run.code,
                str(run.reason),
                run.applied,
                run.pop_time_ms,
                run.invisible_time_ms,
                run.revive_queue_id,
                None if run.handle is None else answer.handles[run.handle],
            )
            for run in answer.runs
        ],
        "released": [offset for first, last in answer.released for offset in range(first, last + 1)],
        "commit_offsets": dict(answer.commit_offsets),
        "commit_offset": answer.commit_offset,
        "commit_position": answer.commit_position,
    }


def differences(outcome: ModelOutcome, view: dict[str, Any] | None, decided: Decided) -> list[str]:
    """What differs, one line each; empty when nothing does."""
    found: list[str] = []
    # One record may answer an op_id twice: its pop falls due, and the record was that pop again.
    want, have = _by_op_id(outcome.answers), _by_op_id([plain_answer(answer) for answer in decided.answers])
    for key in sorted(want.keys() | have.keys()):
        if key not in want or key not in have:
            found.append(f"answer {key}: model {want.get(key)}, kernel {have.get(key)}")
            continue
        for field, value in want[key].items():
            if have[key][field] != value:
                found.append(f"answer {key}.{field}: model {_show(value)}, kernel {_show(have[key][field])}")
    if outcome.dead_letters != decided.dead_letters:
        found.append(f"dead letters: model {outcome.dead_letters}, kernel {decided.dead_letters}")
    runs = [_audited(d["type"], run) for d in outcome.decisions if not outcome.repeated for run in d["runs"]]
    if decided.runs is not None and runs != decided.runs:
        found.append(f"operation rows: model {runs}, kernel {decided.runs}")
    # When a skip reaches a lane's messages is the lane's next operation for the kernel, and at once for the model.
    steps = [step for step in outcome.steps if step[2] != "expired_from_log"]
    if decided.steps is not None and Counter(steps) != Counter(decided.steps):
        only = list((Counter(steps) - Counter(decided.steps)).elements())
        other = list((Counter(decided.steps) - Counter(steps)).elements())
        found.append(f"delivery steps: only model {only[:8]}, only kernel {other[:8]}")
    if decided.state is not None:
        found.extend(_state_differences(view, decided.state))
    return found


def _audited(kind: str, run: tuple[Any, ...]) -> tuple[Any, ...]:
    entry, first, last, *outcome = run[:6]
    if not (0 <= first <= MAX_OFFSET and 0 <= last <= MAX_OFFSET):  # no Delta column could hold it
        first = last = None
    return (kind, entry, first, last, *outcome)


def _by_op_id(answers: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    seen: Counter[str] = Counter()
    found = {}
    for answer in answers:
        seen[answer["op_id"]] += 1
        found[answer["op_id"], seen[answer["op_id"]]] = answer
    return found


def _state_differences(view: dict[str, Any] | None, state: dict[str, Any]) -> Iterable[str]:
    if view is None:
        yield f"state: model has no queue, kernel {state}"
        return
    for field in ("now", "min_offset", "commit_position"):
        if view[field] != state[field]:
            yield f"queue {field}: model {view[field]}, kernel {state[field]}"
    if view["lanes"].keys() != state["lanes"].keys():
        yield f"lanes: model {sorted(view['lanes'])}, kernel {sorted(state['lanes'])}"
        return
    for group, lane in view["lanes"].items():
        if lane["behind"]:
            continue  # a dispatch moved it; the kernel notices at the lane's next operation
        other = state["lanes"][group]
        for field, value in lane.items():
            if field in ("behind", "went_back", "was_orderly") or field not in other:
                continue
            if field in LANE_HISTORY and lane["went_back"]:
                continue
            if field in (*LOST, "acked", "holes") and lane["was_orderly"]:
                continue  # _orderly_differences
            if other[field] != value:
                yield f"lane {group}.{field}: model {value}, kernel {other[field]}"
        if lane["was_orderly"] and "acked" in other:
            yield from _orderly_differences(group, lane, other)


def _orderly_differences(group: str, lane: dict[str, Any], other: dict[str, Any]) -> Iterable[str]:
    """Compare the counts of an orderly lane, some of whose messages may have become holes in one of the two only.

    A skip that takes the member on which a batch waits moves the commit offset. The model moves it at once; the kernel
    does so at the lane's next operation, when further skips have made holes of messages that were acked, expired or
    passed over. So the kernel may count as holes what the model counts as messages that were done, but not the reverse.
    A reset lets the model count them as holes, too, and what they had been counted as stays (`became_holes`).
    """
    done_of_both = [counts["acked"] + counts["holes"] for counts in (lane, other)]
    if done_of_both[0] != done_of_both[1]:
        yield f"lane {group}, acked + holes: model {done_of_both[0]}, kernel {done_of_both[1]}"
    if lane["went_back"]:
        return
    lost, other_lost = (sum(counts[name] for name in LOST) for counts in (lane, other))
    if not lost + lane["holes"] - other["holes"] - lane["became_holes"] <= other_lost <= lost:
        yield (
            f"lane {group}, {' + '.join(LOST)}: model {lost} and {lane['holes']} holes, "
            f"kernel {other_lost} and {other['holes']} holes"
        )


def _show(value: object) -> str:
    if isinstance(value, str) and value.startswith("1."):
        return f"{value} = {decode_handle(value)}"
    if isinstance(value, list) and value and isinstance(value[0], tuple) and len(value[0]) == 10:
        return str([(*run[:9], None if run[9] is None else decode_handle(run[9])) for run in value])
    return str(value)


def compare_seed(
    seed: int,
    records: int,
    subject: Callable[[WorkLimits], Subject] | None,
    shorten: Callable[[WorkLimits], Subject] | None = None,
) -> Counter[Any]:
    """Play one seed through the model and a fresh `subject`; return how often the model met each outcome.

    Without a subject the model is held against its own invariants alone.

    `shorten` makes the implementation with which a difference is shown in few records; it may compare state more often.

    Raises:
        DifferenceError: they disagree.
    """
    world = World(seed)
    limits = world.limits
    implementation = subject(limits) if subject is not None else None
    story: list[Record] = []
    for number, (record, outcome) in enumerate(world.play(records)):
        story.append(record)
        world.model.check(*outcome.queue)
        if implementation is None:
            continue
        found = _decide_and_compare(world.model, outcome, implementation, record)
        if found:
            lines = [f"seed {seed}, record {number}", *found]
            if shorten is not None:
                lines.extend(_story(story, shorten, limits))
            raise DifferenceError("\n".join(lines))
    return world.model.counts


def _decide_and_compare(
    model: ReferenceModel, outcome: ModelOutcome, implementation: Subject, record: Record
) -> list[str]:
    try:
        decided = implementation(record)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown with the records that lead to it
        return [f"the kernel raised {error!r}", *traceback.format_exc().splitlines()[-6:]]
    return differences(outcome, model.view(*outcome.queue), decided)


def _story(story: list[Record], subject: Callable[[WorkLimits], Subject], limits: WorkLimits) -> Iterable[str]:
    number, _ = _first_difference(story, subject, limits)
    if number is None:
        yield "not seen when state is written and compared after each record"
        return
    short = shrink(story[: number + 1], lambda part: _first_difference(part, subject, limits)[0] == len(part) - 1)
    yield f"shortened to {len(short)} records:"
    for record in short:
        value = record.value.decode()
        yield f"  {record.partition}@{record.kafka_offset} t={record.timestamp_ms} {record.key!r} {value[:600]}"
    yield "which ends in:"
    yield from _first_difference(short, subject, limits)[1]


def _first_difference(
    records: Sequence[Record], subject: Callable[[WorkLimits], Subject], limits: WorkLimits
) -> tuple[int | None, list[str]]:
    model, implementation = ReferenceModel(PARTITIONS, limits), subject(limits)
    for number, record in enumerate(records):
        found = _decide_and_compare(model, model.apply(record), implementation, record)
        if found:
            return number, found
    return None, []


def shrink(records: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A short part of `records`, in order and with the last one, for which `fails` still holds.

    >>> shrink(list(range(100)), lambda part: 13 in part and 37 in part)
    [13, 37, 99]
    """
    kept, last = list(records[:-1]), records[-1]
    size = max(1, len(kept) // 2)
    while True:
        start, removed = 0, False
        while start < len(kept):
            part = kept[:start] + kept[start + size :]
            if fails([*part, last]):
                kept, removed = part, True
            else:
                start += size
        if size == 1 and not removed:
            return [*kept, last]
        size = max(1, size // 2)
