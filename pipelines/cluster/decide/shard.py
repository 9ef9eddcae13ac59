"""Decides one partition of the ops topic over its state, in any order of micro-batches and on any executor.

A shard is a function of the log: what it keeps in memory between micro-batches is valid as long as Spark's state is the
one that it left, which `ShardMeta` says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec
from sortedcontainers import SortedList

from broker_state.kernel.context.decision import OpRecord
from broker_state.store.keys import read_queue_prefix
from broker_state.store.value_format import StoredRecord
from pipelines.cluster.decide.deadline_index import DeadlineIndex
from pipelines.cluster.decide.shard_state import ShardMaps, ShardState, quarantine_key, quarantined_in
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected, reject_quarantined
from pipelines.decide_ops.entry import EntryKind, LogPlace, PlacedEntry
from pipelines.decide_ops.ops_decider import Decided, OpsDecider
from pipelines.decide_ops.order import TurnLength, in_turns, order
from pipelines.decide_ops.poison import PROCESS_ENDED, quarantine_reason
from popstream.wire.base_errors import PopstreamError
from popstream.wire.handle import Signer
from popstream.wire.signing import OperationVerifier

__all__ = [
    "LETTERS",
    "Notes",
    "QueueDeadline",
    "Shard",
    "ShardMeta",
    "ShardSettings",
    "deadlines_in",
    "order_number",
]

DEADLINES_MAX = 256
"""Queues that the ticker is told of at a time: the next micro-batch tells of the next ones."""
TURN_RECORDS = 64
MADE_MAX = 30_000
"""Rows and answers of which a part is enough; looked at after `TURN_RECORDS`, and not by the clock. A record makes as
many as its operation has entries, or as its pop finds ranges."""
LETTERS = 254
"""Among the numbers of tables: dead letters, which have an order of their own."""


class ShardSettings(NamedTuple):
    """What all shards of a job decide by.

    Attributes:
        run_id: Identity of the running query: what is in memory belongs to it.
        ops_partitions: Partitions of the ops topic.
        results_partitions: Partitions of the results topic.
        signer: Signs and verifies handles; None: they are not signed.
        seed: Of the hashes of op_ids.
        cache_bytes: Bytes of decoded state, as stored, that each shard keeps.
        verifier: Verifies operations on queues and groups; None: they need no signature.
        shards_per_task: Shards that a task has, about: a worker keeps some more in memory.
        noted_micro_batch: Number of a micro-batch that is decided with notes from the first attempt on; None: none is.
        dead: By partition, records under which the process had ended often enough before this start: they are
            quarantined, and their answers may have left.
    """

    run_id: str
    ops_partitions: int
    results_partitions: int
    signer: Signer | None
    seed: int
    cache_bytes: int
    verifier: OperationVerifier | None = None
    shards_per_task: int = 8
    noted_micro_batch: int | None = None
    dead: Mapping[int, Collection[int]] = {}


class ShardMeta(StoredRecord, msgspec.Struct, array_like=True, frozen=True):
    """How far a shard has decided, and what its memory must agree with.

    Attributes:
        next_offset: First undecided Kafka offset.
        first_chunk: Number of the first chunk of the window.
        end_chunk: The number that its next one gets.
        ends: By number of a table, or LETTERS: the place after the last row, or letter, that has left.
    """

    STORED_AS: ClassVar[str] = "shard"

    next_offset: int = 0
    first_chunk: int = 1
    end_chunk: int = 1
    ends: dict[int, LogPlace] = {}


class Notes(Protocol):
    """Where it is noted, durably, which record is decided, because the process has ended before."""

    def begin(self, kafka_offset: int) -> bool:
        """Note that a record is about to be decided; False: it is quarantined instead."""

    def pause(self) -> None:
        """Note that none is."""


class QueueDeadline(NamedTuple):
    """The earliest deadline of a queue."""

    deadline_ms: int
    topic: str
    queue_id: int


class Shard:
    """The state of one partition of the ops topic, with the code that decides over it.

    Args:
        settings: Those of the job.
        maps: The stored maps, for this micro-batch.
        meta: As stored with them.
        dead: Its own of `ShardSettings.dead`.
    """

    def __init__(
        self, settings: ShardSettings, maps: ShardMaps, meta: ShardMeta, dead: Collection[int] = frozenset()
    ) -> None:
        self.meta = meta
        self._state = ShardState(maps, settings.seed, meta.first_chunk, meta.end_chunk)
        self._decoder = Decoder(settings.ops_partitions, settings.signer, settings.verifier)
        self._maps = maps
        # Of undecided records: a snapshot may have them. Those of decided ones are kept for who decides the log again.
        errors = dict.fromkeys(dead, PROCESS_ENDED) | quarantined_in(maps)
        self._quarantined = {at: error for at, error in errors.items() if at >= meta.next_offset}
        self._decider = OpsDecider(
            self._state,
            self._decode,
            results_partitions=settings.results_partitions,
            signer=settings.signer,
            cache_bytes=settings.cache_bytes,
        )
        self._due_by_queue: dict[bytes, QueueDeadline] = {}
        self._due: SortedList[QueueDeadline] = SortedList()
        for queue in self._state.deadline_index.queues():
            self._note_deadline(queue)

    def close(self) -> None:
        """Free the memory now, as its objects refer to each other; nothing is called after it."""
        self.__dict__.clear()

    def bind(self, maps: ShardMaps) -> None:
        """Go on with the maps of the next micro-batch."""
        self._maps = maps
        self._state.bind(maps)

    def apply(self, records: Iterable[KafkaRecord], notes: Notes | None = None) -> list[PlacedEntry]:
        """Do as `parts`, and return what leaves at once."""
        return [entry for part in self.parts(records, notes) for entry in part]

    def parts(self, records: Iterable[KafkaRecord], notes: Notes | None = None) -> Iterator[list[PlacedEntry]]:
        """Decide records, store what changed, and yield what leaves, part by part: after each `meta` is as far.

        A part ends where enough has been made of its records. Those that raise whenever they are decided, even alone,
        are quarantined: rejected from then on. What is stored and what leaves are the same with notes as without.

        Args:
            records: Of this partition, in the order of the log; those that are applied already are left out.
            notes: Where each record is noted before it is decided; None: the process has not ended before.
        """
        waiting = [[record for record in records if record.kafka_offset >= self.meta.next_offset]]
        while waiting:
            part = waiting.pop()
            if not part:
                continue
            try:
                count = self._decide(part) if notes is None else self._decide_noted(part, notes)
                made = self._decider.placed_entries()
            except (PopstreamError, MemoryError, OSError):
                raise  # the state cannot be read, for example: no record is the cause
            except Exception as error:  # whatever a record makes the kernel raise
                self._decider.give_up()
                if len(part) > 1:
                    middle = len(part) // 2
                    waiting += part[middle:], part[:middle]
                    continue
                if part[0].kafka_offset in self._quarantined:
                    raise
                self._quarantined[part[0].kafka_offset] = quarantine_reason(f"{type(error).__name__}: {error}")
                waiting.append(part)
                continue
            self._write(part[:count], made)
            waiting.append(part[count:])
            yield made

    def earliest_deadlines(self) -> list[QueueDeadline]:
        """Return the queues that are due next, at most DEADLINES_MAX, in order."""
        return list(self._due.islice(0, DEADLINES_MAX))

    def _decide(self, records: Sequence[KafkaRecord]) -> int:
        """Decide records until enough is made, and return how many were decided."""
        decider = self._decider
        count = 0
        for turn in in_turns(order(records, {}), TurnLength(TURN_RECORDS)):
            decider.decide_at_once(turn)
            count += len(turn)
            if _made(decider.decided) >= MADE_MAX:
                break
        return count

    def _decide_noted(self, records: Sequence[KafkaRecord], notes: Notes) -> int:
        """Do as `_decide` one record at a time, up to its entries."""
        decider, decided, count = self._decider, Decided(), 0
        for record in records:
            if not notes.begin(record.kafka_offset):
                self._quarantined[record.kafka_offset] = PROCESS_ENDED
            self._decide([record])
            decider.placed_entries()  # the process may end here as well
            decided.extend(decider.written())
            count += 1
            if count % TURN_RECORDS == 0 and _made(decided) >= MADE_MAX:
                break
        notes.pause()
        decider.decided = decided
        return count

    def _write(self, records: Sequence[KafkaRecord], made: Sequence[PlacedEntry]) -> None:
        self._state.write(self._decider.overlay, max(record.timestamp_ms for record in records))
        for queue in self._decider.written().touched:
            self._note_deadline(queue.prefix)
        for record in records if self._quarantined else ():
            if (error := self._quarantined.pop(record.kafka_offset, None)) is not None:
                self._maps.quarantined.put(quarantine_key(record.kafka_offset), error.encode())
        first_chunk, end_chunk = self._state.chunks
        ends = self.meta.ends | {order_number(entry): entry.end for entry in made if entry.end is not None}
        next_offset = records[-1].kafka_offset + 1
        self.meta = ShardMeta(next_offset, first_chunk, end_chunk, ends)

    def _decode(self, record: KafkaRecord) -> OpRecord | Rejected:
        error = self._quarantined.get(record.kafka_offset) if self._quarantined else None
        return self._decoder.decode(record) if error is None else reject_quarantined(record, error)

    def _note_deadline(self, queue: bytes) -> None:
        noted = self._due_by_queue.pop(queue, None)
        if noted is not None:
            self._due.remove(noted)
        earliest_ms = self._state.deadline_index.earliest_of(queue)
        if earliest_ms is not None:
            due = QueueDeadline(earliest_ms, *read_queue_prefix(queue))
            self._due_by_queue[queue] = due
            self._due.add(due)


def deadlines_in(index: DeadlineIndex) -> list[QueueDeadline]:
    """Return what `Shard.earliest_deadlines` returns, from the deadlines of a shard that is not loaded."""
    due = [
        QueueDeadline(earliest_ms, *read_queue_prefix(queue))
        for queue in index.queues()
        if (earliest_ms := index.earliest_of(queue)) is not None
    ]
    return sorted(due)[:DEADLINES_MAX]


def order_number(entry: PlacedEntry) -> int:
    """Return of which order an entry of rows, or a dead letter, has places."""
    return LETTERS if entry.kind == EntryKind.DEAD_LETTER else entry.value[0]


def _made(decided: Decided) -> int:
    decision = decided.decision
    rows = len(decision.operations) + len(decision.deliveries) + len(decision.commit_positions)
    return rows + len(decision.order_info) + len(decision.answers) + len(decided.rejected)
