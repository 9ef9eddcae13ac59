"""Differential vectors: steps with what RocketMQ answered, run against the kernel."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.base_errors import Invalid
from tests.conformance.conformance_verdict import Comparison, NotApplicableError, Verdict, VerdictKind
from tests.conformance.vectors.batch_blocks import check_batch
from tests.conformance.vectors.broker_steps import BrokerSteps
from tests.conformance.vectors.order_info_steps import OrderInfoSteps
from tests.conformance.vectors.step_fields import (
    ACK_FIELDS,
    BATCH_FIELDS,
    BROKER_STEPS,
    CONFIG_FIELDS,
    ORDER_INFO_STEPS,
    VECTOR_FIELDS,
    what_is_unknown,
    what_is_wrong,
)

__all__ = ["run_vector", "run_vectors"]

_ELSEWHERE = {
    "receipt_handle": "the text of RocketMQ's handles",
    "extra_info": "RocketMQ's header strings and retry-topic names",
    "record_key": "the keys of RocketMQ's record store",
    "kv_store": "RocketMQ's record store",
    "cache": "RocketMQ's memory buffer",
    "lock": "RocketMQ's locks",
    "long_polling": "facts about RocketMQ's polling service, without steps",
}
_PARTS = {
    "cache": "RocketMQ's memory buffer",
    "lock": "RocketMQ's locks",
    "kv": "RocketMQ's record store",
    "fail": "faults of RocketMQ's record store",
    "pop_should_stop": "RocketMQ's count of records in memory",
    "pending_filter_count": "a count of RocketMQ's proxy",
    "ack_bad_code": "RocketMQ's request codes",
}
_ORDER_INFO = {"order_info", "order_info_timer"}
_BROKER = {"pop_orderly", "pop_kv", "ack_processor", "change_processor", "batch_change"}


def run_vectors(path: Path) -> Iterator[Verdict]:
    """One verdict for each vector of a file.

    Raises:
        Invalid: the file cannot be read, or has no vectors.
    """
    try:
        vectors = list(msgspec.json.decode(path.read_bytes())["vectors"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        message = f"the file has no vectors that can be read: {error}"
        raise Invalid(message, subject=str(path)) from error
    yield from map(run_vector, vectors)


def run_vector(vector: dict[str, Any]) -> Verdict:
    """The verdict on one vector; what cannot be read as one fails."""
    subject = str(vector.get("id", "?")) if isinstance(vector, dict) else "?"
    try:
        return _run(subject, vector)
    except NotApplicableError as error:
        return Verdict(subject, VerdictKind.NOT_APPLICABLE, str(error))
    except Exception as error:  # noqa: BLE001 - whatever is in the file
        return Verdict(subject, VerdictKind.FAIL, f"cannot be read as a vector: {error!r}")


def _run(subject: str, vector: dict[str, Any]) -> Verdict:
    component, steps = vector["component"], vector.get("steps", [])
    if component in _ELSEWHERE:
        return Verdict(subject, VerdictKind.NOT_APPLICABLE, _ELSEWHERE[component])
    if component not in _ORDER_INFO | _BROKER:
        return Verdict(subject, VerdictKind.FAIL, f"there is no component {component!r}")
    for step in steps:
        part = next((what for op, what in _PARTS.items() if step["op"] == op or step["op"].startswith(f"{op}_")), None)
        if part is not None:
            return Verdict(subject, VerdictKind.NOT_APPLICABLE, part)
    wrong = list(_what_is_not_understood(vector, is_order_info=component in _ORDER_INFO))
    if wrong:
        return Verdict(subject, VerdictKind.FAIL, "; ".join(wrong))
    comparison = Comparison()
    if component in _ORDER_INFO:
        OrderInfoSteps(vector.get("clock") or 0, steps, comparison).run_all()
        return comparison.verdict(subject)
    singles = BrokerSteps(vector, comparison)
    singles.run_all(steps)
    if component == "batch_change" or "batch" in vector:
        together = BrokerSteps(vector, comparison, is_batch=True)
        together.run_all(steps)
        check_batch(vector, singles, together, comparison)
    return comparison.verdict(subject)


def _what_is_not_understood(vector: dict[str, Any], *, is_order_info: bool) -> Iterator[str]:
    """What of a vector has no meaning here, in words: it would be left out without a trace."""
    yield from (f"unknown field {key!r}" for key in what_is_unknown(vector, VECTOR_FIELDS))
    yield from (f"unknown option {key!r}" for key in what_is_unknown(vector.get("config") or {}, CONFIG_FIELDS))
    yield from (f"unknown field {key!r} of batch" for key in what_is_unknown(vector.get("batch") or {}, BATCH_FIELDS))
    for number, step in enumerate(vector.get("steps", [])):
        for what in what_is_wrong(step, ORDER_INFO_STEPS if is_order_info else BROKER_STEPS):
            yield f"step {number}: {what}"
        for one in step.get("acks") or []:
            yield from (f"step {number}: unknown field {key!r} of an ack" for key in what_is_unknown(one, ACK_FIELDS))
