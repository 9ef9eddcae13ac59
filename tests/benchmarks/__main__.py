"""`make bench`: measure kernel, store and job on this machine, print the figures of each part that has goals, and write
var/bench/<time>.json, from which `python -m tests.benchmarks.figures` prints them again."""

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.benchmarks.benchmark_report import PARTS, run_bench

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"measure only these: {', '.join(PARTS)}")
    parser.add_argument("--operations", type=int, default=2_000_000, help="operations to drain")
    parser.add_argument("--runs", type=int, default=5, help="repetitions of each kernel measurement")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each part, for medians")
    parser.add_argument("--seconds", type=int, default=60, help="length of each latency run")
    parser.add_argument("--var", type=Path, default=Path("var"), help="folder with the jars, and for results")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    written, failed = run_bench(
        operations=chosen.operations,
        runs=chosen.runs,
        repeats=chosen.repeats,
        seconds=chosen.seconds,
        var=chosen.var.absolute(),
        parts=chosen.parts or PARTS,
        on_progress=partial(print, flush=True),  # a part that is killed prints no more
    )
    print(written)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
