"""The demo from beginning to end."""

import contextlib
import resource
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pydantic import SecretStr

from checkpoints.ownership import Ownership
from connectors.jars.resolve import JarError, kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.state_view import queues_in
from pipelines.demo.cast import ORDERLY_GROUP, group_names, limited_groups, orders_of
from pipelines.demo.crew import Crew
from pipelines.demo.interrupts import Interrupts
from pipelines.demo.journal import read_journal
from pipelines.demo.letters import count_records, read_letters
from pipelines.demo.memory import MemoryWatch
from pipelines.demo.messages import Source
from pipelines.demo.scene import play, settle
from pipelines.demo.summary import Phases, Summary, summarize
from pipelines.demo.tables import newest_versions, read_deliveries, read_operations, read_positions, read_rejected
from pipelines.demo.verdict import Evidence, Expected, judge
from pipelines.demo.view import View
from pipelines.process.host import Host
from pipelines.settings import JobSettings
from popstream import ClientSettings, Refused, Transport
from popstream.send.dispatcher import declare_of
from popstream.topics.describe import describe_topic
from popstream.wire.command import Policy
from popstream.wire.failures import Invalid, PopstreamError

__all__ = ["run_demo"]

REJECTED_COUNT = 1000
REFUSED_COUNT = 500
OPS_PARTITIONS = 4
ATTEMPTS_MAX = 6
FLUSH_INTERVAL_S = 3.0
CLIENT = "demo"


def run_demo(
    *,
    messages_count: int = 100_000,
    messages_file: Path | None = None,
    queues: int = 8,
    groups: int = 3,
    var: Path = Path("var"),
    bootstrap_servers: str = "",
    json_output: bool = False,
    rejected_count: int = REJECTED_COUNT,
    refused_count: int = REFUSED_COUNT,
) -> int:
    r"""Run the demo, print what came of it, and give the exit code: 0 when every check held, 130 after Ctrl-C, else 1.

    Args:
        messages_count: How many messages are made, unless there is a file.
        messages_file: One message a line; `\n` or `\r\n` ends it, and empty lines are messages too.
        queues: Partitions of the message topic.
        groups: Consumer groups; each gets every message. One more gets them in order.
        var: Folder with the jars; everything of the demo goes to `demo` below it, which is emptied first.
        bootstrap_servers: An existing Kafka, where the demo leaves its topics; empty: one of its own.
        json_output: Print the summary as JSON, everything else to standard error.
        rejected_count: Records that cannot be read.
        refused_count: Operations that must be refused.
    """
    demo = _Demo(
        source=Source(count=messages_count, file=None if messages_file is None else str(messages_file.absolute())),
        queues=queues,
        groups=group_names(groups),
        var=var,
        bootstrap_servers=bootstrap_servers,
        rejected_count=rejected_count,
        refused_count=refused_count,
    )
    with View(json_output=json_output) as view, Interrupts() as interrupts:
        try:
            summary = demo.run(view, interrupts)
        except KeyboardInterrupt:
            view.say("interrupted; everything is stopped")
            return interrupts.exit_code
        except PopstreamError as error:
            view.close()
            print(f"the demo has failed: {error}\nlogs are in {demo.folder}", file=sys.stderr)
            return 1
    if json_output:
        print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    else:
        print(summary.as_text())
    return 0 if summary.verdict == "ok" else 1


class _Demo:
    """One run; the parameters are those of `run_demo`."""

    def __init__(
        self,
        *,
        source: Source,
        queues: int,
        groups: list[str],
        var: Path,
        bootstrap_servers: str,
        rejected_count: int,
        refused_count: int,
    ) -> None:
        self.folder = var.absolute() / "demo"
        self._source = source
        self._queues = queues
        self._groups = groups
        self._var = var.absolute()
        self._given_servers = bootstrap_servers
        self._rejected_count = rejected_count
        self._refused_count = refused_count
        # Of a Kafka that is not ours nobody empties the topics.
        self._prefix = f"popstream-demo-{secrets.token_hex(4)}" if bootstrap_servers else "popstream-demo"
        self._topic = f"{self._prefix}.messages"
        self._phases = Phases()

    def run(self, view: View, interrupts: Interrupts) -> Summary:
        """Do it all; stop everything, whatever happens."""
        started_s = time.monotonic()
        expected = Expected(
            contents=self._source.measure(),
            groups=[*self._groups, ORDERLY_GROUP],
            queues=self._queues,
            limited_groups=limited_groups(self._groups),
            ordered_groups=frozenset((ORDERLY_GROUP,)),
            rejected_count=self._rejected_count,
            refused_count=self._refused_count,
        )
        with Ownership(self.folder / "lock"), MemoryWatch() as memory:
            self._empty_folder()
            with self._host(view, memory) as host:
                interrupts.take()
                try:
                    self._phases.start = time.monotonic() - started_s
                    verdict, ops = self._play_and_judge(host, expected, view, started_s)
                    quality = self._validate(host, view)
                finally:
                    interrupts.hold_off()
                    view.close()
                    began_s = time.monotonic()
            self._phases.stop = time.monotonic() - began_s
        summary = summarize(
            verdict,
            expected,
            quality,
            ops=ops,
            seconds=time.monotonic() - started_s,
            cpu_seconds=_cpu_seconds(),
            phases=self._phases,
            memory=memory.peaks,
        )
        (self.folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def _empty_folder(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name == "lock":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    @contextlib.contextmanager
    def _host(self, view: View, memory: MemoryWatch) -> Iterator[Host]:
        with contextlib.ExitStack() as stack:
            servers = self._given_servers
            if not servers:
                view.say("starting Kafka")
                try:
                    jars = kafka_jars(self._var)
                except JarError as error:
                    raise Invalid(str(error)) from error
                kafka = stack.enter_context(EmbeddedKafka(self.folder / "kafka", jars=jars))
                memory.kafka_pid = kafka.pid
                servers = kafka.bootstrap_servers
            settings: dict[str, Any] = {
                "folder": self.folder / "job",
                "bootstrap_servers": servers,
                "topic_prefix": self._prefix,
                "message_topics": self._topic,
                "ops_partitions": OPS_PARTITIONS,
                "flush_interval_s": FLUSH_INTERVAL_S,
                # Signed handles, so that a forged one is known as such.
                "handle_keys": {"demo": SecretStr(secrets.token_hex(16))},
                "handle_key_active": "demo",
            }
            yield stack.enter_context(Host(JobSettings(**settings), var=self._var, on_progress=view.say))

    def _play_and_judge(self, host: Host, expected: Expected, view: View, started_s: float) -> tuple[Any, int]:
        began_s = time.monotonic()
        servers = host.bootstrap_servers
        create_message_topic(servers, self._topic, self._queues)
        orders = orders_of(
            groups=self._groups,
            queues=self._queues,
            partitions=OPS_PARTITIONS,
            source=self._source,
            bootstrap_servers=servers,
            prefix=self._prefix,
            topic=self._topic,
            journals=self.folder / "journals",
            rejected_count=self._rejected_count,
            refused_count=self._refused_count,
        )
        with Crew(orders, self.folder / "logs") as crew:
            self._declare(servers)
            play(host, crew, expected, view, started_s)
            self._phases.load = time.monotonic() - began_s
            view.say("every message is done; the consumers stop, and what they did goes to Delta")
            began_s = time.monotonic()
            crew.stop()
            killed = {member.orders.name for member in crew.members if member.was_killed}
        ops_in_log = count_records(servers, host.job.topics.ops)
        settle(host, ops_in_log)
        dead = sum(lane.dead_lettered for queue in queues_in(host.job.store) for lane in queue.lanes)
        letters = read_letters(servers, host.job.topics.dead_letters, dead)
        self._phases.settle = time.monotonic() - began_s
        view.say("comparing the tables with what the consumers wrote down")
        began_s = time.monotonic()
        delta = host.job.folder.delta
        versions = newest_versions(delta)
        evidence = Evidence(
            operations=read_operations(host.spark, delta, versions),
            deliveries=read_deliveries(host.spark, delta, versions),
            positions=read_positions(host.spark, delta, versions),
            rejected=read_rejected(host.spark, delta, versions),
            workers=[
                read_journal(Path(order.journal), was_killed=order.name in killed)
                for order in orders
                if order.role != "sender"
            ],
            letters=letters,
            ops_in_log=ops_in_log,
            ops_decided=sum(host.job.apply_ops.applied.next_offset.values()),
        )
        verdict = judge(expected, evidence)
        self._versions = versions
        self._phases.verdict = time.monotonic() - began_s
        return verdict, ops_in_log

    def _declare(self, servers: str) -> None:
        """Declare the queues, and give the groups that have one their attempt limit, before anybody pops."""
        settings = ClientSettings(bootstrap_servers=servers, client_id=CLIENT, prefix=self._prefix)
        topic = describe_topic(settings, self._topic)
        with Transport(settings) as transport:
            waiting = [transport.submit(declare_of(topic, queue_id)) for queue_id in range(self._queues)]
            waiting += [
                transport.submit(
                    Policy(v=1, topic=self._topic, queue_id=queue_id, group=group, max_attempts=ATTEMPTS_MAX)
                )
                for queue_id in range(self._queues)
                for group in limited_groups(self._groups)
            ]
            for future in waiting:
                if future.result().code:
                    raise Refused(future.result())

    def _validate(self, host: Host, view: View) -> Any:  # noqa: ANN401 - expectations' own type, imported late
        view.say("running the quality suites")
        began_s = time.monotonic()
        validate = _import_validate()
        report = validate(host.spark, host.job.folder.delta, versions=self._versions)
        self._phases.quality = time.monotonic() - began_s
        return report


def _import_validate() -> Any:  # noqa: ANN401 - a function of a module that is imported here
    """Great Expectations takes seconds to import, and nobody else here needs it."""
    try:
        from expectations.validate import validate  # noqa: PLC0415
    except SystemExit as error:
        # PySpark takes `python -c` for a doctest, and ends the process with 0: the demo would seem to have succeeded.
        message = (
            "PySpark has ended the import of the quality suites: run the demo by its command, or from a script file"
        )
        raise Invalid(message) from error
    return validate


def _cpu_seconds() -> float:
    """Of this process and of all that it has started and seen the end of."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
