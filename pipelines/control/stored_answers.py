"""Answers from the stored state, where no job runs."""

from broker_state.store.rocks_store import BUILDER_FAMILIES, META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest, views_of
from pipelines.control.lane_views import selected_queues
from pipelines.control.messages import Policies, PoliciesRequest, Status, StatusRequest
from pipelines.control.policy_views import policies_in
from popstream.wire.base_errors import Invalid

__all__ = ["stored_policies", "stored_queues", "stored_status"]


def stored_status(folder: JobFolder, request: StatusRequest) -> Status:
    """Return the status from the stored state. No process may own the folder (`is_owned`).

    Raises:
        Invalid: The state cannot be opened.
        Corrupt: A stored value cannot be decoded.
    """
    with RocksStore(folder.state, read_only=True) as store:
        stored = store.get(META, APPLIED_KEY)
        queues, is_cut = selected_queues(store, request.group, request.topic, request.limit, request.skip)
    return Status(
        running=False,
        folder=str(folder.root),
        apply_seq=Applied.decode(stored).apply_seq if stored is not None else 0,
        queues=queues,
        is_cut=is_cut,
    )


def stored_policies(folder: JobFolder, request: PoliciesRequest) -> Policies:
    """Return the rules in the stored state. No process may own the folder (`is_owned`).

    Raises:
        Invalid: The state cannot be opened.
        Corrupt: A stored value cannot be decoded.
    """
    with RocksStore(folder.state, read_only=True) as store:
        return Policies(*policies_in(store, request.topic, request.group, request.limit, request.skip))


def stored_queues(folder: JobFolder, request: QueueRequest) -> list[ConsumeQueueView]:
    """Return the stored consume queues. No process may own the folder (`is_owned`).

    Raises:
        Invalid: No queues were built in this folder, or the request matches none.
        Corrupt: A stored value cannot be decoded.
    """
    if not folder.queues.is_dir():
        message = f"no queues were ever built in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    with (
        RocksStore(folder.queues, BUILDER_FAMILIES, read_only=True) as queues,
        RocksStore(folder.state, read_only=True) as state,
    ):
        return views_of(queues, state, request)
