"""`popstream verify`: decide the log again and compare state and tables with the result."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer

from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.cli.exits import Exit, say
from pipelines.cli.job_sources import log_of, open_kafka, require_keys, snapshots_of
from pipelines.cli.printing import print_facts, print_progress, standard_output
from pipelines.cli.target import require_state, running_job, settings_of_job
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Image, ImageRequest
from pipelines.job_settings import JobSettings
from pipelines.printed_commands import completed_commands
from pipelines.recovery.verify import Inputs, ProgressReport, Verified, WorkFolder, goes_on, verify
from popstream.wire.base_errors import Unavailable

__all__ = ["VerifyOptions", "run_verification", "run_verify"]

TIMEOUT_S = 60.0


class VerifyOptions(NamedTuple):
    """What a verification is asked for, wherever the job runs.

    Attributes:
        since: Id of the snapshot to begin with, or `newest`; None: the beginning of the log, or the oldest snapshot.
        fresh: Give up a verification that was stopped.
        with_messages: Read the message topics, too.
        work: Folder of the verification; None: `verify` in the folder of the job.
        as_json: Print JSON.
    """

    since: str | None
    fresh: bool
    with_messages: bool
    work: Path | None
    as_json: bool


def run_verify(settings: JobSettings, options: VerifyOptions, *, var: Path) -> None:
    """Verify the stored state, or a copy of the state of the running job. Progress goes to standard error.

    Raises:
        Corrupt: The log does not reach back far enough, there is no state, or a file is damaged.
        Invalid: The folder is not that of a job.
        Unavailable: Kafka or the job does not answer, or the disk is full.
        Fenced: Another process verifies the job, or owns its folder.
        typer.Exit: Something differs, or the verification was stopped.
    """
    folder = settings.job_folder.absolute()
    job = running_job(folder)
    if job is None:
        require_state(folder)
    run_verification(
        folder, options, lambda stack, verification: _inputs(stack, settings, folder, job, verification, var)
    )


def run_verification(
    folder: JobFolder, options: VerifyOptions, inputs_in: Callable[[contextlib.ExitStack, WorkFolder], Inputs]
) -> None:
    """Verify what `inputs_in` returns, and print what was found. Progress goes to standard error.

    Args:
        folder: That of the job, or of its settings; absolute.
        options: What is asked for.
        inputs_in: Returns what is verified; called with what is closed at the end, and the folder of the verification.

    Raises:
        Corrupt: The log does not reach back far enough, or a file is damaged.
        Unavailable: Kafka does not answer, or the disk is full.
        Fenced: Another process verifies in this folder.
        typer.Exit: Something differs, or the verification was stopped.
    """
    last = ProgressReport(doing="starting")

    def report(found: ProgressReport) -> None:
        nonlocal last
        last = found
        print_progress(found, as_json=options.as_json)

    try:
        with contextlib.ExitStack() as stack:
            work = folder.verify if options.work is None else options.work.absolute()
            verification = stack.enter_context(WorkFolder(work))
            verified = verify(
                inputs_in(stack, verification),
                verification,
                since=options.since,
                fresh=options.fresh,
                with_messages=options.with_messages,
                on_report=report,
            )
    except KeyboardInterrupt:
        say(f"stopped while {last}: {goes_on(options.since)}")
        raise typer.Exit(Exit.UNAVAILABLE) from None
    if options.as_json:
        differences = [completed_commands(line) for line in verified.differences]
        print(msgspec.json.encode(msgspec.structs.replace(verified, differences=differences)).decode())
    else:
        print_facts(standard_output(), dict(_facts(verified)))
    if verified.differences:
        raise typer.Exit(Exit.CORRUPT)


def _inputs(
    stack: contextlib.ExitStack,
    settings: JobSettings,
    folder: JobFolder,
    job: JobFile | None,
    verification: WorkFolder,
    var: Path,
) -> Inputs:
    if job is None:
        stack.enter_context(Ownership(folder.lock))
    settings = settings_of_job(settings, job)
    connection = stack.enter_context(open_kafka(settings, var))
    require_keys(connection, settings)
    if job is None:
        state, queues = folder.state, folder.queues if folder.queues.is_dir() else None
    else:
        state, queues = _copied(job, verification)
    return Inputs(
        state=state,
        queues=queues,
        is_copy=job is not None,
        delta=folder.delta,
        log=log_of(connection, settings.topic_prefix),
        connection=connection,
        snapshots=snapshots_of(settings),
        handle_ring=settings.handle_ring,
        admin_ring=settings.admin_ring,
    )


def _copied(job: JobFile, verification: WorkFolder) -> tuple[Path, Path | None]:
    """Let the running job copy its stores, and move the copies where a restart of the job does not remove them."""
    shutil.rmtree(verification.incoming, ignore_errors=True)
    verification.incoming.mkdir()
    image = ask(job, ImageRequest(), Image, timeout_s=TIMEOUT_S)
    state, queues = verification.incoming / "state", verification.incoming / "queues"
    try:
        shutil.move(image.folder, state)
        if image.queues is not None:
            shutil.move(image.queues, queues)
    except OSError as error:
        for place in (image.folder, image.queues, verification.incoming):
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
        message = f"a copy of the state cannot be written to {verification.incoming}: is the disk full? ({error})"
        raise Unavailable(message, subject=str(verification.incoming)) from error
    return state, None if image.queues is None else queues


def _facts(verified: Verified) -> Iterator[tuple[str, str]]:
    yield "decided again", f"{verified.records:,} records, from {verified.base}"
    yield "state", f"{verified.keys:,} keys are equal byte for byte"
    for table, rows in verified.rows.items():
        waiting = verified.not_in_delta.get(table, 0)
        yield table, f"{rows:,} rows are equal" + (f", {waiting:,} are not in Delta yet" if waiting else "")
    if (units := verified.units) is not None:
        waiting_units = f", {units.in_outbox:,} are not in Delta yet" if units.in_outbox else ""
        yield CONSUME_QUEUE.name, f"{units.in_delta:,} units are equal{waiting_units}"
        yield "message topics", f"{units.in_log:,} units equal their records"
        for number, why in enumerate([*units.not_in_store, *units.not_in_log], 1):
            yield f"not compared {number}", why
    for number, difference in enumerate(verified.differences, 1):
        yield f"differs {number}", difference
