"""The folder of a verification in progress: what it has read and decided, so that it goes on after a stop.

```
verify/
  lock           held by the process that verifies
  plan           what is compared with what (plan.py)
  incoming/      copies of the stores of a running job
  image/         these, as they were when the verification began
  base/          the snapshot to begin with
  share-0/ ...   recomputed state of some partitions, and how far they are compared
  units          how far the units are compared
```
"""

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from popstream.wire.base_errors import Fenced

__all__ = ["WorkFolder", "linked_copy", "replace_file"]


class WorkFolder:
    """Holds the lock of the folder from entry to exit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._descriptor = -1

    @property
    def plan(self) -> Path:
        """The plan; without this file there is nothing to go on with."""
        return self.root / "plan"

    @property
    def image(self) -> Path:
        """Copies of the stores of a running job, as they were when the verification began."""
        return self.root / "image"

    @property
    def incoming(self) -> Path:
        """Copies of the stores of a running job as they are now."""
        return self.root / "incoming"

    @property
    def base(self) -> Path:
        """The snapshot to begin with."""
        return self.root / "base"

    @property
    def units(self) -> Path:
        """How far the units are compared."""
        return self.root / "units"

    def share(self, number: int) -> Path:
        """Return the folder of the recomputed state of a share."""
        return self.root / f"share-{number}"

    def clear(self) -> None:
        """Delete what was done, the plan first: what is left without it is ignored."""
        self.plan.unlink(missing_ok=True)
        for path in self.root.iterdir():
            if path == self.incoming:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            Fenced: Another process verifies there.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            message = f"another process verifies this job: wait for its end, or stop it ({self.root})"
            raise Fenced(message, subject=str(self.root)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def linked_copy(source: Path, target: Path) -> None:
    """Copy a closed store. Table files, which never change, are linked if the disk allows it."""

    def copy(one: str, other: str) -> str:
        if one.endswith(".sst"):
            try:
                os.link(one, other)
            except OSError:  # another disk
                return str(shutil.copyfile(one, other))
            return other
        return str(shutil.copyfile(one, other))

    shutil.copytree(source, target, copy_function=copy, ignore=shutil.ignore_patterns("LOCK"))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that is complete whenever it exists."""
    made = path.with_name(f"{path.name}.new")
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
