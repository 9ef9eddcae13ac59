"""The loads that are written in Java, compiled by the JDK that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from connectors.jars.resolve import java
from tests.benchmarks.peers.contender import PeerError

__all__ = ["compile_java", "java_command"]

_SOURCES = Path(__file__).parent / "java"
COMPILE_LIMIT_S = 120.0
RELEASE = 17
"""The oldest Java with which the job runs."""


def compile_java(names: Sequence[str], jars: Sequence[Path], classes: Path) -> None:
    """Compile sources to a folder of classes.

    Raises:
        PeerError: There is no compiler, or it refuses them.
    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which(str(Path(home, "bin", "javac"))) if home else shutil.which("javac")
    if javac is None:
        raise PeerError(f"no javac: install a JDK from {RELEASE} on, or point JAVA_HOME at it")
    command = [javac, "-nowarn", "--release", str(RELEASE), "-d", str(classes), "-cp", _class_path(jars)]
    try:
        done = subprocess.run(
            [*command, *(str(_SOURCES / f"{name}.java") for name in names)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"javac did not end within {COMPILE_LIMIT_S:g} s") from error
    if done.returncode:
        raise PeerError(f"javac failed:\n{done.stdout[-2000:]}")


def java_command(main: str, flags: Sequence[str], class_path: Sequence[Path], folder: Path) -> list[str]:
    """The command that runs a class, with its temporary files in a folder."""
    places = [f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}", "-XX:-UsePerfData"]
    return [java(), *flags, *places, "-cp", _class_path(class_path), main]


def _class_path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, jars))
