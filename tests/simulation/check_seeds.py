"""`python -m tests.simulation.check_seeds SEEDS`.

SEEDS is a number of seeds (`10000`), a span (`500-600`) or one seed (`=4711`).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter

import structlog

from tests.simulation.world import disturbed, undisturbed

RECORDS = 100
TELL_EACH = 500


def check_seed(seed: int, records: int = RECORDS) -> tuple[int, list[str], list[str], int]:
    """(seed, what differs, where it crashed, zombies fenced) of one seed."""
    world, outcome = disturbed(seed, records)
    return seed, outcome.differences(undisturbed(seed, records)), world.crashes, world.fenced


def seeds_of(text: str) -> range:
    """The seeds that a text means.

    >>> seeds_of("3"), seeds_of("5-7"), seeds_of("=9")
    (range(0, 3), range(5, 8), range(9, 10))
    """
    if text.startswith("="):
        return range(int(text[1:]), int(text[1:]) + 1)
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(text))


def _checked(seed: int) -> tuple[int, list[str], list[str], int]:
    try:
        return check_seed(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed
        return seed, [f"{type(error).__name__}: {error}"], [], 0


def _quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def main() -> int:
    """Run the seeds on all cores; 1 when one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds")
    seeds = seeds_of(parser.parse_args().seeds)
    started = time.monotonic()
    places: Counter[str] = Counter()
    failed: list[int] = []
    fenced = 0
    with contextlib.ExitStack() as stack:
        if len(seeds) > 1:
            pool = stack.enter_context(multiprocessing.Pool(os.cpu_count(), initializer=_quiet))
            outcomes = pool.imap_unordered(_checked, seeds, chunksize=16)
        else:
            outcomes = iter([check_seed(seed) for seed in seeds])  # type: ignore[assignment]
        for done, (seed, differences, crashes, zombies) in enumerate(outcomes, 1):
            places.update(crashes)
            fenced += zombies
            if differences:
                failed.append(seed)
                print(f"seed {seed}: {', '.join(differences)}\n  again: make simulate SEEDS=={seed}", flush=True)
            if done % TELL_EACH == 0:
                print(f"{done} seeds, {len(failed)} failed", flush=True)
    spent_s = time.monotonic() - started
    print(f"{len(seeds)} seeds of {RECORDS} records in {spent_s:.0f} s: {len(failed)} failed,")
    print(f"{sum(places.values())} crashes, {fenced} processes that came back and were fenced")
    for place, count in places.most_common():
        print(f"  {count:8} at {place}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
