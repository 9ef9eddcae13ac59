"""The ranges of values in operations, in one place: the kernel refuses what is outside, clients check before they send.

docs/semantics.md, "Ranges of values", lists them for readers.
"""

__all__ = [
    "ATTEMPTS_MAX",
    "BACK_OFF_STEPS_MAX",
    "ENTRIES_MAX",
    "INVISIBLE_TIME_MS_MAX",
    "IN_FLIGHT_MAX",
    "NAME_BYTES_MAX",
    "OFFSET_MAX",
    "OP_ID_BYTES_MAX",
    "PARKED_MAX",
    "POLL_TIME_MS_MAX",
    "POP_MESSAGES_MAX",
    "POP_TAGS_MAX",
    "QUEUE_ID_MAX",
    "RANGE_OFFSETS_MAX",
    "RECORD_BYTES_MAX",
    "TAG_HASH_MAX",
    "TOPIC_BYTES_MAX",
    "WINDOW_OFFSETS_MAX",
    "WINDOW_OFFSETS_MIN",
]

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""Value of one record of the ops topic. The topic allows more, so that the job can answer what is too large."""

ENTRIES_MAX = 10_000
"""Entries of one operation; also its handles and its offset ranges."""

OFFSET_MAX = (1 << 63) - 1
RANGE_OFFSETS_MAX = 1_000_000
"""Offsets of one dispatched range."""

INVISIBLE_TIME_MS_MAX = 12 * 60 * 60 * 1000
POLL_TIME_MS_MAX = INVISIBLE_TIME_MS_MAX

POP_MESSAGES_MAX = 10_000
POP_TAGS_MAX = 64
TAG_HASH_MAX = (1 << 64) - 1

OP_ID_BYTES_MAX = 128
NAME_BYTES_MAX = 255
"""Group, client_id, attempt_id, topic_id."""
TOPIC_BYTES_MAX = 249
"""As in Kafka."""
QUEUE_ID_MAX = (1 << 31) - 1

ATTEMPTS_MAX = 65_535
BACK_OFF_STEPS_MAX = 32
PARKED_MAX = 65_536
"""Parked pops of one lane that a policy may allow."""
IN_FLIGHT_MAX = (1 << 31) - 1
WINDOW_OFFSETS_MIN, WINDOW_OFFSETS_MAX = 1_000_000, 1 << 30
"""What a policy may set as the offsets between the first hole and the last offset written."""
