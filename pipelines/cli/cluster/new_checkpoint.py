"""What to do with a job on a cluster whose state is lost or wrong: it goes on in a new checkpoint."""

__all__ = ["in_new_checkpoint"]


def in_new_checkpoint(snapshot: str | None) -> str:
    """Return how the job goes on with this snapshot; None: there is none that will do.

    >>> in_new_checkpoint("20300101T000000Z-000000000007").partition(": ")[2]
    '`popstream migrate to-cluster --snapshot 20300101T000000Z-000000000007 --checkpoint NEW-URL`'
    """
    if snapshot is None:
        return "start it with --take-over, a new --checkpoint and new --tables: it decides the log from its start"
    command = f"popstream migrate to-cluster --snapshot {snapshot} --checkpoint NEW-URL"
    return f"it goes on with a snapshot in a new checkpoint: `{command}`"
