"""Serializers of `Producer(value_serializer=)`, and deserializers of `Consumer(value_deserializer=)`.

Any function from a value to bytes, and from bytes to a value, will do; these are two formats of msgspec.

>>> class Order(msgspec.Struct):
...     drink: str
...     count: int = 1
>>> json_serializer(Order("espresso"))
b'{"drink":"espresso","count":1}'
>>> json_deserializer(Order)(b'{"drink":"mocha"}')
Order(drink='mocha', count=1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["json_deserializer", "json_serializer", "msgpack_deserializer", "msgpack_serializer"]

Kind = TypeVar("Kind")


def json_serializer(value: object) -> bytes:
    """Return a value as JSON: what the json module takes, and msgspec structs, dataclasses, dates, UUIDs and the like.

    Raises:
        TypeError: JSON has no form for the value.
    """
    return msgspec.json.encode(value)


def msgpack_serializer(value: object) -> bytes:
    """Return a value as MessagePack; it takes what `json_serializer` takes.

    Raises:
        TypeError: MessagePack has no form for the value.
    """
    return msgspec.msgpack.encode(value)


@overload
def json_deserializer() -> Callable[[bytes], Any]: ...
@overload
def json_deserializer(kind: type[Kind]) -> Callable[[bytes], Kind]: ...
def json_deserializer(kind: Any = Any) -> Callable[[bytes], Any]:
    """Return a deserializer of JSON.

    It raises msgspec.DecodeError for what is no JSON, and its subclass ValidationError for what is not of the type.

    >>> json_deserializer()(b'{"drink": "mocha", "count": 2}')
    {'drink': 'mocha', 'count': 2}

    Args:
        kind: The type of the values, as an annotation has it: a msgspec.Struct, a dataclass, a TypedDict,
            `dict[str, int]`. Default: whatever the JSON has.
    """
    return msgspec.json.Decoder(kind).decode


@overload
def msgpack_deserializer() -> Callable[[bytes], Any]: ...
@overload
def msgpack_deserializer(kind: type[Kind]) -> Callable[[bytes], Kind]: ...
def msgpack_deserializer(kind: Any = Any) -> Callable[[bytes], Any]:
    """Return a deserializer of MessagePack, otherwise like `json_deserializer`.

    >>> msgpack_deserializer(list[int])(msgpack_serializer([1, 2]))
    [1, 2]
    """
    return msgspec.msgpack.Decoder(kind).decode
