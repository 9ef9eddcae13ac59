"""`make conformance`: a line for each vector or history, and the totals; exit code 1 when one fails."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from popstream.wire.base_errors import Invalid
from tests.conformance import Verdict, VerdictKind, run_histories, run_vectors


def main(arguments: list[str] | None = None) -> int:
    """Run the files; returns the exit code: 0, 1 when one fails, 2 when a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Compare the kernel with RocketMQ: vectors, or histories recorded from a real broker.",
    )
    parser.add_argument("kind", choices=["vectors", "histories"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    run = run_vectors if chosen.kind == "vectors" else run_histories
    try:
        return _report(verdict for file in chosen.files for verdict in run(file))
    except Invalid as error:
        print(error, file=sys.stderr)
        return 2


def _report(verdicts: Iterable[Verdict]) -> int:
    counts: Counter[VerdictKind] = Counter()
    for verdict in verdicts:
        counts[verdict.outcome] += 1
        print(verdict)
    differ, elsewhere = counts[VerdictKind.DIFFERS], counts[VerdictKind.NOT_APPLICABLE]
    print(f"{differ} differ by a rule (docs/differences.md), {elsewhere} not applicable")
    print(f"{counts[VerdictKind.PASS] + differ} passed, {counts[VerdictKind.FAIL]} failed")
    return 1 if counts[VerdictKind.FAIL] else 0


if __name__ == "__main__":
    sys.exit(main())
