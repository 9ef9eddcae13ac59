"""What keeps one record from stopping the job for ever: the crash-loop breaker.

A micro-batch that fails for what its records are is tried three times, in this process or in the next ones. Then it is
applied in parts, so that all but the culprit is decided, and the culprit is quarantined:

```
it raised        halves of halves, until the part that raises is one record
it took the      one record at a time, each noted before it is begun: the one under which
process with it  the process ends twice is the one
```
"""

from collections.abc import Callable, Iterable, Iterator

import structlog

from checkpoints.attempts import Attempts
from pipelines.apply_ops.decode import KafkaRecord
from pipelines.apply_ops.quarantine import Quarantine
from popstream.wire.failures import Fenced, PopstreamError

__all__ = ["ATTEMPTS_MAX", "Breaker", "UndecidableError"]

_log = structlog.get_logger(__name__)

ATTEMPTS_MAX = 3
ALONE_ATTEMPTS_MAX = 2

Slices = Iterable[list[KafkaRecord]]


class UndecidableError(PopstreamError):
    """Deciding records raised something unforeseen; nothing was written."""


class Breaker:
    """Calls `apply` with as much as can be decided.

    Args:
        attempts: Counts across processes.
        quarantine: Where culprits go.
        apply: Applies records by slices, as one WriteBatch that ends at the given offsets, or raises UndecidableError.
        next_offset: How far the log is decided, by partition.
    """

    def __init__(
        self,
        attempts: Attempts,
        quarantine: Quarantine,
        apply: Callable[[Slices, dict[int, int]], None],
        next_offset: Callable[[], dict[int, int]],
    ) -> None:
        self._attempts = attempts
        self._quarantine = quarantine
        self._apply = apply
        self._next_offset = next_offset

    def run(self, slices: Callable[[], Iterator[list[KafkaRecord]]], end_offset: dict[int, int]) -> None:
        """Apply one micro-batch.

        Args:
            slices: Its records by (partition, kafka offset), from the start at each call.
            end_offset: Where it ends, by partition.
        """
        try:
            self._run(slices, end_offset)
        except (UndecidableError, Fenced):
            raise  # the first is about a record, and after the second the note is another owner's
        except Exception:
            # The disk, or Kafka: however often that happens here, no record is the cause.
            self._attempts.forget()
            raise

    def _run(self, slices: Callable[[], Iterator[list[KafkaRecord]]], end_offset: dict[int, int]) -> None:
        has_raised = False
        while self._attempts.alone is None and self._attempts.begin(self._next_offset()) <= ATTEMPTS_MAX:
            try:
                self._apply(slices(), end_offset)
            except UndecidableError as error:
                has_raised = True
                _log.exception("micro_batch_failed", error=str(error))
            else:
                self._attempts.end()
                return
        _log.critical("micro_batch_applied_in_parts", decided_up_to=self._next_offset())
        for records in slices():
            decided = self._next_offset()
            left = [record for record in records if record.kafka_offset >= decided.get(record.partition, 0)]
            if has_raised:
                self._apply_halves(left)
            else:
                self._apply_one_by_one(left)
        if end_offset != self._next_offset():
            self._apply([], end_offset)
        self._attempts.end()

    def _apply_halves(self, records: list[KafkaRecord]) -> None:
        if not records:
            return
        try:
            self._apply([records], self._end_of(records))
        except UndecidableError as error:
            if len(records) == 1:
                self._quarantine.add(records[0].partition, records[0].kafka_offset, str(error))
                self._apply([records], self._end_of(records))
                return
            middle = len(records) // 2
            self._apply_halves(records[:middle])
            self._apply_halves(records[middle:])

    def _apply_one_by_one(self, records: list[KafkaRecord]) -> None:
        for record in records:
            place = record.partition, record.kafka_offset
            if self._attempts.begin(self._next_offset(), place) > ALONE_ATTEMPTS_MAX:
                self._quarantine.add(*place, "the process ended each time that this record was decided")
            self._apply_halves([record])

    def _end_of(self, records: list[KafkaRecord]) -> dict[int, int]:
        """Where a part of a micro-batch ends that begins where the log is decided."""
        return {**self._next_offset(), **{record.partition: record.kafka_offset + 1 for record in records}}
