"""A tenant of the secured demo: its users, its keys, and its job in a process of its own."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from checkpoints.layout import JobFolder
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import AUDIT_TABLES, table_path
from connectors.kafka.access_rules import Right, rights_of_tenant
from connectors.kafka.secured_kafka import SecuredKafka
from connectors.kafka.topic_admin import create_message_topic
from connectors.local_servers.loopback import HOST, free_port
from connectors.local_servers.watched_process import WatchedProcess
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Status, StatusRequest
from popstream.kafka_connection import KafkaConnection
from popstream.settings import ClientSettings
from popstream.wire.base_errors import PopstreamError, Unavailable

__all__ = ["GROUP", "KEY_IDS", "QUEUES", "Tenant"]

GROUP = "billing"
QUEUES = 2
OPS_PARTITIONS = 2
KEY_IDS = ("2030", "2031")
"""Two admin keys, as during a rotation. The second one signs what the job sends."""

START_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 120.0
STOP_GRACE_S = 120.0
COMMAND_TIMEOUT_S = 300.0
LOG_LINES_SHOWN = 10
LOG_BYTES_MAX = 4 * 1024 * 1024
POLL_S = 0.2


class Tenant:
    """A prefix with a job, two users and keys of its own. Its files are in `folder`, and only its user may read them.

    Args:
        name: Its prefix.
        folder: Its folder, which exists.
        kafka: The broker.
        var: Folder with the jars.
    """

    def __init__(self, name: str, folder: Path, kafka: SecuredKafka, *, var: Path) -> None:
        self.name = name
        self.topic = f"{name}.orders"
        self.metrics_port = free_port()
        self._api_port = free_port()
        self.said: list[str] = []
        """What its commands have printed."""
        self._folder = folder
        self._kafka = kafka
        self._var = var
        self._passwords = {user: secrets.token_hex(16) for user in ("job", "app")}
        self._handle_secret = secrets.token_hex(32)
        self._api_token = secrets.token_hex(32)
        self._admin_secrets = {key_id: secrets.token_hex(32) for key_id in KEY_IDS}
        self._process: WatchedProcess | None = None

    @property
    def rights(self) -> list[Right]:
        """The rights of its users."""
        return [*rights_of_tenant(self.name, self.topic, job=f"{self.name}-job", app=f"{self.name}-app")]

    @property
    def secrets(self) -> list[str]:
        """All of them; each is in one file."""
        return [*self._passwords.values(), self._handle_secret, self._api_token, *self._admin_secrets.values()]

    @property
    def files_of_secrets(self) -> set[Path]:
        """The files that they are in."""
        users = (self._kafka.folder / f"{self.name}-{user}.properties" for user in self._passwords)
        return {*users, self._settings_file, *map(self.admin_key_file, KEY_IDS)}

    @property
    def job_folder(self) -> JobFolder:
        """The folder of its job."""
        return JobFolder(self._folder / "job")

    @property
    def log(self) -> Path:
        """What its job prints."""
        return self._folder / "job.out"

    def admin_key_file(self, key_id: str) -> Path:
        """Return the file of one of its admin keys."""
        return self._folder / f"{key_id}.key"

    def client_settings(self, **changed: Any) -> ClientSettings:  # noqa: ANN401 - fields of ClientSettings
        """Return settings of a client that its apps have; `changed` are others."""
        return ClientSettings(**{"client_id": f"{self.name}-client", **self.client_options, **changed})

    @property
    def client_options(self) -> dict[str, Any]:
        """How its apps connect."""
        return {**self._login("app").client_options, "prefix": self.name, "answer_timeout_ms": 120_000}

    def prepare(self) -> None:
        """Create users, the message topic and files; an administrator of Kafka still has to grant `rights`."""
        for user, password in self._passwords.items():
            self._kafka.add_user(f"{self.name}-{user}", password)
        create_message_topic(self._kafka.broker.connection, self.topic, QUEUES)
        for key_id, secret in self._admin_secrets.items():
            _write(self.admin_key_file(key_id), f"{key_id}:{secret}\n")
        lines = {
            "folder": str(self.job_folder.root),
            "bootstrap_servers": self._kafka.servers,
            "kafka_config": self._login("job").config_file,
            "topic_prefix": self.name,
            "message_topics": self.topic,
            "ops_partitions": OPS_PARTITIONS,
            "results_partitions": 4,
            "flush_interval_s": 1.0,
            "metrics_port": self.metrics_port,
            "api_port": self._api_port,
            "api_token": self._api_token,
            "admin_key_active": KEY_IDS[-1],
        }
        tables = {"handle_keys": {"2030": self._handle_secret}, "admin_keys": self._admin_secrets}
        text = _toml(lines) + "".join(f"[{name}]\n{_toml(table)}" for name, table in tables.items())
        _write(self._settings_file, text)

    def start(self) -> None:
        """Start its job, which `wait_until_ready` waits for."""
        self._process = WatchedProcess(
            [*_POPSTREAM, "up", "--settings", str(self._settings_file), "--var", str(self._var)],
            self.log,
            log_bytes_max=LOG_BYTES_MAX,
            grace_s=STOP_GRACE_S,
            cwd=Path.cwd(),
            environment=_environment(),
        )

    def wait_until_ready(self) -> None:
        """Wait until the job decides and delivers.

        Raises:
            Unavailable: It ends, or takes too long.
        """
        self._wait(lambda status: not status.not_ready_reasons, START_TIMEOUT_S, "is not ready")

    def settle(self) -> None:
        """Wait until everything that was sent is decided, and in the tables.

        Raises:
            Unavailable: It takes too long.
        """
        time.sleep(2 * POLL_S)
        self._wait(
            lambda status: (
                status.ops_lag == 0 and not status.outbox_bytes and (status.delta_seq or 0) >= status.apply_seq
            ),
            SETTLE_TIMEOUT_S,
            "has not delivered everything",
        )

    def command(self, *arguments: str) -> int:
        """Run a command of `popstream` as an administrator does, and return its exit code."""
        done = subprocess.run(  # noqa: S603 - the command is ours
            [*_POPSTREAM, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env=_environment(),
        )
        self.said += [done.stdout, done.stderr]
        return done.returncode

    def administer(self, *arguments: str, key_id: str = KEY_IDS[0]) -> int:
        """Run a command that sends operations on queues or groups to its job; return its exit code."""
        key = str(self.admin_key_file(key_id))
        return self.command(*arguments, "--folder", str(self.job_folder.root), "--admin-key-file", key)

    def verify(self) -> int:
        """Let its log be decided again, and return the exit code."""
        return self.command("verify", "--settings", str(self._settings_file), "--var", str(self._var))

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query on its audit tables."""
        paths = [table_path(self.job_folder.delta, name) for name in AUDIT_TABLES]
        snapshots = [open_snapshot(path) for path in paths if (path / "_delta_log").is_dir()]
        with DuckDbTables(snapshots) as tables:
            return list(tables.rows(sql, values))

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric of its job: the sum over the series that have these labels."""
        with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def refusals(self) -> Counter[str]:
        """Return by reason what its job has refused and rejected, as its API says to the status page.

        Raises:
            Unavailable: The API does not answer.
            Invalid: It does not take the token.
        """
        url = f"http://{HOST}:{self._api_port}"
        api = JobFile(
            pid=0,
            bootstrap_servers="",
            prefix=self.name,
            folder="",
            address=url,
            token=self._api_token,
            started_at=0.0,
        )
        totals = ask(api, StatusRequest(limit=0), Status).totals
        return Counter() if totals is None else Counter(totals.refused_by_reason) + Counter(totals.rejected_by_reason)

    def stop(self) -> int:
        """Stop its job, and return the exit code; kill it if it does not end."""
        if self._process is None:
            return 0
        self._process.stop()
        code = self._process.exit_code
        assert code is not None, "it has ended"
        return code

    @property
    def _settings_file(self) -> Path:
        return self._folder / "settings.toml"

    def _login(self, user: str) -> KafkaConnection:
        return self._kafka.login(f"{self.name}-{user}", self._passwords[user])

    def _wait(self, is_so: Callable[[Status], bool], timeout_s: float, what: str) -> None:
        assert self._process is not None, "the job was started"
        deadline_s = time.monotonic() + timeout_s
        while not any(map(is_so, self._status())):
            code = self._process.exit_code
            if code is not None or time.monotonic() > deadline_s:
                how = f"has ended with exit code {code}" if code is not None else f"{what} after {timeout_s:.0f} s"
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                message = f"the job of {self.name} {how}; its log is {self.log}:"
                raise Unavailable(message, subject=self.name, details=lines[-LOG_LINES_SHOWN:])
            time.sleep(POLL_S)

    def _status(self) -> Iterator[Status]:
        job = JobFile.read(self.job_folder.job_file)
        if job is not None:
            try:
                yield ask(job, StatusRequest(limit=0), Status)
            except PopstreamError:  # it starts
                return


_POPSTREAM = (sys.executable, "-m", "popstream")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POPSTREAM_")}


def _toml(lines: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
