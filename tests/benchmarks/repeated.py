"""What several runs of one part of the benchmarks have measured, as one result."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["merged"]


def merged(results: Sequence[Any]) -> Any:
    """Return the result of a part with each number as [median, least, greatest] of all runs.

    What is not in each run, as in one that has failed, is that of the runs that have it; texts that differ are a list.

    >>> merged([{"ops": 30, "form": "compiled", "at": [1, 2]}, {"ops": 10, "form": "compiled", "at": [3, 2]}])
    {'ops': [20.0, 10, 30], 'form': 'compiled', 'at': [[2.0, 1, 3], [2.0, 2, 2]]}
    >>> merged([{"ops": 1}, {"failure": "Kafka ended"}])
    {'ops': [1, 1, 1], 'failure': 'Kafka ended'}
    >>> merged([{"ops": 7}])
    {'ops': 7}
    """
    return results[0] if len(results) == 1 else _merged(results)


def _merged(found: Sequence[Any]) -> Any:
    if all(isinstance(each, dict) for each in found):
        names = dict.fromkeys(name for each in found for name in each)
        return {name: _merged([each[name] for each in found if name in each]) for name in names}
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in found):
        return [statistics.median(found), min(found), max(found)]
    if all(isinstance(each, list | tuple) and len(each) == len(found[0]) for each in found):
        return [_merged(each) for each in zip(*found, strict=True)]
    return found[0] if all(each == found[0] for each in found) else [*found]
