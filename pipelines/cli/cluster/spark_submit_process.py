"""`spark-submit` as a child: signals reach the driver in Python, which stops in order, and its exit code is ours.

```
popstream submit ── spark-submit (a JVM) ── driver (Python)
        └────────── SIGTERM, SIGINT ──────────^
```

`spark-submit` itself would end at once, and leave the driver without its JVM.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from connectors.local_servers.process_tree import command_line, descendants, kill_tree
from connectors.spark_cluster.submission import LAUNCHER

__all__ = ["run_spark_submit"]


def run_spark_submit(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command to its end, and return its exit code as a shell reports it.

    A first signal stops the driver, a second one kills it.

    Raises:
        KeyboardInterrupt: The second signal.
    """
    # In a session of its own: Ctrl-C would reach every process below, and end the JVM before its driver.
    with subprocess.Popen(  # noqa: S603 - the command is ours
        command, env=dict(environment), start_new_session=True
    ) as running:
        try:
            try:
                code = running.wait()
            except KeyboardInterrupt as interrupted:
                _stop(running.pid, interrupted.args[0] if interrupted.args else signal.SIGINT)
                code = running.wait()
        except BaseException:
            kill_tree(running.pid)
            raise
    return code if code >= 0 else 128 - code


def _stop(pid: int, number: int) -> None:
    """Pass a signal on to the driver; where none runs here, to what waits for it."""
    drivers = [each for each in descendants(pid) if str(LAUNCHER) in command_line(each)]
    os.kill(drivers[0] if drivers else pid, number)
