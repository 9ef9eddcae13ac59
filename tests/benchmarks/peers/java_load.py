"""The loads that are written in Java, for peers whose best client is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from connectors.jars.resolve import java
from tests.benchmarks.peers.contender import PeerError

__all__ = ["compiled_load", "javac"]

_SOURCES = Path(__file__).parent / "java"
COMPILE_LIMIT_S = 120.0


def javac() -> str:
    """The path of `javac`, beside the `java` that is used.

    Raises:
        PeerError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "javac"))) if home else shutil.which("javac")
    if found is None:
        raise PeerError("no javac: the loads are compiled first; install a JDK from 17 to 21, or point JAVA_HOME at it")
    return found


def compiled_load(main: str, jars: Sequence[Path], classes: Path, folder: Path) -> list[str]:
    """Compile a load unless it is compiled already; return the command that runs it.

    Args:
        main: Its class.
        jars: Its class path.
        classes: Folder of the compiled classes.
        folder: For temporary files.

    Raises:
        PeerError: It was not compiled.
    """
    class_path = os.pathsep.join(map(str, [classes, *jars]))
    if not (classes / f"{main}.class").exists():
        sources = [str(_SOURCES / f"{name}.java") for name in ("Meter", "Options", main)]
        done = subprocess.run(
            [javac(), "-nowarn", "-d", str(classes), "-cp", class_path, *sources],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise PeerError(f"javac failed:\n{done.stdout[-2000:]}")
    flags = ["-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Duser.home={folder}"]
    return [java(), *flags, f"-Djava.io.tmpdir={folder}", "-cp", class_path, main]
