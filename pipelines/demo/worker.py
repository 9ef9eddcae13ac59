"""A process of the demo: `python -m pipelines.demo.worker '<orders as JSON>'`. It needs the client, and no Spark."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from io import FileIO

import msgspec

from pipelines.demo.consumers import run_changer, run_doomed, run_orderly, run_steady
from pipelines.demo.intruder import run_intruder
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.orders import Orders, Role
from pipelines.demo.sender import run_sender
from popstream import ClientClosed

__all__ = ["main"]

_ROLES: dict[Role, Callable[[Orders, Lifeline], None]] = {
    "sender": run_sender,
    "steady": run_steady,
    "doomed": run_doomed,
    "changer": run_changer,
    "intruder": run_intruder,
    "orderly": run_orderly,
}


def main(arguments: list[str]) -> int:
    """Do what the orders say; 0 when it is done."""
    # Ctrl-C is for the demo, which tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    orders = msgspec.json.decode(arguments[0], type=Orders)
    # Unbuffered: a thread that waits in a buffered read would hold a lock that the interpreter wants when it ends.
    lifeline = Lifeline(FileIO(0, closefd=False), sys.stdout.buffer, on_end=_end)
    try:
        _ROLES[orders.role](orders, lifeline)
    except ClientClosed:
        if not lifeline.is_stopping:
            raise
    lifeline.tell("done")
    return 0


def _end() -> None:
    """The demo is gone: nobody needs this process any more, and nothing it could still do matters."""
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
