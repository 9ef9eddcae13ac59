"""Entry of the `popstream` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; it comes with the job, which a client may not have installed."""
    try:
        from pipelines.cli.app import main as run  # noqa: PLC0415 - to say what is missing
    except ModuleNotFoundError as error:
        print(
            f"popstream: {error.name} is not installed; the command line needs `pip install popstream[pipeline]`",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    run()
