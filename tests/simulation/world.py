"""One seed: a workload, how the log is cut, when the process dies and what is lost with it; and what must hold then.

The code under test is the job's own, wired as in `pipelines.process.job`: reconcile, MicroBatchApplier, outbox,
publisher, flush loop. Cuts stand in for Spark, `disk` for Kafka and Delta; records bring the time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from broker_state.store.overlay import DEADLINES, OPS, STATE
from broker_state.store.rocks_store import META
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, decode_noted
from checkpoints.reconcile import LogFound, TableFound, reconcile
from connectors.delta.rows import decode_rows
from connectors.delta.tables import AUDIT_TABLES
from connectors.kafka.own_topics import Topics
from pipelines import failpoints
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.micro_batch import MicroBatchApplier
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.publish import Publisher
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import MicroBatch
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.laps import Lap
from popstream.wire.base_errors import Fenced
from tests.model.generator import PARTITIONS, iterate
from tests.simulation.disk import Disk, MemoryStore, SimulatedProducer, SimulatedTables
from tests.support.left_behind import answers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipelines.decide_ops.entry import Entry
    from popstream.wire.dead_letter import DeadLetter

__all__ = ["RunState", "SimulatedCrash", "World", "disturbed", "log_of", "undisturbed"]

TOPICS = Topics.of("popstream")
RESULTS_PARTITIONS = 3
KERNEL_FAMILIES = (STATE, OPS, DEADLINES)


BETWEEN_BATCHES = {"commit", "flush_begin", "flush", "table_commit", "table_committed", "table_synced"}
"""Elsewhere a crash leaves a micro-batch half decided in memory, which no process that lives on has."""


class SimulatedCrash(BaseException):
    """The process dies here."""


class RunState:
    """What is left, in a form that two runs can be compared by."""

    def __init__(self, disk: Disk) -> None:
        self.state = {family: dict(disk.store.scan(family, b"")) for family in KERNEL_FAMILIES}
        self.rows = {table: _rows(disk, table) for table in AUDIT_TABLES}
        frames = [value for _, _, value in disk.topics.get(TOPICS.results, []) if value is not None]
        self.answers = answers_of(iter(frames))
        self.notifications = {record[1:] for record in disk.topics.get(TOPICS.notifications, [])}
        self.dead_letters = {record[1:] for record in disk.topics.get(TOPICS.dead_letters, [])}

    def differences(self, other: RunState) -> list[str]:
        """What differs, by name."""
        return [name for name, value in vars(self).items() if value != vars(other)[name]]


class NoAttempts:
    """In place of `Attempts`, counts nothing: deaths by chance are many here, and are no fault of the records."""

    alone = None

    def begin(self, _next_offset: dict[int, int], _alone: tuple[int, int] | None = None) -> int:
        """See `Attempts.begin`."""
        return 1

    def end(self) -> None:
        """See `Attempts.end`."""

    def forget(self) -> None:
        """See `Attempts.forget`."""


class Plans:
    """In place of Spark's checkpoint."""

    def __init__(self, query_id: str) -> None:
        self.query_id = query_id
        self.ends: list[dict[int, int]] = []

    def end_of(self, spark_batch_id: int) -> dict[int, int]:
        """See `Plans.end_of`."""
        return self.ends[spark_batch_id]


class Letters:
    """In place of the dead letters' reader: every message has left its topic."""

    def start(self, on_read: Callable[..., None], on_failure: Callable[[Exception], None]) -> None:  # noqa: ARG002
        """See `DeadLetterReader.start`."""
        self._on_read = on_read

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        """See `DeadLetterReader.read`."""
        self._on_read(entry, letter, ((offset, None) for offset in range(letter.first, letter.last + 1)))

    def close(self) -> None:
        """See `DeadLetterReader.close`."""


class OwnPrefix:
    """See `HeldPrefix`: no other folder has this prefix."""

    is_fenced = False

    def require(self) -> None:
        """See `HeldPrefix.require`."""


class Instance:
    """One life of the job's process."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number, disk = world, number, world.disk
        disk.owner = number
        stored = disk.store.get(META, APPLIED_KEY)
        known = None if stored is None else Applied.decode(stored)
        applied = known or Applied(state_epoch=f"epoch {number}", ops_topic=TOPICS.ops, ops_topic_id="id")
        self.tables = SimulatedTables(disk, applied.state_epoch, world.pass_place)
        reconcile(
            known,
            decode_noted(disk.store.get(META, NOTED_KEY)),
            LogFound(
                topic=TOPICS.ops,
                topic_id="id",
                first_offset=dict.fromkeys(range(PARTITIONS), 0),
                end_offset=dict(world.visible),
            ),
            [TableFound(name=table, delivered=disk.versions(table)) for table in AUDIT_TABLES],
        )
        self.plans = Plans(f"query {number}")
        self.outbox = Outbox(disk.store)
        self.producer = SimulatedProducer(disk)
        self.publisher = Publisher(
            TOPICS, self.outbox, self.producer, Letters(), OwnPrefix(), on_failure=lambda _: None
        )
        self.publisher.start()
        quarantine = Quarantine(disk.store)
        self.apply_ops = MicroBatchApplier(
            store=disk.store,
            require_ownership=self._require_ownership,
            outbox=self.outbox,
            attempts=NoAttempts(),  # type: ignore[arg-type]
            quarantine=quarantine,
            applied=applied,
            decider=OpsDecider(
                disk.store,
                partial(quarantine.decode, decoder=Decoder(PARTITIONS)),
                results_partitions=RESULTS_PARTITIONS,
            ),
            source=self,
            plans=self.plans,
            delivered=self.tables.committed,
            publish=self.publisher.publish,
            after_micro_batch=lambda _: failpoints.failpoint("commit"),
        )
        self.flush = DeltaFlush(self.outbox, self.tables, applied_seq=lambda: self.apply_ops.applied.apply_seq)

    def records(self, micro_batch: MicroBatch) -> Iterator[list[KafkaRecord]]:
        """See `RecordSource.records`: one slice, or two."""
        first: dict[int, int] = self._first[micro_batch.spark_batch_id]
        end = self.plans.ends[micro_batch.spark_batch_id]
        records = [record for p in range(PARTITIONS) for record in self._world.log[p][first.get(p, 0) : end.get(p, 0)]]
        cut = micro_batch.spark_batch_id % 3 * len(records) // 3
        yield records[:cut]
        yield records[cut:]

    _first: dict[int, dict[int, int]]

    def run_batch(self, end: dict[int, int]) -> None:
        """A micro-batch from where the one before ended, or from where the state is."""
        plans = self.plans.ends
        self._first = getattr(self, "_first", {})
        self._first[len(plans)] = dict(plans[-1] if plans else self.apply_ops.applied.next_offset)
        plans.append({p: max(end[p], self._first[len(plans)].get(p, 0)) for p in end})
        self.run_again()

    def run_again(self) -> None:
        """The last micro-batch, as Spark runs one again that it had not noted."""
        if self.plans.ends:
            self.apply_ops(MicroBatch(len(self.plans.ends) - 1, None, Lap("fetch")))

    @property
    def is_between_batches(self) -> bool:
        """The last micro-batch that was planned is applied."""
        decided = self.apply_ops.applied.next_offset
        return not self.plans.ends or all(decided.get(p, 0) >= end for p, end in self.plans.ends[-1].items())

    def _require_ownership(self) -> None:
        if self._world.disk.owner != self._number:
            message = "another process has taken over"
            raise Fenced(message)


class World:
    """One log, and one job over it that dies as often as `chance` wants."""

    def __init__(
        self,
        records: list[KafkaRecord],
        store: Any,
        chance: random.Random,
        crash_rate: float,
        disk: Disk | None = None,
    ) -> None:
        self.log: dict[int, list[KafkaRecord]] = defaultdict(list)
        for record in records:
            of_partition = self.log[record.partition]
            of_partition.append(record._replace(kafka_offset=len(of_partition)))
        self.visible = dict.fromkeys(range(PARTITIONS), 0)
        self.disk = disk or Disk(store)
        store.hook = self.pass_place
        self.crashes: list[str] = []
        self.fenced = 0
        self._chance = chance
        self._crash_rate = crash_rate
        self._instances = 0
        self._instance: Instance | None = None
        self._zombie: Instance | None = None

    def pass_place(self, name: str) -> None:
        """Every await-point of the job comes by here."""
        if not self._crash_rate:
            return
        if self._chance.random() < self._crash_rate:
            raise SimulatedCrash(name)
        if name.startswith(("flush", "table")) and self._chance.random() < 0.2:
            self._decide_some()  # the flush is a thread of its own: micro-batches go on beside it

    def run(self) -> RunState:
        """Until all is decided and delivered; what is left then."""
        failpoints.arm(self.pass_place)
        try:
            instance = self._started()
            while not self._is_done(instance):
                try:
                    self._step(instance)
                except SimulatedCrash as crash:
                    instance = self._after(crash, instance)
            self._crash_rate = 0.0
            instance.publisher.stop()
            instance.flush.flush()
            instance.run_batch(self._ends())
            return RunState(self.disk)
        finally:
            failpoints.arm(None)

    def _step(self, instance: Instance) -> None:
        chance = self._chance
        what = chance.random()
        if what < 0.3:
            for partition in range(PARTITIONS):
                end = self.visible[partition] + chance.choice([0, 1, 3, 20])
                self.visible[partition] = min(end, len(self.log[partition]))
        elif what < 0.6:
            self._decide_some()
        elif what < 0.65:
            instance.run_again()
        elif what < 0.8:
            instance.flush.flush()
        elif what < 0.97:
            instance.producer.pump(chance.choice([1, 2, 50]))
        else:
            self._wake_zombie()

    def _decide_some(self) -> None:
        instance = self._instance
        if instance is not None:
            decided = instance.apply_ops.applied.next_offset
            first = {p: decided.get(p, 0) for p in self.visible}
            ends = {p: self._chance.randint(first[p], max(end, first[p])) for p, end in self.visible.items()}
            instance.run_batch(ends)

    def _started(self) -> Instance:
        while True:
            self._instances += 1
            self._instance = None
            try:
                self._instance = instance = Instance(self, self._instances)
            except SimulatedCrash as crash:
                self.crashes.append(str(crash))
            else:
                return instance

    def _after(self, crash: SimulatedCrash, instance: Instance) -> Instance:
        self.crashes.append(str(crash))
        instance.producer.die(self._chance)
        if self._chance.random() < 0.4:
            self.disk.lose_power()
        elif str(crash) in BETWEEN_BATCHES and self._chance.random() < 0.5 and isinstance(self.disk.store, MemoryStore):
            self._zombie = instance  # it was only cut off, and comes to itself later
            self.disk.store = self.disk.store.copy()
        return self._started()

    def _wake_zombie(self) -> None:
        """A process that was taken for dead goes on; it must not get far."""
        if self._zombie is None:
            return
        zombie, self._zombie = self._zombie, None
        rate, self._crash_rate = self._crash_rate, 0.0
        before = dict(zombie.apply_ops.applied.next_offset)
        try:
            if zombie.is_between_batches:
                zombie.run_batch(self._ends())
            else:
                zombie.run_again()
            assert zombie.apply_ops.applied.next_offset == before, "two processes decided"
        except Fenced:
            self.fenced += 1
        finally:
            self._crash_rate = rate

    def _ends(self) -> dict[int, int]:
        return dict(self.visible)

    def _is_done(self, instance: Instance) -> bool:
        ends = {p: len(self.log[p]) for p in range(PARTITIONS)}
        decided = instance.apply_ops.applied.next_offset
        return all(decided.get(p, 0) == end for p, end in ends.items()) and self.visible == ends


def undisturbed(seed: int, records: int) -> RunState:
    """What a job makes of the log of a seed that nothing happens to."""
    return World(log_of(seed, records), MemoryStore(), random.Random(-seed - 1), 0.0).run()


def disturbed(seed: int, records: int, store: Any = None) -> tuple[World, RunState]:
    """What one makes of it that dies and starts again."""
    chance = random.Random(seed)
    world = World(log_of(seed, records), store or MemoryStore(), chance, chance.choice([0.005, 0.02, 0.08]))
    return world, world.run()


def log_of(seed: int, records: int) -> list[KafkaRecord]:
    """The log of a seed."""
    return [KafkaRecord(*record, value_bytes=len(record.value)) for record in iterate(seed, records)]


def _rows(disk: Disk, table: str) -> list[dict[str, Any]]:
    slices = [data for commit in disk.commits.get(table, ()) for _, data in commit.slices]
    if not slices:
        return []
    key = ("partition", "kafka_offset", "ordinal")
    rows: list[dict[str, Any]] = decode_rows(table, slices).to_pylist()
    return sorted(rows, key=lambda row: tuple(row[name] for name in key))
