"""The states with which a job could continue, and what would be lost with each.

Candidates, best first: the present state; snapshots, newest first; an empty state; the states that earlier restores
moved to `replaced/`. Without a present state, as after a restore that was killed, the last two change places.

A candidate can be continued if it opens and is of this ops topic. With it are lost (`checkpoints.losses`) the records
after it that are no longer in the log, and rows that it knew to be in Delta and that are missing there.
"""

import contextlib
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from broker_state.store.overlay import Family
from broker_state.store.rocks_store import FAMILIES, META, DiskFull, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, applied_of, decode_noted
from checkpoints.layout import JobFolder
from checkpoints.losses import Continuable, Losses, losses_of
from checkpoints.reconcile import LogFound
from checkpoints.replay import replay_of
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from checkpoints.table_file import verify_tables
from pipelines.apply_ops.quarantine import QuarantinedRecord
from pipelines.recovery.known_quarantine import quarantine_in
from popstream.wire.base_errors import Corrupt, Invalid, without_restore

__all__ = [
    "EMPTY",
    "NO_SNAPSHOT",
    "PRESENT",
    "PUT_ASIDE",
    "Candidate",
    "PassedOver",
    "UsableState",
    "find_candidates",
    "read_all",
    "usable_states",
]

PRESENT = "the present state"
PUT_ASIDE = "the state that was put aside"
EMPTY = "an empty state"
NO_SNAPSHOT = "none"
"""In place of the id of a snapshot: an empty state, with which the log is decided from its start."""


class Candidate(NamedTuple):
    """A state to look at.

    Attributes:
        source: Its origin, for people.
        copy_to: Copies its files (`state`, and perhaps `queues`) to a folder.
    """

    source: str
    copy_to: Callable[[Path], None]


class PassedOver(NamedTuple):
    """Why a candidate is not taken: a line for each reason, which a lossy restore accepts if they are losses."""

    reasons: list[str]
    are_losses: bool = False


class UsableState(NamedTuple):
    """A candidate that can be continued.

    Attributes:
        source: Its origin, for people.
        folder: A copy of its files, until the iterator that yielded it advances.
        found: Its own notes: applied offsets, rows in Delta, earlier restores.
        losses: What is lost with it.
    """

    source: str
    folder: Path
    found: Continuable
    losses: Losses


def snapshot_of_id(snapshots: SnapshotStore, snapshot_id: str) -> Snapshot:
    """Return a snapshot. Raises Invalid if there is none with this id."""
    for snapshot in snapshots.list():
        if snapshot.id == snapshot_id:
            return snapshot
    message = f"there is no snapshot {snapshot_id} at {snapshots.url}: `popstream snapshot --list` lists them"
    raise Invalid(message, subject=snapshot_id)


def find_candidates(folder: JobFolder, snapshots: SnapshotStore, only: str | None) -> Iterator[Candidate]:
    """Yield the candidates, best first.

    Args:
        folder: Folder of the job.
        snapshots: The snapshots.
        only: Id of the one snapshot to yield, or `NO_SNAPSHOT` to yield the empty state; None yields all candidates.

    Raises:
        Invalid: There is no snapshot `only`.
    """

    def fetched(snapshot: Snapshot) -> Candidate:
        return Candidate(f"snapshot {snapshot.id}", lambda target: snapshots.fetch(snapshot, target))

    def put_aside(state: Path) -> Candidate:
        return Candidate(f"{PUT_ASIDE} in {state.parent.name}", lambda target: _copy(state, target))

    empty = Candidate(EMPTY, lambda target: (target / "state").mkdir(parents=True))
    if only == NO_SNAPSHOT:
        yield empty
        return
    if only is not None:
        yield fetched(snapshot_of_id(snapshots, only))
        return
    kept = {snapshot.id: snapshot for snapshot in snapshots.list()}
    aside = [put_aside(state) for state in sorted(folder.replaced.glob("*/state"), reverse=True)]
    has_state = folder.state.is_dir()
    if has_state:
        yield Candidate(PRESENT, lambda target: _copy(folder.state, target))
    for snapshot in kept.values():
        yield fetched(snapshot)
    yield from [empty, *aside] if has_state else [*aside, empty]


def usable_states(
    candidates: Iterable[Candidate],
    folder: JobFolder,
    log: LogFound,
    whole: Mapping[str, Mapping[str, int]],
    passed_over: dict[str, PassedOver],
    quarantine: dict[QuarantinedRecord, str],
    *,
    was_more: bool,
    lossy: bool,
) -> Generator[UsableState]:
    """Yield candidates with which nothing is lost; then, if `lossy`, the others, those with the least loss first.

    Losing rows is less than losing records; of records, the number of offsets counts.

    Args:
        candidates: Best first.
        folder: Folder of the job, for the copies.
        log: The ops topic.
        whole: By table and state epoch, the apply_seq up to which all rows are in Delta.
        passed_over: Gets each candidate that is not yielded, by source.
        quarantine: Gets the quarantined records of each candidate that can be opened, taken or not.
        was_more: The tables have rows of another log.
        lossy: Yield also candidates with which something is lost.

    Raises:
        Unavailable: A storage does not answer, or the disk is full, which is no reason against a candidate.
        Corrupt: No state can be continued: the log has lost its end, or has other partitions.
    """
    costly: list[tuple[Candidate, Losses]] = []
    for candidate in candidates:
        with contextlib.ExitStack() as stack:
            try:
                copy = stack.enter_context(_copied(candidate, folder))
                quarantine |= quarantine_in(copy / "state", log.topic_id)
                found = _read(copy)
            except DiskFull:
                raise
            except (Corrupt, Invalid, StoreStopped) as error:
                passed_over[candidate.source] = PassedOver([without_restore(error.message)])
                continue
            if problem := _problem(candidate, found, log):
                passed_over[candidate.source] = PassedOver([problem])
                continue
            losses = losses_of(found, log, whole, was_more=was_more)
            was_more |= bool(found.replay.since_loss) or found.is_of_another(log)
            if not losses.lines:
                yield UsableState(candidate.source, copy, found, losses)
                continue
            passed_over[candidate.source] = PassedOver(losses.lines, are_losses=True)
            costly.append((candidate, losses))
    if lossy:
        for candidate, losses in sorted(costly, key=lambda pair: _loss(pair[1])):
            with _copied(candidate, folder) as copy:
                yield UsableState(candidate.source, copy, _read(copy), losses)


def _loss(losses: Losses) -> tuple[bool, int, bool]:
    """Return the sort key of a loss, the least first."""
    return bool(losses.records), losses.offsets, bool(losses.rows)


@contextlib.contextmanager
def _copied(candidate: Candidate, folder: JobFolder) -> Iterator[Path]:
    copy = folder.scratch / f"restore-{uuid.uuid4().hex}"
    try:
        candidate.copy_to(copy)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy(state: Path, target: Path) -> None:
    """Copy a state, because RocksDB changes the files of a store that it opens."""
    target.mkdir(parents=True)
    try:
        shutil.copytree(state, target / "state", copy_function=_link_or_copy)
    except OSError as error:
        message = f"{state} cannot be copied: {error}"
        raise (DiskFull if "No space left" in str(error) else StoreStopped)(message, subject=str(state)) from error


def _link_or_copy(source: str, target: str) -> None:
    """Link an SST file, which never changes, if both places are on one disk; copy any other file."""
    if source.endswith(".sst"):
        with contextlib.suppress(OSError):
            Path(target).hardlink_to(source)
            return
    shutil.copy2(source, target)


def _read(copy: Path) -> Continuable:
    with RocksStore(copy / "state") as state:
        verify_tables(state)  # first, because it names the damaged file as a user knows it
        if state.get(META, APPLIED_KEY) is None:
            return Continuable()
        read_all(state, FAMILIES)
        return Continuable(
            applied=applied_of(state), noted=decode_noted(state.get(META, NOTED_KEY)), replay=replay_of(state)
        )


def read_all(store: RocksStore, families: Iterable[Family]) -> None:
    """Read every value, so that RocksDB verifies the blocks. It skips those that a range deletion covers."""
    for family in families:
        for _ in store.scan(family, b""):
            pass


def _problem(candidate: Candidate, found: Continuable, log: LogFound) -> str | None:
    """Return why a candidate cannot be continued, or None."""
    if found.applied is None:
        return None if candidate.source == EMPTY else "it has decided nothing"
    return None if found.applied.ops_topic == log.topic else f"it is of {found.applied.ops_topic}"
