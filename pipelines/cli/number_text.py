"""Numbers that a command is told, as text: Python itself refuses those of thousands of digits, by another error."""

__all__ = ["OFFSET_MAX", "is_number", "is_offset"]

OFFSET_MAX = (1 << 63) - 1


def is_number(text: str) -> bool:
    """Return whether a text is a number, of no more digits than the greatest offset has.

    >>> is_number("17"), is_number("²"), is_number("9" * 5_000)
    (True, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= len(str(OFFSET_MAX))


def is_offset(text: str) -> bool:
    """Return whether a text is a number that an offset, or another number of 64 bits, can have."""
    return is_number(text) and int(text) <= OFFSET_MAX
