"""While it runs: who begins when, who is killed, what is shown, and when it is over."""

import time
from collections import deque

from pipelines.control.state_view import QueueView, queues_in
from pipelines.demo.cast import STAGES
from pipelines.demo.crew import Crew, CrewMember, go
from pipelines.demo.verdict import Expected
from pipelines.demo.view import Sight, View
from pipelines.process.host import Host
from popstream.wire.failures import Unavailable

__all__ = ["play", "require_running", "settle"]

READY_TIMEOUT_S = 120.0
ARMED_TIMEOUT_S = 45.0
DOOMED_FOR_S = 2.0
STALLED_S = 120.0
LOOK_S = 0.25
SETTLE_TIMEOUT_S = 120.0
RATE_WINDOW_S = 5.0


def require_running(host: Host, crew: Crew | None = None) -> None:
    """Raise when something has ended that must not.

    Raises:
        Unavailable: A process of the demo, the job or Kafka has.
    """
    if host.job.wait(0):
        failure = host.job.failure
        message = f"the job has ended: {failure or 'the streaming query stopped by itself'}"
        raise Unavailable(message) from failure
    if crew is not None:
        crew.require_well()


class _Stages:
    """Lets the processes of each group begin one after the other, and kills the doomed when they hold something."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._began: dict[str, float] = {}
        self._armed: dict[str, float] = {}

    def advance(self, groups: tuple[str, ...]) -> None:
        now = time.monotonic()
        for member in self._crew.members:
            if member.orders.name not in self._armed and (member.has_been("armed") or member.has_been("done")):
                self._armed[member.orders.name] = now
        for group in groups:
            for stage in STAGES:
                members = self._crew.of(stage, group=group)
                self._begin([member for member in members if member.orders.name not in self._began], now)
                if stage != "steady" and not all(self._is_past(member, now) for member in members):
                    break
        for member in self._crew.of("doomed"):
            armed = self._armed.get(member.orders.name)
            if armed is not None and not member.was_killed and now - armed > DOOMED_FOR_S:
                member.kill()

    def _begin(self, members: list[CrewMember], now: float) -> None:
        go(members)
        self._began.update((member.orders.name, now) for member in members)

    def _is_past(self, member: CrewMember, now: float) -> bool:
        return member.orders.name in self._armed or now - self._began[member.orders.name] > ARMED_TIMEOUT_S


def play(host: Host, crew: Crew, expected: Expected, view: View, started_s: float) -> None:
    """Let everybody do what they are here for, until every message is done in every lane.

    Raises:
        Unavailable: Something has ended that must not, or nothing moves any more.
    """
    _wait_until_ready(host, crew)
    view.say(f"{len(crew.members)} processes are ready: here they go")
    go(crew.of("sender"))
    stages = _Stages(crew)
    progress = _Progress(host, crew, expected, started_s)
    while True:
        require_running(host, crew)
        stages.advance(tuple(expected.groups))
        view.show(progress.look())
        if progress.is_done and all(member.process.poll() == 0 for member in crew.of("sender", "intruder")):
            break
        if progress.stalled_s > STALLED_S:
            message = f"nothing has moved for {STALLED_S:.0f} s"
            raise Unavailable(message)
        time.sleep(LOOK_S)
    for member in crew.of("doomed"):
        if not member.was_killed:
            member.kill()
    view.show(progress.look())


def settle(host: Host, ops_in_log: int) -> None:
    """Wait until all that is in the log is decided, and all that is decided is in Delta.

    Raises:
        Unavailable: It takes too long.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        require_running(host)
        applied = host.job.apply_ops.applied
        is_decided = sum(applied.next_offset.values()) >= ops_in_log
        if is_decided and host.job.flush.delivered_seq >= applied.apply_seq:
            return
        if time.monotonic() > deadline:
            message = f"the tables are not complete after {SETTLE_TIMEOUT_S:.0f} s"
            raise Unavailable(message)
        time.sleep(0.1)


def _wait_until_ready(host: Host, crew: Crew) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not all(member.has_been("ready") for member in crew.members):
        require_running(host, crew)
        if time.monotonic() > deadline:
            late = [member.orders.name for member in crew.members if not member.has_been("ready")]
            message = f"{', '.join(late)} cannot begin; the logs are in {crew.members[0].log.parent}"
            raise Unavailable(message)
        time.sleep(0.05)


class _Progress:
    """Looks at the job and at the notes of the processes."""

    def __init__(self, host: Host, crew: Crew, expected: Expected, started_s: float) -> None:
        self._host = host
        self._crew = crew
        self._expected = expected
        self._started_s = started_s
        self._rates: deque[tuple[float, int]] = deque()
        self._mark: tuple[int, ...] = ()
        self._moved_s = time.monotonic()
        self.is_done = False

    @property
    def stalled_s(self) -> float:
        """How long nothing has moved."""
        return time.monotonic() - self._moved_s

    def look(self) -> Sight:
        now = time.monotonic()
        queues = list(queues_in(self._host.job.store))
        totals = self._host.job.metrics.totals()
        notes = [member.note for member in self._crew.members]
        lags = {group: [0] * self._expected.queues for group in self._expected.groups}
        done = 0
        for queue in queues:
            done += self._note_lags(queue, lags)
        self.is_done = done == len(self._expected.groups) * len(self._expected.contents)
        mark = (done, totals.records, sum(note.sent for note in notes))
        if mark != self._mark:
            self._mark, self._moved_s = mark, now
        self._rates.append((now, totals.records))
        while now - self._rates[0][0] > RATE_WINDOW_S and len(self._rates) > 2:
            self._rates.popleft()
        then, records = self._rates[0]
        return Sight(
            seconds=now - self._started_s,
            ops_per_s=(totals.records - records) / (now - then) if now > then else 0.0,
            sent=sum(note.sent for note in notes),
            messages=len(self._expected.contents),
            in_flight=sum(lane.leased for queue in queues for lane in queue.lanes),
            redelivered=sum(note.redelivered for note in notes),
            refused=totals.refused,
            rejected=totals.rejected,
            batch_ms=sum(totals.last_batch_ms.values()),
            delta_lag=max(0, totals.apply_seq - totals.delta_seq),
            lags=lags,
        )

    def _note_lags(self, queue: QueueView, lags: dict[str, list[int]]) -> int:
        done = 0
        for lane in queue.lanes:
            if lane.group in lags and queue.queue_id < self._expected.queues:
                lags[lane.group][queue.queue_id] = lane.lag
                done += lane.commit_offset
        return done
