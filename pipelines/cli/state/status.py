"""`popstream status`: status of the running job, or its stored state."""

from collections.abc import Iterator
from datetime import timedelta

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkpoints.layout import JobFolder
from connectors.delta.table_sizes import TableSize, table_sizes
from pipelines.cli.exits import say
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.target import JobPlace, end_without_job, require_left_alone, require_running_job, running_job
from pipelines.control.client import ask
from pipelines.control.cluster_report import ClusterReport
from pipelines.control.lane_views import LaneDetail
from pipelines.control.messages import OwnerView, Status, StatusRequest
from pipelines.control.stored_answers import stored_status
from pipelines.times import utc_text
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

__all__ = ["run_ready", "run_status", "show_status", "status_of"]


def run_status(place: JobPlace, request: StatusRequest, *, as_json: bool) -> None:
    """Print the status of the running job, or the stored state.

    Raises:
        Invalid: The job knows no such group or topic.
        Unavailable: There is neither job nor state, or the job does not answer.
        typer.Exit: No job runs; the stored state was printed.
    """
    status = status_of(place, request)
    if isinstance(place, JobFolder):
        status = msgspec.structs.replace(status, tables=_sizes(place))
    show_status(status, request, as_json=as_json)
    if not status.running:
        end_without_job(place, "this is the stored state")


def show_status(status: Status, request: StatusRequest, *, as_json: bool) -> None:
    """Print a status.

    Raises:
        Invalid: It has no such group or topic.
    """
    _require_found(status, request)
    if as_json:
        print(msgspec.json.encode(status).decode())
    else:
        _print(standard_output(), status)


def run_ready(place: JobPlace) -> None:
    """Report whether the job is ready, for probes.

    Raises:
        Unavailable: No job runs, it does not answer, or it is not ready.
    """
    job = require_running_job(place)
    status = ask(job, StatusRequest(limit=0), Status)
    if status.not_ready_reasons:
        message = "the job is not ready:"
        raise Unavailable(message, subject=status.folder, details=status.not_ready_reasons)
    say("ready")


def status_of(place: JobPlace, request: StatusRequest) -> Status:
    """Return the status of the running job, or the stored state.

    Raises:
        Unavailable: There is neither job nor state, or the job does not answer.
    """
    job = running_job(place)
    if job is not None:
        return ask(job, request, Status)
    return stored_status(require_left_alone(place), request)


def _sizes(folder: JobFolder) -> list[TableSize]:
    """Return the sizes of the tables; none if a log is damaged, which other commands report."""
    try:
        return table_sizes(folder.delta)
    except Corrupt as error:
        say(f"the sizes of the tables are not known: {error.message}")
        return []


def _require_found(status: Status, request: StatusRequest) -> None:
    """Refuse a group or a topic that has nothing to show: its name is mistyped, or it was never popped or declared."""
    is_restarting = status.running and status.not_ready_reasons  # no job knows the queues then
    if status.queues or is_restarting or (request.group is None and request.topic is None):
        return
    place = "no queue" if request.topic is None else f"no queue of a topic {request.topic}"
    if request.group is None:
        message = f"there is {place}: `popstream status` shows all queues"
    else:
        message = f"{place} has a lane of a group {request.group}: `popstream status` shows all lanes"
    raise Invalid(message, subject=request.group or request.topic or "")


def _print(console: Console, status: Status) -> None:
    facts = {}
    if status.running:
        up = timedelta(seconds=int(status.up_s or 0))
        facts["job"] = f"process {status.pid}, up {up}, prefix {status.prefix}, kernel {status.kernel_form}"
        facts["Kafka"] = status.bootstrap_servers or ""
    if status.owner is not None:
        facts["owner"] = _owner_text(status.owner)
    facts["folder" if status.cluster is None else "checkpoint"] = status.folder
    facts["decided"] = f"{status.apply_seq:,} WriteBatches since the state was created"
    if status.ops_lag is not None:
        facts["decided"] += f", lag {status.ops_lag:,} records"
    if status.cluster is not None and status.running:
        facts["decided"] += f", {status.operations_per_s or 0:,.1f} records/s over 10 s"
    if status.ops_overdue:
        facts["at risk"] = (
            f"{status.ops_overdue:,} of these are older than half of the ops topic's retention:"
            " raise its retention.ms until the job has caught up"
        )
    if status.failure:
        facts["failed"] = status.failure
    if status.totals is not None:
        totals = status.totals
        facts["since start"] = (
            f"{totals.operations:,} operations ({status.operations_per_s:,.1f}/s over 10 s),"
            f" {totals.refused:,} refused runs, {totals.rejected:,} rejected records, {totals.ticks:,} ticks"
        )
        steps = ", ".join(f"{step} {took:g}" for step, took in totals.last_micro_batch_ms.items())
        took = f"{sum(totals.last_micro_batch_ms.values()):,.1f} ms: {steps}" if steps else "none yet"
        facts["last micro-batch"] = took
        facts["audit"] = (
            f"{max(0, status.apply_seq - (status.delta_seq or 0)):,} WriteBatches not in Delta yet,"
            f" outbox {status.outbox_bytes or 0:,} bytes"
        )
    facts |= _numbered("not ready", status.not_ready_reasons)
    if status.quarantined:
        facts["quarantined"] = f"{status.quarantined:,} records that are not decided: see the table `rejected`"
    facts |= _numbered("damaged", status.damage)
    facts |= _numbered("table log", status.table_checkpoint_failures)
    if status.snapshot or status.snapshot_failure:
        facts["snapshot"] = status.snapshot_failure or status.snapshot or ""
    if status.replica_failure:
        facts["replica"] = status.replica_failure
    if status.builder is not None:
        built = status.builder
        facts["builder"] = (
            f"{built.queues:,} queues, {built.behind:,} offsets to read, {built.open_dispatches:,} open dispatches,"
            f" {built.delta_behind:,} WriteBatches not in Delta yet"
        )
    if status.cluster is not None:
        facts |= dict(_cluster_facts(status.cluster))
    facts |= {f"table {each.table}": _size_text(each) for each in status.tables}
    print_facts(console, facts)
    _print_queues(console, status)


def _numbered(name: str, sentences: list[str]) -> dict[str, str]:
    return {f"{name} {number + 1}" if number else name: sentence for number, sentence in enumerate(sentences)}


def _cluster_facts(cluster: ClusterReport) -> Iterator[tuple[str, str]]:
    if cluster.master:
        yield "cluster", f"{cluster.master}, tables in {cluster.tables}"
    lags = [(shard.lag or 0, shard.partition) for shard in cluster.shards]
    text = f"{len(lags):,}"
    if lags and max(lags)[0]:
        text += f", the greatest lag is {max(lags)[0]:,} records in partition {max(lags)[1]}"
    if cluster.skew is not None and (busiest := cluster.busiest) is not None:
        text += f"; busiest is partition {busiest.partition}, with {cluster.skew:g} times the mean of the last minutes"
    yield "shards", text
    for query in cluster.queries:
        state = f"; state of {query.state_keys:,} keys, {_mb(query.state_bytes)} in memory" if query.state_keys else ""
        what = f"micro-batch {query.spark_batch_id:,} of {query.records:,} records in {query.seconds:g} s"
        yield f"query {query.name}", f"{what}, at {utc_text(query.at_ms)}; {query.behind:,} records behind{state}"
    if cluster.audit_failures:
        yield "tables", f"the query that writes them has failed {cluster.audit_failures:,} times: see the log"


def _size_text(size: TableSize) -> str:
    kept = f" since {size.first_day}" if size.first_day else ""
    grew = f"; yesterday {size.yesterday_rows:,} rows, {_mb(size.yesterday_bytes)}" if size.yesterday_rows else ""
    return (
        f"{size.rows:,} rows{kept}, {_mb(size.bytes)} in {size.files:,} files, {_mb(size.disk_bytes)} on the disk{grew}"
    )


def _mb(size: int | None) -> str:
    return f"{(size or 0) / 1_000_000:,.1f} MB"


def _owner_text(owner: OwnerView) -> str:
    state = f"state {owner.state}" if owner.state else "a state that has decided nothing yet"
    took_over = f", taken over from {owner.took_over_from}" if owner.took_over_from else ""
    return f"{state} on {owner.host} since {utc_text(owner.since_ms)}, term {owner.term}{took_over}"


def _print_detail(console: Console, name: str, detail: LaneDetail) -> None:
    """Print the batch in flight of an orderly lane, and the parked pops."""
    facts = {}
    batch = detail.batch
    if batch is not None:
        attempt = f", attempt id {batch.attempt_id}" if batch.attempt_id else ""
        facts["popped"] = (
            f"{batch.members:,} messages in {batch.first:,}..{batch.last:,} at {utc_text(batch.pop_time_ms)}, "
            f"{batch.acked:,} acked{attempt}"
        )
        facts["free"] = "now" if batch.free_at_ms is None else f"at {utc_text(batch.free_at_ms)}, or when all are acked"
        for number, run in enumerate(batch.unacked):
            until = (
                f"until {utc_text(run.next_visible_ms)}, attempt {run.attempt}{', suspended' if run.suspended else ''}"
            )
            facts["not acked" if not number else " " * number] = f"{run.first:,}..{run.last:,} {until}"
    for number, pop in enumerate(detail.waiting):
        facts["waiting" if not number else f"waiting {number + 1}"] = (
            f"{pop.client_id or 'no client id'} for {pop.max_messages:,} until {utc_text(pop.until_ms)}"
        )
    if facts:
        console.print(escape(name), style="bold")
        print_facts(console, facts)


def _print_queues(console: Console, status: Status) -> None:
    if not status.queues:
        console.print("no queues to show")
        return
    table = Table()
    for column in ("queue", "written to", "group", "acked to", "lag", "leased", "available", "parked", "dead"):
        is_name = column in {"queue", "group"}
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    for queue in status.queues:
        place = (escape(f"{queue.topic}/{queue.queue_id}"), f"{queue.commit_position:,}")
        for lane in queue.lanes:
            numbers = (
                lane.commit_offset,
                lane.lag,
                lane.leased,
                lane.available,
                lane.parked,
                lane.dead_lettered,
            )
            table.add_row(*place, escape(lane.group), *(f"{number:,}" for number in numbers))
            place = ("", "")
        if not queue.lanes:
            table.add_row(*place, "[dim]none[/]")
    console.print(table)
    for queue in status.queues:
        for lane in queue.lanes:
            if lane.detail is not None:
                _print_detail(console, f"{queue.topic}/{queue.queue_id} {lane.group}", lane.detail)
    console.print("available: waits for redelivery; dead: dead-lettered", style="dim")
    if status.is_cut:
        console.print("there are more lanes: use --lane, --topic or --limit")
