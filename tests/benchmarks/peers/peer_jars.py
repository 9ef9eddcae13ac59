"""RocketMQ's jars, which only `make bench-peers` needs; run as a program, it rewrites their hashes in sha256.txt.

They are fetched and verified like those of the job (`connectors.jars.resolve`), to `var/peers/jars/rocketmq/*.jar`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from connectors.jars.resolve import JarError, JarSet, lock, resolve, resolved_jars

__all__ = ["PEERS", "rocketmq_jars"]

PEERS: Final = JarSet(Path(__file__).parent, "peers/jars", "make bench-peers")


def rocketmq_jars(var: Path) -> list[Path]:
    """The class path of RocketMQ; fetches what is missing or wrong.

    Raises:
        JarError: The download failed, or a file has another hash than the locked one.
    """
    resolve(var, PEERS)
    return resolved_jars(var, PEERS, "rocketmq")


if __name__ == "__main__":
    try:
        lock(Path("var").absolute(), PEERS)
    except JarError as error:
        sys.exit(str(error))
