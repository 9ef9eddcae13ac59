"""A file that one writer alone makes, at any path or URL that Hadoop reaches: what two drivers can agree by.

HDFS and local disks refuse to create a file that exists. S3 has no such call: Hadoop looks first and uploads then, so
that the later of two writers replaces the file of the other. With the option below the upload itself is conditional
(`If-None-Match`), which Hadoop offers since 3.4.2.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from connectors.java_errors import JVM_ERRORS, first_line
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NewFile", "read_file"]

_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
_ABORTABLE: Final = "fs.capability.outputstream.abortable"
"""Of a stream whose file is not visible before it is closed."""
_EXISTS: Final = ("org.apache.hadoop.fs.FileAlreadyExistsException", "java.nio.file.FileAlreadyExistsException")
_CHANGED: Final = "org.apache.hadoop.fs.s3a.RemoteFileChangedException"
"""What S3A raises when the condition of an upload did not hold."""


class NewFile:
    """A file that is being made.

    Args:
        spark: The session.
        url: Its path or URL. The folders above it are made.

    Raises:
        Unavailable: The place cannot be reached.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        """Begin it; nothing is visible yet, except on file systems that create it now."""
        self._url = url
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no API for files
        self._jvm = jvm
        try:
            self._path: Any = jvm.org.apache.hadoop.fs.Path(url)
            configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
            self._file_system: Any = self._path.getFileSystem(configuration)
            builder = self._file_system.createFile(self._path).overwrite(False).recursive()
            # An option that a file system does not know is ignored.
            self._stream: Any = builder.opt(_CONDITIONAL, True).build()
        except JVM_ERRORS as error:
            if not _is_lost(error):
                raise self._unreachable(error) from error
            self._stream = None

    def write(self, content: bytes) -> bool:
        """Write the whole file, and close it. False: another writer has made it; its content stays.

        Raises:
            Unavailable: The place cannot be reached.
        """
        stream, self._stream = self._stream, None
        if stream is None:
            return False
        try:
            stream.write(bytearray(content))
            stream.close()
        except JVM_ERRORS as error:
            if _is_lost(error):
                return False
            self._undo(stream, content)
            raise self._unreachable(error) from error
        except BaseException:  # a signal
            self._undo(stream, content)
            raise
        return True

    def _undo(self, stream: Any, content: bytes) -> None:  # noqa: ANN401 - of the JVM
        """Leave no part of the file, which its readers would take for a damaged one. The first error counts."""
        with contextlib.suppress(*JVM_ERRORS):
            if stream.hasCapability(_ABORTABLE):
                stream.abort()
                return
        with contextlib.suppress(*JVM_ERRORS):
            stream.close()
        with contextlib.suppress(*JVM_ERRORS):
            if self._has_part_of(content):
                self._file_system.delete(self._path, False)

    def _has_part_of(self, content: bytes) -> bool:
        """Return whether the file is a part of this content, and so not that of another writer."""
        found = read_file(self._jvm, self._file_system, self._path)
        return content.startswith(found) and found != content

    def _unreachable(self, error: BaseException) -> Unavailable:
        return Unavailable(f"{self._url} cannot be written: {first_line(error)}", subject=self._url)


def read_file(jvm: Any, file_system: Any, path: Any) -> bytes:  # noqa: ANN401 - of the JVM
    """Return the whole content of a file; errors are those of the JVM."""
    stream = file_system.open(path)
    try:
        return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, Py4JJavaError) and error.java_exception.getClass().getName() in {*_EXISTS, _CHANGED}
