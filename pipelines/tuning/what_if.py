"""What other settings would have changed in a range of the ops log."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import SnapshotStore
from pipelines.recovery.ops_log import offsets_at
from pipelines.recovery.progress import Progress, ProgressReport
from pipelines.recovery.replay_source import ReplaySource
from pipelines.recovery.worker_pool import run_processes
from pipelines.tuning import worker
from pipelines.tuning.handlings import Evidence
from pipelines.tuning.log_range import LogRange, find_range
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.share import LaneResult, ReplayResult
from pipelines.tuning.tally import LaneOutcome, total
from pipelines.tuning.worker import ReplayTask
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid
from popstream.wire.signing import KeyRing

__all__ = ["GroupResult", "WhatIf", "WhatIfInputs", "what_if"]


@dataclass(frozen=True, kw_only=True)
class WhatIfInputs:
    """What is replayed.

    Attributes:
        log: The ops topic.
        connection: The Kafka with it.
        snapshots: The snapshots to begin with.
        handle_ring: The job's keys of handles; None: it has none.
        admin_ring: Its keys of administrators, likewise.
    """

    log: LogFound
    connection: KafkaConnection
    snapshots: SnapshotStore
    handle_ring: KeyRing | None = None
    admin_ring: KeyRing | None = None


class GroupResult(msgspec.Struct, kw_only=True):
    """A group in one topic: the sums over its lanes.

    Attributes:
        topic: The topic.
        group: The group.
        lanes: Number of its lanes.
        fact: What became of its messages.
        what_if: What would have become of them.
        evidence: Messages of deliveries as they would have been, by where their handling is taken from.
        renews: Whether its clients renew leases.
    """

    topic: str
    group: str
    lanes: int
    fact: LaneOutcome
    what_if: LaneOutcome
    evidence: dict[str, int]
    renews: bool


class WhatIf(msgspec.Struct, kw_only=True):
    """The result of a replay.

    Attributes:
        settings: What was different, by name.
        from_ms: Time of the first record of the range, ms since 1970.
        until_ms: Of the last one.
        base: The state before the first record: an empty state, or a snapshot.
        records: Records of the range.
        decided_again: Records that were decided with the other settings, ticks included.
        groups: Each group in each topic.
        lanes: Each lane.
    """

    settings: dict[str, Any]
    from_ms: int
    until_ms: int
    base: str
    records: int
    decided_again: int
    groups: list[GroupResult]
    lanes: list[LaneResult]


def what_if(
    inputs: WhatIfInputs,
    settings: OtherSettings,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    work: Path | None = None,
    processes: int | None = None,
    on_report: Callable[[ProgressReport], None] = lambda _: None,
) -> WhatIf:
    """Decide a range of the log as it was, and with other settings.

    Args:
        inputs: What is replayed.
        settings: What is different.
        from_ms: Begin of the range; None: as early as log and snapshots allow.
        until_ms: End of the range, exclusive; None: the end of the log.
        work: A folder with space for two copies of the state; None: that for temporary files.
        processes: Processes that decide; by default one for each core.
        on_report: Called every few seconds.

    Raises:
        Invalid: The settings are out of range, or change nothing. Or the range is empty, is too long, begins too early,
            or a group has got nothing in it.
        Corrupt: A file of a snapshot is damaged.
        Unavailable: Kafka does not answer, the disk is full, or a process was killed.
    """
    settings.require_valid()
    progress = Progress(on_report)
    found = _range(inputs, from_ms, until_ms)
    with tempfile.TemporaryDirectory(prefix="popstream-what-if-", dir=work) as folder:
        shares = _run(_tasks(inputs, settings, found, Path(folder), processes or os.cpu_count() or 1), progress)
    if not any(share.records for share in shares):  # offsets without a record, such as aborted transactions
        message = f"{inputs.log.topic} has no record in this range"
        raise Invalid(message, subject=inputs.log.topic)
    lanes = sorted((lane for share in shares for lane in share.lanes), key=lambda lane: (lane.topic, lane.queue_id))
    _require_groups(settings, lanes)
    lanes = [lane for lane in lanes if settings.are_of(lane.group)]
    return WhatIf(
        settings=settings.changed,
        from_ms=min((share.first_ms for share in shares if share.records), default=0),
        until_ms=max(share.last_ms for share in shares),
        base="an empty state" if found.base is None else f"snapshot {found.base.id}",
        records=sum(share.records for share in shares),
        decided_again=sum(share.decided_again for share in shares),
        groups=_groups(lanes),
        lanes=lanes,
    )


def _range(inputs: WhatIfInputs, from_ms: int | None, until_ms: int | None) -> LogRange:
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        message = "the range is empty: --until is not after --from"
        raise Invalid(message)
    log = inputs.log
    begin = None if from_ms is None else offsets_at(inputs.connection, log, from_ms)
    end = log.end_offset if until_ms is None else offsets_at(inputs.connection, log, until_ms)
    return find_range(log, inputs.snapshots.list(), begin, end)


def _tasks(
    inputs: WhatIfInputs, settings: OtherSettings, found: LogRange, folder: Path, processes: int
) -> list[ReplayTask]:
    base = None
    if found.base is not None:
        inputs.snapshots.fetch(found.base, folder / "base")
        base = str(folder / "base" / "state")
    # The longest first, each to the process that has the least to do.
    partitions = sorted(found.partitions, key=lambda each: each.first - each.end)
    shares: list[list[Any]] = [[] for _ in range(min(processes, len(partitions)))]
    for each in partitions:
        min(shares, key=lambda share: sum(one.end - one.first for one in share)).append(each)
    source = ReplaySource(
        connection=inputs.connection,
        topic=inputs.log.topic,
        partition_count=len(inputs.log.end_offset),
        handle_ring=inputs.handle_ring,
        admin_ring=inputs.admin_ring,
    )
    return [
        ReplayTask(
            source=source,
            partitions=share,
            base=base,
            folder=str(folder / f"share-{number}"),
            settings=settings,
        )
        for number, share in enumerate(shares)
    ]


def _run(tasks: Sequence[ReplayTask], progress: Progress) -> list[ReplayResult]:
    results = run_processes(
        worker.__name__, dict(enumerate(tasks)), progress, what="the replay", advice="run the same command again"
    )
    return [msgspec.json.decode(result, type=ReplayResult) for result in results.values()]


def _require_groups(settings: OtherSettings, lanes: Iterable[LaneResult]) -> None:
    """Refuse a group that has got nothing in the range: it may be a typo."""
    known = {lane.group for lane in lanes}
    if unknown := sorted(set(settings.groups) - known):
        names = ", ".join(sorted(known)) or "none"
        message = f"the group {unknown[0]} received no message in this range; groups that did: {names}"
        raise Invalid(message, subject=unknown[0])
    if not known:
        message = "no group received a message in this range"
        raise Invalid(message)


def _groups(lanes: Iterable[LaneResult]) -> list[GroupResult]:
    by_group: dict[tuple[str, str], list[LaneResult]] = {}
    for lane in lanes:
        by_group.setdefault((lane.group, lane.topic), []).append(lane)
    return [
        GroupResult(
            topic=topic,
            group=group,
            lanes=len(found),
            fact=total([lane.fact for lane in found]),
            what_if=total([lane.what_if for lane in found]),
            evidence={each.value: sum(lane.evidence.get(each.value, 0) for lane in found) for each in Evidence},
            renews=any(lane.renews for lane in found),
        )
        for (group, topic), found in sorted(by_group.items())
    ]
