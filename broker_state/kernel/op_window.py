"""The window of op_ids: a repeated operation gets its first answer again (docs/differences.md, "A repeated op_id").

The window moves in whole minutes of the queue's clock. An entry that has left it does not count when it is read; its
bytes are deleted later, a few entries with every record, oldest first: no record deletes a whole minute at once.
"""

from typing import Final

import msgspec

from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.validation import known_group
from broker_state.store.keys import QueueTag, op_key, op_page_key
from broker_state.store.state_records import OP_LOG_ENTRIES, OpLog, OpWindowEntry
from popstream.wire.answer import Answer
from popstream.wire.command import group_of
from popstream.wire.reason import Reason

__all__ = ["answer_repeated", "answered_pop", "drop_some", "find", "store", "store_parked_answer"]

WINDOW_MINUTES: Final = 10

_MINUTE_MS: Final = 60_000
_DROPPED_PER_RECORD: Final = 2
_DROPPED_FOR_REUSE_MAX: Final = 1_000
_PAGE_BYTES: Final = 3_500

_decode_answer: Final = msgspec.json.Decoder(Answer).decode


def find(queue: QueueState, key: bytes, now_ms: int) -> OpWindowEntry | None:
    """Return the entry of an op_id that is within the window, or whose pop is still parked; `key`: its `op_key`."""
    stored = queue.overlay.get_op(key)
    if stored is None:
        return None
    entry = OpWindowEntry.decode(stored)
    if entry.parked or entry.minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
        return entry
    # The op_id is free again. What is older leaves the log with its old use, as far as one record may delete it.
    for _ in range(_DROPPED_FOR_REUSE_MAX):
        if queue.overlay.get_op(key) is None:
            break
        assert _drop_oldest(queue, now_ms), "an old entry is in the log"
    return None


def answer_repeated(op: OpContext, known: OpWindowEntry) -> None:
    """Answer a repeated op_id: the same bytes get the first answer, if there is one yet; others are refused."""
    if known.digest != op.record.digest:
        op.refuse(Reason.OP_ID_REUSED, group=group_of(op.command))
        return
    op.audit.operation(Reason.OK, group=known.group, repeated=True)
    if not known.parked and op.command.reply_to is not None:
        op.decision.answers.append((op.command.reply_to, _first_answer(op.queue, op.op_key, known)))


def _first_answer(queue: QueueState, key: bytes, entry: OpWindowEntry) -> bytes:
    """Return the JSON of the stored answer, of all pages."""
    overlay = queue.overlay
    pages = [entry.answer]
    for page in range(1, entry.pages):
        stored = overlay.get_op(op_page_key(key, page))
        assert stored is not None, "every page of an answer is stored"
        pages.append(stored[1:])
    return b"".join(pages)


def answered_pop(queue: QueueState, key: bytes, entry: OpWindowEntry) -> Answer:
    """Return the stored answer of a pop; `key`: the `op_key` of its op_id."""
    return _decode_answer(_first_answer(queue, key, entry))


def store(op: OpContext, op_id: str, *, parked: int) -> None:
    """Store the answer to the record's own operation; `parked`: number of its pop, if that is parked, else 0."""
    group = known_group(group_of(op.command))
    entry = OpWindowEntry(op.now_ms // _MINUTE_MS, op.record.digest, op.kind, group, parked, 0, b"")
    _store(op.queue, op.op_key, entry, op.answer or b"")
    _log(op.queue, op_id, entry.minute, 0 if parked else entry.pages)


def store_parked_answer(queue: QueueState, op_id: str, answer: bytes, now_ms: int) -> None:
    """Store the answer to a parked pop, and begin its window."""
    key = op_key(queue.prefix, op_id)
    stored = queue.overlay.get_op(key)
    assert stored is not None, "a parked pop has an entry"
    entry = OpWindowEntry.decode(stored)
    entry.minute = now_ms // _MINUTE_MS
    entry.parked = 0
    _store(queue, key, entry, answer)
    _log(queue, op_id, entry.minute, entry.pages)


def drop_some(queue: QueueState, now_ms: int) -> None:
    """Delete entries that have left the window: at most two, more than one record adds, so the log stays short."""
    if queue.oldest_op_minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
        return
    for _ in range(_DROPPED_PER_RECORD):
        if not _drop_oldest(queue, now_ms):
            return


def _store(queue: QueueState, key: bytes, entry: OpWindowEntry, answer: bytes) -> None:
    overlay = queue.overlay
    entry.pages = max(1, -(-len(answer) // _PAGE_BYTES))
    entry.answer = answer[:_PAGE_BYTES]
    overlay.set_op(key, entry.encode())
    for page in range(1, entry.pages):
        part = answer[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES]
        overlay.set_op(op_page_key(key, page), b"\x01" + part)


def _log(queue: QueueState, op_id: str, minute: int, pages: int) -> None:
    record = queue.record
    number = record.op_log_last
    page_no, index = divmod(number, OP_LOG_ENTRIES)
    key = _log_key(queue, page_no)
    log = queue.overlay.get(key, OpLog.decode) if index else None
    if log is None:
        log = OpLog([])
    log.entries.append((minute, op_id, pages))
    queue.overlay.put(key, log)
    record.op_log_last = number + 1


def _drop_oldest(queue: QueueState, now_ms: int) -> bool:
    """Delete the oldest entry if it has left the window; return whether one was deleted."""
    record = queue.record
    number = record.op_log_first
    if number == record.op_log_last:
        return False
    page_no, index = divmod(number, OP_LOG_ENTRIES)
    key = _log_key(queue, page_no)
    log = queue.overlay.get(key, OpLog.decode)
    assert log is not None, "the op log is whole"
    minute, op_id, pages = log.entries[index]
    if minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
        queue.oldest_op_minute = minute
        return False
    overlay, first = queue.overlay, op_key(queue.prefix, op_id)
    # Of a parked pop no page: its answer is logged again further on. Of an op_id in use again, what its old use left.
    for page in range(_pages_in_use(queue, first, minute) if pages else 0, pages):
        overlay.set_op(op_page_key(first, page), None)
    record.op_log_first = number + 1
    if index == OP_LOG_ENTRIES - 1:
        overlay.delete(key)
    return True


def _pages_in_use(queue: QueueState, key: bytes, minute: int) -> int:
    """Return how many pages belong to a use of the op_id after that of `minute`."""
    stored = queue.overlay.get_op(key)
    entry = OpWindowEntry.decode(stored) if stored is not None else None
    return max(1, entry.pages) if entry is not None and entry.minute > minute else 0


def _log_key(queue: QueueState, page_no: int) -> bytes:
    return queue.prefix + QueueTag.OP_LOG + page_no.to_bytes(8, "big")
