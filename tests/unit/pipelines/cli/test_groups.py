"""Claim: groups are seen, moved and deleted, and none begins by a typo unnoticed. Method: the kernel in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from checkpoints.layout import JobFolder
from pipelines.cli import target
from pipelines.cli.app import app
from pipelines.cli.clients import groups, policies
from pipelines.cli.clients.policies import run_policy, run_show_policies
from pipelines.cli.target import Target
from pipelines.control.job_file import JobFile
from pipelines.control.lane_views import LaneView, QueueView
from pipelines.control.messages import Policies, PoliciesRequest, Status
from pipelines.control.policy_views import PolicyView
from popstream import Refused
from popstream.kafka_connection import KafkaConnection
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import ForgetLane, Policy, ResetOffset

JOB = JobFile(pid=1, bootstrap_servers="kafka:9092", prefix="p", folder="", address="", token="", started_at=0.0)
FOLDER = JobFolder(Path("anywhere"))


def lane(group: str, lag: int, leased: int = 0) -> LaneView:
    return LaneView(group, 0, 0, lag, leased, 0, 0, 0, 0, 0, None)


def queue(topic: str, queue_id: int, min_offset: int, end: int, *lanes: LaneView) -> QueueView:
    return QueueView(topic, queue_id, "id", "simple", 0, min_offset, end, 0, [*lanes])


@pytest.fixture
def known() -> list[QueueView]:
    return [
        queue("orders", 0, 2, 10, lane("billing", 8, 1), lane("audit", 3)),
        queue("orders", 1, 0, 10, lane("billing", 4)),
        queue("parcels", 0, 0, 10, lane("billing", 9)),
    ]


@pytest.fixture
def job(known: list[QueueView], monkeypatch: pytest.MonkeyPatch) -> MemoryJob:
    """A running job with ten messages in each queue, of which the first has lost two."""
    memory = MemoryJob()
    for one in known:
        memory.write(one.topic, one.queue_id, [b"v"] * 10)

    def queues_of(_: JobFile, group: str | None, topic: str | None) -> list[QueueView]:
        found = (one for one in known if topic in (None, one.topic))
        return [one for one in found if group is None or any(lane.group == group for lane in one.lanes)]

    monkeypatch.setattr(target, "running_job", lambda _: JOB)
    for module in (groups, policies):
        monkeypatch.setattr(module, "queues_of", queues_of)
    monkeypatch.setattr(groups, "Transport", lambda settings: memory.transport(admin_key=settings.admin_key))
    return memory


def test_a_group_is_listed_once_for_each_topic(
    known: list[QueueView], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = Status(running=True, folder="f", apply_seq=1, queues=known)
    monkeypatch.setattr(groups, "status_of", lambda *_: status)
    groups.run_list(FOLDER, None, as_json=True)
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [(one["topic"], one["group"], one["lanes"], one["lag"], one["leased"]) for one in found] == [
        ("orders", "audit", 1, 3, 0),
        ("orders", "billing", 2, 12, 1),
        ("parcels", "billing", 1, 9, 0),
    ]
    groups.run_list(FOLDER, None, as_json=False)
    assert "billing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("to", "queue_id", "offsets"),
    [("earliest", None, {0: 2, 1: 0}), ("latest", None, {0: 10, 1: 10}), ("7", 1, {1: 7}), ("latest", 0, {0: 10})],
)
def test_a_group_is_reset_in_the_queues_that_it_has_popped(
    job: MemoryJob, to: str, queue_id: int | None, offsets: dict[int, int]
) -> None:
    groups.run_reset(FOLDER, "billing", "orders", to, queue_id)
    sent = [record for record in job.records if isinstance(record, ResetOffset)]
    assert {(one.topic, one.group) for one in sent} == {("orders", "billing")}
    assert {one.queue_id: one.queue_offset for one in sent} == offsets


@pytest.mark.parametrize(
    ("group", "to", "queue_id", "words"),
    [
        ("biling", "latest", None, "has never popped orders; `popstream group list"),
        ("audit", "latest", 1, "has never popped orders/1"),
        ("billing", "sooner", None, "not a place: use earliest, latest, or a queue offset"),
        ("billing", "7", None, "name the queue with --queue"),
    ],
)
def test_a_reset_of_what_is_not_there_makes_no_lane(
    job: MemoryJob, group: str, to: str, queue_id: int | None, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        groups.run_reset(FOLDER, group, "orders", to, queue_id)
    assert not [record for record in job.records if isinstance(record, ResetOffset)]


def test_a_refused_reset_is_an_error(job: MemoryJob) -> None:
    job.send(Policy(v=1, topic="orders", queue_id=0, resets_per_min_max=1))
    groups.run_reset(FOLDER, "billing", "orders", "latest", 0)
    with pytest.raises(Refused, match="QUOTA_EXCEEDED"):
        groups.run_reset(FOLDER, "billing", "orders", "latest", 0)


def test_a_command_whose_operation_is_refused_exits_with_1(job: MemoryJob) -> None:
    """As `popstream ops` does: its options were those that it takes."""
    job.send(Policy(v=1, topic="orders", queue_id=0, resets_per_min_max=1))
    arguments = ["group", "reset", "billing", "orders", "--to", "latest", "--queue", "0", "--folder", "anywhere"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, "was refused: QUOTA_EXCEEDED" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("topics", "places"),
    [((), [("orders", 0), ("orders", 1), ("parcels", 0)]), (("parcels",), [("parcels", 0)])],
)
def test_a_group_is_forgotten_in_these_topics_or_in_all(
    job: MemoryJob, topics: tuple[str, ...], places: list[tuple[str, int]]
) -> None:
    groups.run_forget(FOLDER, "billing", topics)
    sent = [record for record in job.records if isinstance(record, ForgetLane)]
    assert [(one.topic, one.queue_id) for one in sent] == places
    with pytest.raises(Invalid, match="no lanes there"):
        groups.run_forget(FOLDER, "biling", topics)


def test_without_a_job_groups_can_be_listed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "running_job", lambda _: None)
    with pytest.raises(Unavailable, match="no job runs in anywhere"):
        groups.run_forget(FOLDER, "billing", ())


@pytest.mark.usefixtures("job")
def test_a_script_is_warned_before_a_group_begins(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(KafkaConnection("kafka:9092"), "p", job=JOB)
    groups.confirm_new_group(target, "orders", "billing")
    assert capsys.readouterr().err == ""
    groups.confirm_new_group(target, "orders", "biling")
    said = capsys.readouterr().err
    assert "the group biling has never popped orders" in said
    assert "`popstream group forget biling orders" in said
    assert "pass --new-group to confirm" in said
    groups.confirm_new_group(Target(KafkaConnection("elsewhere:9092"), "p"), "orders", "biling")
    assert "cannot tell whether group biling is new to orders; --new-group" in capsys.readouterr().err


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_the_user_is_asked_before_a_group_begins(
    monkeypatch: pytest.MonkeyPatch, *, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", confirm)
    target = Target(KafkaConnection("kafka:9092"), "p", job=JOB)
    if answer:
        groups.confirm_new_group(target, "orders", "biling")
    else:
        with pytest.raises(typer.Exit):
            groups.confirm_new_group(target, "orders", "biling")
    assert len(asked) == 1


def test_a_job_that_does_not_say_which_groups_it_has_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_answer(*_: object) -> list[QueueView]:
        raise Unavailable("busy")

    monkeypatch.setattr(groups, "queues_of", no_answer)
    groups.confirm_new_group(Target(KafkaConnection("kafka:9092"), "p", job=JOB), "orders", "biling")
    assert "cannot tell whether" in capsys.readouterr().err


def policies_in(job: MemoryJob) -> list[Policy]:
    return [record for record in job.records if isinstance(record, Policy)]


def test_a_policy_is_set_in_all_queues_of_the_topics(job: MemoryJob, capsys: pytest.CaptureFixture[str]) -> None:
    run_policy(
        FOLDER, "billing", ["orders", "parcels"], is_new=False, max_attempts=3, back_off_ms=[1_000], in_flight_max=7
    )
    assert {(one.topic, one.queue_id) for one in policies_in(job)} == {("orders", 0), ("orders", 1), ("parcels", 0)}
    assert {(one.group, one.max_attempts, *one.back_off_ms, one.in_flight_max) for one in policies_in(job)} == {
        ("billing", 3, 1_000, 7)
    }
    assert "the policy of billing holds in 3 queues of orders, parcels" in capsys.readouterr().err
    with job.consumer("billing", max_attempts=None) as consumer:
        assert len(consumer.pop("orders", 1)) == 7


@pytest.mark.parametrize("is_new", [False, True])
def test_a_policy_of_a_new_group_warns_of_a_typo(
    job: MemoryJob, capsys: pytest.CaptureFixture[str], *, is_new: bool
) -> None:
    run_policy(FOLDER, "biling", ["orders"], is_new=is_new, max_attempts=3)
    assert len(policies_in(job)) == 2
    assert ("has never popped orders" in capsys.readouterr().err) is not is_new


def test_a_policy_for_a_topic_that_the_job_does_not_know_is_sent_nowhere(job: MemoryJob) -> None:
    with pytest.raises(Invalid, match="no queue of ordres"):
        run_policy(FOLDER, "billing", ["orders", "ordres"], is_new=False, max_attempts=3)
    with pytest.raises(Refused, match="INVALID_PARAMETER"):
        run_policy(FOLDER, "billing", ["orders"], is_new=False, max_attempts=3, back_off_ms=[-1])
    assert {one.back_off_ms[0] for one in policies_in(job)} == {-1}


def test_the_policy_of_queues_has_limits_of_their_own(job: MemoryJob) -> None:
    arguments = ["policy", "orders", "--folder", "anywhere", "--max-attempts", "0", "--new-lanes-per-min-max", "9"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {(one.group, one.new_lanes_per_min_max, one.queue_id) for one in policies_in(job)} == {
        (None, 9, 0),
        (None, 9, 1),
    }


@pytest.mark.parametrize("command", [["policy"], ["group", "policy", "billing"]])
def test_limits_without_the_number_of_attempts_are_no_policy(job: MemoryJob, command: list[str]) -> None:
    found = CliRunner().invoke(app, [*command, "orders", "--folder", "anywhere", "--pops-per-s-max", "5"])
    assert (found.exit_code, policies_in(job)) == (2, [])
    assert "give --max-attempts as well" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        ["policy", "orders", "--max-attempts", "5"],
        ["group", "policy", "billing", "orders", "--max-attempts", "5"],
        ["group", "reset", "billing", "orders", "--to", "latest"],
        ["group", "forget", "billing", "orders"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_an_admin_key_signs(job: MemoryJob, tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "admin.key"
    file.write_text("2030:a secret of 24 characters")
    count = len(job.records)
    arguments = [*command, "--folder", "anywhere", "--admin-key-file", str(file)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [str(getattr(one, "signature", None))[:5] for one in job.records[count:]] == ["2030.", "2030."]
    file.write_text("2030")
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, "must have one line" in refused.stderr) == (2, True)


RULES: dict[str, Any] = {
    "origin": "queue",
    "max_attempts": 0,
    "back_off_ms": [],
    "parked_max": 1024,
    "in_flight_max": 0,
}
VIEWS = [
    PolicyView(topic="orders", queue_id=0, group=None, window_max=4_194_304, **RULES),
    PolicyView(topic="orders", queue_id=1, group=None, window_max=4_194_304, **RULES),
    PolicyView(
        topic="orders", queue_id=1, group="g", quotas={"pops_per_s_max": 5}, **{**RULES, "back_off_ms": [5_000]}
    ),
]


def test_policies_are_shown_once_for_all_queues_that_share_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[PoliciesRequest] = []

    def answer(_job: JobFile, request: PoliciesRequest, _reply: type) -> Policies:
        asked.append(request)
        return Policies(VIEWS if request.topic == "orders" else [])

    monkeypatch.setattr(policies, "running_job", lambda _: JOB)
    monkeypatch.setattr(policies, "ask", answer)
    run_show_policies(FOLDER, ["orders"], None, as_json=False)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(
        "orders │ 0-1 │ │ queue │ consumers' own │ consumers' own │ 1,024 │ no limit │ none" in line for line in shown
    ), shown
    assert any("orders │ 1 │ g │ queue │ no limit │ 5s │" in line for line in shown), shown
    run_show_policies(FOLDER, ["orders"], "g", as_json=True)
    assert msgspec.json.decode(capsys.readouterr().out, type=list[PolicyView]) == VIEWS
    assert [(one.topic, one.group) for one in asked] == [("orders", None), ("orders", "g")]
    with pytest.raises(Invalid, match="no queue of ordres"):
        run_show_policies(FOLDER, ["ordres"], None, as_json=False)


def test_the_command_reads_its_options(job: MemoryJob) -> None:
    arguments = ["group", "policy", "billing", "orders", "--folder", "anywhere", "--max-attempts", "5"]
    assert CliRunner().invoke(app, [*arguments, "--back-off", "1s,10s,5m"]).exit_code == 0
    assert [one.back_off_ms for one in policies_in(job)] == [[1_000, 10_000, 300_000]] * 2
    assert CliRunner().invoke(app, [*arguments, "--back-off", "soon"]).exit_code == 2
