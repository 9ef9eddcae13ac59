"""`popstream demo`: the whole pipeline on one machine, with faults, and a verdict at the end.

```
sender ─> message topic ─> consumers: steady, orderly, one that is killed, one that changes invisible times ─┐
intruder ─> stale, forged, misrouted, malformed records ─> ops topic                                         │
job ─> Delta tables ─> quality suites ─┬─> verdict <─ check_history <─ history of each client <──────────────┘
```

The demo itself checks only what neither the clients' histories nor the tables can show, see `verdict`. The worker
processes import this package and must not import Spark, so `run_demo` is imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.demo.demo_run import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of run_demo, above
    if name == "run_demo":
        from pipelines.demo.demo_run import run_demo  # noqa: PLC0415 - see the module

        return run_demo
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
