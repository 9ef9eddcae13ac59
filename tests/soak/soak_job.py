"""An hour of half of this machine's capacity, with kills and broker restarts: `python -m tests.soak.soak_job`.

```
minute 0         capacity: operations are sent at once; half of the rate of decisions is the load from then on
minutes 0 to 10  warm-up: the broker is killed once, so that the largest micro-batch of a calm time has been seen
until 2/3        nothing is killed: memory, files and times are those of one process, which has to keep no more and more
the last 1/3     Python, JVM or both are killed again and again, the broker now and then
the end          no load: the job decides the rest of the log; clients finish; then `check_history` judges their
                 histories, and `popstream verify` decides the whole log again
```

Beside the load two groups of real consumers process a topic of real messages, and record their histories. The exit code
is 1 when a bound does not hold; the report is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import operator
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from checkpoints.layout import JobFolder
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Status, StatusRequest
from pipelines.process.host import TRIM_INTERVAL_S
from popstream.consumer import Consumer
from popstream.history.check import check_history
from popstream.history.recorder import read_history
from popstream.kafka_connection import KafkaConnection
from popstream.producer import Producer
from popstream.wire.base_errors import PopstreamError
from tests.support.left_behind import live_files
from tests.support.processes.job_process import POPSTREAM, ROOT, SPARK_CLASS, JobProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from popstream.message import Message

PREFIX, MESSAGES = "soak", "tasks"
GROUPS = {"workers": False, "in-line": True}
MESSAGES_PER_S = 10.0
CAPACITY_OPERATIONS = 500_000
WARM_UP_S = 600.0
SAMPLE_S = 0.5
FILES_EACH_S = 20.0
KILL_EACH_S = (60.0, 120.0)
BROKER_EACH_S = 600.0
MAINTAIN_EACH_S = 300.0
DRAIN_S_MAX = 300.0
# The time to the first answer of a job that was killed: the last kill may be just before the end of the load.
LAG_ZERO_S_MAX = 90.0
RSS_MB_PER_MINUTE_MAX = 1.0
FLOOR_S = 2 * TRIM_INTERVAL_S
"""Of each such time the least memory counts: what a large micro-batch took goes back to the system once a minute."""
# The heap has its size from the start; pages of it that are touched later would look like a leak for half an hour.
JAVA_OPTIONS = "-XX:+AlwaysPreTouch"
P99_RATIO_MAX = 1.2
FILES_RATIO_MAX = 1.3
# RocksDB joins its files at their own times: a few more or fewer are no growth.
FILES_SLACK = 20


class Sample(NamedTuple):
    """The measurements at one moment, `at_s` after the load began."""

    at_s: float
    pid: int
    python_mb: float
    jvm_mb: float
    descriptors: int
    micro_batches: int
    micro_batch_ms: float
    ops_lag: int


class Job:
    """The job as a child process, started again whenever it has died."""

    def __init__(self, servers: str, root: Path, minutes: float) -> None:
        self.folder = JobFolder(root / "job")
        self._servers = servers
        self._settings = {
            "folder": str(self.folder.root),
            "topic_prefix": PREFIX,
            "message_topics": MESSAGES,
            "snapshot_interval_s": MAINTAIN_EACH_S,
            "maintain_interval_s": min(MAINTAIN_EACH_S, minutes * 15),
        }
        self.process = self._started()
        self._ending = False
        self.starts = 1
        self._lock = threading.Lock()
        self._restarter = threading.Thread(target=self._keep_alive, daemon=True)
        self._restarter.start()

    def _started(self) -> JobProcess:
        return JobProcess(self._servers, self._settings, java_options=JAVA_OPTIONS)

    def _keep_alive(self) -> None:
        while not self._ending:
            if self.process.process.poll() is not None:
                with self._lock:
                    self.process.__exit__(None, None, None)
                    self.process = self._started()
                    self.starts += 1
            time.sleep(0.2)

    def jvm(self) -> psutil.Process | None:
        """The JVM with Spark in it."""
        children = psutil.Process(self.process.process.pid).children()
        return next((child for child in children if SPARK_CLASS in child.cmdline()), None)

    def status(self) -> Status | None:
        """Return what it reports; None: it does not answer."""
        job_file = JobFile.read(self.folder.job_file)
        if job_file is None:
            return None
        try:
            return ask(job_file, StatusRequest(limit=0), Status, timeout_s=5)
        except PopstreamError:
            return None

    def kill(self, what: str) -> None:
        """SIGKILL Python, its JVM, or both."""
        with self._lock, contextlib.suppress(psutil.NoSuchProcess):
            jvm = self.jvm()
            if what != "jvm":
                self.process.process.kill()
            if what != "python" and jvm is not None:
                jvm.kill()

    def stop(self) -> int:
        """Stop it in order; return its exit code."""
        self._ending = True
        self._restarter.join()
        return self.process.stop(300)


class Load:
    """The process of `tests.soak.load`."""

    def __init__(self, servers: str) -> None:
        command = [sys.executable, "-m", "tests.soak.load", servers, PREFIX]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def at_once(self, operations: int) -> int:
        """Send operations as fast as possible; return when Kafka has them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(operations, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def rate(self, operations_per_s: float) -> None:
        """Send at this rate from now on."""
        assert self._process.stdin is not None
        print(operations_per_s, file=self._process.stdin, flush=True)

    def end(self) -> int:
        """Stop; return the number of operations that it has sent."""
        return int(self._process.communicate()[0])


class Clients:
    """A producer, and a consumer of each group, on threads of this process."""

    def __init__(self, servers: str, root: Path) -> None:
        self.files = [root / "histories" / f"{group}.jsonl" for group in GROUPS]
        self.files[0].parent.mkdir()
        self._stopping = threading.Event()
        self.sent = 0
        self.written: set[bytes] = set()
        self.seen: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self._producer = Producer(servers, prefix=PREFIX)
        self._consumers = [
            Consumer(servers, group=group, topics=[MESSAGES], prefix=PREFIX, order=order, history_file=file)
            for (group, order), file in zip(GROUPS.items(), self.files, strict=True)
        ]
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._workers = [
            threading.Thread(target=consumer.run, args=(self._handler(consumer.group),), kwargs={"workers": 2})
            for consumer in self._consumers
        ]
        for thread in (self._sender, *self._workers):
            thread.start()

    def _handler(self, group: str) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            assert message.value is not None
            self.seen[group].add(message.value)

        return handle

    def _send(self) -> None:
        while not self._stopping.wait(1 / MESSAGES_PER_S):
            value = b"%d" % self.sent
            result = self._producer.send(MESSAGES, value, key=b"%d" % (self.sent % 50))
            result.add_done_callback(functools.partial(self._note_written, value))
            self.sent += 1
        self._producer.close()

    def _note_written(self, value: bytes, result: Future[Any]) -> None:
        if result.exception() is None:  # else the producer has reported that it may be lost
            self.written.add(value)

    def stop_sending(self) -> None:
        """Send no more messages, and wait until those in flight are written."""
        self._stopping.set()
        self._sender.join()

    @property
    def unseen(self) -> int:
        """The number of written messages that a group has not processed."""
        return max(len(self.written - seen) for seen in self.seen.values())

    def finish(self, timeout_s: float) -> None:
        """Wait until each group has processed all messages, then close."""
        deadline = time.monotonic() + timeout_s
        while self.unseen and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(5)  # a message that was handed out twice may come again
        for consumer in self._consumers:
            consumer.close()
        for worker in self._workers:
            worker.join()


class Watch:
    """Samples in a thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self.samples: list[Sample] = []
        self.files: list[tuple[float, dict[str, int]]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        files_due = 0.0
        while not self._stopping.wait(SAMPLE_S):
            status = self._job.status()
            if status is None or status.totals is None or status.pid is None:
                continue
            with contextlib.suppress(psutil.Error):
                own, jvm = psutil.Process(status.pid), self._job.jvm()
                if jvm is not None:
                    self.samples.append(
                        Sample(
                            at_s=self.now_s,
                            pid=status.pid,
                            python_mb=own.memory_info().rss / 1e6,
                            jvm_mb=jvm.memory_info().rss / 1e6,
                            descriptors=own.num_fds() + jvm.num_fds(),
                            micro_batches=status.totals.micro_batches,
                            micro_batch_ms=sum(status.totals.last_micro_batch_ms.values()),
                            ops_lag=status.ops_lag or 0,
                        )
                    )
            if self.now_s >= files_due:
                self.files.append((self.now_s, _file_counts(self._job.folder)))
                files_due = self.now_s + FILES_EACH_S


def _file_counts(folder: JobFolder) -> dict[str, int]:
    """Count files by part of the folder; of tables only those of the newest version: others are kept for a week."""
    counts = {
        name: sum(len(files) for _, _, files in os.walk(path))
        for name, path in {"state": folder.state, "queues": folder.queues, "spark": folder.spark}.items()
    }
    counts["delta"] = sum(len(live_files(table)) for table in folder.delta.iterdir() if (table / "_delta_log").is_dir())
    return counts


def _floors(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the least of each `FLOOR_S`, with its time."""
    windows: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in points:
        windows.setdefault(int(at_s // FLOOR_S), []).append((at_s, value))
    return [min(found, key=operator.itemgetter(1)) for found in windows.values()]


def _slope_per_minute(points: list[tuple[float, float]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope * 60 if len(points) > 2 else 0.0


def _p99(samples: list[Sample]) -> float:
    seen: dict[tuple[int, int], float] = {
        (sample.pid, sample.micro_batches): sample.micro_batch_ms for sample in samples
    }
    return statistics.quantiles(seen.values(), n=100)[98] if len(seen) > 1 else 0.0


def _thirds(samples: list[Sample]) -> list[list[Sample]]:
    start, end = samples[0].at_s, samples[-1].at_s
    edges = [start + (end - start) * part / 3 for part in range(4)]
    return [[s for s in samples if edges[part] <= s.at_s <= edges[part + 1]] for part in range(3)]


def _minutes(samples: list[Sample]) -> list[str]:
    """Return a line for each minute, to find the cause of a bound that does not hold."""
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(int(sample.at_s // 60), []).append(sample)
    return [
        f"{minute}: Python {_range([s.python_mb for s in seen])} MB, JVM {_range([s.jvm_mb for s in seen])} MB,"
        f" micro-batches up to {max(s.micro_batch_ms for s in seen):.0f} ms, lag up to {max(s.ops_lag for s in seen)}"
        for minute, seen in minutes.items()
    ]


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _growth(counts: list[int]) -> float:
    """Return the ratio of the greatest count of the last third to that of the first, with some slack."""
    third = max(1, len(counts) // 3)
    return max(counts[-third:]) / (max(counts[:third]) + FILES_SLACK)


def _warm_up_s(calm_s: float) -> float:
    return min(WARM_UP_S, calm_s / 3)


def _bounds(calm: list[Sample], watch: Watch) -> Iterator[tuple[str, float, float]]:
    """Yield (name, measured, bound)."""
    for name in ("python_mb", "jvm_mb"):
        floors = _floors([(sample.at_s, getattr(sample, name)) for sample in calm])
        yield f"{name}_per_minute", _slope_per_minute(floors), RSS_MB_PER_MINUTE_MAX
    yield "descriptors_growth", _growth([sample.descriptors for sample in calm]), FILES_RATIO_MAX
    files = [counts for at_s, counts in watch.files if calm[0].at_s <= at_s <= calm[-1].at_s]
    for name in files[0]:
        yield f"{name}_files_growth", _growth([counts[name] for counts in files]), FILES_RATIO_MAX
    thirds = _thirds(calm)
    yield "p99_micro_batch_ms_growth", _p99(thirds[2]) / max(1.0, _p99(thirds[0])), P99_RATIO_MAX


def _capacity(load: Load, job: Job, operations: int) -> float:
    """Return the operations decided per second when they are sent at once, from the first to the last decision."""
    before, started = _decided(job), time.monotonic()
    sent = load.at_once(operations)
    while _decided(job) - before < sent:
        assert job.starts == 1, job.process.log_tail()
        time.sleep(0.2)
    return sent / (time.monotonic() - started)


def _decided(job: Job) -> int:
    while (status := job.status()) is None or status.totals is None:
        time.sleep(0.5)
    return status.totals.operations


def _disturb(
    job: Job, broker: EmbeddedKafka, watch: Watch, calm_s: float, end_s: float, say: Callable[[str], None]
) -> int:
    """Wait until the end, and kill as the module describes; return the number of kills."""
    chance, kills = random.Random(8), 0
    broker_due, kill_due = _warm_up_s(calm_s) / 2, calm_s
    while watch.now_s < end_s:
        time.sleep(0.2)
        if watch.now_s >= broker_due:
            say("broker killed and started")
            broker.kill()
            broker.restart()
            broker_due = watch.now_s + BROKER_EACH_S if watch.now_s > calm_s else calm_s + BROKER_EACH_S / 4
        if watch.now_s >= kill_due:
            what = chance.choice(["python", "jvm", "both"])
            say(f"{what} killed")
            job.kill(what)
            kills += 1
            kill_due = watch.now_s + chance.uniform(*KILL_EACH_S)
    return kills


def soak(minutes: float, root: Path) -> dict[str, Any]:
    """Run the soak that the module describes; return the report."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{(time.monotonic() - started) / 60:6.1f} min  {text}", file=sys.stderr, flush=True)

    with EmbeddedKafka(root / "kafka", jars=kafka_jars(ROOT / "var")) as broker:
        servers = broker.bootstrap_servers
        ensure_topics(KafkaConnection(servers), Topics.of(PREFIX), TopicSettings())
        create_message_topic(KafkaConnection(servers), MESSAGES, 4)
        job, load = Job(servers, root, minutes), Load(servers)
        _decided(job)
        capacity = _capacity(load, job, CAPACITY_OPERATIONS)
        load.rate(capacity / 2)
        say(f"capacity {capacity:,.0f}/s; {capacity / 2:,.0f}/s from now on")
        clients = Clients(servers, root)
        watch = Watch(job)
        calm_s = minutes * 40
        kills = _disturb(job, broker, watch, calm_s, minutes * 60, say)
        sent = load.end()
        clients.stop_sending()
        drained_from = time.monotonic()
        while (status := job.status()) is None or status.ops_lag != 0:
            if time.monotonic() - drained_from > DRAIN_S_MAX:
                break
            time.sleep(0.2)
        drained_s = time.monotonic() - drained_from
        say(f"decided {drained_s:.1f} s after the end of the load")
        clients.finish(DRAIN_S_MAX)
        watch.stop()
        code = job.stop()
        say("judging histories")
        history = check_history(read_history(*clients.files), drained=True)
        calm = [sample for sample in watch.samples if _warm_up_s(calm_s) <= sample.at_s <= calm_s]
        bounds = [
            *_bounds(calm, watch),
            ("seconds_until_lag_is_zero", drained_s, LAG_ZERO_S_MAX),
            ("violations_in_histories", len(history.violations), 0),
            ("messages_not_seen", clients.unseen, 0),
            ("exit_code_of_the_job", abs(code), 0),
        ]
        for minute in _minutes(watch.samples):
            say(minute)
        for name, value, most in bounds:
            say(f"{name} {value:.3f}, at most {most:g}")
        say("deciding the whole log again, some minutes for each million operations")
        verified = subprocess.run(
            [
                POPSTREAM,
                "verify",
                "--json",
                "--folder",
                job.folder.root,
                "--bootstrap-servers",
                servers,
                "--prefix",
                PREFIX,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    bounds.append(("exit_code_of_verify", abs(verified.returncode), 0))
    return {
        "minutes": minutes,
        "capacity_per_s": round(capacity),
        "load_per_s": round(capacity / 2),
        "operations": sent,
        "messages": clients.sent,
        "messages_of_unknown_outcome": clients.sent - len(clients.written),
        "deliveries": history.delivery_count,
        "history_events": history.event_count,
        "kills": kills,
        "starts": job.starts,
        "minutes_seen": _minutes(watch.samples),
        "p99_micro_batch_ms_by_third": [round(_p99(third)) for third in _thirds(calm)],
        "resident_mb_at_end": [round(calm[-1].python_mb), round(calm[-1].jvm_mb)],
        "ops_lag_max_by_third": [max(sample.ops_lag for sample in third) for third in _thirds(watch.samples)],
        "files": watch.files[-1][1],
        "bounds": {
            name: {"measured": round(value, 3), "at_most": most, "holds": value <= most} for name, value, most in bounds
        },
        "verify": verified.stdout.strip() or verified.stderr[-2000:],
    }


def main() -> int:
    """Run the soak, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="popstream-soak-", ignore_cleanup_errors=True) as root:
        report = soak(options.minutes, Path(root))
    print(json.dumps(report, indent=2))
    return 0 if all(bound["holds"] for bound in report["bounds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
