"""Entry of the `popstream` command."""

import os
import sys
from pathlib import Path

from popstream import __version__

__all__ = ["main"]

_HERE = Path(__file__).parent
JOB_CODE = _HERE / "_job" if (_HERE / "_job").is_dir() else _HERE.parent
"""The folder of `pipelines`, `connectors`, ...: inside this package in a wheel, beside it in a checkout.

Data projects have folders of these names. In a wheel ours are no top-level packages, so that they take nobody's place,
and the command puts them first on its own path, so that nobody takes theirs.
"""


def main() -> None:
    """Run the command line; it comes with the job, which a client may not have installed."""
    if sys.argv[1:] == ["--version"]:
        print(f"popstream {__version__}")
        return
    _put_first(str(JOB_CODE))
    try:
        from pipelines.cli.app import main as run  # noqa: PLC0415 - to say what is missing
    except ModuleNotFoundError as error:
        print(
            f"popstream: {error.name} is not installed; the command line needs `pip install popstream[pipeline]`",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    run()


def _put_first(folder: str) -> None:
    """Import from `folder` before any other, here and in every Python that this process or its JVM starts."""
    sys.path.insert(0, folder)
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
