"""The base of a verification: the state before its first record."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound, lost_records
from checkpoints.snapshot_store import Snapshot
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["NEWEST", "Base", "Snapshots", "choose_base"]

NEWEST = "newest"


class Snapshots(Protocol):
    """What a verification may begin with: a `SnapshotStore`, or another place of states."""

    def list(self) -> Sequence[Snapshot]:
        """Return them, the newest first. Raises Unavailable."""

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """Copy the state of one to `state` in a folder. Raises Corrupt or Unavailable."""


class Base(NamedTuple):
    """Where a verification begins: `next_offset` by partition; `name` is for people."""

    next_offset: dict[int, int]
    name: str
    is_empty: bool


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
    if since is None and not since_loss and not lost_records(empty, log):
        return Base(empty, "an empty state", is_empty=True)
    newest_first = [snapshot for snapshot in snapshots.list() if since in {None, NEWEST, snapshot.id}]
    for snapshot in newest_first if since is not None else reversed(newest_first):
        found = snapshot.applied
        if since == NEWEST and found.next_offset == applied.next_offset:
            continue  # there are no records between it and the state
        is_before = all(offset <= applied.next_offset.get(p, 0) for p, offset in found.next_offset.items())
        is_ours = found.state_epoch in (since_loss or applied.epochs)
        if found.ops_topic_id == log.topic_id and is_before and is_ours and not lost_records(found.next_offset, log):
            try:
                snapshots.fetch(snapshot, folder)
            except Corrupt as error:
                # A running job may have deleted it in the meantime, the oldest one first.
                is_kept = any(snapshot.id == kept.id for kept in snapshots.list())
                shutil.rmtree(folder, ignore_errors=True)
                if since is None and not is_kept:
                    continue
                message = (
                    f"{error.message}: begin after another one, `popstream verify --since newest` or that of an id"
                    " of `popstream snapshot --list`"
                )
                raise Corrupt(message, subject=snapshot.id) from error
            return Base({**empty, **found.next_offset}, f"snapshot {snapshot.id}", is_empty=False)
    if since is not None:
        message = (
            f"the log is not complete after a snapshot `{since}` of this state: `popstream snapshot --list` lists them"
        )
        raise Invalid(message, subject=since)
    message = (
        f"{log.topic} does not reach back to its start or to any snapshot of this state, so the state cannot be"
        " verified; it may be correct. Run `popstream snapshot` now, to be able to verify from there on"
    )
    raise Corrupt(message, subject=log.topic)
