"""What every request to a running job has, as it crosses the control socket (pipelines/control)."""

import msgspec

__all__ = ["ControlRequest"]


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask"):
    """A request; the tag of a class is its kind.

    Attributes:
        token: That of the job file, which only the user of the job may read.
    """

    token: str = ""
