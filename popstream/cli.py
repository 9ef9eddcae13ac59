"""Entry point of the `popstream` command."""

import os
import sys
from pathlib import Path

from popstream import __version__

__all__ = ["JOB_CODE", "main", "put_job_code_first"]

_HERE = Path(__file__).parent
JOB_CODE = _HERE / "_job" if (_HERE / "_job").is_dir() else _HERE.parent
"""The folder with `pipelines`, `connectors` and the other packages of the job.

Data projects have packages of the same names. In a wheel ours are therefore not top-level packages: they lie in
`popstream/_job`, and only the command, which is the job's own process, puts that folder on its path. In a checkout the
folder is the root of the repository.
"""


def main() -> None:
    """Run the command line, which needs the dependencies of the job: `popstream[pipeline]`."""
    if sys.argv[1:] == ["--version"]:
        print(f"popstream {__version__}")
        return
    put_job_code_first()
    try:
        from pipelines.cli.app import main as run  # noqa: PLC0415 - to report which dependency is missing
    except ModuleNotFoundError as error:
        print(
            f"popstream: {error.name} is not installed; the command line needs `pip install popstream[pipeline]`",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    run()


def put_job_code_first() -> None:
    """Import the job's packages before any others, here and in each Python that this process or its JVM starts."""
    sys.path.insert(0, str(JOB_CODE))
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{JOB_CODE}{os.pathsep}{others}" if others else str(JOB_CODE)
    # Or `python -m` puts the working directory, which may be a project with a `pipelines` package, before PYTHONPATH.
    os.environ["PYTHONSAFEPATH"] = "1"
