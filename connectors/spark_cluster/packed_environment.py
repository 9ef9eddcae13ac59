"""The packed environment of a cluster job: one zip file with popstream and the packages that it imports.

Spark unpacks it beside each executor, and the Python there imports from the folder; docs/adr/0015 says why so.

```
popstream/ broker_state/ ...       the wheel of popstream; the packages of the job are in popstream/_job
numpy/ pyarrow/ ...                the locked packages of requirements.txt; Spark itself is on the cluster
var/kernel/<digest>/               the compiled kernel, if this checkout has one (broker_state.compiled_form)
popstream-environment.json         what this is: `EnvironmentFacts`
```

The same wheels give the same bytes: names are sorted, and no file has a time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker_state.compiled_form import build_folder
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FOLDER", "EnvironmentFacts", "pack", "read_facts", "this_python"]

LOCK_FILE: Final = Path(__file__).with_name("requirements.txt")
FOLDER: Final = "popstream_environment"
"""Name of the folder into which Spark unpacks it, in the working directory of a driver or an executor."""
FACTS_FILE: Final = "popstream-environment.json"
LINES_SHOWN = 12
TIME_LIMIT_S = 1800.0
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_FILE_MODE: Final = 0o100644
_LEFT_OUT: Final = ("bin", "__pycache__")
"""Programs with the path of this Python in them, and what Python compiles by itself."""

_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


class EnvironmentFacts(msgspec.Struct, frozen=True):
    """What a packed environment holds.

    Attributes:
        popstream: Version of popstream.
        python: Version of Python that its compiled packages are for, as in `3.11`.
        kernel: `compiled` or `pure`.
    """

    popstream: str
    python: str
    kernel: str


def this_python() -> str:
    """Return the version of the Python that runs, as in `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pack(out: Path, *, wheels: Path, own: Path) -> EnvironmentFacts:
    """Write a packed environment. With all wheels in `wheels` it needs no network, and takes about 15 s.

    Args:
        out: The zip file to write; it is replaced only by a whole one.
        wheels: Folder of the wheels of the locked packages; those that it lacks are downloaded into it.
        own: The checkout of popstream, or its wheel. Only a checkout has a compiled kernel to pack.

    Raises:
        Invalid: pip is missing, or `own` is neither.
        Unavailable: A package could not be downloaded.
    """
    wheels.mkdir(parents=True, exist_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="popstream-") as place:
        stage = Path(place) / "stage"
        wheel = own if own.suffix == ".whl" else _build_wheel(own, Path(place))
        _require_own_wheel(wheel)
        _install_locked(stage, wheels)
        version = _install_own(stage, wheel)
        form = "pure" if wheel is own else _add_kernel(stage)
        facts = EnvironmentFacts(version, this_python(), form)
        (stage / FACTS_FILE).write_bytes(msgspec.json.encode(facts) + b"\n")
        part = out.with_name(f"{out.name}.part")
        try:
            _write_zip(stage, part)
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    return facts


def read_facts(archive: Path) -> EnvironmentFacts:
    """Read what a packed environment holds.

    Raises:
        Invalid: The file is missing, or is not a packed environment.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            return msgspec.json.decode(packed.read(FACTS_FILE), type=EnvironmentFacts)
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, msgspec.MsgspecError) as error:
        missing = isinstance(error, FileNotFoundError)
        what = f"there is no {archive}" if missing else f"{archive} is not a packed environment ({error})"
        message = f"{what}: make one with `popstream package --out {archive}`"
        raise Invalid(message, subject=str(archive)) from error


def _build_wheel(checkout: Path, folder: Path) -> Path:
    if not (checkout / "pyproject.toml").is_file():
        message = "this popstream is installed from a wheel: name that wheel with --wheel"
        raise Invalid(message, subject=str(checkout))
    done = _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=checkout)
    if done.returncode:
        message = "the wheel of popstream could not be built; the last lines:"
        raise Invalid(message, subject=str(checkout), details=_last_lines(done))
    (built,) = folder.glob("*.whl")
    return built


def _require_own_wheel(wheel: Path) -> None:
    if not (wheel.name.startswith("popstream-") and wheel.is_file()):
        message = f"{wheel} is not a wheel of popstream"
        raise Invalid(message, subject=str(wheel))


def _install_locked(stage: Path, wheels: Path) -> None:
    install = [*_PIP, "install", "--no-index", "--find-links", str(wheels), "--target", str(stage)]
    install += ["--no-deps", "--no-compile", "--require-hashes", "-r", str(LOCK_FILE)]
    if not _run(install).returncode:
        return
    shutil.rmtree(stage, ignore_errors=True)
    download = [*_PIP, "download", "--dest", str(wheels), "--only-binary", ":all:"]
    download += ["--no-deps", "--require-hashes", "-r", str(LOCK_FILE)]
    for command in (download, install):
        done = _run(command)
        if done.returncode:
            lines = _last_lines(done)
            if any("No module named pip" in line for line in lines):
                message = "this Python has no pip, which packs the packages: install it (`python -m ensurepip`)"
                raise Invalid(message, subject=sys.executable)
            message = f"the packages could not be downloaded to {wheels}; is this machine online? pip's last lines:"
            raise Unavailable(message, subject=str(wheels), details=lines)


def _install_own(stage: Path, wheel: Path) -> str:
    """Unpack the wheel of popstream, and return its version."""
    version = wheel.name.split("-")[1]
    # By its name and not by its path, which pip would write down.
    install = [*_PIP, "install", "--no-index", "--find-links", str(wheel.parent), "--target", str(stage)]
    done = _run([*install, "--no-deps", "--no-compile", f"popstream=={version}"])
    if done.returncode:
        message = f"{wheel} could not be unpacked; pip's last lines:"
        raise Invalid(message, subject=str(wheel), details=_last_lines(done))
    return version


def _add_kernel(stage: Path) -> str:
    """Copy the compiled kernel, if it is that of the packed sources; return the form of the kernel."""
    built = build_folder()
    if not built.is_dir():
        return "pure"
    shutil.copytree(built, stage / "var" / "kernel" / built.name)
    return "compiled"


def _write_zip(stage: Path, out: Path) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in sorted(path for path in stage.rglob("*") if path.is_file()):
            name = file.relative_to(stage)
            if name.parts[0] in _LEFT_OUT or "__pycache__" in name.parts:
                continue
            entry = zipfile.ZipInfo(name.as_posix(), _EPOCH)
            entry.external_attr = _FILE_MODE << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=6)


def _run(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - the command is ours
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{command[2]} did not end within {TIME_LIMIT_S:g} s"
        raise Unavailable(message, subject=command[2]) from error


def _last_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()[-LINES_SHOWN:]
