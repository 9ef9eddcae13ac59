"""Chooses the form in which the kernel runs: its Python sources, or an extension that was compiled from them.

    broker_state/**/*.py ── scripts/compile_kernel.py ──> var/kernel/<digest of the sources>/broker_state/**/*.so, *.py

The compiled form is the package `broker_state` once more, in a folder of its own, with extensions in place of the
modules that are compiled. The folder is named by the digest of the sources and by the Python that it is for: after an
edit no folder fits, and the sources run, until `make setup` compiles them. The wire types belong to the sources: the
compiled code checks and casts to the types of their fields. docs/adr/0012 has the reasons.
"""

import hashlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["EXTENSION", "GROUP", "PURE_VARIABLE", "build_folder", "choose_form", "compiled_sources"]

PURE_VARIABLE: Final = "POPSTREAM_PURE"
"""Environment variable: with `1` the sources run, whatever is compiled."""

GROUP: Final = "popstream_kernel"
"""Name of the library with the code of all compiled modules: `<GROUP>__mypyc`."""

EXTENSION: Final = str(sysconfig.get_config_var("EXT_SUFFIX"))

_SOURCES: Final = Path(__file__).parent
_WIRE: Final = _SOURCES.parent / "popstream" / "wire"

_COMPILED_FOLDERS: Final = ("kernel", "store")
_NOT_COMPILED: Final = (
    # Definitions of values: a compiled msgspec.Struct is not frozen, and is equal to itself alone.
    "kernel/lanes/entry_claim.py",
    "store/facts.py",
    "store/state_records.py",
    # Nothing to gain: a library does the work, or tests alone use it.
    "store/generation.py",
    "store/key_kinds.py",
    "store/memory_kv.py",
    "store/rocks_store.py",
    "store/value_format.py",
)


def compiled_sources() -> list[Path]:
    """Return the sources of the modules that are compiled, relative to `broker_state/`."""
    found = (file.relative_to(_SOURCES) for folder in _COMPILED_FOLDERS for file in (_SOURCES / folder).rglob("*.py"))
    return sorted(file for file in found if file.name != "__init__.py" and file.as_posix() not in _NOT_COMPILED)


def build_folder() -> Path:
    """Return the folder of the build of the present sources for this Python, whether or not it exists."""
    digest = hashlib.blake2b(EXTENSION.encode(), digest_size=16)
    for folder in (_SOURCES, _WIRE):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return _SOURCES.parent / "var" / "kernel" / digest.hexdigest()


def choose_form(package_path: list[str]) -> str:
    """Let modules of `broker_state` be imported in their compiled form, if there is one; return `compiled` or `pure`.

    Args:
        package_path: `__path__` of the package, before anything of it but this module is imported.
    """
    if os.environ.get(PURE_VARIABLE) == "1" or not (_SOURCES.parent / "var" / "kernel").is_dir():
        return "pure"
    folder = build_folder()
    library = folder / f"{GROUP}__mypyc{EXTENSION}"
    if not library.is_file():
        return "pure"
    spec = importlib.util.spec_from_file_location(library.name.partition(".")[0], library)
    assert spec is not None, "an extension has a loader"
    assert spec.loader is not None, "an extension has a loader"
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    package_path[:] = [str(folder / "broker_state")]
    return "compiled"
