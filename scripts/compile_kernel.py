"""Compile the kernel with mypyc, if this machine can: a job decides about 1.4 times as many operations a second.

    python -m scripts.compile_kernel

Writes var/kernel/<digest>/ (broker_state/compiled_form.py), and removes other builds. The digest is that of what is
compiled; a stamp in the folder is that of what compiles it: the locked packages, and this script. Without a C compiler
that works or without Python's headers it says so, and the sources are used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from broker_state.compiled_form import EXTENSION, GROUP, PURE_VARIABLE, build_folder, compiled_sources

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "kernel.txt"
STAMP = "compiled_by"

# Nothing outside of the library calls its functions by name, so they may call each other directly.
C_FLAG = "-fno-semantic-interposition"

# Not this project's own pyproject.toml: setuptools would read it.
_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

setup(name="kernel", ext_modules=mypycify(sys.argv[4:], group_name=sys.argv[3]), script_args=sys.argv[1:3])
"""


def main() -> None:
    """Compile the present sources, unless that is done."""
    folder = build_folder()
    is_built = (folder / f"{GROUP}__mypyc{EXTENSION}").is_file()
    if os.environ.get(PURE_VARIABLE) == "1" or (is_built and stamp_of(folder) == present_stamp()):
        return
    missing = what_is_missing()
    if missing is not None:
        used = "compiled anew, an older build is used" if is_built else "compiled, its Python sources are used"
        print(f"      the kernel is not {used}: {missing}")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as place:
        built = compile_in(Path(place))
        (built / STAMP).write_text(present_stamp())
        for other in folder.parent.iterdir():
            if not other.name.startswith(".build-"):
                shutil.rmtree(other)
        built.rename(folder)


def present_stamp() -> str:
    """Return the digest of what compiles: with another compiler the same sources become another build."""
    digest = hashlib.blake2b(digest_size=16)
    for file in (LOCK, Path(__file__)):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def stamp_of(folder: Path) -> str | None:
    """Return the stamp of a build; None: it has none, as those before there were stamps."""
    try:
        return (folder / STAMP).read_text()
    except FileNotFoundError:
        return None


def what_is_missing() -> str | None:
    """Return what is needed to compile and is not here."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"Python's headers are not installed ({headers / 'Python.h'})"
    # A compiler may lack the headers of the C library, and Python's need them.
    tried = subprocess.run(
        [compiler, C_FLAG, "-fsyntax-only", "-I", headers, "-x", "c", "-"],
        input="#include <Python.h>\n",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return None if not tried.returncode else f"{compiler} cannot compile: {tried.stderr.strip().splitlines()[-1]}"


def compile_in(place: Path) -> Path:
    """Compile in an empty folder, and return the folder with the result."""
    for package in ("broker_state", "popstream"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "build_kernel.py").write_text(_BUILD)
    sources = [f"broker_state/{source.as_posix()}" for source in compiled_sources()]
    done = subprocess.run(
        [sys.executable, "build_kernel.py", "build_ext", "--inplace", GROUP, *sources],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(place),
            PURE_VARIABLE: "1",
            "CFLAGS": f"{C_FLAG} {os.environ.get('CFLAGS', '')}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit(f"the kernel could not be compiled; {PURE_VARIABLE}=1 make setup does without")
    made = place / "made"
    shutil.copytree(place / "broker_state", made / "broker_state")
    for source in sources:
        (made / source).unlink()
    (library,) = place.glob(f"{GROUP}__mypyc*")
    library.rename(made / library.name)
    return made


if __name__ == "__main__":
    main()
