"""The folder of a job that `popstream up` runs, with the commands that are given there and the clients that use it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from checkpoints.layout import JobFolder
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from pipelines.control.job_file import JobFile
from popstream.consumer import Consumer
from popstream.producer import Producer
from tests.support.processes.job_process import POPSTREAM, ROOT
from tests.support.runbook import commands_in, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND_S = 240.0
OK, SETTING, CONTRADICTION = 0, 2, 4
UP = ("up", "--driver-memory", "600m", "--flush-interval", "1s")


def typed(command: str) -> tuple[int, str]:
    """Give a command to a shell, as it was printed; its exit code, and what it says."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join((str(POPSTREAM.parent), os.environ["PATH"]))},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    return done.returncode, done.stdout + done.stderr


class RunningJob(NamedTuple):
    """A process of `popstream up`, and the servers of its Kafka."""

    process: subprocess.Popen[bytes]
    servers: str

    def ended_within(self, seconds: float) -> int | None:
        """Return its exit code, None if it still runs after that time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Site:
    """The folder of a job, and the commands that are given there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = JobFolder(root)

    def popstream(self, *words: str, code: int = OK) -> subprocess.CompletedProcess[str]:
        """One command, which has to end so."""
        done = subprocess.run(
            [POPSTREAM, *words, "--folder", str(self.root)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    @contextlib.contextmanager
    def running(self, *options: str) -> Iterator[RunningJob]:
        """A job that has started; killed in the end, if it runs then."""
        with (self.root.parent / "up.log").open("ab") as log:
            process = subprocess.Popen(
                [POPSTREAM, *UP, "--folder", str(self.root), *options], cwd=ROOT, stdout=log, stderr=log
            )
        try:
            servers = self._servers_of(process)
            if servers is None:
                raise AssertionError(self.said)
            yield RunningJob(process, servers)
        finally:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def up(self, *options: str) -> Iterator[str]:
        """A job that runs; the servers of its Kafka. It is stopped in order."""
        with self.running(*options) as job:
            yield job.servers
            self._stop(job.process)

    def try_up(self) -> str | None:
        """Start the job, and stop it in order if it runs; otherwise what it says."""
        with (self.root.parent / "try.log").open("w+b") as log:
            process = subprocess.Popen([POPSTREAM, *UP, "--folder", str(self.root)], cwd=ROOT, stdout=log, stderr=log)
            try:
                if self._servers_of(process) is not None:
                    self._stop(process)
                    return None
                assert process.wait(COMMAND_S) == CONTRADICTION
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            return log.read().decode()

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(COMMAND_S) == OK, self.said

    def _servers_of(self, process: subprocess.Popen[bytes]) -> str | None:
        """Return the servers of the Kafka of a job, None if it ends instead of running."""
        deadline = time.monotonic() + COMMAND_S
        while process.poll() is None:
            job_file = JobFile.read(self.folder.job_file)
            if job_file is not None and job_file.pid == process.pid:
                return job_file.bootstrap_servers
            assert time.monotonic() < deadline, self.said
            time.sleep(0.2)
        return None

    @property
    def said(self) -> str:
        return (self.root.parent / "up.log").read_text(errors="replace")[-4000:]

    def refusal(self) -> str:
        """What `popstream up` says when it does not start."""
        return self.popstream(*UP, code=CONTRADICTION).stderr

    def follow(self, said: str, command: str, code: int = OK) -> str:
        """Give the command that begins so as it was printed, and return what it says; the runbook has it, too."""
        printed = re.search(f"`(popstream {re.escape(command)}(?: [^`]*)?)`", said)
        assert printed is not None, said
        row = row_of(said)
        assert row is not None, f"the runbook has no row for: {said}"
        assert commands_in(printed[0]) <= commands_in(row.repair), row
        ended, told = typed(printed[1])
        assert ended == code, f"{printed[1]}: {ended}\n{told[-6000:]}"
        return told

    def goes_on(self, *options: str) -> None:
        """A job starts, clients work with it, and everything is what the log leads to."""
        with self.up(*options) as servers:
            send(servers, 20)
            assert work(servers, 20) == 20
        self.popstream("verify")

    @contextlib.contextmanager
    def kafka(self) -> Iterator[str]:
        """Its broker, without a job."""
        with EmbeddedKafka(self.folder.kafka, jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED_JVM) as broker:
            yield broker.bootstrap_servers


def send(servers: str, count: int) -> None:
    with Producer(servers) as producer:
        for result in [producer.send("orders", b"%d" % number) for number in range(count)]:
            result.result(60)


def work(servers: str, count: int) -> int:
    """Ack a number of messages; some more stay leased."""
    done = 0
    with Consumer(servers, group="billing", topics=["orders"], invisible_time_ms=30_000) as consumer:
        for message in consumer:
            message.ack()
            done += 1
            if done == count:
                break
    return done
