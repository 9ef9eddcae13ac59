"""Step 3, prefetch: the keys that operations will read."""

from collections.abc import Iterable

from broker_state.kernel.context.decision import OpRecord
from broker_state.kernel.validation import is_op_id, is_queue_name
from broker_state.store.keys import op_key, queue_prefix

__all__ = ["op_keys_of"]


def op_keys_of(operations: Iterable[OpRecord]) -> list[bytes]:
    """Return the keys of the op_ids of all operations: nearly all are new, and one by one each would cost a read."""
    keys = []
    for operation in operations:
        command = operation.command
        if command.op_id is None or operation.misrouted or not is_op_id(command.op_id):
            continue
        if is_queue_name(command.topic, command.queue_id):
            keys.append(op_key(queue_prefix(command.topic, command.queue_id), command.op_id))
    return keys
