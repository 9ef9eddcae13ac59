"""Claim: the Spark of a command reaches what the command reads, wherever state and tables are (state_place.py).

While a command owns the prefix, no other one does anything on the same checkpoint; one that loses it says so.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec
import pytest

from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cli.cluster import state_place, verify_checkpoint
from pipelines.cli.cluster.state_on_cluster import RESCALED_UNOWNED
from pipelines.cli.cluster.state_place import StatePlace, owned
from pipelines.job_settings import JobSettings
from pipelines.process import prefix_ownership
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, Unavailable
from tests.support.owner_records import Records, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpoints.prefix_owner import Owner

SETTINGS = JobSettings(topic_prefix="shop")
PLACE = StatePlace(
    KafkaConnection("kafka:9092"),
    TopicFacts("shop.ops", "T", 4),
    LogFound(topic="shop.ops", topic_id="T", first_offset={}, end_offset={}),
    cast("Any", None),
    "hdfs://name/orders",
)
S3_JAR, SPARK_JAR = Path("/jars-s3/hadoop-aws.jar"), Path("/jars/delta.jar")


@pytest.fixture
def confs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings of each Spark that a command has started."""
    found: list[dict[str, str]] = []

    @contextlib.contextmanager
    def session_of_command(start: Callable[[dict[str, str]], Any]) -> Iterator[Any]:
        yield start({})

    monkeypatch.setattr(state_place, "spark_jars", lambda _: [SPARK_JAR])
    monkeypatch.setattr(state_place, "s3_jars", lambda _: [S3_JAR])
    monkeypatch.setattr(state_place, "session_of_command", session_of_command)
    monkeypatch.setattr(state_place, "cluster_session", lambda _name, _partitions, conf: found.append(conf))
    return found


@pytest.mark.parametrize(
    ("checkpoint", "tables", "s3"),
    [
        ("/data/job", None, []),
        ("/data/job", "/data/tables", []),
        ("s3a://bucket/job", None, [S3_JAR]),
        ("/data/job", "s3a://bucket/tables", [S3_JAR]),
        ("s3a://bucket/job", "/data/tables", [S3_JAR]),
    ],
)
def test_it_has_the_jars_of_s3_if_the_state_or_the_tables_are_there(
    checkpoint: str, tables: str | None, s3: list[Path], confs: list[dict[str, str]]
) -> None:
    with state_place.cluster_spark(JobSettings(), checkpoint, Path("var"), tables=tables):
        pass
    (conf,) = confs
    assert conf["spark.driver.extraClassPath"] == ":".join(map(str, [SPARK_JAR, *s3]))


def test_a_verification_reaches_its_tables(
    confs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reached(settings: JobSettings, checkpoint: str, var: Path, **places: Any) -> NoReturn:
        with state_place.cluster_spark(settings, checkpoint, var, **places):
            raise KeyboardInterrupt

    folder = cast("Any", SimpleNamespace(incoming=tmp_path / "incoming"))
    monkeypatch.setattr(verify_checkpoint, "state_place", reached)
    monkeypatch.setattr(
        verify_checkpoint, "run_verification", lambda _folder, _options, inputs: inputs(contextlib.ExitStack(), folder)
    )
    with pytest.raises(KeyboardInterrupt):
        verify_checkpoint.run_verify_checkpoint(
            JobSettings(folder=tmp_path), "/data/job", "s3a://bucket/tables", cast("Any", None), var=tmp_path
        )
    assert str(S3_JAR) in confs[0]["spark.driver.extraClassPath"]


@pytest.fixture
def owner_topic(monkeypatch: pytest.MonkeyPatch) -> tuple[Topic, list[Records]]:
    """The topic with the owner, and what each command reaches it by, with short times."""
    topic, reached = Topic(), list[Records]()

    def records(*_: object) -> Records:
        reached.append(Records(topic))
        return reached[-1]

    monkeypatch.setattr(state_place, "OwnerLog", records)
    times = {"HEARTBEAT_S": 0.02, "POLL_S": 0.01, "VALID_S": 0.3, "SILENCE_S": 60.0, "CONFIRM_S": 60.0}
    for name, seconds in times.items():
        monkeypatch.setattr(prefix_ownership, name, seconds)
    return topic, reached


def test_a_second_command_on_the_same_checkpoint_is_refused_and_the_first_one_goes_on(
    owner_topic: tuple[Topic, list[Records]],
) -> None:
    topic, _ = owner_topic
    with owned(SETTINGS, PLACE, ("e",), if_lost="migrate again") as require:
        second = owned(SETTINGS, PLACE, ("e",), if_lost="verify again")
        with pytest.raises(Fenced, match="another job runs with the prefix shop: process"), second:
            pass
        require()
        assert _sessions_that_ended(topic) == []
    assert _sessions_that_ended(topic) == [topic.records[0].session]
    with owned(SETTINGS, PLACE, ("e",), if_lost="verify again") as require:
        require()


def test_a_command_that_has_lost_the_prefix_stops_before_it_writes_and_leaves_it_to_the_other_one(
    owner_topic: tuple[Topic, list[Records]],
) -> None:
    topic, _ = owner_topic
    lost = pytest.raises(Fenced, match=r"another command has taken the prefix shop meanwhile: when nothing else runs")
    with lost as raised, owned(SETTINGS, PLACE, ("e",), if_lost=RESCALED_UNOWNED) as require:
        require()
        taker = Records(topic)
        taker.open_for_writing()
        taker.write(_another(topic))
        for _ in range(1_000):
            require()  # until the next heartbeat finds the other one
            time.sleep(0.01)
    assert "remove" not in str(raised.value), "a rescaled state is the only one"
    assert (topic.records[-1].session, topic.records[-1].ended) == ("another", False)


def test_a_command_that_lost_the_prefix_in_its_last_step_does_not_succeed(
    owner_topic: tuple[Topic, list[Records]],
) -> None:
    topic, _ = owner_topic
    lost = pytest.raises(Fenced, match="has taken the prefix shop meanwhile: verify again")
    with lost, owned(SETTINGS, PLACE, ("e",), if_lost="verify again"):
        taker = Records(topic)
        taker.open_for_writing()
        taker.write(_another(topic))
        time.sleep(0.4)  # longer than a heartbeat is valid


def test_a_command_whose_ownership_kafka_does_not_confirm_does_not_succeed(
    owner_topic: tuple[Topic, list[Records]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reached = owner_topic
    monkeypatch.setattr(prefix_ownership, "CONFIRM_S", 0.1)
    unconfirmed = pytest.raises(Unavailable, match="does not confirm that this job owns the prefix shop: verify again")
    with unconfirmed, owned(SETTINGS, PLACE, ("e",), if_lost="verify again"):
        reached[0].is_away = True
        time.sleep(0.4)


def _sessions_that_ended(topic: Topic) -> list[str]:
    return [record.session for record in topic.records if record.ended]


def _another(topic: Topic) -> Owner:
    return msgspec.structs.replace(topic.records[-1], session="another", place="elsewhere")
