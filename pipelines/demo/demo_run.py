"""The demo from beginning to end."""

import contextlib
import resource
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pydantic import SecretStr

from checkpoints.ownership import Ownership
from connectors.kafka.topic_admin import create_message_topic
from pipelines.demo.cluster_site import ClusterSite
from pipelines.demo.demo_summary import DemoSummary, Findings, Measurements, examine, summarize
from pipelines.demo.demo_verdict import Evidence, Expected
from pipelines.demo.evidence import (
    count_records,
    read_counts,
    read_letters,
    read_processed,
    read_refusals,
    read_rejected,
)
from pipelines.demo.job_site import EmbeddedSite, JobSite, Progress
from pipelines.demo.message_source import MessageSource
from pipelines.demo.planted import read_planted
from pipelines.demo.processes import WorkerProcesses
from pipelines.demo.tasks import ORDERLY_GROUP, Task, group_names, limited_group, tasks_of
from pipelines.demo.view import View
from pipelines.job_settings import JobSettings
from pipelines.process.signals import handled_signals, interrupt_once
from popstream import ClientSettings, Refused, Transport
from popstream.history.check import check_history
from popstream.history.recorder import read_history
from popstream.kafka_connection import KafkaConnection
from popstream.send.dispatch_requests import declare_of
from popstream.topics.describe import describe_topic
from popstream.wire.base_errors import PopstreamError, Unavailable
from popstream.wire.command import Policy
from popstream.wire.signing import AdminKey

if TYPE_CHECKING:
    from expectations.report import QualityReport  # that package imports Great Expectations, which takes seconds

__all__ = ["run_demo"]

MALFORMED_COUNT = 1000
REFUSED_COUNT = 500
OPS_PARTITIONS = 4
ATTEMPTS_OF_POLICY = 6
FLUSH_INTERVAL_S = 3.0
CLIENT = "demo"

STALLED_S = 120.0
LOOK_EVERY_S = 0.25


class SiteFactory(Protocol):
    """Makes the place where the job of a demo runs."""

    def __call__(self, settings: JobSettings, *, var: Path, view: View) -> JobSite:
        """Make it; nothing is started."""


def run_demo(
    *,
    messages_count: int = 100_000,
    messages_file: Path | None = None,
    queues: int = 8,
    groups: int = 3,
    var: Path = Path("var"),
    connection: KafkaConnection | None = None,
    json_output: bool = False,
    rejected_count: int = MALFORMED_COUNT,
    refused_count: int = REFUSED_COUNT,
    on_cluster: bool = False,
) -> int:
    r"""Run the demo, print its summary, and return the exit code: 0 when every check held, 130 after Ctrl-C, else 1.

    Args:
        messages_count: Messages to generate, unless there is a file.
        messages_file: One message a line; `\n` or `\r\n` ends it, and empty lines are messages too.
        queues: Partitions of the message topic.
        groups: Consumer groups; each gets every message. One more gets them in order.
        var: Folder with the jars; everything of the demo goes to `demo` below it, which is emptied first.
        connection: An existing Kafka, where the demo leaves its topics; None: an embedded one.
        json_output: Print the summary as JSON, everything else to standard error.
        rejected_count: Malformed records to write.
        refused_count: Operations to send that must be refused.
        on_cluster: Run the job on a Spark cluster of this machine, parts of which are killed.
    """
    source = MessageSource(count=messages_count, file=None if messages_file is None else str(messages_file.absolute()))
    view = View(json_output=json_output)
    with handled_signals(interrupt_once):
        try:
            names = group_names(groups)
            demo = _Demo(
                source,
                Expected(
                    sent=source.measure(queues),
                    groups=[*names, ORDERLY_GROUP],
                    queues=queues,
                    limited_group=limited_group(names),
                    malformed_count=rejected_count,
                    refused_count=refused_count,
                ),
                var=var.absolute(),
                connection=connection,
                view=view,
                site=ClusterSite if on_cluster else EmbeddedSite,
            )
            summary = demo.run()
        except KeyboardInterrupt as interrupt:
            view.say("interrupted; everything is stopped")
            return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
        except PopstreamError as error:
            print(f"the demo has failed: {error}\nlogs are in {var.absolute() / 'demo'}", file=sys.stderr)
            return 1
    print(msgspec.json.format(msgspec.json.encode(summary)).decode() if json_output else summary.as_text())
    return 0 if summary.verdict == "ok" else 1


class _Demo:
    """One run; the parameters are those of `run_demo`."""

    def __init__(
        self,
        source: MessageSource,
        expected: Expected,
        *,
        var: Path,
        connection: KafkaConnection | None,
        view: View,
        site: SiteFactory,
    ) -> None:
        self._source = source
        self._expected = expected
        self._var = var
        self._folder = var / "demo"
        self._workers_folder = self._folder / "workers"
        self._existing = connection
        self._view = view
        self._site = site
        # Nobody empties the topics of a Kafka that is not ours.
        self._prefix = f"popstream-demo-{secrets.token_hex(4)}" if connection else "popstream-demo"
        self._topic = f"{self._prefix}.messages"
        self._admin_key = AdminKey("demo", secrets.token_hex(16))
        self._measured = Measurements()
        self._started_s = time.monotonic()

    def run(self) -> DemoSummary:
        """Run every phase; stop everything, whatever happens."""
        with Ownership(self._folder / "lock"):
            _empty(self._folder)
            with contextlib.ExitStack() as stack:
                with self._phase("start"):
                    site = stack.enter_context(self._site(self._settings(), var=self._var, view=self._view))
                # The site's own handlers, which are back for the stop, do not interrupt.
                with handled_signals(interrupt_once):
                    findings = self._run_and_judge(site)
                    self._view.say("running the quality suites")
                    with self._phase("quality"):
                        quality = _checked(site.delta)
                    self._measured.memory_mib.with_suites = site.peak_memory().python
                with self._phase("stop"):
                    stack.close()
        self._measured.seconds = time.monotonic() - self._started_s
        self._measured.cpu_seconds = _cpu_seconds()
        summary = summarize(findings, quality, self._measured)
        (self._folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def _settings(self) -> JobSettings:
        settings: dict[str, Any] = {
            "folder": self._folder / "job",
            "topic_prefix": self._prefix,
            "message_topics": self._topic,
            "ops_partitions": OPS_PARTITIONS,
            "flush_interval_s": FLUSH_INTERVAL_S,
            # Signed handles and operations, so that forged and unsigned ones are refused as such.
            "handle_keys": {"demo": SecretStr(secrets.token_hex(16))},
            "admin_keys": {"demo": SecretStr(self._admin_key.secret)},
        }
        if self._existing is not None:
            settings["bootstrap_servers"] = self._existing.bootstrap_servers
            settings["kafka_config"] = self._existing.config_file or None
        return JobSettings(**settings)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        setattr(self._measured.phase_seconds, name, time.monotonic() - began_s)

    def _run_and_judge(self, site: JobSite) -> Findings:
        expected, connection, delta = self._expected, site.connection, site.delta
        tasks = self._tasks(site)
        with self._phase("load"):
            create_message_topic(connection, self._topic, expected.queues)
            self._declare(connection)
            self._view.say(f"starting {len(tasks)} processes")
            with WorkerProcesses(tasks, self._workers_folder) as workers:
                self._run_workers(site, workers)
                self._view.say("every message is done; the consumers stop, and their operations go to Delta")
                workers.stop()
            workers_mib = sum(worker.peak_mib for worker in workers.started)
            self._measured.memory_mib = msgspec.structs.replace(site.peak_memory(), workers=workers_mib)
        with self._phase("settle"):
            self._measured.ops = count_records(connection, site.topics.ops)
            letter_count = self._settle(site)
            letters = read_letters(connection, site.topics.dead_letters, letter_count)
        self._view.say("checking the clients' histories")
        with self._phase("verdict"):
            lengths = Counter(queue_id for queue_id, _ in expected.sent.contents)
            written = {(self._topic, queue_id): [(0, length - 1)] for queue_id, length in lengths.items()}
            histories = sorted(self._workers_folder.glob("*.history"))
            evidence = Evidence(
                history=check_history(read_history(*histories), drained=True, written=written),
                counts=read_counts(site.spark, delta),
                refusals=read_refusals(site.spark, delta),
                rejected=read_rejected(site.spark, delta),
                processed=read_processed(tasks, expected.sent),
                letters=letters,
                planted=[p for task in tasks if task.role == "intruder" for p in read_planted(task.planted_file)],
            )
            del self._expected  # it and the evidence take 500 bytes for each message, and the suites need the memory
            return examine(expected, evidence)

    def _tasks(self, site: JobSite) -> list[Task]:
        common = {
            "connection": site.connection,
            "prefix": self._prefix,
            "topic": self._topic,
            "queues": self._expected.queues,
            "ops_partitions": OPS_PARTITIONS,
            "source": self._source,
            "folder": str(self._workers_folder),
            "malformed_count": self._expected.malformed_count,
            "refused_count": self._expected.refused_count,
        }
        return tasks_of([group for group in self._expected.groups if group != ORDERLY_GROUP], common)

    def _declare(self, connection: KafkaConnection) -> None:
        """Declare the queues, and give one group its attempt limit, before the first pop."""
        history_file = self._workers_folder / f"{CLIENT}.history"
        settings = ClientSettings(
            **connection.client_options,
            client_id=CLIENT,
            prefix=self._prefix,
            history_file=history_file,
            admin_key=self._admin_key,
        )
        topic, group = describe_topic(settings, self._topic), self._expected.limited_group
        with Transport(settings) as transport:
            futures = []
            for queue_id in range(self._expected.queues):
                policy = Policy(v=1, topic=self._topic, queue_id=queue_id, group=group, max_attempts=ATTEMPTS_OF_POLICY)
                futures += [transport.submit(declare_of(topic, queue_id)), transport.submit(policy)]
            for future in futures:
                if future.result().code:
                    raise Refused(future.result())

    def _run_workers(self, site: JobSite, workers: WorkerProcesses) -> None:
        """Let the workers run until every message is done in every group.

        Raises:
            Unavailable: A process or the job has ended, or nothing moves any more.
        """
        wanted = len(self._expected.groups) * len(self._expected.sent.contents)
        done = last_done = 0
        moved_s = time.monotonic()
        while done < wanted or not workers.have_sent_all:
            site.require_running()
            workers.step()
            progress = self._progress(site)
            done = progress.done
            self._view.show(progress.line)
            site.disturb(done / wanted)
            if done > last_done:
                last_done, moved_s = done, time.monotonic()
            elif time.monotonic() - moved_s > STALLED_S:
                message = f"nothing has moved for {STALLED_S:.0f} s"
                raise Unavailable(message)
            time.sleep(LOOK_EVERY_S)
        self._view.show(progress.line)

    def _settle(self, site: JobSite) -> int:
        """Wait until the whole log is decided and in Delta; return the number of dead letters.

        Raises:
            Unavailable: It takes too long.
        """
        deadline_s = time.monotonic() + site.settle_s
        while time.monotonic() < deadline_s:
            site.require_running()
            if site.is_settled(self._measured.ops):
                return self._progress(site).dead_lettered
            time.sleep(0.1)
        message = f"the tables are not complete after {site.settle_s:.0f} s"
        raise Unavailable(message)

    def _progress(self, site: JobSite) -> Progress:
        return site.progress(self._topic, self._expected.queues * len(self._expected.groups))


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _checked(delta_root: Path) -> "QualityReport":
    """Run the quality suites."""
    # Great Expectations takes seconds to import.
    from expectations.opened_tables import OpenedTables  # noqa: PLC0415
    from expectations.validate import validate  # noqa: PLC0415

    with OpenedTables(delta_root) as opened:
        return validate(opened)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
