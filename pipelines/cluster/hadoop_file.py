"""Small files and folders at any URL that Spark's Hadoop can reach, such as that of a checkpoint."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from connectors.java_errors import JVM_ERRORS, first_line
from connectors.spark_cluster.new_file import NewFile, read_file
from popstream.wire.base_errors import Unavailable

__all__ = ["HadoopFile"]


class HadoopFile:
    """One file or folder.

    Args:
        spark: The session.
        url: A path or URL.

    Raises:
        Unavailable: Each method: the place cannot be reached, read or written.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url
        self._spark = spark
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no API for files
        self._jvm = jvm
        try:
            self._jvm_path = jvm.org.apache.hadoop.fs.Path
            self._path = self._jvm_path(url)
            self._file_system = self._path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    @property
    def qualified(self) -> tuple[str, str]:
        """(scheme, path), with the scheme that Hadoop takes if the URL has none."""
        try:
            url = self._file_system.makeQualified(self._path).toUri()
            return str(url.getScheme()), str(url.getPath())
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def read(self) -> bytes | None:
        """Return the content; None: there is no such file."""
        try:
            if not self._file_system.exists(self._path):
                return None
            return read_file(self._jvm, self._file_system, self._path)
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def write(self, content: bytes, *, overwrite: bool = True) -> None:
        """Write the file, and the folders above it.

        Args:
            content: The whole file.
            overwrite: False: fail if the file exists, also of two writers at once.

        Raises:
            Unavailable: The place cannot be written, or another process has made the file.
        """
        if not overwrite:
            if not NewFile(self._spark, self.url).write(content):
                message = f"{self.url} was made by another process: start again"
                raise Unavailable(message, subject=self.url)
            return
        try:
            stream = self._file_system.create(self._path, True)
            try:
                stream.write(content)
            finally:
                stream.close()
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def names(self) -> list[str]:
        """Return the names in the folder that this is; none if there is no such folder."""
        try:
            if not self._file_system.exists(self._path):
                return []
            return [str(found.getPath().getName()) for found in self._file_system.listStatus(self._path)]
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def copy_to(self, folder: Path, *, without: str = "") -> None:
        """Copy what is in the folder that this is, with the folders below, into a folder on this machine.

        Args:
            folder: Is made; what it has is replaced.
            without: A name that is left out.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for found in self._file_system.listStatus(self._path):
                name = str(found.getPath().getName())
                if name != without:
                    # Raw: without the checksum files that Hadoop puts beside files on a local disk.
                    target = self._jvm_path(str(folder / name))
                    self._file_system.copyToLocalFile(False, found.getPath(), target, True)
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def delete(self) -> None:
        """Delete the file, if it exists."""
        try:
            self._file_system.delete(self._path, False)
        except JVM_ERRORS as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> Unavailable:
        return Unavailable(f"{self.url} cannot be reached: {first_line(error)}", subject=self.url)
