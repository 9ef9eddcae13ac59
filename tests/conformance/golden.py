"""The verdicts on the vectors and histories in tests/data that were looked at, and which of them have changed.

    python -m tests.conformance.golden

prints the first line that is another one now, and what it was; the exit code is 1 then.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import broker_state
from tests.conformance.conformance_verdict import Verdict
from tests.conformance.histories.history_runner import run_histories
from tests.conformance.vectors.vector_runner import run_vectors

__all__ = ["DATA", "GOLDEN", "Golden", "changed"]

DATA = Path(__file__).parents[1] / "data"


class Golden(NamedTuple):
    """Files, what runs them, and their verdicts, line by line."""

    verdicts: str
    run: Callable[[Path], Iterator[Verdict]]
    files: tuple[str, ...]

    def now(self) -> Iterator[Verdict]:
        """The verdicts as they are now."""
        for file in self.files:
            yield from self.run(DATA / file)

    def lines(self) -> list[str]:
        """The verdicts that were looked at."""
        return (DATA / self.verdicts).read_text().splitlines()


GOLDEN = [
    Golden("rocketmq_pop_verdicts.txt", run_vectors, ("rocketmq_pop_vectors.json",)),
    Golden(
        "rocketmq_history_verdicts.txt",
        run_histories,
        ("rocketmq_concurrent_histories.jsonl", "rocketmq_orderly_histories.jsonl"),
    ),
    Golden("own_vector_verdicts.txt", run_vectors, ("own_pop_vectors.json",)),
    Golden("own_history_verdicts.txt", run_histories, ("own_histories.jsonl",)),
]


def changed() -> Iterator[tuple[str | None, str | None]]:
    """(what was looked at, what it is now) of each verdict that has changed."""
    for golden in GOLDEN:
        for before, now in itertools.zip_longest(golden.lines(), map(str, golden.now())):
            if before != now:
                yield before, now


def main() -> int:
    """Report the first change."""
    print(f"broker_state is {broker_state.__file__}")
    first = next(changed(), None)
    if first is not None:
        print(f"was: {first[0]}\nis: {first[1]}")
    return 0 if first is None else 1


if __name__ == "__main__":
    sys.exit(main())
