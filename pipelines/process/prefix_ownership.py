"""Ownership of a prefix: one job decides and answers, by a record in Kafka that it repeats every two seconds.

A job owns its prefix for 6 seconds from a heartbeat that Kafka has committed. Another job waits for longer before it
decides, unless the owner has ended, so two jobs never decide at the same time, however long one of them was frozen or
cut off from Kafka. checkpoints/prefix_owner.py says which job may take a prefix.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec
import structlog

from checkpoints.prefix_owner import Contender, Owner, Take, require_keys, when_to_take
from connectors.kafka.owner_log import LastRecord, SupersededError
from popstream.wire.base_errors import Fenced, Invalid, PopstreamError, Unavailable

__all__ = ["EarlyLook", "OwnerRecords", "PrefixOwnership", "require_ended"]

_log = structlog.get_logger(__name__)

HEARTBEAT_S = 2.0
VALID_S = 6.0
"""For how long a heartbeat entitles the owner to decide."""
SILENCE_S = 10.0
"""After this time without a heartbeat, the owner has ended or can decide no more."""
POLL_S = 1.0
CONFIRM_S = 30.0
"""How long work waits for the next heartbeat when Kafka does not answer."""
TRIES_MAX = 10
STOP_S = 5.0
# Time while the machine sleeps counts as well.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now_s() -> float:
    return time.clock_gettime(_CLOCK)


class OwnerRecords(Protocol):
    """The topic with the owner (`OwnerLog`)."""

    @property
    def is_open(self) -> bool:
        """Whether `write` may be called."""

    def last(self) -> LastRecord[Owner] | None:
        """Return the last committed record."""

    def open_for_writing(self) -> None:
        """Fence every earlier producer."""

    def write(self, value: Owner) -> None:
        """Commit a record, unless another producer has fenced this one."""

    def close(self) -> None:
        """Disconnect."""


class EarlyLook:
    """Looks at the last record in a thread, so that the owner's silence counts from now on and not from `take`.

    For a job that cannot take its prefix before Spark runs, which takes as long as the silence. For two heartbeats the
    owner is listened to in any case.

    Args:
        records: The topic with the owner, for this look alone. While it does not exist, or Kafka does not answer,
            nothing is seen.
    """

    def __init__(self, records: OwnerRecords) -> None:
        self._records = records
        self._seen: tuple[LastRecord[Owner], float] | None = None
        self._thread = threading.Thread(target=self._look, name="early-look", daemon=True)
        self._thread.start()

    def silent_since_s(self, last: LastRecord[Owner]) -> float:
        """Return since when `last`, which was just read, is known to be the last record."""
        self._thread.join()
        seen, at_s = self._seen or (None, 0.0)
        return at_s if seen == last else _now_s()

    def _look(self) -> None:
        try:
            last = self._records.last()
        except PopstreamError as error:
            _log.debug("owner_not_seen_early", error=str(error))  # `take` says it
            return
        if last is not None:
            self._seen = last, _now_s()


def require_ended(prefix: str, records: OwnerRecords, place: str) -> Owner | None:
    """Return the last owner of a prefix, which has ended, or None if there was none. May wait for its heartbeat.

    Args:
        prefix: The prefix.
        records: The topic with the owner.
        place: Identity of a lock file that the caller holds: an owner with the same one has ended.

    Raises:
        Fenced: It runs.
        Unavailable: Kafka does not answer.
    """
    while True:
        last = records.last()
        if last is None:
            return None
        if last.value.ended or last.value.place == place or _is_silent(prefix, records, last, _now_s()):
            return last.value


def _is_silent(prefix: str, records: OwnerRecords, before: LastRecord[Owner], since_s: float) -> bool:
    """Wait whether the owner is silent. False: it has ended in order meanwhile, or was replaced.

    Args:
        prefix: The prefix.
        records: The topic with the owner.
        before: Its last record, which was just read.
        since_s: Since when that is known to be the last one.

    Raises:
        Fenced: It has sent a heartbeat.
    """
    _log.info("prefix_waits", prefix=prefix, owner=str(before.value))
    # While Kafka is away nobody is heard: an owner gets the time to send a heartbeat again.
    deadline_s = max(since_s + SILENCE_S, _now_s() + 2 * HEARTBEAT_S)
    while (left_s := deadline_s - _now_s()) > 0:
        time.sleep(min(POLL_S, left_s))
        found = records.last()
        if found is None or found.value.session != before.value.session or found.value.ended:
            return False
        if found.kafka_offset != before.kafka_offset:
            message = (
                f"another job runs with the prefix {prefix}: {before.value}. Stop it first, or use another --prefix"
            )
            raise Fenced(message, subject=prefix)
    return True


class PrefixOwnership:
    """Takes a prefix, and holds it from `take` until `release`, or until the process ends.

    Args:
        prefix: The prefix.
        records: The topic with the owner.
        folder: Folder of the job, for operators.
        place: Identity of its lock file.
        ops_topic_id: Kafka's id of the ops topic.
        state_epoch: Returns the state epoch, or an empty text as long as the state has decided nothing.
        on_failure: Called once with the error when another job has taken the prefix.
        keys_of: As `Owner.keys_of`; None: it decides nothing.
        early_look: From before this job could take the prefix.
    """

    def __init__(
        self,
        prefix: str,
        records: OwnerRecords,
        *,
        folder: str,
        place: str,
        ops_topic_id: str,
        state_epoch: Callable[[], str],
        on_failure: Callable[[BaseException], None],
        keys_of: Collection[str] | None = None,
        early_look: EarlyLook | None = None,
    ) -> None:
        self._prefix = prefix
        self._records = records
        self._state_epoch = state_epoch
        self._on_failure = on_failure
        self._me = Owner(
            session=secrets.token_hex(8),
            term=0,
            state_epoch="",
            has_decided=False,
            ops_topic_id=ops_topic_id,
            place=place,
            host=socket.gethostname(),
            pid=os.getpid(),
            folder=folder,
            keys_of=sorted(keys_of or ()),
        )
        self._keys_of = keys_of
        self._early_look = early_look
        self._confirmed_at_s = float("-inf")
        self._fenced: Fenced | None = None
        self._hurried = threading.Event()
        self._stopping = threading.Event()
        self._is_abandoned = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="prefix-owner", daemon=True)

    def take(self, state_epochs: Collection[str], *, take_over: bool) -> None:
        """Take the prefix, and start the heartbeats. May wait for a former owner.

        Args:
            state_epochs: The state epoch of the state and those that it continues; empty: there is no state.
            take_over: Take it from any owner.

        Raises:
            Fenced: Another job runs with this prefix.
            Invalid: The prefix belongs to another state, or the job lacks keys of the owner.
            Unavailable: Kafka does not answer.
        """
        contender = Contender(
            state_epochs=state_epochs, ops_topic_id=self._me.ops_topic_id, place=self._me.place, take_over=take_over
        )
        for _ in range(TRIES_MAX):
            before = self._records.last()
            owner = None if before is None else before.value
            when = when_to_take(self._prefix, owner, contender)
            if self._keys_of is not None:
                require_keys(self._prefix, owner, self._keys_of, self._me.ops_topic_id)
            if (
                before is not None
                and when is Take.AFTER_SILENCE
                and not _is_silent(self._prefix, self._records, before, self._silent_since_s(before))
            ):
                continue
            if self._replace(before, take_over=take_over):
                break
        else:
            message = f"other jobs start with the prefix {self._prefix} at the same time"
            raise Unavailable(message, subject=self._prefix)
        self._thread.start()
        taken = {"prefix": self._prefix, "term": self._me.term, "former": before and str(before.value)}
        if self._me.took_over_from:
            _log.warning("prefix_taken_over", **taken, former_state=before and before.value.state_epoch)
        else:
            _log.info("prefix_taken", **taken)
        if when is Take.AND_WAIT:
            self._wait_for_former_owner()

    def require(self) -> None:
        """Check that this job owns the prefix. Waits for the next heartbeat if the last one is too old.

        Raises:
            Fenced: Another job has taken it.
            Unavailable: Kafka does not confirm it.
        """
        deadline_s = _now_s() + CONFIRM_S
        with self._changed:
            while True:
                if self._fenced is not None:
                    raise self._fenced
                now_s = _now_s()
                if now_s < self._confirmed_at_s + VALID_S:
                    return
                if self._hurried.is_set() or now_s >= deadline_s:
                    message = f"Kafka does not confirm that this job owns the prefix {self._prefix}"
                    raise Unavailable(message, subject=self._prefix)
                self._changed.wait(min(POLL_S, deadline_s - now_s))

    @property
    def valid_for_s(self) -> float:
        """The seconds for which the last heartbeat still entitles this job to decide; not above 0: it does not."""
        with self._changed:
            return 0.0 if self._fenced is not None else self._confirmed_at_s + VALID_S - _now_s()

    @property
    def is_fenced(self) -> bool:
        """Whether another job is known to have taken the prefix."""
        return self._fenced is not None

    @property
    def owner(self) -> Owner:
        """The record of this job as the owner."""
        return self._current()

    def check(self) -> None:
        """Raise Fenced if another job is known to have taken the prefix."""
        if self._fenced is not None:
            raise self._fenced

    def hurry(self) -> None:
        """Let `require` no longer wait: the job stops."""
        with self._changed:
            self._hurried.set()
            self._changed.notify_all()

    def release(self) -> None:
        """End the heartbeats, and let another job take the prefix at once if Kafka answers."""
        self.hurry()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        if self._thread.is_alive():  # waits for a Kafka that does not answer
            self._is_abandoned = True
            return
        try:
            if self._records.is_open and self._fenced is None and _now_s() < self._confirmed_at_s + VALID_S:
                self._records.write(self._current(ended=True))
        except (PopstreamError, SupersededError) as error:
            _log.info("prefix_not_released", prefix=self._prefix, error=str(error))
        finally:
            self._records.close()

    def _replace(self, before: LastRecord[Owner] | None, *, take_over: bool) -> bool:
        """Become the owner, unless the topic has another last record than `before`."""
        try:
            self._records.open_for_writing()
            if self._records.last() != before:
                return False
            former = None if before is None else before.value
            of_this_log = former if former and former.ops_topic_id == self._me.ops_topic_id else None
            self._me = msgspec.structs.replace(
                self._me,
                term=1 if former is None else former.term + 1,
                state_epoch="" if of_this_log is None else of_this_log.state_epoch,
                keys_of=sorted({*self._me.keys_of, *(() if of_this_log is None else of_this_log.keys_of)}),
                since_ms=int(time.time() * 1000),
                took_over_from=str(former) if take_over and former and former.place != self._me.place else "",
            )
            self._write()
        except SupersededError:
            return False
        return True

    def _silent_since_s(self, last: LastRecord[Owner]) -> float:
        return _now_s() if self._early_look is None else self._early_look.silent_since_s(last)

    def _wait_for_former_owner(self) -> None:
        deadline_s = _now_s() + SILENCE_S
        while (left_s := deadline_s - _now_s()) > 0:
            self.check()
            time.sleep(min(POLL_S, left_s))

    def _current(self, *, ended: bool = False) -> Owner:
        epoch = self._state_epoch()
        return msgspec.structs.replace(
            self._me, state_epoch=epoch or self._me.state_epoch, has_decided=bool(epoch), ended=ended
        )

    def _write(self) -> None:
        # From before the request: another job may take the prefix as soon as Kafka has it.
        asked_at_s = _now_s()
        self._records.write(self._current())
        with self._changed:
            self._confirmed_at_s = asked_at_s
            self._changed.notify_all()

    def _run(self) -> None:
        problem = None
        while not self._stopping.wait(HEARTBEAT_S if self._records.is_open else POLL_S):
            try:
                self._beat()
            except (Fenced, Invalid) as error:
                self._fence(error)
                return
            except Exception as error:  # noqa: BLE001 - any other error is one of Kafka, and `require` limits its time
                if problem is None:
                    _log.warning("prefix_not_confirmed", error=str(error))
                problem = str(error)
            else:
                problem = None
        if self._is_abandoned:
            self._records.close()

    def _beat(self) -> None:
        """Send a heartbeat.

        Raises:
            Fenced: Another job has taken the prefix.
        """
        if not self._records.is_open:
            # First, so as not to fence a job that has taken the prefix; and again, because it may do so meanwhile.
            self._require_last()
            self._records.open_for_writing()
            self._require_last()
        try:
            self._write()
        except SupersededError:
            self._require_last()  # otherwise another job is about to take the prefix, or was refused

    def _require_last(self) -> None:
        found = self._records.last()
        if found is None or found.value.session != self._me.session:
            owner = "nobody" if found is None else str(found.value)
            message = (
                f"another job has taken the prefix {self._prefix}: {owner}. This job has stopped deciding and"
                " answering. If that was not intended, stop the other one, and start this one with"
                " `popstream up --take-over`"
            )
            raise Fenced(message, subject=self._prefix)

    def _fence(self, error: Fenced | Invalid) -> None:
        fenced = error if isinstance(error, Fenced) else Fenced(str(error), subject=self._prefix)
        with self._changed:
            self._fenced = fenced
            self._changed.notify_all()
        self._records.close()
        self._on_failure(fenced)
