"""`popstream demo`: messages through every lane, with well-behaved and ill-behaved consumers, and a verdict at the end.

```
sender ─> message topic ─> steady consumers, one that is killed, one that changes invisible time ─┐
intruder ─> stale, forged, misrouted, unreadable records ─> ops topic                              ├─> journals (JSONL)
job ─> Delta tables ───────────────────────────────────────────────> verdict <─────────────────────┘
```

Each process writes down what it was told before it acts on it. The verdict compares that with the Delta tables, and
both with the messages themselves. The processes import this package and must not import Spark, so `run_demo` is
imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.demo.run import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of run_demo, above
    if name == "run_demo":
        from pipelines.demo.run import run_demo  # noqa: PLC0415 - see the module

        return run_demo
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
