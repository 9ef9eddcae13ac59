"""Tells of a compiled kernel that is not used because it was made of other sources."""

import os

import structlog

from broker_state import KERNEL_FORM
from broker_state.compiled_form import PURE_VARIABLE, build_folder

__all__ = ["warn_of_stale_build"]

_log = structlog.get_logger(__name__)


def warn_of_stale_build() -> None:
    """Log it if the sources run although there are builds: none of them fits the sources and this Python."""
    if KERNEL_FORM == "compiled" or os.environ.get(PURE_VARIABLE) == "1":
        return
    folder = build_folder().parent
    if folder.is_dir() and any(not build.name.startswith(".") for build in folder.iterdir()):
        _log.warning(
            "kernel_build_stale",
            folder=str(folder),
            effect="its Python sources run, which decide fewer operations a second",
            repair="make setup",
        )
