"""Places in the job where a test can make something happen, for example a crash.

```
start fetch                                  before Spark's query starts; as foreachBatch is called
decode order prefetch decide write publish   the six steps of a micro-batch, as each begins
emit                                         before each frame of answers is sent
commit                                       after a micro-batch
flush_begin flush                            before a flush to Delta; after each of its tables
unit_flush                                   after a commit to the builder's table, before the outbox notes it
build build_dispatch                         the builder: after Spark's fetch; after its WriteBatch, before the dispatch
```

Without a hook, each costs one comparison.
"""

from collections.abc import Callable

__all__ = ["arm", "failpoint"]

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Call the hook, if one is armed, with the name of this place."""
    if _hook is not None:
        _hook(name)


def arm(hook: Callable[[str], None] | None) -> None:
    """Set the hook of all fail-points; None removes it."""
    global _hook  # noqa: PLW0603 - one process, one set of fail-points
    _hook = hook
