"""The states with which a job could go on, and what is given up with each.

```
candidates, best first      the present state, snapshots from the newest on, an empty state, and the states that earlier
                            restores put aside: before the empty one if there is no present state, as after a restore
                            that was killed
each must                   open, be of this ops topic, have its next records in the log,
                            and have had no rows in Delta that are there no more (`checkpoints.losses`)
```
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
from checkpoints.snapshots import Snapshot, SnapshotStore
from popstream.wire.failures import Corrupt, Invalid

__all__ = ["EMPTY", "PRESENT", "PUT_ASIDE", "Candidate", "Judged", "find_candidates", "judge", "read_all"]

PRESENT = "the present state"
PUT_ASIDE = "the state that was put aside"
EMPTY = "an empty state"


class Candidate(NamedTuple):
    """A state that there is.

    Attributes:
        source: What it is, for people.
        put: Puts its files (`state`, and perhaps `queues`) into a folder.
    """

    source: str
    put: Callable[[Path], None]


class Judged(NamedTuple):
    """One that can be continued.

    Attributes:
        source: As the candidate has it.
        place: Its files are there until the next one is asked for.
        found: What it knows of itself.
        losses: What is given up with it.
    """

    source: str
    place: Path
    found: Continuable
    losses: Losses


def find_candidates(folder: JobFolder, snapshots: SnapshotStore, only: str | None) -> Iterator[Candidate]:
    """Best first.

    Raises:
        Invalid: There is no snapshot `only`.
    """

    def fetched(snapshot: Snapshot) -> Candidate:
        return Candidate(f"snapshot {snapshot.id}", lambda place: snapshots.fetch(snapshot, place))

    def put_aside(state: Path) -> Candidate:
        return Candidate(f"{PUT_ASIDE} in {state.parent.name}", lambda place: _copy(state, place))

    kept = {snapshot.id: snapshot for snapshot in snapshots.list()}
    if only is not None:
        if only not in kept:
            message = (
                f"there is no snapshot {only} at {snapshots.url}: `popstream snapshot --list` tells which there are"
            )
            raise Invalid(message, subject=only)
        yield fetched(kept[only])
        return
    aside = [put_aside(state) for state in sorted(folder.replaced.glob("*/state"), reverse=True)]
    empty = Candidate(EMPTY, lambda place: (place / "state").mkdir(parents=True))
    has_state = folder.state.is_dir()
    if has_state:
        yield Candidate(PRESENT, lambda place: _copy(folder.state, place))
    for snapshot in kept.values():
        yield fetched(snapshot)
    yield from [empty, *aside] if has_state else [*aside, empty]


def judge(
    candidates: Iterable[Candidate],
    folder: JobFolder,
    log: LogFound,
    whole: Mapping[str, Mapping[str, int]],
    passed_over: dict[str, str],
    *,
    was_more: bool,
    lossy: bool,
) -> Generator[Judged]:
    """Those with which nothing is given up, as they come; then, with consent, the others, the least loss first.

    The least loss: that of rows alone before that of records, and of these the fewest offsets.

    Args:
        candidates: Best first.
        folder: Of the job; they are looked at in its scratch.
        log: The ops topic.
        whole: By table, the last apply_seq of each state epoch up to which all its rows are there.
        passed_over: Is told why another was not taken, by its source.
        was_more: The tables have rows of another log.
        lossy: There is consent.

    Raises:
        Unavailable: A place does not answer, or the disk is full: that is no reason against a state.
        Corrupt: No state can be continued: the log has lost its end, or has other partitions.
    """
    costly: list[tuple[Candidate, Losses]] = []
    for candidate in candidates:
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(_placed(candidate, folder))
                found = _read(place)
            except DiskFull:
                raise
            except (Corrupt, Invalid, StoreStopped) as error:
                passed_over[candidate.source] = error.message
                continue
            if problem := _problem(candidate, found, log):
                passed_over[candidate.source] = problem
                continue
            losses = losses_of(found, log, whole, was_more=was_more)
            was_more |= bool(found.replay.since_loss) or found.is_of_another(log)
            if not losses.lines:
                yield Judged(candidate.source, place, found, losses)
                continue
            passed_over[candidate.source] = f"{'; '.join(losses.lines)} (`--lossy` accepts that)"
            costly.append((candidate, losses))
    if lossy:
        for candidate, losses in sorted(costly, key=lambda one: _loss(one[1])):
            with _placed(candidate, folder) as place:
                yield Judged(candidate.source, place, _read(place), losses)


def _loss(losses: Losses) -> tuple[bool, int, bool]:
    return bool(losses.records), losses.offsets, bool(losses.rows)


@contextlib.contextmanager
def _placed(candidate: Candidate, folder: JobFolder) -> Iterator[Path]:
    place = folder.scratch / f"restore-{uuid.uuid4().hex}"
    try:
        candidate.put(place)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _copy(state: Path, place: Path) -> None:
    """Opened where it is it would be changed; it stays as it is until it is replaced."""
    place.mkdir(parents=True)
    try:
        shutil.copytree(state, place / "state", copy_function=_link)
    except OSError as error:
        message = f"{state} cannot be copied: {error}"
        raise (DiskFull if "No space left" in str(error) else StoreStopped)(message, subject=str(state)) from error


def _link(source: str, target: str) -> None:
    """SST files never change and may be shared, on one disk; the rest is written to."""
    if source.endswith(".sst"):
        with contextlib.suppress(OSError):
            Path(target).hardlink_to(source)
            return
    shutil.copy2(source, target)


def _read(place: Path) -> Continuable:
    with RocksStore(place / "state") as state:
        if state.get(META, APPLIED_KEY) is None:
            return Continuable()
        read_all(state, FAMILIES)
        return Continuable(
            applied=applied_of(state), noted=decode_noted(state.get(META, NOTED_KEY)), replay=replay_of(state)
        )


def read_all(store: RocksStore, families: Iterable[Family]) -> None:
    """RocksDB checks each block that is read."""
    for family in families:
        for _ in store.scan(family, b""):
            pass


def _problem(candidate: Candidate, found: Continuable, log: LogFound) -> str | None:
    """Why nobody would want to continue this."""
    if found.applied is None:
        return None if candidate.source == EMPTY else "it has decided nothing"
    return None if found.applied.ops_topic == log.topic else f"it is of {found.applied.ops_topic}"
