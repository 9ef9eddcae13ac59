"""`popstream erase`: erase texts of a person from the tables, and say what else has them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from checkpoints.layout import JobFolder
from connectors.delta.erasure import Erased, Wanted, erase
from connectors.delta.file_access import files_made_with, umask_of_tables
from connectors.delta.log.table_log import read_data_files
from connectors.delta.tables import TABLES
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import describe, retention_ms
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.target import running_job
from pipelines.job_settings import JobSettings
from pipelines.recovery.verify.work_folder import WorkFolder
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError

__all__ = ["run_erase"]

DAY_MS = 86_400_000

_QUOTING = [name for name, table in TABLES.items() if table.quoting_columns]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, and what was not reached.

    Attributes:
        dry_run: Nothing was erased; the numbers say what would be.
        tables: By table.
        replaced: The same of tables that restores have replaced, which are named by their folders.
        not_reached: Where else such texts may be, and until when.
    """

    dry_run: bool
    tables: list[Erased]
    replaced: list[Erased]
    not_reached: list[str]


def run_erase(settings: JobSettings, wanted: Wanted, *, dry_run: bool, as_json: bool) -> None:
    """Erase texts, and print what was done. Works while the job runs; a second run finds nothing.

    Raises:
        Invalid: Nothing says what to erase, the text is none, or there are no tables.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: Another process keeps changing the same files.
    """
    if wanted == Wanted() or wanted.text == "":
        message = "say what to erase: --text, --record or --message"
        raise Invalid(message)
    _require_text(wanted)
    folder = settings.job_folder.absolute()
    if not folder.delta.is_dir():
        message = f"there are no tables in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    unreadable: list[Path] = []
    with files_made_with(umask_of_tables(folder.delta)):
        done = [erase(folder.delta, name, wanted, dry_run=dry_run) for name in _QUOTING]
        replaced = list(_erased_in_replaced(folder, wanted, unreadable, dry_run=dry_run))
    not_reached = [*_not_reached(settings, folder), *map(_unreadable_text, unreadable)]
    report = Report(dry_run=dry_run, tables=done, replaced=replaced, not_reached=not_reached)
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    console = standard_output()
    print_facts(console, {each.table: _done_text(each, dry_run=dry_run) for each in (*done, *replaced)})
    console.print("not reached, and may have them:")
    for line in report.not_reached:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _require_text(wanted: Wanted) -> None:
    try:
        (wanted.text or "").encode()
    except UnicodeEncodeError as error:
        message = "--text is not UTF-8, as the tables are: use --record or --message"
        raise Invalid(message) from error


def _erased_in_replaced(
    folder: JobFolder, wanted: Wanted, unreadable: list[Path], *, dry_run: bool
) -> Iterator[Erased]:
    """Erase from whole tables that restores have replaced; add those with which that cannot be done to `unreadable`."""
    for times in sorted({folder.replaced, folder.replaced_tables}):
        for path in sorted(times.glob("*/*/")):
            if path.name not in _QUOTING:
                continue
            try:
                if read_data_files(path) is None:
                    unreadable.append(path)
                    continue
                done = erase(path.parent, path.name, wanted, dry_run=dry_run)
            except (Corrupt, Invalid):
                unreadable.append(path)
                continue
            yield msgspec.structs.replace(done, table=str(path))


def _unreadable_text(path: Path) -> str:
    return f"{path}, a replaced table that is damaged or of another version: until you delete it"


def _done_text(done: Erased, *, dry_run: bool) -> str:
    would = "to erase" if dry_run else "erased"
    old = f"; {done.old_files:,} old files {'to delete' if dry_run else 'deleted'}" if done.old_files else ""
    return f"{done.values:,} texts in {done.files:,} files {would}{old}"


def _not_reached(settings: JobSettings, folder: JobFolder) -> Iterator[str]:
    job = running_job(folder)
    prefix = settings.topic_prefix if job is None else job.prefix
    connection = settings.connection if job is None else job.connection
    topics = Topics.of(prefix)
    logs = {topics.ops: "the operations", topics.results: "the answers"}
    if connection is not None:
        logs[ClusterTopics.of(prefix).audit] = "rows that are not in the tables yet, of a job on a cluster"
    for topic, kept in _kept(connection, [*logs]).items():
        yield f"{topic}, {logs[topic]}: {kept}"
    yield (
        f"{topics.dead_letters}, copies of messages: until `popstream dead purge --erase`, and behind a letter that"
        " nobody has handled until that is handled, too"
    )
    yield "the message topics: as long as each keeps its records"
    snapshots = settings.snapshots or folder.snapshots
    yield f"{folder.state} and {snapshots}: rows that are not in the tables yet, and the last answers"
    for state in sorted(folder.replaced.glob("*/state/")):
        yield f"{state}, a replaced state with the same: until you delete it"
    if WorkFolder(folder.verify).plan.exists():
        yield f"{folder.verify}, copies of states: until `popstream verify` has come to its end"
    yield "Data Docs of `popstream check`, with rows that failed: until the next check writes to their folder"
    yield "what was made of the tables: copies, reports, results of queries"
    yield "job.log, and names and ids that clients chose: groups, clients, op_ids and handles identify rows"


def _kept(connection: KafkaConnection | None, topics: Sequence[str]) -> dict[str, str]:
    """Return, in words, how long each of those topics that there are keeps its records."""
    if connection is not None:
        with contextlib.suppress(PopstreamError):
            there = describe(connection, topics)
            return {topic: _kept_text(retention_ms(connection, topic)) for topic in topics if topic in there}
    return dict.fromkeys(topics, "as long as its retention.ms says")


def _kept_text(kept_ms: int | None) -> str:
    if kept_ms is None:
        return "forever"
    return f"{kept_ms / DAY_MS:g} days after they were written, and until Kafka deletes their segment of the log"
