"""RocketMQ's jars, which only `make bench-peers` needs; run as a program, it rewrites their hashes in sha256.txt.

They are fetched like those of the job (`connectors.jars.resolve`): by the Ivy inside PySpark, from the repository that
Ivy is set up for, and no file without its hash in `sha256.txt` is used.

```
var/peers/jars/rocketmq/*.jar    the class path of name server, broker and load
var/peers/ivy/                   Ivy's cache
```
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from connectors.jars.resolve import JarError, is_wrong, ivy_command, missing_jars, read_sums, sha256_of, verify

__all__ = ["rocketmq_jars"]

_HERE = Path(__file__).parent
IVY_FILE = _HERE / "ivy.xml"
SUMS_FILE = _HERE / "sha256.txt"
FETCH_LIMIT_S = 900.0
LINES_SHOWN = 12
_SUMS_HEADER = """\
# SHA-256 of every jar of ivy.xml, as in connectors/jars/sha256.txt.
# Rewritten by `python -m tests.benchmarks.peers.peer_jars`.
"""


def rocketmq_jars(var: Path) -> list[Path]:
    """The class path of RocketMQ; fetches what is missing or wrong.

    Raises:
        JarError: The download failed, or a file has another hash than the locked one.
    """
    folder, sums = var / "peers" / "jars", read_sums(SUMS_FILE)
    if missing_jars(folder, sums) or is_wrong(folder, sums):
        _fetch(var / "peers" / "ivy", folder)
        verify(folder, sums, cache=var / "peers" / "ivy", command="make bench-peers")
    return [folder / name for name in sorted(sums)]


def _fetch(cache: Path, folder: Path) -> None:
    try:
        done = subprocess.run(
            ivy_command(IVY_FILE, cache=cache, target=folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JarError(f"the jars of the peers were not downloaded within {FETCH_LIMIT_S:g} s") from error
    if done.returncode != 0:
        lines = "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
        raise JarError(f"the jars of the peers could not be downloaded; Ivy's last lines:\n{lines}")


def _lock(var: Path) -> None:
    folder = var / "peers" / "jars"
    _fetch(var / "peers" / "ivy", folder)
    rows = [f"{sha256_of(jar)}  {jar.relative_to(folder).as_posix()}\n" for jar in sorted(folder.rglob("*.jar"))]
    SUMS_FILE.write_text(_SUMS_HEADER + "".join(rows), encoding="ascii")


if __name__ == "__main__":
    try:
        _lock(Path("var").absolute())
    except JarError as error:
        sys.exit(str(error))
