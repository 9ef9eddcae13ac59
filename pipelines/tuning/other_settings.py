"""The settings with which a range of the log is decided once more."""

from typing import Any

import msgspec

from broker_state.kernel.validation import what_is_invalid
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Policy, Pop

__all__ = ["OtherSettings"]

_PLACE: dict[str, Any] = {"v": 1, "topic": "orders", "queue_id": 0, "group": "group"}


class OtherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is different; None: as recorded.

    Attributes:
        groups: The groups that have these settings; empty: every group.
        invisible_time_ms: Invisible time of each pop, and of each renewal.
        order: Whether pops are in order.
        max_attempts: As in a policy, likewise all that follow.
        back_off_ms: Time after each failed delivery.
        parked_max: Pops that wait in a lane.
        in_flight_max: Leased messages of a lane.
        pops_per_s_max: Pops of a lane in a second.
    """

    groups: list[str] = []
    invisible_time_ms: int | None = None
    order: bool | None = None
    max_attempts: int | None = None
    back_off_ms: list[int] | None = None
    parked_max: int | None = None
    in_flight_max: int | None = None
    pops_per_s_max: int | None = None

    def are_of(self, group: str) -> bool:
        """Return whether a group has these settings."""
        return not self.groups or group in self.groups

    @property
    def of_policy(self) -> dict[str, Any]:
        """The fields of a policy that are different.

        >>> OtherSettings(max_attempts=3, invisible_time_ms=1).of_policy
        {'max_attempts': 3}
        """
        names = ("max_attempts", "back_off_ms", "parked_max", "in_flight_max", "pops_per_s_max")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def are_none(self) -> bool:
        """Whether nothing is different."""
        return not self.changed

    def pop(self, recorded: Pop) -> Pop:
        """Return a pop as it would be sent."""
        if not self.are_of(recorded.group):
            return recorded
        changed: dict[str, Any] = {}
        if self.invisible_time_ms is not None:
            changed["invisible_time_ms"] = self.invisible_time_ms
        if self.order is not None:
            changed["order"] = self.order
        return msgspec.structs.replace(recorded, **changed) if changed else recorded

    def require_valid(self) -> None:
        """Refuse what the job would refuse.

        >>> OtherSettings(max_attempts=70_000).require_valid()
        Traceback (most recent call last):
        ...
        popstream.wire.base_errors.Invalid: max_attempts takes 0..65535

        Raises:
            Invalid: A value is out of range, or nothing is different.
        """
        if self.are_none:
            message = "name a setting that would be different, such as --invisible-time 60s"
            raise Invalid(message)
        invisible_time_ms = 1 if self.invisible_time_ms is None else self.invisible_time_ms
        pop = Pop(**_PLACE, max_messages=1, invisible_time_ms=invisible_time_ms)
        invalid = what_is_invalid(pop) or what_is_invalid(Policy(**_PLACE, **self.of_policy))
        if invalid is not None:
            raise Invalid(invalid)

    @property
    def changed(self) -> dict[str, Any]:
        """What is different, by name."""
        found = {"invisible_time_ms": self.invisible_time_ms, "order": self.order}
        return {**{name: value for name, value in found.items() if value is not None}, **self.of_policy}
