"""A copy of broker_state with one mistake in it."""

import shutil
from pathlib import Path

from tests.mutants.mutants import Mutant

__all__ = ["PACKAGE", "ROOT", "copy_of_package"]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "broker_state"


def copy_of_package(folder: Path, mutant: Mutant | None = None) -> Path:
    """Copy broker_state into `folder`, with the mistake of `mutant`."""
    shutil.copytree(PACKAGE, folder / "broker_state", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        file = folder / "broker_state" / mutant.file
        file.write_text(file.read_text().replace(mutant.old, mutant.new))
    return folder
