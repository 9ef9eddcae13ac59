"""Places where a test can kill the job, named after the six steps and the effects around them.

```
start fetch                                  Spark has planned nothing yet; it has planned and hands over
decode order prefetch decide write publish   the six steps, as they begin
emit                                         before the records of each entry of the outbox go to Kafka
commit                                       after all of them
flush_begin flush                            before a span goes to Delta; after each table that has it
unit_flush                                   after a commit of the builder's table, before its note
build build_dispatch                         the builder: a micro-batch has come; it is written and not dispatched
```

Off, each costs one comparison.
"""

import os
import signal
import time
from collections.abc import Callable

__all__ = ["VARIABLE", "arm", "failpoint", "kill_at"]

VARIABLE = "POPSTREAM_FAILPOINT"
"""`<name>@<hit>`: die at the hit-th time that `name` is passed.

`!` in front kills the whole process group, `jvm:` the JVM and not this process. With `+<ms>` behind it, what is under
way in other threads has so long before.
"""

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Whatever a test wants to happen here; nothing else does."""
    if _hook is not None:
        _hook(name)


def arm(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of each place that is passed, from now on; None: nothing."""
    global _hook  # noqa: PLW0603 - one process, one set of fail-points
    _hook = hook


def kill_at(chosen: str) -> None:
    """Die there, counted from now; `chosen` is as in the environment variable."""
    arm(_Kill(chosen))


class _Kill:
    """Dies, without a chance to tidy up, at the chosen place and time."""

    def __init__(self, chosen: str) -> None:
        self._is_group = chosen.startswith("!")
        self._is_jvm = chosen.startswith("jvm:")
        place, _, linger_ms = chosen.removeprefix("!").removeprefix("jvm:").partition("+")
        name, _, hit = place.partition("@")
        self._name = name
        self._left = int(hit or 1)
        self._linger_s = int(linger_ms or 0) / 1000

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        self._left -= 1
        if self._left:
            return
        time.sleep(self._linger_s)
        if self._is_jvm:
            from pipelines.process.jvm import kill_jvm  # noqa: PLC0415 - only where a test asks for it

            kill_jvm()
        elif self._is_group:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


if VARIABLE in os.environ:
    kill_at(os.environ[VARIABLE])
