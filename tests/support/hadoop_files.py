"""Files in memory, in the place of those that Spark's Hadoop reaches."""

from __future__ import annotations

from popstream.wire.base_errors import Unavailable

__all__ = ["HadoopFiles", "MemoryFile"]


class HadoopFiles(dict[str, bytes]):
    """Files by URL. Those below `full` cannot be written."""

    full: str | None = None

    def open(self, _spark: object, url: str) -> MemoryFile:
        """Do as `HadoopFile` does."""
        return MemoryFile(self, url)


class MemoryFile:
    """See `HadoopFile`."""

    def __init__(self, files: HadoopFiles, url: str) -> None:
        self.url = url
        self._files = files

    def read(self) -> bytes | None:
        return self._files.get(self.url)

    def write(self, content: bytes, *, overwrite: bool = True) -> None:
        if self._files.full is not None and self.url.startswith(self._files.full):
            message = f"{self.url} cannot be written: no space left"
            raise Unavailable(message)
        assert overwrite or self.url not in self._files
        self._files[self.url] = content

    def names(self) -> list[str]:
        return [url.removeprefix(f"{self.url}/") for url in self._files if url.startswith(f"{self.url}/")]
