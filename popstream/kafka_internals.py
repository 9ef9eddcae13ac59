"""Checks the private members of kafka-python that the client relies on.

kafka-python 3.0 has no public way to go on after a refused record, to abandon records that cannot be sent, or to free
the fetch slot of a paused partition. pyproject.toml allows only the releases whose members are known.
"""

from __future__ import annotations

from kafka import __version__ as kafka_python_version

from popstream.wire.base_errors import Invalid

__all__ = ["require_members"]


def require_members(owner: object, *paths: str) -> None:
    """Check that an object of kafka-python has the members that the client uses.

    >>> require_members("text", "upper.__call__")

    Args:
        owner: A KafkaProducer, KafkaConsumer or a part of one.
        paths: Names of members; dots lead to members of members.

    Raises:
        Invalid: One is missing: another release of kafka-python is installed than the client supports.
    """
    for path in paths:
        found = owner
        for name in path.split("."):
            if not hasattr(found, name):
                message = (
                    f"kafka-python {kafka_python_version} is not supported: {type(owner).__name__} has no {path};"
                    " install a release that popstream allows (`pip check` names it)"
                )
                raise Invalid(message, subject="kafka-python")
            found = getattr(found, name)
