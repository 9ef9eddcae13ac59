"""`popstream verify`: decide the log again and compare state and tables with the result."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from pipelines.cli.exits import Exit
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.spark_tools import reading_session, working
from pipelines.cli.state.restore_state import log_of, the_kafka_of
from pipelines.cli.state.snapshot import snapshots_of
from pipelines.cli.target import running_job
from pipelines.control.client import ask
from pipelines.control.messages import Image, ImageRequest
from pipelines.job_settings import JobSettings
from pipelines.process.job import signer_of
from pipelines.recovery.verify import Verified, verify

__all__ = ["run_verify"]

TIMEOUT_S = 60.0


def run_verify(settings: JobSettings, *, var: Path, since: str | None, as_json: bool) -> None:
    """Verify the stored state, or a copy of the state of the running job.

    Raises:
        Corrupt: The log does not reach back far enough.
        Unavailable: Kafka or the job does not answer.
        typer.Exit: Something differs.
    """
    folder = JobFolder(settings.folder.absolute())
    snapshots = snapshots_of(settings)
    scratch = folder.scratch / f"verify-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        job = running_job(folder)
        if job is None:
            stack.enter_context(Ownership(folder.lock))
            state = folder.state
        else:
            settings = settings.model_copy(
                update={"bootstrap_servers": job.bootstrap_servers, "topic_prefix": job.prefix}
            )
            state = Path(ask(job, ImageRequest(), Image, timeout_s=TIMEOUT_S).folder)
            stack.callback(shutil.rmtree, state, ignore_errors=True)
        servers = stack.enter_context(the_kafka_of(settings, var))
        spark = stack.enter_context(reading_session(var))
        stack.enter_context(working("deciding the log again"))
        verified = verify(
            state,
            log_of(servers, settings.topic_prefix),
            servers,
            spark,
            folder.delta,
            snapshots,
            scratch,
            signer_of(settings),
            since,
        )
    if as_json:
        print(msgspec.json.encode(verified).decode())
    else:
        print_facts(standard_output(), dict(_facts(verified)))
    if verified.differences:
        raise typer.Exit(Exit.CORRUPT)


def _facts(verified: Verified) -> Iterator[tuple[str, str]]:
    yield "decided again", f"{verified.records:,} records, from {verified.base}"
    yield "state", f"{verified.keys:,} keys are equal byte for byte"
    for table, rows in verified.rows.items():
        waiting = verified.not_in_delta.get(table, 0)
        yield table, f"{rows:,} rows are equal" + (f", {waiting:,} are not in Delta yet" if waiting else "")
    for number, difference in enumerate(verified.differences, 1):
        yield f"differs {number}", difference
