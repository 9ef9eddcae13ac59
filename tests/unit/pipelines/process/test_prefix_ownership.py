"""Claim: one job at a time owns a prefix; another one starts only when the owner has ended or can decide no more.

Method: jobs on a topic in memory that fences producers as Kafka does, with short times.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from pipelines.process import prefix_ownership
from pipelines.process.prefix_ownership import EarlyLook, PrefixOwnership, require_ended
from popstream.wire.base_errors import Fenced, Invalid, Unavailable
from tests.support.owner_records import Records, Topic
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

VALID_S = 0.3
SILENCE_S = 0.6


class Lab:
    """Jobs with one prefix."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.failures: list[BaseException] = []
        self._made: list[PrefixOwnership] = []

    def job(self, place: str = "p", epoch: str = "e", **options: Any) -> tuple[PrefixOwnership, Records]:
        records = Records(self.topic)
        made = PrefixOwnership(
            "shop",
            records,
            folder=f"/{place}",
            place=place,
            state_epoch=lambda: epoch,
            on_failure=self.failures.append,
            **{"ops_topic_id": "t", **options},
        )
        self._made.append(made)
        return made, records

    def running(self, place: str = "p", epoch: str = "e", **options: Any) -> tuple[PrefixOwnership, Records]:
        take_over = options.pop("take_over", False)
        made, records = self.job(place, epoch, **options)
        made.take([epoch], take_over=take_over)
        return made, records

    def end(self) -> None:
        for made in self._made:
            made.release()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    times = {"HEARTBEAT_S": 0.02, "POLL_S": 0.01, "VALID_S": VALID_S, "SILENCE_S": SILENCE_S, "CONFIRM_S": 0.5}
    for name, seconds in times.items():
        monkeypatch.setattr(prefix_ownership, name, seconds)
    made = Lab()
    yield made
    made.end()


def test_an_owner_repeats_its_record_and_ends_it(lab: Lab) -> None:
    job, _ = lab.running()
    job.require()
    assert 0 < job.valid_for_s <= VALID_S
    eventually(lambda: len(lab.topic.records) > 3)
    job.release()
    *beats, last = lab.topic.records
    assert {(beat.term, beat.ended, beat.state_epoch, beat.folder) for beat in beats} == {(1, False, "e", "/p")}
    assert (last.ended, last.session) == (True, beats[0].session)
    time.sleep(VALID_S)
    with pytest.raises(Unavailable):
        job.require()
    again, _ = lab.running(place="q")
    again.require()
    assert lab.topic.records[-1].term == 2
    assert lab.failures == []


def test_a_copy_of_a_folder_whose_job_runs_is_refused(lab: Lab) -> None:
    """And the job is not disturbed."""
    job, _ = lab.running()
    copy, _ = lab.job(place="q")
    with pytest.raises(Fenced, match="another job runs with the prefix shop: process"):
        copy.take(["e"], take_over=False)
    job.require()
    assert (lab.failures, {beat.term for beat in lab.topic.records}) == ([], {1})


def test_a_copy_of_a_folder_whose_job_was_killed_waits_and_starts(lab: Lab) -> None:
    job, records = lab.running()
    records.is_away = True  # to Kafka it is as if the job were dead
    began = time.monotonic()
    copy, _ = lab.running(place="q")
    assert time.monotonic() - began >= 2 * VALID_S
    copy.require()
    with pytest.raises(Unavailable, match="does not confirm that this job owns the prefix shop"):
        job.require()
    assert job.valid_for_s <= 0
    records.is_away = False
    eventually(lambda: lab.failures)
    assert job.valid_for_s == 0
    with pytest.raises(Fenced, match=r"has taken the prefix shop: process .* folder /q"):
        job.require()
    with pytest.raises(Fenced):
        job.check()
    assert job.is_fenced
    copy.require()
    assert not copy.is_fenced


def test_the_silence_of_a_killed_owner_counts_from_an_early_look(lab: Lab) -> None:
    job, records = lab.running()
    records.is_away = True
    early = EarlyLook(Records(lab.topic))
    time.sleep(SILENCE_S)  # what takes so long before it may take the prefix
    began = time.monotonic()
    copy, _ = lab.running(place="q", early_look=early)
    assert time.monotonic() - began < SILENCE_S / 2
    copy.require()
    assert job.valid_for_s <= 0


def test_an_owner_that_has_sent_a_heartbeat_since_an_early_look_is_not_silent(lab: Lab) -> None:
    job, records = lab.running()
    early = EarlyLook(Records(lab.topic))
    early._thread.join()
    beats = len(lab.topic.records)
    eventually(lambda: len(lab.topic.records) > beats + 1)
    records.is_away = True
    copy, _ = lab.job(place="q", early_look=early)
    began = time.monotonic()
    copy.take(["e"], take_over=False)
    assert time.monotonic() - began >= SILENCE_S
    assert job.valid_for_s <= 0


def test_an_early_look_that_sees_nothing_changes_nothing(lab: Lab) -> None:
    away = Records(lab.topic)
    away.is_away = True
    looks = EarlyLook(Records(lab.topic)), EarlyLook(away)  # at a prefix that nobody owned yet, and without Kafka
    for early in looks:
        early._thread.join()
    _, running = lab.running()
    for early, place in zip(looks, ("q", "r"), strict=True):
        running.is_away = True
        began = time.monotonic()
        _, running = lab.running(place=place, early_look=early)
        assert time.monotonic() - began >= SILENCE_S


def test_after_an_outage_of_kafka_the_owner_gets_the_time_for_a_heartbeat(lab: Lab) -> None:
    """An early look says nothing about the time in which nobody could be heard."""
    job, records = lab.running()
    records.is_away = True
    early = EarlyLook(Records(lab.topic))
    time.sleep(SILENCE_S)
    copy, _ = lab.job(place="q", early_look=early)
    records.is_away = False
    with pytest.raises(Fenced, match="another job runs with the prefix shop"):
        copy.take(["e"], take_over=False)
    job.require()


def test_a_restore_is_refused_while_the_owner_runs(lab: Lab) -> None:
    """Elsewhere: its rows would be written after the restore has read the tables. Its own folder is locked."""
    assert require_ended("shop", Records(lab.topic), "q") is None
    job, records = lab.running()
    with pytest.raises(Fenced, match=r"another job runs with the prefix shop: process .* folder /p.* Stop it first"):
        require_ended("shop", Records(lab.topic), "q")
    own = require_ended("shop", Records(lab.topic), "p")
    assert own is not None
    assert own.state_epoch == "e"
    job.require()
    records.is_away = True  # to Kafka it is as if the job were dead
    began = time.monotonic()
    dead = require_ended("shop", Records(lab.topic), "q")
    assert time.monotonic() - began >= 2 * VALID_S
    assert dead is not None
    records.is_away = False
    eventually(lambda: records.is_open)
    job.release()
    ended = require_ended("shop", Records(lab.topic), "q")
    assert ended is not None
    assert ended.ended


def test_a_job_that_was_killed_restarts_at_once(lab: Lab) -> None:
    _, records = lab.running()
    records.is_away = True
    began = time.monotonic()
    again, _ = lab.running()
    assert time.monotonic() - began < VALID_S
    again.require()
    assert lab.topic.records[-1].term == 2


def test_another_state_is_refused_and_disturbs_nobody(lab: Lab) -> None:
    job, _ = lab.running()
    other, records = lab.job(place="q", epoch="f")
    with pytest.raises(Invalid, match="belongs to another state"):
        other.take(["f"], take_over=False)
    assert not records.is_open
    other.release()
    job.require()


def test_a_take_over_fences_the_owner_and_waits_until_it_can_decide_no_more(lab: Lab) -> None:
    job, _ = lab.running()
    decided: list[tuple[str, float]] = []
    stopping = threading.Event()

    def decide(name: str, which: PrefixOwnership) -> None:
        while not stopping.is_set():
            try:
                which.require()
            except Fenced:
                return
            decided.append((name, time.monotonic()))
            time.sleep(0.002)

    first = threading.Thread(target=decide, args=["old", job])
    first.start()
    eventually(lambda: decided)
    new, _ = lab.running(place="q", epoch="f", take_over=True)
    second = threading.Thread(target=decide, args=["new", new])
    second.start()
    eventually(lambda: decided[-1][0] == "new")
    stopping.set()
    first.join()
    second.join()
    assert max(at for name, at in decided if name == "old") < min(at for name, at in decided if name == "new")
    (failure,) = lab.failures
    assert isinstance(failure, Fenced)
    assert [beat.term for beat in lab.topic.records] == sorted(beat.term for beat in lab.topic.records)


def test_an_owner_that_has_decided_nothing_leaves_the_state_before_it(lab: Lab) -> None:
    """Otherwise a take-over that ends at once would open the prefix to any folder."""
    first, _ = lab.running(epoch="e")
    first.release()
    empty, _ = lab.job(place="q", epoch="")
    empty.take([], take_over=True)
    empty.release()
    assert (lab.topic.records[-1].state_epoch, lab.topic.records[-1].has_decided) == ("e", False)
    other, _ = lab.job(place="r", epoch="")
    with pytest.raises(Invalid):
        other.take([], take_over=False)
    again, _ = lab.job(place="q", epoch="")
    again.take([], take_over=False)
    again.release()
    lab.running(epoch="e")[0].require()


def test_a_take_over_names_whom_it_replaced_and_is_a_warning(lab: Lab) -> None:
    first, _ = lab.running()
    replaced = str(first.owner)
    with structlog.testing.capture_logs() as logged:
        second, _ = lab.running(place="q", epoch="other", take_over=True)
        assert second.owner.took_over_from == lab.topic.records[-1].took_over_from == replaced
        second.release()
        third, _ = lab.running(place="r", epoch="other")
        assert third.owner.took_over_from == ""
        third.release()
        again, _ = lab.running(place="r", epoch="other", take_over=True)
        assert again.owner.took_over_from == "", "its own folder"
    taken = [each for each in logged if each["event"].startswith("prefix_taken")]
    assert [(each["event"], each["log_level"], each["term"]) for each in taken] == [
        ("prefix_taken_over", "warning", 2),
        ("prefix_taken", "info", 3),
        ("prefix_taken", "info", 4),
    ]
    assert (taken[0]["former"], taken[0]["former_state"]) == (replaced, "e")


def test_an_owner_that_was_cut_off_for_a_moment_goes_on(lab: Lab) -> None:
    """Work waits for the next heartbeat meanwhile."""
    job, records = lab.running()
    records.is_away = True
    time.sleep(VALID_S)
    threading.Timer(0.1, setattr, (records, "is_away", False)).start()
    job.require()
    assert lab.failures == []


def test_a_stop_does_not_wait_for_kafka(lab: Lab) -> None:
    job, records = lab.running()
    records.is_away = True
    time.sleep(VALID_S + 0.1)
    job.hurry()
    began = time.monotonic()
    with pytest.raises(Unavailable):
        job.require()
    job.release()
    assert time.monotonic() - began < 0.4


def test_an_owner_that_is_fenced_and_not_replaced_goes_on(lab: Lab) -> None:
    """Its contender has ended between fencing it and taking the prefix."""
    job, _ = lab.running()
    Records(lab.topic).open_for_writing()
    beats = len(lab.topic.records)
    eventually(lambda: len(lab.topic.records) > beats + 2)
    job.require()
    assert lab.failures == []


@pytest.mark.parametrize("take_over", [False, True])
def test_of_jobs_that_start_together_one_wins(lab: Lab, *, take_over: bool) -> None:
    """Without `--take-over` the others are refused; with it each has its turn, and one is left."""
    jobs = [lab.job(place=f"p{number}") for number in range(4)]
    refused: list[Exception] = []
    barrier = threading.Barrier(len(jobs))

    def take(job: PrefixOwnership, records: Records) -> None:
        records.before_write = lambda: time.sleep(0.003)
        barrier.wait()
        try:
            job.take(["e"], take_over=take_over)
        except (Fenced, Unavailable) as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(refused) + sum(job.is_fenced for job, _ in jobs) >= len(jobs) - 1)
    owners = []
    for job, _ in jobs:
        try:
            job.require()
        except (Fenced, Unavailable):
            continue
        owners.append(job)
    assert len(owners) == 1
    terms = [beat.term for beat in lab.topic.records]
    assert terms == sorted(terms)
    by_term = {(beat.term, beat.session) for beat in lab.topic.records}
    assert len(by_term) == len({term for term, _ in by_term})


def test_a_job_that_lacks_keys_of_an_owner_before_it_is_refused_and_leaves_no_record(lab: Lab) -> None:
    """Those of the owner before the last one, too: a command that takes the prefix meanwhile has none."""
    first, _ = lab.job(keys_of=["handles"])
    first.take(["e"], take_over=False)
    first.release()
    command, _ = lab.job()
    command.take(["e"], take_over=False)
    command.release()
    written = len(lab.topic.records)
    for take_over in (False, True):
        lacking, _ = lab.job(keys_of=["operations"])
        with pytest.raises(Invalid, match="has keys of handles, which these settings lack"):
            lacking.take(["e"], take_over=take_over)
    assert len(lab.topic.records) == written
    more, _ = lab.job(keys_of=["operations", "handles"])
    more.take(["e"], take_over=False)
    more.release()
    assert lab.topic.records[-1].keys_of == ["handles", "operations"]


def test_keys_of_a_topic_that_is_gone_are_not_asked_for(lab: Lab) -> None:
    first, _ = lab.job(keys_of=["handles"])
    first.take(["e"], take_over=False)
    first.release()
    other, _ = lab.job(ops_topic_id="made anew", keys_of=[])
    other.take(["e"], take_over=False)
    assert lab.topic.records[-1].keys_of == []
