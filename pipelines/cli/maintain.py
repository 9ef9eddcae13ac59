"""`popstream maintain`: compact the tables, and remove what no version of the last week needs."""

import time
from pathlib import Path

import msgspec

from broker_state.errors import Invalid, Unavailable
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from connectors.delta.maintenance import Maintained, maintain
from pipelines.card import JobCard
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.spark_tools import reading_session, working
from pipelines.cli.target import running_job
from pipelines.maintenance import MaintenanceView
from pipelines.status import MaintainRequest, ask

__all__ = ["run_maintain"]

LOOK_S = 0.5


def run_maintain(folder: JobFolder, *, var: Path, as_json: bool) -> None:
    """Ask the running job for it and wait until it is done, or maintain the tables that the last job left.

    Raises:
        Invalid: There are no tables.
        Unavailable: Some of the tables could not be maintained, or the job ended meanwhile.
        Fenced: A job is starting or stopping.
    """
    if not folder.delta.is_dir():
        message = f"there are no tables in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    card = running_job(folder)
    done = _of_a_stopped_job(folder, var) if card is None else _by_the_job(card)
    if as_json:
        print(msgspec.json.encode(done).decode())
        return
    facts = {each.table: f"{each.compacted:,} files made {each.into:,}, {each.removed:,} removed" for each in done}
    print_facts(standard_output(), facts)


def _by_the_job(card: JobCard) -> list[Maintained]:
    with working("compacting"):
        begun = view = ask(card, MaintainRequest(begin=True), MaintenanceView)
        while view.is_under_way:
            time.sleep(LOOK_S)
            view = ask(card, MaintainRequest(), MaintenanceView)
            if view.begun_at_ms != begun.begun_at_ms:
                message = "the job was started again meanwhile: ask once more"
                raise Unavailable(message, subject=card.folder)
    if view.failure is not None:
        message = f"{len(view.done)} tables are maintained, and not the rest: {view.failure}"
        raise Unavailable(message, subject=card.folder)
    return view.done


def _of_a_stopped_job(folder: JobFolder, var: Path) -> list[Maintained]:
    with Ownership(folder.lock), reading_session(var) as spark, working("compacting"):
        return list(maintain(spark, folder.delta))
