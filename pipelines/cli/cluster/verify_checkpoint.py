"""`popstream verify --checkpoint`: compares state and tables of a job on a cluster with what its log leads to."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from checkpoints.reconcile import LogFound, lost_records
from pipelines.cli.cluster.new_checkpoint import in_new_checkpoint
from pipelines.cli.cluster.state_place import owned, state_place
from pipelines.cli.job_sources import require_keys, snapshots_of
from pipelines.cli.spark_tools import working
from pipelines.cli.state.verify_state import VerifyOptions, run_verification
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.copy_of_state import (
    BEGINNING,
    Checkpoint,
    WithBeginning,
    copy_beginning,
    copy_stores,
    local_tables,
)
from pipelines.job_settings import JobSettings
from pipelines.recovery.verify import Advice, Inputs, WorkFolder
from pipelines.recovery.verify.base import Snapshots

__all__ = ["run_verify_checkpoint"]


def _begin_again(base: str | None) -> str:
    if base == BEGINNING:
        how = "migrate once more what it began with: `popstream migrate to-cluster --checkpoint NEW-URL`"
    else:
        how = in_new_checkpoint(base)
    return f"if the state is wrong, stop the job; {how}"


ADVICE = Advice(
    table="if {name} is wrong, start the job with a new --checkpoint and new --tables: it writes all rows again",
    units=lambda _: (
        "if the units are wrong, start the job with a new --checkpoint and new --tables: it builds all queues again"
    ),
    state=_begin_again,
)


def run_verify_checkpoint(
    settings: JobSettings, checkpoint: str, tables: str | None, options: VerifyOptions, *, var: Path
) -> None:
    """Verify the state of a stopped job on a cluster, which may start again as soon as its state is copied.

    Args:
        settings: Settings of the job.
        checkpoint: Path or URL of its state.
        tables: Path or URL of its tables; None: `tables` in that of the state.
        options: What is asked for.
        var: The folder with the jars.

    Raises:
        Corrupt: The log does not reach back far enough, or a file is damaged.
        Invalid: There is no state of a job, or there are no tables.
        Unavailable: Kafka or a place cannot be reached, or the disk is full.
        Fenced: The job runs, or another process verifies in this folder.
        typer.Exit: Something differs, or the verification was stopped.
    """

    def inputs_in(stack: contextlib.ExitStack, verification: WorkFolder) -> Inputs:
        incoming = verification.incoming
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        snapshots: Snapshots = snapshots_of(settings)
        with state_place(settings, checkpoint, var, tables=tables) as place:
            require_keys(place.connection, settings)
            identity = place.identity(settings.topic_prefix)
            read = Checkpoint(place.spark, checkpoint, identity, place.log)
            again = "nothing was compared: verify once more when nothing else runs"
            with owned(settings, place, identity.epochs, if_lost=again), working("copying the state"):
                copied = copy_stores(read, place.connection, incoming)
            with working("reading the tables"):
                delta = local_tables(place.spark, tables or f"{checkpoint}/tables", incoming / "tables")
            if _takes_beginning(identity, place.log):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="popstream-beginning-")))
                snapshots = WithBeginning(snapshots, copy_beginning(read, folder), folder)
        return Inputs(
            state=copied.state,
            queues=copied.queues,
            is_copy=True,
            delta=delta,
            log=place.log,
            connection=place.connection,
            snapshots=snapshots,
            handle_ring=settings.handle_ring,
            admin_ring=settings.admin_ring,
            advice=ADVICE,
        )

    run_verification(settings.job_folder.absolute(), options, inputs_in)


def _takes_beginning(identity: CheckpointIdentity, log: LogFound) -> bool:
    """Return whether only the state that was migrated, and not the log from its start, leads to this one."""
    if not identity.first_offset or lost_records(identity.first_offset, log):
        return False
    return bool(identity.since_loss or lost_records(dict.fromkeys(log.end_offset, 0), log))
