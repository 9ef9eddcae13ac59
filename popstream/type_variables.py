"""The type variables of generic clients. Their defaults need Python 3.13, and a type checker knows them before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # a type checker brings it

    Body = TypeVar("Body", default=Any)
    Value = TypeVar("Value", default=bytes)
else:
    from typing import TypeVar

    Body = TypeVar("Body")
    Value = TypeVar("Value")

__all__ = ["Body", "Value"]
