"""Archives of loaded classes, with which a JVM starts in about half the time (Java's application class-data sharing).

`make setup` makes one for Spark and one for the embedded Kafka (`pipelines.process.class_archives`). An archive is
valid for one Java and one list of jars: its name has a digest of both, so that no other JVM uses it. Without an archive
a JVM starts as usual.

```
var/jars/classes/spark-<digest>.jsa
var/jars/classes/kafka-<digest>.jsa
```
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from connectors.jars.resolve import java, pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Program", "class_archive", "flag_to_make", "flags_to_use"]

Program = Literal["spark", "kafka"]
"""A program that runs in a JVM of its own."""


def class_archive(program: Program, jars: Sequence[Path]) -> Path:
    """Return the place of the archive for the Java of this machine; it may not exist.

    Args:
        program: The program that the JVM runs.
        jars: Its jars, as `connectors.jars.resolve` returns them: the archive lies beside their folder.

    Raises:
        JarError: There is no Java.
    """
    binary = Path(java()).resolve()
    inputs = [str(binary), str(binary.stat().st_mtime_ns), *(str(jar.resolve()) for jar in jars)]
    if program == "spark":
        inputs.append(str(pyspark_jars().resolve()))
    digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]
    return jars[0].parent.parent / "classes" / f"{program}-{digest}.jsa"


def flags_to_use(program: Program, jars: Sequence[Path]) -> list[str]:
    """Return the flags of a JVM that starts with the archive; none if there is no archive for it.

    Raises:
        JarError: There is no Java.
    """
    if not jars:
        return []
    archive = class_archive(program, jars)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []


def flag_to_make(archive: Path) -> str:
    """Return the flag of a JVM that writes the archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive}"
