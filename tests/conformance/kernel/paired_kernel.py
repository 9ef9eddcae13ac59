"""The kernel under test and the reference model of its rules, side by side: every record goes to both.

The reference model (tests/model/reference_model.py) is written from docs/semantics.md, without a look at the kernel.
What popstream should answer is always taken from it, what popstream does answer from the kernel: answers as a client
gets them, audit rows, and the stored state must be those of the model after every record.
"""

import copy
import traceback
from typing import Any

import msgspec

from popstream.wire.answer import Answer
from popstream.wire.command import Command, encode_command
from tests.model.comparison import differences
from tests.model.kernel_subject import KernelSubject
from tests.model.reference_model import Record, ReferenceModel, partition_of, queue_key

__all__ = ["PairedKernel"]

_PARTITIONS = 3


class PairedKernel:
    """One kernel in memory and its model.

    `disagreement` is the first difference between them, None while they agree; `answers` are the kernel's by op_id;
    `notified` the lanes that it has reported as poppable, as (group, topic, queue id); `records` what was decided.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.disagreement: str | None = None
        self.answers: dict[str, Answer] = {}
        self.notified: list[tuple[str, str, int]] = []
        self.records: list[Record] = []
        self._groups: list[str] = []
        self._model = ReferenceModel(_PARTITIONS)
        self._kernel = KernelSubject(None, self._groups)

    def decide(self, command: Command) -> Answer | None:
        """The kernel's answer to `command`, given at `now_ms`; None while a pop waits."""
        group = getattr(command, "group", None)
        if group is not None and group not in self._groups:
            self._groups.append(group)
        number = len(self.records) + 1
        op_id = f"op-{number}"
        value = encode_command(msgspec.structs.replace(command, op_id=op_id, reply_to=0))
        key = queue_key(command.topic, command.queue_id)
        record = Record(partition_of(key, _PARTITIONS), number, self.now_ms, key, value)
        self.records.append(record)
        outcome = self._model.apply(record)
        try:
            decided = self._kernel(record)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect of the kernel
            self._note([f"the kernel raised {error!r}", *traceback.format_exc().splitlines()[-2:]])
            return None
        self._note(differences(outcome, self._model.view(*outcome.queue), decided))
        self.answers |= {answer.op_id: answer for answer in decided.answers}
        self.notified += [(told.group, told.topic, told.queue_id) for told in self._kernel.decision.notifications]
        return self.answers.get(op_id)

    def fork(self) -> "PairedKernel":
        """A copy that goes its own way."""
        return copy.deepcopy(self)

    def queues(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The model's queues, by (topic, queue id)."""
        return self._model.queues

    def queue(self, topic: str, queue_id: int) -> dict[str, Any] | None:
        """The model's queue, as tests/model/reference_model.py describes it."""
        return self._model.queues.get((topic, queue_id))

    def lane(self, group: str, topic: str, queue_id: int) -> dict[str, Any] | None:
        """The model's lane."""
        queue = self.queue(topic, queue_id)
        return None if queue is None else queue["lanes"].get(group)

    def _note(self, found: list[str]) -> None:
        if found and self.disagreement is None:
            self.disagreement = "; ".join(found)
