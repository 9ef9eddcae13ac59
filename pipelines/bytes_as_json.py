"""Bytes of messages as JSON."""

import base64

__all__ = ["bytes_fields"]


def bytes_fields(name: str, value: bytes | None) -> dict[str, str | None]:
    r"""Return bytes for JSON: as text if they are UTF-8, otherwise in base 64 under another name.

    >>> bytes_fields("key", b"table-3"), bytes_fields("key", b"\xff")
    ({'key': 'table-3'}, {'key_base64': '/w=='})
    """
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
