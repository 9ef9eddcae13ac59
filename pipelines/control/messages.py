"""Requests to a running job and their answers, as they cross its control socket: one line of JSON each.

The field `ask` of a request names its kind. Every request carries the token of the job file.
"""

from typing import Annotated

import msgspec

from checkpoints.prefix_owner import Owner
from checkpoints.snapshot_store import Snapshot
from connectors.delta.table_sizes import TableSize
from pipelines.build_consume_queue.queue_view import BuilderStatus, ConsumeQueueView, QueueRequest
from pipelines.control.cluster_report import ClusterReport
from pipelines.control.lane_views import LANES_SHOWN, QueueView
from pipelines.control.metrics import Totals
from pipelines.control.micro_batch_history import RatePoint
from pipelines.control.page_messages import LanePage, LanesRequest, QueuePage, QueuesRequest, RatesRequest, Skip
from pipelines.control.policy_views import PolicyView
from pipelines.control_request import ControlRequest
from pipelines.printed_commands import completed_commands
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError, Unavailable

__all__ = [
    "Answer",
    "ApiPoliciesRequest",
    "ApiStatusRequest",
    "Failure",
    "Image",
    "ImageRequest",
    "JobReport",
    "OwnerView",
    "Policies",
    "PoliciesRequest",
    "RebuildRequest",
    "Rebuilt",
    "Request",
    "SnapshotRequest",
    "Status",
    "StatusRequest",
]


STATE_CHARACTERS = 8
"""Characters of a state epoch that are enough to tell states apart."""


class StatusRequest(ControlRequest, frozen=True, kw_only=True, tag="status"):
    """Asks for the status of the job.

    Attributes:
        group: Only lanes of this group, with their details.
        topic: Only queues of this topic.
        limit: Lanes shown at most, a queue without lanes counting as one; 0: the queues are not read.
        skip: Lanes before those, likewise.
    """

    group: str | None = None
    topic: str | None = None
    limit: int = LANES_SHOWN
    skip: Skip = 0


class ApiStatusRequest(StatusRequest, frozen=True, kw_only=True, tag="status"):
    """The same by the API, where one request must not load everything.

    Attributes:
        group: Only lanes of this group, with their details.
        topic: Only queues of this topic.
        limit: Lanes of the page at most, a queue without lanes counting as one; 0: the queues are not read.
        skip: Lanes before the page, likewise.
    """

    limit: Annotated[int, msgspec.Meta(ge=0, le=LANES_SHOWN)] = LANES_SHOWN


class PoliciesRequest(ControlRequest, frozen=True, kw_only=True, tag="policies"):
    """Asks for the rules of queues and lanes.

    Attributes:
        topic: Those of this topic alone.
        group: Those of this group alone.
        limit: Rules at most; None: all.
        skip: Rules before those.
    """

    topic: str | None = None
    group: str | None = None
    limit: int | None = None
    skip: Skip = 0


class ApiPoliciesRequest(PoliciesRequest, frozen=True, kw_only=True, tag="policies"):
    """The same by the API, where one request must not load everything.

    Attributes:
        topic: Those of this topic alone.
        group: Those of this group alone.
        limit: Rules of the page at most.
        skip: Rules before the page.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=LANES_SHOWN)] = LANES_SHOWN


class RebuildRequest(ControlRequest, frozen=True, kw_only=True, tag="rebuild"):
    """Asks the builder to forget a consume queue from a queue offset on, and to read it again."""

    topic: str
    queue_id: int
    from_offset: int


class SnapshotRequest(ControlRequest, frozen=True, kw_only=True, tag="snapshot"):
    """Asks for a snapshot now."""


class ImageRequest(ControlRequest, frozen=True, kw_only=True, tag="image"):
    """Asks for copies of the present stores in the job's scratch folder; the caller removes them."""


Request = (
    StatusRequest
    | PoliciesRequest
    | QueueRequest
    | RebuildRequest
    | SnapshotRequest
    | ImageRequest
    | LanesRequest
    | QueuesRequest
    | RatesRequest
)


class OwnerView(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the prefix: the job that reports it.

    Attributes:
        prefix: The prefix.
        state: The first 8 characters of the state epoch; empty: the state has decided nothing yet.
        since_ms: When it took the prefix, in ms since 1970.
        host: Name of its host.
        pid: Its process.
        folder: Its folder.
        term: Number of its ownership; each later owner has a higher one.
        took_over_from: The owner that it has replaced with `--take-over`, for people; empty: there was none.
    """

    prefix: str
    state: str
    since_ms: int
    host: str
    pid: int
    folder: str
    term: int
    took_over_from: str = ""

    @classmethod
    def of(cls, prefix: str, owner: Owner) -> "OwnerView":
        """Return the view of the owner's record."""
        return cls(
            prefix=prefix,
            state=owner.state_epoch[:STATE_CHARACTERS] if owner.has_decided else "",
            since_ms=owner.since_ms,
            host=owner.host,
            pid=owner.pid,
            folder=owner.folder,
            term=owner.term,
            took_over_from=owner.took_over_from,
        )


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a job reports about itself. A field is None where nothing is known, because no job runs.

    Attributes:
        folder: The job's folder.
        kernel_form: `compiled` or `pure`: the form of the kernel (`broker_state.compiled_form`).
        apply_seq: WriteBatches since the state was created.
        bootstrap_servers: The Kafka of the job.
        prefix: Prefix of the job's topics.
        owner: The job as the owner of the prefix.
        failure: The error that ended the job.
        delta_seq: Last WriteBatch whose audit rows are in Delta.
        outbox_bytes: Bytes decided and not yet delivered.
        ops_lag: Offsets of the ops topic not decided when Kafka was last asked.
        ops_overdue: Those of `ops_lag` that are older than half of the topic's retention.
        totals: Counts since the process started.
        not_ready_reasons: What keeps the job from deciding or delivering. Empty: it is ready.
        snapshot: Id of the newest snapshot that this job took.
        snapshot_failure: Why the last snapshot could not be taken or stored.
        replica_failure: Why the replica of the tables is not up to date.
        damage: Damage to files of the stores that was found since the job started, with the command that repairs it.
        table_checkpoint_failures: A sentence for each table of whose log the last checkpoint could not be written.
        quarantined: Records that are skipped because deciding them failed; each has a row in `rejected`.
        builder: Progress of the builder; None: the job builds no queues.
        cluster: Of a job on a Spark cluster: its shards and queries. Its folder is its checkpoint.
    """

    folder: str
    apply_seq: int
    kernel_form: str | None = None
    bootstrap_servers: str | None = None
    prefix: str | None = None
    owner: OwnerView | None = None
    failure: str | None = None
    delta_seq: int | None = None
    outbox_bytes: int | None = None
    ops_lag: int | None = None
    ops_overdue: int | None = None
    totals: Totals | None = None
    not_ready_reasons: list[str] = []
    snapshot: str | None = None
    snapshot_failure: str | None = None
    replica_failure: str | None = None
    damage: list[str] = []
    table_checkpoint_failures: list[str] = []
    quarantined: int = 0
    builder: BuilderStatus | None = None
    cluster: ClusterReport | None = None


class Status(JobReport, frozen=True, kw_only=True):
    """The report of a job, with its process and its queues.

    Attributes:
        running: False: read from the stored state, because no job runs.
        pid: The process.
        up_s: Seconds since the process opened its control socket.
        operations_per_s: Operations decided per second, over the last ten seconds.
        queues: Queues with their lanes, by key.
        is_cut: The limit left lanes out.
        tables: Sizes of the tables; empty as the job answers, the command adds them.
    """

    running: bool
    pid: int | None = None
    up_s: float | None = None
    operations_per_s: float | None = None
    queues: list[QueueView] = []
    is_cut: bool = False
    tables: list[TableSize] = []


class Policies(msgspec.Struct, frozen=True):
    """The rules of each queue and lane, by key, and whether the limit left some out."""

    policies: list[PolicyView]
    is_cut: bool = False


class Rebuilt(msgspec.Struct, frozen=True):
    """The queue offset from which the queue is read again."""

    from_offset: int


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The folders with the copies of the state and of the builder's store, if there is one."""

    folder: str
    queues: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a request failed.

    Attributes:
        error: The reason, for people.
        is_transient: The same request may succeed later.
        is_corrupt: Stored data are damaged.
    """

    error: str
    is_transient: bool = False
    is_corrupt: bool = False

    @classmethod
    def of(cls, error: PopstreamError) -> "Failure":
        """Return what a caller gets to know of an error, its commands with the options of this job."""
        text = completed_commands(str(error), elsewhere=True)
        return cls(text, is_transient=isinstance(error, Unavailable), is_corrupt=isinstance(error, Corrupt))

    def to_error(self) -> PopstreamError:
        """Return the error, for the caller to raise."""
        kind = Unavailable if self.is_transient else Corrupt if self.is_corrupt else Invalid
        return kind(self.error)


Answer = (
    Status | Policies | list[ConsumeQueueView] | Rebuilt | Snapshot | Image | LanePage | QueuePage | list[RatePoint]
)
