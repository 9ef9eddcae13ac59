"""Downloads the jars of `ivy.xml` with the Ivy inside PySpark, and accepts only files with a hash in `sha256.txt`.

Spark's own `spark.jars.packages` resolves at every start, checks no hash and cannot leave out jars that PySpark has.
Ivy, run once at set-up, needs no other tool and names no repository: it uses the configured one
(`POPSTREAM_IVY_SETTINGS` names another settings file).

```
var/jars/spark/*.jar     added to a SparkSession
var/jars/kafka/*.jar     the class path of an embedded broker
var/jars/resolved        hash of ivy.xml and sha256.txt; exists only while the jars are verified
var/jars-s3/s3/*.jar     for s3a://, of s3/ivy.xml; only `make s3-jars` fetches them
var/ivy/                 Ivy's cache: an interrupted download resumes from here
```
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_HERE: Final = Path(__file__).parent

_ATTEMPTS: Final = 4
_SECONDS_BEFORE_RETRY: Final = 5
_LINES_KEPT_OF_A_FAILURE: Final = 12
# A shell's exit code of a program that SIGINT ended.
_EXIT_INTERRUPTED: Final = 130

_SUMS_HEADER: Final = """\
# SHA-256 of every jar of ivy.xml, one value each: all versions there are exact, and a released jar never changes.
# Rewritten by `make lock-jars`; in the jars' directory, `sha256sum --check` reads this file as it is.
"""


class JarError(Exception):
    """The jars are missing or differ from the locked ones; the message says what to do."""


class JarSet(NamedTuple):
    """Jars that are fetched together.

    Attributes:
        place: Folder with `ivy.xml`, which names them, and `sha256.txt`.
        folder: Name of the folder below that of run-time data into which they are put.
        command: What fetches them.
    """

    place: Path
    folder: str
    command: str

    @property
    def ivy_file(self) -> Path:
        """Their names."""
        return self.place / "ivy.xml"

    @property
    def sums_file(self) -> Path:
        """Their hashes."""
        return self.place / "sha256.txt"

    def target(self, var: Path) -> Path:
        """Return their folder, which `POPSTREAM_JARS` moves in an image with jars outside its data volume."""
        moved = os.environ.get("POPSTREAM_JARS")
        return Path(moved).parent / self.folder if moved and self is not JOB else Path(moved or var / self.folder)


JOB: Final = JarSet(_HERE, "jars", "make setup")
"""Of every job: for Spark, and an embedded Kafka."""

S3: Final = JarSet(_HERE / "s3", "jars-s3", "make s3-jars")
"""Of jobs on a cluster whose checkpoint or tables are on S3."""


def spark_jars(var: Path) -> list[Path]:
    """Return the jars to add to PySpark's own.

    Raises:
        JarError: One of them is missing.
    """
    return resolved_jars(var, JOB, "spark")


def kafka_jars(var: Path) -> list[Path]:
    """Return the class path of a Kafka broker.

    Raises:
        JarError: One of them is missing.
    """
    return resolved_jars(var, JOB, "kafka")


def s3_jars(var: Path) -> list[Path]:
    """Return the jars to add besides those of Spark where files are on S3.

    Raises:
        JarError: One of them is missing.
    """
    return resolved_jars(var, S3, "s3")


def resolve(var: Path, jars: JarSet) -> None:
    """Download and verify jars. Costs a few `stat` calls when they are verified already.

    Raises:
        JarError: A download failed repeatedly, or a file has another hash than the locked one. Wrong files are removed
            here and from the cache, so that the next run downloads them again.
    """
    sums = read_sums(jars.sums_file)
    target = jars.target(var)
    stamp = target / "resolved"
    wanted = lock_digest(jars.ivy_file, jars.sums_file)
    is_stamped = stamp.is_file() and stamp.read_text(encoding="ascii") == wanted
    if is_stamped and not missing_jars(target, sums):
        return
    stamp.unlink(missing_ok=True)
    if is_wrong(target, sums):
        _download_with_retries(var, jars, target, expected_count=len(sums))
    verify(target, sums, cache=var / "ivy", command=jars.command)
    stamp.write_text(wanted, encoding="ascii")


def lock(var: Path, jars: JarSet) -> None:
    """Rewrite `sha256.txt` from a download, after a change of `ivy.xml`; review the difference."""
    target = var / f"{jars.folder}-to-lock"
    shutil.rmtree(target, ignore_errors=True)
    expected_count = len(read_sums(jars.sums_file)) if jars.sums_file.exists() else 0
    _download_with_retries(var, jars, target, expected_count)
    lines = [f"{sha256_of(jar)}  {_name(jar, target)}\n" for jar in _jars_in(target)]
    jars.sums_file.write_text(_SUMS_HEADER + "".join(lines), encoding="ascii")
    shutil.rmtree(target)


def read_sums(path: Path) -> dict[str, str]:
    """Read the format of `sha256sum`, with comment lines: hex digest by name relative to the jars' directory."""
    rows = (line.split() for line in path.read_text(encoding="ascii").splitlines() if line and not line.startswith("#"))
    return {name: digest for digest, name in rows}


def lock_digest(*files: Path) -> str:
    """Return one digest of the files that define the jars; the stamp contains it."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def missing_jars(target: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the names in `sums` without a file in `target`."""
    return [name for name in sorted(sums) if not (target / name).is_file()]


def is_wrong(target: Path, sums: Mapping[str, str]) -> bool:
    """Return whether the jars in `target` differ from those in `sums`."""
    return {_name(jar, target): sha256_of(jar) for jar in _jars_in(target)} != dict(sums)


def verify(target: Path, sums: Mapping[str, str], cache: Path, *, command: str) -> None:
    """Compare every jar in `target` with `sums`, and remove those that differ.

    Args:
        target: Folder of the jars.
        sums: Hex digest by name relative to that folder.
        cache: Where Ivy would take the same file from again.
        command: What the user ran; an error says to run it again.

    Raises:
        JarError: A jar is missing, is not in `sums`, or has another hash.
    """
    wrong = []
    for jar in _jars_in(target):
        name = _name(jar, target)
        if name not in sums:
            wrong.append(f"{name}: not in sha256.txt")
        elif (digest := sha256_of(jar)) != sums[name]:
            wrong.append(f"{name}: SHA-256 is {digest}, locked is {sums[name]}")
        else:
            continue
        jar.unlink()
        # The next run would copy the same file from the cache.
        for cached in cache.rglob(jar.name):
            cached.unlink()
    if wrong:
        message = f"removed {_counted(wrong, 'jar')} with an unknown hash; run `{command}` again:"
        raise JarError("\n  ".join([message, *wrong]))
    if missing := missing_jars(target, sums):
        message = f"{_counted(missing, 'jar')} missing after the download; run `{command}` again:"
        raise JarError("\n  ".join([message, *missing]))


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def java() -> str:
    """Return the path of `java`: that of `JAVA_HOME`, or the one on `PATH`.

    Raises:
        JarError: There is no `java`.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if found is None:
        message = "no java: install a JDK or JRE from 17 to 21, or point JAVA_HOME at it"
        raise JarError(message)
    return found


def resolved_jars(var: Path, jars: JarSet, conf: str) -> list[Path]:
    """Return the jars of one configuration of an Ivy file.

    Raises:
        JarError: One of them is missing.
    """
    target = jars.target(var)
    sums = {name: digest for name, digest in read_sums(jars.sums_file).items() if name.startswith(f"{conf}/")}
    if missing := missing_jars(target, sums):
        message = f"{target} lacks {_counted(missing, 'jar')}, such as {missing[0]}; run `{jars.command}`"
        raise JarError(message)
    return [target / name for name in sorted(sums)]


def _download_with_retries(var: Path, jars: JarSet, target: Path, expected_count: int) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        failure = _download(var, jars, target, expected_count)
        if failure is None:
            return
        if attempt < _ATTEMPTS:
            _say(f"download failed ({attempt} of {_ATTEMPTS} attempts), trying again in {_SECONDS_BEFORE_RETRY} s")
            time.sleep(_SECONDS_BEFORE_RETRY)
    message = f"the jars could not be downloaded; is this machine online? Ivy's last lines:\n{failure}"
    raise JarError(message)


def _download(var: Path, jars: JarSet, target: Path, expected_count: int) -> str | None:
    """Run Ivy once, and return the end of its output if it fails."""
    command = ivy_command(jars.ivy_file, cache=var / "ivy", target=target)
    with subprocess.Popen(  # noqa: S603 - every argument is ours.
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        try:
            lines = _show_progress(ivy.stdout or (), expected_count)
        finally:
            # After Ctrl-C Ivy still runs.
            if sys.exc_info()[0] is not None:
                ivy.kill()
    return None if ivy.returncode == 0 else "\n".join(lines[-_LINES_KEPT_OF_A_FAILURE:])


def ivy_command(ivy_file: Path, *, cache: Path, target: Path) -> list[str]:
    """Return the command that downloads the jars of an Ivy file to `target`, a folder for each of its configurations.

    Raises:
        JarError: There is no `java`, or PySpark is not installed.
    """
    return [
        java(),
        # Not ~/.ivy2: artifacts of other projects would influence the resolution.
        f"-Divy.default.ivy.user.dir={cache}",
        *("-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"),
        *_settings_arguments(),
        *("-ivy", str(ivy_file), "-cache", str(cache / "cache")),
        *("-retrieve", str(target / "[conf]" / "[artifact](-[classifier])-[revision].[ext]"), "-sync"),
    ]


def _settings_arguments() -> tuple[str, ...]:
    settings = os.environ.get("POPSTREAM_IVY_SETTINGS")
    return ("-settings", settings) if settings else ()


def pyspark_jars() -> Path:
    """Return the folder of the jars inside PySpark.

    Raises:
        JarError: PySpark is not installed.
    """
    # `import pyspark` would take a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        message = "PySpark is not installed in this Python; run `make setup`"
        raise JarError(message)
    return Path(spec.origin).parent / "jars"


def _show_progress(output: Iterable[str], expected_count: int) -> list[str]:
    """Show two counts from Ivy's output, and return its lines except the progress of single files."""
    kept = []
    counts = {"found": 0, "fetched": 0}
    for line in output:
        if line.startswith("."):
            continue
        kept.append(line.rstrip())
        step = "found" if line.startswith("\tfound ") else "fetched" if "[SUCCESSFUL ]" in line else None
        if step is not None:
            counts[step] += 1
            _say_count(step, counts[step], expected_count)
    return kept


def _say_count(step: str, count: int, expected_count: int) -> None:
    is_last = count == expected_count
    text = f"jars {step}: {count} of {expected_count}"
    if sys.stderr.isatty():
        print(f"\r      {text} ", end="\n" if is_last else "", file=sys.stderr, flush=True)
    elif is_last or count % 20 == 0:
        _say(text)


def _say(text: str) -> None:
    print(f"      {text}", file=sys.stderr, flush=True)


def _jars_in(target: Path) -> list[Path]:
    return sorted(target.rglob("*.jar"))


def _name(jar: Path, target: Path) -> str:
    return jar.relative_to(target).as_posix()


def _counted(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m connectors.jars.resolve`."""
    parser = argparse.ArgumentParser(prog="python -m connectors.jars.resolve", description="Fetch and check the jars.")
    parser.add_argument("--var", type=Path, default=Path("var"), help="directory of run-time data (default: var)")
    parser.add_argument("--s3", action="store_true", help="the optional jars for s3a:// instead of those of every job")
    parser.add_argument("--lock", action="store_true", help="rewrite sha256.txt after a change of ivy.xml")
    options = parser.parse_args(arguments)
    jars = S3 if options.s3 else JOB
    try:
        (lock if options.lock else resolve)(options.var.resolve(), jars)
    except JarError as error:
        print(f"popstream: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\npopstream: interrupted; run `{jars.command}` again to continue", file=sys.stderr)
        return _EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
