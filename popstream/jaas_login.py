"""The value of `sasl.jaas.config`: a login module of Kafka's Java client and its options."""

from __future__ import annotations

import re

__all__ = ["parse_jaas", "quoted"]

_OPTION = r"([\w.$-]+)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|([^\s\";=]+))"
_JAAS = re.compile(rf"\s*([\w.$]+)\s+required((?:\s+{_OPTION})*)\s*;\s*", re.DOTALL)


def parse_jaas(text: str, module: str) -> dict[str, str] | None:
    r"""Return the options of a module; None: the text names another one, or is malformed.

    >>> parse_jaas('a.B required user=u password="p \\" q";', "a.B")
    {'user': 'u', 'password': 'p " q'}
    >>> parse_jaas("a.B required;", "a.C")
    """
    found = _JAAS.fullmatch(text)
    if found is None or found[1] != module:
        return None
    return {name: re.sub(r"\\(.)", r"\1", inner) or bare for name, inner, bare in re.findall(_OPTION, found[2])}


def quoted(value: str) -> str:
    r"""Return the value of an option, as it is written.

    >>> print(quoted('a "b" c\\d'))
    "a \"b\" c\\d"
    """
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'
