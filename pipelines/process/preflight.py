"""Checks the requirements before anything is started, and reports everything that is missing at once."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from connectors.jars.resolve import JarError, java, kafka_jars, spark_jars
from connectors.local_servers.loopback import is_free
from pipelines.http_api.access import is_loopback
from pipelines.job_settings import JobSettings
from popstream.wire.base_errors import Invalid

__all__ = ["require_ready", "require_safe"]

JAVA_MIN, JAVA_MAX = 17, 21
DISK_FREE_BYTES_MIN = 2 << 30
JAVA_TIMEOUT_S = 20


def require_ready(
    folder: Path, var: Path, *, tables: Path | None = None, with_kafka: bool, ports: dict[str, int]
) -> None:
    """Check Java, jars, disks and free ports.

    Args:
        folder: Folder of the job, whose disk must have space and support hard links.
        tables: Folder of the tables, likewise; None: in that of the job.
        var: Folder into which `make setup` has put the jars.
        with_kafka: Whether the jars of a broker are needed as well.
        ports: The port that must be free on this machine, by option; 0: none.

    Raises:
        Invalid: Its details list everything that is missing.
    """
    found = [
        *_java_findings(),
        *_finding(lambda: spark_jars(var)),
        *(_finding(lambda: kafka_jars(var)) if with_kafka else ()),
        *_disk_findings(folder, "--folder"),
        *(() if tables is None else _disk_findings(tables, "--tables")),
        *(
            f"port {port} is taken: stop the process that listens on it, or choose another {option}"
            for option, port in ports.items()
            if port and not is_free(port)
        ),
    ]
    if len(found) == 1:
        raise Invalid(found[0])
    if found:
        message = f"{len(found)} requirements are missing:"
        raise Invalid(message, details=found)


def require_safe(settings: JobSettings) -> None:
    """Refuse settings that would show the job or its tables to others than they are meant for.

    Raises:
        Invalid: It says which.
    """
    if not settings.api_secret and settings.api_port and not is_loopback(settings.api_host):
        message = (
            f"api_host {settings.api_host} can be reached from other machines, which requires a token:"
            " set api_token_file or api_token"
        )
        raise Invalid(message, subject=settings.api_host)
    if settings.api_port and settings.api_port == settings.metrics_port:
        message = f"api_port and metrics_port are both {settings.api_port}: the port of the API has the metrics, too"
        raise Invalid(message, subject=str(settings.api_port))
    if settings.tables_group_readable and settings.tables is None:
        message = "tables_group_readable needs `tables`: a folder outside the job's"
        raise Invalid(message)


def java_major(text: str) -> int:
    """Return the release in the output of `java -version`; 0: it has none.

    >>> java_major('openjdk version "17.0.12" 2024-07-16'), java_major('java version "1.8.0_402"'), java_major("?")
    (17, 8, 0)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _java_findings() -> list[str]:
    try:
        program = java()
        said = subprocess.run(  # noqa: S603 - the program is the one that will be run anyway
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except JarError as error:
        return [str(error)]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"java does not run: {error}"]
    major = java_major(said.stderr + said.stdout)
    if JAVA_MIN <= major <= JAVA_MAX:
        return []
    what = f"Java {major}" if major else "an unknown version of Java"
    return [f"{program} is {what}: point JAVA_HOME at one from {JAVA_MIN} to {JAVA_MAX}"]


def _finding(look: Callable[[], object]) -> list[str]:
    try:
        look()
    except JarError as error:
        return [str(error)]
    return []


def _disk_findings(folder: Path, option: str) -> list[str]:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        return [f"{there} cannot be written to: choose another {option}"]
    free = shutil.disk_usage(there).free
    if free < DISK_FREE_BYTES_MIN:
        return [f"{free / (1 << 30):.1f} GiB are free in {there}, {DISK_FREE_BYTES_MIN >> 30} are needed"]
    return _link_findings(there, option)


def _link_findings(there: Path, option: str) -> list[str]:
    """Make a hard link. Where there are none, a flush would be retried for ever, and no snapshot could be taken."""
    file = there / f".{secrets.token_hex(16)}.probe"
    link = file.with_suffix(".link")
    problem = f"{there} cannot be written to"
    try:
        file.touch(exist_ok=False)
        problem = f"{there} does not support hard links, which table commits and snapshots need"
        os.link(file, link)
    except OSError as error:
        return [f"{problem} ({error.strerror}): choose another {option}"]
    finally:
        file.unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    return []
