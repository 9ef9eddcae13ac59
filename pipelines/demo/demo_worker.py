"""A process of the demo: `python -m pipelines.demo.demo_worker '<task as JSON>'`. It needs the client, and no Spark."""

import contextlib
import logging
import sys
from collections.abc import Callable

import msgspec

from pipelines.demo.consumers import run_changer, run_doomed, run_orderly, run_sender, run_steady
from pipelines.demo.intruder import run_intruder
from pipelines.demo.tasks import Role, Task
from popstream import ClientClosed

__all__ = ["main"]

_ROLES: dict[Role, Callable[[Task], None]] = {
    "sender": run_sender,
    "intruder": run_intruder,
    "doomed": run_doomed,
    "changer": run_changer,
    "steady": run_steady,
    "orderly": run_orderly,
}


def main(arguments: list[str]) -> int:
    """Perform the task, until it is done or standard input ends; return 0."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    task = msgspec.json.decode(arguments[0], type=Task)
    with contextlib.suppress(ClientClosed):  # by the end of standard input
        _ROLES[task.role](task)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
