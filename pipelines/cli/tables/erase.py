"""`popstream erase`: erase texts of a person from the tables, and say what else has them."""

from collections.abc import Iterator

import msgspec

from checkpoints.layout import JobFolder
from connectors.delta.erasure import Erased, Wanted, erase
from connectors.delta.file_access import files_made_with, umask_of_tables
from connectors.delta.tables import TABLES
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import retention_ms
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.target import running_job
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, PopstreamError

__all__ = ["run_erase"]

DAY_MS = 86_400_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, and what was not reached.

    Attributes:
        dry_run: Nothing was erased; the numbers say what would be.
        tables: By table.
        not_reached: Where else such texts may be, and until when.
    """

    dry_run: bool
    tables: list[Erased]
    not_reached: list[str]


def run_erase(settings: JobSettings, wanted: Wanted, *, dry_run: bool, as_json: bool) -> None:
    """Erase texts, and print what was done. Works while the job runs; a second run finds nothing.

    Raises:
        Invalid: Nothing says what to erase, or there are no tables.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: Another process keeps changing the same files.
    """
    if wanted == Wanted() or wanted.text == "":
        message = "say what to erase: --text, --record or --message"
        raise Invalid(message)
    folder = settings.job_folder.absolute()
    if not folder.delta.is_dir():
        message = f"there are no tables in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    quoting = [name for name, table in TABLES.items() if table.quoting_columns]
    with files_made_with(umask_of_tables(folder.delta)):
        done = [erase(folder.delta, name, wanted, dry_run=dry_run) for name in quoting]
    report = Report(dry_run=dry_run, tables=done, not_reached=list(_not_reached(settings, folder)))
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    console = standard_output()
    print_facts(console, {each.table: _done_text(each, dry_run=dry_run) for each in done})
    console.print("not reached, and may have them:")
    for line in report.not_reached:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _done_text(done: Erased, *, dry_run: bool) -> str:
    would = "to erase" if dry_run else "erased"
    old = f"; {done.old_files:,} old files {'to delete' if dry_run else 'deleted'}" if done.old_files else ""
    return f"{done.values:,} texts in {done.files:,} files {would}{old}"


def _not_reached(settings: JobSettings, folder: JobFolder) -> Iterator[str]:
    job = running_job(folder)
    prefix = settings.topic_prefix if job is None else job.prefix
    connection = settings.connection if job is None else job.connection
    topics = Topics.of(prefix)
    yield f"{topics.ops}, the operations: {_kept(connection, topics.ops)}"
    yield f"{topics.results}, the answers: {_kept(connection, topics.results)}"
    yield f"{topics.dead_letters}, copies of messages: until `popstream dead purge --erase`"
    yield "the message topics: as long as each keeps its records"
    yield f"{folder.state} and {folder.snapshots}: rows that are not in the tables yet, and the last answers"
    yield "job.log, and names and ids that clients chose: groups, clients, op_ids and handles identify rows"


def _kept(connection: KafkaConnection | None, topic: str) -> str:
    """Return how long a topic keeps its records, in words."""
    try:
        kept_ms = None if connection is None else retention_ms(connection, topic)
    except PopstreamError:
        connection = None
    if connection is None:
        return "as long as its retention.ms says"
    return "forever" if kept_ms is None else f"up to {kept_ms / DAY_MS:g} days after they were written"
