"""Claim: a process ends with its parent, while it works. Method: the end of the pipe that its standard input is."""

from __future__ import annotations

import subprocess
import sys

from connectors.local_servers.end_with_parent import PARENT_IS_GONE

SLEEPER = """
import time
from connectors.local_servers.end_with_parent import end_with_parent
end_with_parent()
print("works", flush=True)
time.sleep(600)
"""


def test_a_process_ends_when_its_input_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"works\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == PARENT_IS_GONE
