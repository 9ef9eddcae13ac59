"""The partitions of one process: each is decided as it was, taken apart, and decided once more with other settings.

The state of a queue follows from the records of the queue alone, which are in one partition. So each partition is done
by itself, in two stores that are equal at the start of the range, and its memory is given up before the next.
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import load_queue
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.decide_ops.decode import Decoder, Rejected
from pipelines.decide_ops.prefetch import op_keys_of
from pipelines.recovery.replay_source import Records
from pipelines.recovery.verify.work_folder import linked_copy
from pipelines.tuning.handlings import Evidence
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.policies import lanes_of
from pipelines.tuning.recorded import RecordedQueue
from pipelines.tuning.recorder import Recorder
from pipelines.tuning.replay import TICK_AFTER_MS, QueueReplay
from pipelines.tuning.tally import LaneOutcome, QueueTally
from popstream.wire.base_errors import PopstreamError

__all__ = ["LaneResult", "PartitionRange", "ReplayResult", "run_share"]

_SLICE_RECORDS = 10_000


class PartitionRange(msgspec.Struct, frozen=True):
    """The Kafka offsets of a partition: decided from `first` on, and once more in [begin, end)."""

    partition: int
    first: int
    begin: int
    end: int


class LaneResult(msgspec.Struct, kw_only=True):
    """A lane, as it was and as it would have been.

    `evidence`: messages of deliveries as they would have been, by where their handling is taken from.
    """

    topic: str
    queue_id: int
    group: str
    fact: LaneOutcome
    what_if: LaneOutcome
    evidence: dict[str, int]
    renews: bool


class ReplayResult(msgspec.Struct, kw_only=True):
    """What a share has found.

    Attributes:
        records: Records of the range.
        decided_again: Records that were decided with the other settings.
        first_ms: Time of the first record of the range; 0: there is none.
        last_ms: Of the last one.
        lanes: The lanes that got something, in fact or with the other settings.
    """

    records: int = 0
    decided_again: int = 0
    first_ms: int = 0
    last_ms: int = 0
    lanes: list[LaneResult] = []


class _Stores(NamedTuple):
    facts: Path
    what_if: Path


def run_share(
    ranges: Iterable[PartitionRange],
    base: Path | None,
    folder: Path,
    settings: OtherSettings,
    decoder: Decoder,
    records: Records,
    on_progress: Callable[[str, int, int], None],
    tick_after_ms: int = TICK_AFTER_MS,
) -> ReplayResult:
    """Decide some partitions again, as they were and with other settings.

    Args:
        ranges: The partitions.
        base: Folder of a state that has decided what is before `first` of each range; None: an empty state.
        folder: A folder for the work.
        settings: What is different.
        decoder: Decodes records as the job's does, with its keys.
        records: Reads the log.
        on_progress: Called with what is being done, and records done and in all.
        tick_after_ms: See `QueueReplay`.

    Raises:
        Corrupt: A file is damaged, or the log has lost records.
        Unavailable: Kafka does not answer, or the disk is full.
    """
    ranges = list(ranges)
    result = ReplayResult()
    total, done = sum(each.end - each.first + each.end - each.begin for each in ranges), 0
    for each in ranges:
        stores = _Stores(folder / "facts", folder / "what-if")
        if base is not None:
            linked_copy(base, stores.facts)
        partition = _Partition(each, stores, settings, decoder, records, result, tick_after_ms)

        def note(doing: str, count: int, before: int = done) -> None:
            on_progress(doing, before + count, total)

        partition.run(note)
        done += each.end - each.first + each.end - each.begin
        for store in stores:
            shutil.rmtree(store, ignore_errors=True)
    return result


class _Partition:
    def __init__(
        self,
        range_: PartitionRange,
        stores: _Stores,
        settings: OtherSettings,
        decoder: Decoder,
        records: Records,
        result: ReplayResult,
        tick_after_ms: int,
    ) -> None:
        self._range = range_
        self._stores = stores
        self._settings = settings
        self._decoder = decoder
        self._records = records
        self._result = result
        self._tick_after_ms = tick_after_ms
        self._last_ms = 0

    def run(self, on_progress: Callable[[str, int], None]) -> None:
        first, begin, end = self._range.first, self._range.begin, self._range.end
        with RocksStore(self._stores.facts) as store:
            overlay, quarantine = Overlay(store), Quarantine(store)
            for slice_ in self._slices(quarantine, first, begin):
                self._fold(overlay, slice_, Decision())
                store.write(overlay)
                on_progress("deciding what is before the range", slice_[-1].kafka_offset - first)
            store.copy_to(self._stores.what_if)
            recorder = Recorder(overlay, self._settings)
            for slice_ in self._slices(quarantine, begin, end):
                self._record(overlay, recorder, slice_)
                store.write(overlay)
                on_progress("deciding the range", slice_[-1].kafka_offset - first)
            facts = {place: self._finished(overlay, queue, queue.tally) for place, queue in recorder.queues.items()}
        done = end - first
        with RocksStore(self._stores.what_if) as store:
            overlay = Overlay(store)
            for place, queue in recorder.queues.items():
                replay = QueueReplay(overlay, queue, self._settings, self._last_ms, self._tick_after_ms)
                for _ in replay.run():
                    store.write(overlay)
                    on_progress("deciding the range with other settings", done + min(replay.decided, queue.records))
                self._result.decided_again += replay.decided
                self._add(queue, facts[place], self._finished(overlay, queue, replay.tally), replay.evidence)
                done += queue.records
                on_progress("deciding the range with other settings", done)

    def _slices(self, quarantine: Quarantine, first: int, end: int) -> Iterator[list[OpRecord]]:
        found = self._records(self._range.partition, first, end)
        while records := list(itertools.islice(found, _SLICE_RECORDS)):
            commands = (quarantine.decode(record, self._decoder) for record in records)
            if slice_ := [command for command in commands if not isinstance(command, Rejected)]:
                yield slice_

    def _record(self, overlay: Overlay, recorder: Recorder, slice_: list[OpRecord]) -> None:
        result = self._result
        result.records += len(slice_)
        self._last_ms = max(self._last_ms, slice_[-1].timestamp_ms)
        result.first_ms = min(result.first_ms or slice_[0].timestamp_ms, slice_[0].timestamp_ms)
        result.last_ms = max(result.last_ms, self._last_ms)
        recorder.begin(slice_)
        together: list[OpRecord] = []
        for record in slice_:
            together.append(record)
            if recorder.changes_policies(record):
                self._decide(overlay, recorder, together)
                recorder.note_policies(record)
                together = []
        self._decide(overlay, recorder, together)

    def _decide(self, overlay: Overlay, recorder: Recorder, records: list[OpRecord]) -> None:
        decision = Decision()
        self._fold(overlay, records, decision)
        recorder.add(records, decision)

    def _fold(self, overlay: Overlay, records: list[OpRecord], decision: Decision) -> None:
        overlay.prefetch_ops(op_keys_of(records))
        try:
            fold(overlay, records, decision)
        except PopstreamError:
            raise
        except Exception as error:
            where = f"{records[0].kafka_offset} to {records[-1].kafka_offset} of partition {self._range.partition}"
            message = f"the records {where} cannot be decided again: {type(error).__name__}: {error}"
            raise PopstreamError(message) from error

    def _finished(self, overlay: Overlay, queue: RecordedQueue, tally: QueueTally) -> dict[str, LaneOutcome]:
        """Return the outcome of each lane, with what the lane is like at the end."""
        state = load_queue(overlay, queue.topic, queue.queue_id)
        lanes = {} if state is None else {lane.record.group: lane for lane in lanes_of(state)}
        found = {}
        for group, counted in tally.lanes.items():
            lane = lanes.get(group)
            if lane is None or state is None:  # it was deleted
                found[group] = counted.finish(self._last_ms, commit_offset=0, not_done=0)
                continue
            record = lane.record
            fresh = state.written.floor - record.next_offset
            fresh -= state.count_holes(record.next_offset, state.written.floor)
            not_done = record.leased + record.available + fresh
            found[group] = counted.finish(self._last_ms, commit_offset=lane.acked.floor, not_done=not_done)
        return found

    def _add(
        self,
        queue: RecordedQueue,
        facts: dict[str, LaneOutcome],
        what_if: dict[str, LaneOutcome],
        evidence: dict[str, dict[Evidence, int]],
    ) -> None:
        for group in sorted(facts.keys() | what_if.keys()):
            fact, other = facts.get(group, LaneOutcome()), what_if.get(group, LaneOutcome())
            if fact.deliveries or other.deliveries:
                self._result.lanes.append(
                    LaneResult(
                        topic=queue.topic,
                        queue_id=queue.queue_id,
                        group=group,
                        fact=fact,
                        what_if=other,
                        evidence={each.value: count for each, count in evidence.get(group, {}).items()},
                        renews=queue.lane(group).renews,
                    )
                )
