"""The worker processes of the demo: which there are, and what each one is to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from pipelines.demo.message_source import MessageSource
from popstream.kafka_connection import KafkaConnection

__all__ = ["ORDERLY_GROUP", "ROLES", "Role", "Task", "group_names", "limited_group", "tasks_of"]

Role = Literal["sender", "intruder", "doomed", "changer", "steady", "orderly"]
ROLES: tuple[Role, ...] = ("sender", "intruder", "doomed", "changer", "steady", "orderly")
"""In the order in which they start within a group: steady consumers would leave the others no messages."""

ORDERLY_GROUP = "accounts"
"""Consumes every message too, in order."""

ANSWER_TIMEOUT_MS = 120_000
"""Clients wait long for answers: a slow machine is no failure."""

_NAMES = ("billing", "shipping", "search")
_SMALL_SET, _LARGE_SET = 20, 1_000


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is to do: its only argument, as JSON.

    Attributes:
        name: Name of the process, and its client id.
        folder: Gets the history of its client, and the files below.
        set_size: Messages that a steady consumer processes and acks together.
        releases_poison: Release poison messages until the attempt limit makes them dead letters; else process them.
        malformed_count: Malformed records that the intruder writes.
        refused_count: Operations of the intruder that the job must refuse.
    """

    name: str
    role: Role
    connection: KafkaConnection
    prefix: str
    topic: str
    queues: int
    ops_partitions: int
    source: MessageSource
    folder: str
    group: str = ""
    set_size: int = _LARGE_SET
    releases_poison: bool = False
    malformed_count: int = 0
    refused_count: int = 0

    @property
    def processed_file(self) -> Path:
        """Every message that it processed (`consumers.ProcessedLog`)."""
        return Path(self.folder, f"{self.name}.processed")

    @property
    def planted_file(self) -> Path:
        """Every record that the intruder planted (`planted.Planted`)."""
        return Path(self.folder, f"{self.name}.planted")

    @property
    def armed_file(self) -> Path:
        """Exists when it holds the messages that it needs, and the roles after it may start."""
        return Path(self.folder, f"{self.name}.armed")

    @property
    def client_options(self) -> dict[str, Any]:
        """Options of its client."""
        return {
            **self.connection.client_options,
            "client_id": self.name,
            "prefix": self.prefix,
            "answer_timeout_ms": ANSWER_TIMEOUT_MS,
            "history_file": Path(self.folder, f"{self.name}.history"),
        }


def group_names(count: int) -> list[str]:
    """Return the names of `count` consumer groups.

    >>> group_names(4)
    ['billing', 'shipping', 'search', 'group-4']
    """
    return [*_NAMES[:count], *(f"group-{number}" for number in range(len(_NAMES) + 1, count + 1))]


def limited_group(groups: list[str]) -> str:
    """Return the group with an attempt limit; the others can process poison messages."""
    return groups[-1]


def tasks_of(groups: list[str], common: Mapping[str, Any]) -> list[Task]:
    """Return the task of every process; `common` has the fields that are equal in all of them."""

    def task(name: str, role: Role, group: str = "", **fields: Any) -> Task:  # noqa: ANN401 - fields of Task
        is_limited = group == limited_group(groups)
        return Task(name=name, role=role, group=group, releases_poison=is_limited, **fields, **common)

    tasks = [task("sender", "sender")]
    for number, group in enumerate(groups):
        # The first group acks many messages at once; in the others each few messages are an operation of their own.
        is_first = number == 0 and len(groups) > 1
        set_size = _LARGE_SET if is_first else _SMALL_SET
        names = [f"{group}-steady-1", f"{group}-steady-2"] if is_first else [f"{group}-steady-1"]
        tasks += (task(name, "steady", group, set_size=set_size) for name in names)
    faults: tuple[Role, ...] = ("doomed", "intruder", "changer")
    for number, role in enumerate(faults):
        group = groups[number % len(groups)]
        tasks.append(task(f"{group}-{role}", role, group))
    return [*tasks, *(task(f"{ORDERLY_GROUP}-{number}", "orderly", ORDERLY_GROUP) for number in (1, 2))]
