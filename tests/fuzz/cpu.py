"""CPU time of what is fuzzed; that of the reference model does not count, which is to be simple and not fast."""

import contextlib
import time
from collections.abc import Callable, Iterator

__all__ = ["cpu_ms", "not_counted"]

_not_counted_s = 0.0


@contextlib.contextmanager
def not_counted() -> Iterator[None]:
    """What runs inside takes no time, as far as `cpu_ms` can see."""
    global _not_counted_s  # noqa: PLW0603 - one target runs at a time
    started = time.process_time()
    try:
        yield
    finally:
        _not_counted_s += time.process_time() - started


def cpu_ms(run: Callable[[], object]) -> float:
    """Milliseconds of CPU that `run` takes."""
    before_s, started = _not_counted_s, time.process_time()
    run()
    return (time.process_time() - started - (_not_counted_s - before_s)) * 1_000
