"""Claim: a command takes from the running job what was not chosen, and never shows its login to another Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines import printed_commands
from pipelines.cli import target as target_module
from pipelines.cli.options import TargetOptions
from pipelines.cli.target import find_target
from pipelines.control.job_file import JobFile
from pipelines.printed_commands import completed_commands
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    made = JobFile(
        pid=1,
        bootstrap_servers="kafka:9093",
        kafka_config=str(tmp_path / "job.properties"),
        prefix="orders",
        folder="f",
        address="a",
        token="",
        started_at=0.0,
    )
    monkeypatch.setattr(target_module, "running_job", lambda _folder: made)
    monkeypatch.setattr(target_module, "reach_kafka", lambda _connection: None)
    return made


def test_by_default_it_is_all_of_the_job(job: JobFile) -> None:
    found = find_target(TargetOptions())
    assert (found.connection, found.prefix, found.job) == (job.connection, "orders", job)
    assert found.client_settings("x").connection == job.connection


def test_another_user_of_the_same_kafka(job: JobFile, tmp_path: Path) -> None:
    mine = tmp_path / "mine.properties"
    mine.write_text("")
    found = find_target(TargetOptions(kafka_config=mine))
    assert (found.connection, found.job) == (KafkaConnection("kafka:9093", str(mine)), job)


def test_another_kafka_does_not_get_the_login_of_the_job(job: JobFile) -> None:
    found = find_target(TargetOptions(bootstrap_servers="elsewhere:9092"))
    assert found.connection == KafkaConnection("elsewhere:9092")
    assert (found.prefix, found.job) == (job.prefix, None)


def test_without_a_job_a_kafka_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(target_module, "running_job", lambda _folder: None)
    monkeypatch.setattr(target_module, "reach_kafka", lambda _connection: None)
    with pytest.raises(Unavailable, match="or name its Kafka with --bootstrap-servers"):
        find_target(TargetOptions())
    file = tmp_path / "client.properties"
    file.write_text("reply.to=all\n")
    with pytest.raises(Invalid, match=r"line 1: unknown connection setting reply\.to: remove it"):
        find_target(TargetOptions(kafka_config=file))
    file.write_text("bootstrap.servers=kafka:9093\n")
    assert find_target(TargetOptions(kafka_config=file)).connection == KafkaConnection("kafka:9093", str(file))


def test_a_command_that_is_named_finds_the_same_kafka(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed_commands, "_options", {})
    find_target(TargetOptions(bootstrap_servers="elsewhere:9092", prefix="shop"))
    assert completed_commands("`popstream send orders --create 4`") == (
        "`popstream send orders --create 4 --bootstrap-servers elsewhere:9092 --prefix shop`"
    )
    assert find_target(TargetOptions()).job == job
    assert completed_commands("`popstream send orders --create 4`") == "`popstream send orders --create 4`"
