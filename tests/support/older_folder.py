"""The folder of a job that version 0.1.0 has left behind."""

from __future__ import annotations

import tarfile
from pathlib import Path

__all__ = ["unpack_older_folder"]

_ARCHIVE = Path(__file__).parents[1] / "data" / "job_folder_0_1_0.tar.xz"


def unpack_older_folder(root: Path, below: str = "job/") -> Path:
    """Unpack what lies below a path of the archive, and return the folder of the job."""
    with tarfile.open(_ARCHIVE) as archive:
        # Python 3.11.3 and older have no filters, and 3.12 warns where none is chosen.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        members = [member for member in archive.getmembers() if member.name.startswith(below)]
        archive.extractall(root, members)  # noqa: S202 - the archive is part of this repository
    return root / "job"
