"""Places where a test can kill the job, named after the six steps. Without the variable they do nothing."""

import os
import signal

__all__ = ["VARIABLE", "failpoint"]

VARIABLE = "POPSTREAM_FAILPOINT"
"""`<name>@<hit>`: die at the hit-th time that `name` is passed; `!` in front kills the whole process group."""

_hits: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Die here, without a chance to tidy up, if this is the chosen place and time."""
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return
    wanted, _, hit = chosen.removeprefix("!").partition("@")
    if wanted != name:
        return
    _hits[name] = _hits.get(name, 0) + 1
    if _hits[name] == int(hit or 1):
        if chosen.startswith("!"):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
