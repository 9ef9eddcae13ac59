"""The op_id window: a repeated operation gets its first answer again (docs/differences.md, "A repeated op_id").

Op_ids are forgotten in whole minutes of the queue's clock. Forgetting is a rule of reading (an old memory is no
memory); the bytes go a little with every record, oldest first, so that no record pays for a minute's worth.
"""

import msgspec

from broker_state.kernel.queue_state import QueueState
from broker_state.store.keys import QueueTag, op_key
from broker_state.store.records import OP_LOG_ENTRIES, OpLog, OpMemory
from popstream.wire.answer import Answer

__all__ = ["answered_pop", "first_answer", "forget_some", "recall", "remember", "remember_parked_answer"]

WINDOW_MINUTES = 10

_MINUTE_MS = 60_000
_FORGOTTEN_A_RECORD = 2
_PAGE_BYTES = 3_500

_decode_answer = msgspec.json.Decoder(Answer).decode


def recall(queue: QueueState, op_id: str, now_ms: int) -> OpMemory | None:
    """What the op_id did, when that is within the window or its pop is still parked."""
    stored = queue.overlay.get_op(op_key(queue.prefix, op_id))
    if stored is None:
        return None
    memory = OpMemory.decode(stored)
    if memory.parked or memory.minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
        return memory
    # The op_id may be used anew: what is logged up to its old use must be gone before the new use is logged.
    while queue.overlay.get_op(op_key(queue.prefix, op_id)) is not None:
        assert _forget_oldest(queue, now_ms), "an old memory is in the log"
    return None


def first_answer(queue: QueueState, op_id: str, memory: OpMemory) -> bytes:
    """The stored answer, whole."""
    overlay = queue.overlay
    pages = [memory.answer]
    for page in range(1, memory.pages):
        stored = overlay.get_op(op_key(queue.prefix, op_id, page))
        assert stored is not None, "every page of an answer is stored"
        pages.append(stored[1:])
    return b"".join(pages)


def answered_pop(queue: QueueState, op_id: str, memory: OpMemory) -> Answer:
    """The stored answer as a value."""
    return _decode_answer(first_answer(queue, op_id, memory))


def remember(
    queue: QueueState,
    op_id: str,
    *,
    digest: bytes,
    kind: str,
    group: str | None,
    answer: bytes | None,
    parked: int,
    now_ms: int,
) -> None:
    """The op_id was used; `answer` None: its pop is parked at place `parked`."""
    memory = OpMemory(now_ms // _MINUTE_MS, digest, kind, group, parked, 0, b"")
    _store(queue, op_id, memory, answer or b"")
    _log(queue, op_id, memory.minute, 0 if parked else memory.pages)


def remember_parked_answer(queue: QueueState, op_id: str, answer: bytes, now_ms: int) -> None:
    """The parked pop was answered; its window begins."""
    stored = queue.overlay.get_op(op_key(queue.prefix, op_id))
    assert stored is not None, "a parked pop is remembered while it is parked"
    memory = OpMemory.decode(stored)
    memory.minute = now_ms // _MINUTE_MS
    memory.parked = 0
    _store(queue, op_id, memory, answer)
    _log(queue, op_id, memory.minute, memory.pages)


def forget_some(queue: QueueState, now_ms: int) -> None:
    """Delete a few memories that have left the window: more than one record adds, so the log stays short."""
    if queue.oldest_op_minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
        return
    for _ in range(_FORGOTTEN_A_RECORD):
        if not _forget_oldest(queue, now_ms):
            return


def _store(queue: QueueState, op_id: str, memory: OpMemory, answer: bytes) -> None:
    overlay = queue.overlay
    memory.pages = max(1, -(-len(answer) // _PAGE_BYTES))
    memory.answer = answer[:_PAGE_BYTES]
    overlay.set_op(op_key(queue.prefix, op_id), memory.encode())
    for page in range(1, memory.pages):
        part = answer[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES]
        overlay.set_op(op_key(queue.prefix, op_id, page), b"\x01" + part)


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


def _forget_oldest(queue: QueueState, now_ms: int) -> bool:
    """Delete the oldest memory if it has left the window; False when there is none."""
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
    overlay = queue.overlay
    for page in range(pages):  # none for a pop that was parked: its answer has an entry of its own further on
        overlay.set_op(op_key(queue.prefix, op_id, page), None)
    record.op_log_first = number + 1
    if index == OP_LOG_ENTRIES - 1:
        overlay.delete(key)
    return True


def _log_key(queue: QueueState, page_no: int) -> bytes:
    return queue.prefix + QueueTag.OP_LOG + page_no.to_bytes(8, "big")
