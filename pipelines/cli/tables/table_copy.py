"""Tables that lie at a URL: copied to a temporary folder, where every reader can read them."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoints.storage_errors import storage_errors, supported
from connectors.delta.tables import TABLES
from pipelines.cli.spark_tools import working
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["copied_tables"]


@contextlib.contextmanager
def copied_tables(url: str) -> Iterator[Path]:
    """Copy the tables at a URL that fsspec supports, and delete the copy at the exit.

    Raises:
        Invalid: fsspec does not support the URL, or there are no tables.
        Unavailable: They cannot be read.
    """
    import fsspec  # noqa: PLC0415 - only here, and it takes a while

    with supported(url, f"tables cannot be read at {url}"):
        files: Any
        files, root = fsspec.core.url_to_fs(url)
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch:
        with (
            working(f"copying the tables at {url}"),
            storage_errors(files, url, f"the tables at {url} cannot be copied"),
        ):
            found = [name for name in TABLES if files.isdir(f"{root}/{name}/_delta_log")]
            for name in found:
                # The log first: what it names was written before.
                for folder in (f"{name}/_delta_log", name):
                    files.get(f"{root}/{folder}/", str(Path(scratch, folder)), recursive=True)
        if not found:
            message = f"there are no tables in {url}: has the job run here?"
            raise Invalid(message, subject=url)
        yield Path(scratch)
