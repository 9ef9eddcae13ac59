"""The crash-loop breaker: keeps a poison record, which fails whenever it is decided, from stopping the job for ever.

A micro-batch whose records cannot be decided is tried three times, in this process or in later ones. Then it is applied
in parts: the poison record is found and quarantined, and all others are decided.

```
deciding raised      the records are halved until the half that raises is one record
the process ended    one record at a time, noted before it is tried; the record under which the process ends twice is
                     the poison record
```
"""

from collections.abc import Callable, Iterable, Iterator

import structlog

from checkpoints.micro_batch_attempts import Attempts
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.poison import ALONE_ATTEMPTS_MAX, PROCESS_ENDED
from popstream.wire.base_errors import Fenced, PopstreamError

__all__ = ["MICRO_BATCH_ATTEMPTS_MAX", "CrashLoopBreaker", "UndecidableError"]

_log = structlog.get_logger(__name__)

MICRO_BATCH_ATTEMPTS_MAX = 3
"""Attempts at a micro-batch as a whole."""

Slices = Iterable[list[KafkaRecord]]


class UndecidableError(PopstreamError):
    """Deciding records raised an unforeseen error; nothing was written."""


class CrashLoopBreaker:
    """Applies a micro-batch, all of it or, after repeated failures, all but the poison records.

    Args:
        attempts: Counts the attempts, across processes.
        quarantine: Takes the poison records.
        apply: Applies slices of records up to the given offsets, or raises UndecidableError.
        next_offset: Returns the offsets up to which the log is applied, by partition.
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
            slices: Returns its slices from the first one on, at each call.
            end_offset: The offsets at which it ends, by partition.
        """
        try:
            self._run(slices, end_offset)
        except (UndecidableError, Fenced):
            raise  # the first counts against the records; after the second the count belongs to another process
        except Exception:
            # The disk or Kafka failed: however often that happens, no record is the cause.
            self._attempts.forget()
            raise

    def _run(self, slices: Callable[[], Iterator[list[KafkaRecord]]], end_offset: dict[int, int]) -> None:
        has_raised = False
        while self._attempts.alone is None and self._attempts.begin(self._next_offset()) <= MICRO_BATCH_ATTEMPTS_MAX:
            try:
                self._apply(slices(), end_offset)
            except UndecidableError as error:
                has_raised = True
                _log.exception("micro_batch_failed", error=str(error))
            else:
                self._attempts.end()
                return
        _log.critical("micro_batch_applied_in_parts", next_offset=self._next_offset())
        for records in slices():
            next_offset = self._next_offset()
            # Sorted, because each part must continue where the part before it ended.
            left = sorted(record for record in records if record.kafka_offset >= next_offset.get(record.partition, 0))
            if has_raised:
                self._apply_halves(left)
            else:
                self._apply_one_by_one(left)
        if end_offset != self._next_offset():
            self._apply([], end_offset)
        self._attempts.end()

    def _apply_halves(self, records: list[KafkaRecord]) -> None:
        """Apply sorted records; quarantine those that raise even alone."""
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
        """Apply sorted records; quarantine those that ended the process."""
        for record in records:
            place = record.partition, record.kafka_offset
            if self._attempts.begin(self._next_offset(), place) > ALONE_ATTEMPTS_MAX:
                self._quarantine.add(*place, PROCESS_ENDED)
            self._apply_halves([record])

    def _end_of(self, records: list[KafkaRecord]) -> dict[int, int]:
        """Return the offsets after sorted records, by partition, but none before what is applied.

        Records of a half may be applied already: what is decided before the poison record is written when it has taken
        long.
        """
        ends = self._next_offset().copy()
        for record in records:
            ends[record.partition] = max(ends.get(record.partition, 0), record.kafka_offset + 1)
        return ends
