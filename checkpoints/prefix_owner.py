"""Whether a state may take the prefix of a job: the record of the owner that is in Kafka, and the decision.

The lock of a folder (ownership.py) keeps a second process out of one folder. The owner's record keeps a second folder,
on this host or another one, out of one prefix: both jobs would answer.

| owner in Kafka | contender | may take the prefix |
|---|---|---|
| none | any | now |
| any | does not continue the owner's state | never; with `--take-over` as below |
| stopped in order, or ran in this very folder, whose lock is free | any other | now |
| may still run | continues the owner's state | after 10 s without a heartbeat; a heartbeat refuses it |
| may still run | `--take-over` | now, and decides when the owner can decide no more |

A state continues the owner's state if it is the same one, or was restored from it (`Applied.former_epochs`). Any state
continues an owner whose ops topic no longer exists. An owner that has decided nothing yet leaves the prefix with the
state of the owner before it, if there was one; only its own folder may continue without a state.
"""

import enum
import time
from collections.abc import Collection

import msgspec

from popstream.wire.base_errors import Invalid

__all__ = ["Contender", "Owner", "Take", "require_keys", "when_to_take"]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the owner, which it repeats every few seconds: its heartbeat.

    Attributes:
        session: Random id of the running job.
        term: Number of its ownership. Each later owner has a higher one.
        state_epoch: State epoch of the state that has decided the log; empty: there is none yet.
        has_decided: It is the owner's own state, and not that of an owner before it.
        ops_topic_id: Kafka's id of the ops topic that it decides.
        place: Identity of the lock file of its folder (`Ownership.place`).
        host: Name of its host, for operators; as are the following attributes.
        pid: Its process id.
        folder: Its folder.
        since_ms: Time at which it took the prefix, in milliseconds since the Unix epoch.
        took_over_from: Text of the owner that it has replaced with `--take-over`; empty: it came after one in order.
        keys_of: Of what it has keys, or an owner of this ops topic before it had: `handles`, `operations`.
        ended: It has stopped in order.
    """

    session: str
    term: int
    state_epoch: str
    has_decided: bool
    ops_topic_id: str
    place: str
    host: str = ""
    pid: int = 0
    folder: str = ""
    since_ms: int = 0
    took_over_from: str = ""
    keys_of: list[str] = []
    ended: bool = False

    def __str__(self) -> str:
        """Return where operators find it.

        >>> OF_NOBODY = dict(session="", term=1, state_epoch="", has_decided=False, ops_topic_id="", place="")
        >>> print(Owner(host="a", pid=7, folder="/job", **OF_NOBODY))
        process 7 on a, folder /job, since 1970-01-01T00:00:00Z
        >>> print(Owner(host="a", pid=7, folder="/job", since_ms=10**20, **OF_NOBODY))
        process 7 on a, folder /job, since 100000000000000000000 ms since 1970
        """
        try:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_ms // 1000))
        except (ValueError, OverflowError, OSError):  # of a clock that was wrong
            since = f"{self.since_ms} ms since 1970"
        return f"process {self.pid} on {self.host}, folder {self.folder}, since {since}"


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A job that starts, and wants to own the prefix.

    Attributes:
        state_epochs: The state epoch of its state and those that it continues; empty: it has no state.
        ops_topic_id: Kafka's id of the ops topic.
        place: As `Owner.place`.
        take_over: The operator wants it to replace any owner.
    """

    state_epochs: Collection[str]
    ops_topic_id: str
    place: str
    take_over: bool = False


class Take(enum.Enum):
    """When a contender may take the prefix, and decide."""

    NOW = enum.auto()
    """The owner has ended."""
    AFTER_SILENCE = enum.auto()
    """After some time without a heartbeat of the owner, and not at all if there is one."""
    AND_WAIT = enum.auto()
    """Now. It must not decide before the owner has noticed, or can decide no more without noticing."""


def when_to_take(prefix: str, owner: Owner | None, contender: Contender) -> Take:
    """Return when a contender may take a prefix.

    Raises:
        Invalid: It has another state than the owner.
    """
    if owner is None:
        return Take.NOW
    continues = (
        not owner.state_epoch
        or owner.ops_topic_id != contender.ops_topic_id
        or owner.state_epoch in contender.state_epochs
        or (owner.place == contender.place and not owner.has_decided)
    )
    if not continues and not contender.take_over:
        raise Invalid(_refusal(prefix, owner, contender), subject=prefix)
    if owner.ended or owner.place == contender.place:
        return Take.NOW
    return Take.AND_WAIT if contender.take_over else Take.AFTER_SILENCE


def require_keys(prefix: str, owner: Owner | None, keys_of: Collection[str], ops_topic_id: str) -> None:
    """Refuse to decide a log without keys with which it was decided: what their job refused would be done.

    Args:
        prefix: The prefix.
        owner: Its last owner.
        keys_of: Of what the settings have keys, as `Owner.keys_of`.
        ops_topic_id: Kafka's id of the ops topic.

    Raises:
        Invalid: The owner of this very topic has, or has had, more.

    >>> of_job = dict(session="", term=1, state_epoch="", has_decided=True, ops_topic_id="t", place="")
    >>> require_keys("shop", Owner(keys_of=["handles"], **of_job), ["handles", "operations"], "t")
    >>> require_keys("shop", Owner(keys_of=["handles"], **of_job), [], "t")
    Traceback (most recent call last):
    popstream.wire.base_errors.Invalid: the job of prefix shop has keys of handles, which these settings lack: ...
    """
    if owner is None or owner.ops_topic_id != ops_topic_id:
        return
    if missing := {*owner.keys_of}.difference(keys_of):
        named = " and ".join(sorted(missing))
        message = (
            f"the job of prefix {prefix} has keys of {named}, which these settings lack: name its file with --settings."
            " To do without them, see docs/security.md (keys)"
        )
        raise Invalid(message, subject=prefix)


def _refusal(prefix: str, owner: Owner, contender: Contender) -> str:
    if contender.state_epochs:
        return (
            f"the prefix {prefix} belongs to another state than that of this folder. Its owner is {owner}: use that"
            " folder, or another --prefix. To continue with this folder, stop the owner and run `popstream restore`,"
            " or start it with `popstream up --take-over`"
        )
    return (
        f"the state of the prefix {prefix} is elsewhere, and this folder has none. Its owner is {owner}: mount or use"
        " that folder, or run `popstream restore`. To decide the log again from its start, run"
        " `popstream up --take-over`"
    )
