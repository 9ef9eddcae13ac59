"""Where popstream means to differ: a name for each rule, and which one an outcome falls under.

docs/differences.md has a paragraph for each. RocketMQ's shadow (rocketmq/broker.py) says what RocketMQ must have, the
reference model (kernel/paired_kernel.py) what popstream must have; a rule names why the two are not the same. Where no
rule is named, they must be.
"""

from popstream.wire.reason import Reason

__all__ = [
    "CHANGE_OUTSIDE_ITS_POP",
    "CONTIGUOUS_COMMIT_OFFSET",
    "EQUAL_DEADLINE",
    "FENCED_HANDLES",
    "INIT_MAX",
    "IN_PLACE",
    "NEVER_LOST",
    "NO_64_LIMIT",
    "OWN_COUNT",
    "RANGE_CHECKED",
    "RESET_AT_ONCE",
    "RESULTS_PER_ENTRY",
    "SUSPEND_IN_ORDER",
    "TRUE_WAKE_UP",
    "ZERO_HEADER",
    "rule_of",
]

IN_PLACE = "in-place redelivery"
FENCED_HANDLES = "fenced handles"
EQUAL_DEADLINE = "a change to an equal deadline keeps the message"
CONTIGUOUS_COMMIT_OFFSET = "commit offset is the contiguous acked prefix"
NEVER_LOST = "order info is never lost"
NO_64_LIMIT = "no 64-message limit"
RANGE_CHECKED = "values are range-checked"
RESULTS_PER_ENTRY = "results per entry"
CHANGE_OUTSIDE_ITS_POP = "a change outside its pop is refused"
ZERO_HEADER = "a zero-header handle is stale"
TRUE_WAKE_UP = "true wake-up moment"
RESET_AT_ONCE = "a reset takes effect at once"
INIT_MAX = "a group that begins at the end gets what comes later"
OWN_COUNT = "attempt counts the message's own deliveries"
SUSPEND_IN_ORDER = "suspend holds in orderly lanes too"

_OUT_OF_RANGE = (Reason.INVALID_PARAMETER, Reason.ABOVE_MAX, Reason.BELOW_MIN, Reason.TOPIC_NOT_EXIST)
_FENCED = (
    Reason.UNKNOWN_HANDLE,
    Reason.STALE_HANDLE,
    Reason.SUPERSEDED,
    Reason.ALREADY_ACKED,
    Reason.OUTSIDE_POP,
    Reason.DUPLICATE_ENTRY,
    Reason.WRONG_MODE,
)


def rule_of(reason: Reason, *, is_orderly: bool, is_change: bool, is_zero_header: bool) -> str | None:
    """The rule that lets an ack or change have another outcome than RocketMQ's, None when no rule does.

    >>> rule_of(Reason.SUPERSEDED, is_orderly=False, is_change=True, is_zero_header=False)
    'fenced handles'
    >>> rule_of(Reason.OK, is_orderly=False, is_change=True, is_zero_header=False) is None
    True
    """
    if reason in _OUT_OF_RANGE:
        return RANGE_CHECKED
    if is_orderly:
        if is_change and reason is Reason.OUTSIDE_POP:
            return CHANGE_OUTSIDE_ITS_POP
        return ZERO_HEADER if is_zero_header else None
    return FENCED_HANDLES if reason in _FENCED else None
