"""The base of a verification: the state before its first record."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound, lost_records
from checkpoints.snapshot_store import DamagedSnapshot, Snapshot
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["NEWEST", "Base", "Snapshots", "choose_base", "name_of_base"]

NEWEST = "newest"

_LATER = "run `popstream snapshot` now, to be able to verify from there on"


class Snapshots(Protocol):
    """What a verification may begin with: a `SnapshotStore`, or another place of states."""

    def list(self) -> Sequence[Snapshot]:
        """Return them, the newest first. Raises Unavailable."""

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """Copy the state of one to `state` in a folder. Raises Corrupt or Unavailable."""


class Base(NamedTuple):
    """Where a verification begins.

    Attributes:
        next_offset: By partition.
        snapshot: Id of the snapshot; None: an empty state.
        instead: What to do if a file of it is damaged.
    """

    next_offset: dict[int, int]
    snapshot: str | None = None
    instead: str = ""

    @property
    def name(self) -> str:
        """Its name, for people."""
        return name_of_base(self.snapshot)


def name_of_base(snapshot: str | None) -> str:
    """Return the name of an empty state, or of the snapshot with this id."""
    return "an empty state" if snapshot is None else f"snapshot {snapshot}"


def choose_base(
    applied: Applied,
    log: LogFound,
    snapshots: Snapshots,
    folder: Path,
    since: str | None,
    since_loss: Sequence[str],
) -> Base:
    """Return the base; the files of a snapshot are copied to `folder`.

    Args:
        applied: Of the state to verify.
        log: The ops topic.
        snapshots: The snapshots to choose from.
        folder: Is created if the base is a snapshot.
        since: Id of the snapshot, or `newest`, the newest one before the state. By default the start of the log, or the
            oldest snapshot after which the log is complete.
        since_loss: State epochs since a restore with losses, to which the log alone does not lead.

    Raises:
        Corrupt: The log is complete after no snapshot, or the snapshot is damaged.
        Invalid: The log is not complete after the snapshot `since`.
        Unavailable: The snapshots cannot be read.
    """
    empty: dict[int, int] = dict.fromkeys(log.end_offset, 0)
    has_start = not since_loss and not lost_records(empty, log)
    if since is None and has_start:
        return Base(empty)
    newest_first = [snapshot for snapshot in snapshots.list() if _leads_to(snapshot.applied, applied, log, since_loss)]
    wanted = newest_first[::-1] if since is None else newest_first
    if since == NEWEST:  # there have to be records between it and the state
        wanted = [snapshot for snapshot in wanted if snapshot.applied.next_offset != applied.next_offset]
    elif since is not None:
        wanted = [snapshot for snapshot in wanted if snapshot.id == since]
    for snapshot in wanted:
        others = [other for other in newest_first if other != snapshot]
        try:
            snapshots.fetch(snapshot, folder)
        except Corrupt as error:
            # A running job may have deleted it in the meantime, the oldest one first.
            is_kept = any(snapshot.id == kept.id for kept in snapshots.list())
            shutil.rmtree(folder, ignore_errors=True)
            if since is None and not is_kept:
                continue
            if isinstance(error, DamagedSnapshot):
                others = [other for other in others if not other.shares(error.sha256)]
            raise Corrupt(f"{error.message}: {_instead(others, has_start=has_start)}", subject=snapshot.id) from error
        return Base({**empty, **snapshot.applied.next_offset}, snapshot.id, _instead(others, has_start=has_start))
    if since is not None:
        instead = _instead(newest_first, has_start=has_start)
        message = f"the log is not complete after a snapshot `{since}` of this state: {instead}"
        raise Invalid(message, subject=since)
    message = (
        f"{log.topic} does not reach back to its start or to any snapshot of this state, so the state cannot be"
        f" verified; it may be correct: {_LATER}"
    )
    raise Corrupt(message, subject=log.topic)


def _leads_to(before: Applied, after: Applied, log: LogFound, since_loss: Sequence[str]) -> bool:
    """Return whether the log is complete between a snapshot and the state."""
    is_before = all(offset <= after.next_offset.get(p, 0) for p, offset in before.next_offset.items())
    is_ours = before.state_epoch in (since_loss or after.epochs)
    return before.ops_topic_id == log.topic_id and is_before and is_ours and not lost_records(before.next_offset, log)


def _instead(others: Sequence[Snapshot], *, has_start: bool) -> str:
    """Return where else to begin; `others` are snapshots that lead to the state, the newest first."""
    if others:
        return f"begin after another one, `popstream verify --since {shlex.quote(others[-1].id)}`"
    return "begin at the start of the log, `popstream verify`" if has_start else f"no other one will do; {_LATER}"
