"""The errors of a place for files: of a folder, or of anything else that fsspec reaches."""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

__all__ = ["is_of_one_file", "storage_errors", "supported"]

_OF_ONE_FILE = frozenset({errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG})


def is_of_one_file(error: OSError) -> bool:
    """Return whether a file cannot be read while others beside it can: its sectors or its inode are damaged.

    >>> is_of_one_file(OSError(errno.EIO, "Input/output error")), is_of_one_file(OSError(errno.ENOSPC, "disk full"))
    (True, False)
    """
    return error.errno in _OF_ONE_FILE


@contextlib.contextmanager
def supported(url: str, problem: str) -> Iterator[None]:
    """Refuse a URL of which fsspec, in the block, knows no file system, or whose package is not installed.

    Args:
        url: The URL.
        problem: What cannot be done, for the message.

    Raises:
        Invalid: So it is.
    """
    try:
        yield
    except (ValueError, ImportError, TypeError) as error:  # TypeError: it needs more than a URL says
        message = f"{problem}: {error}"
        raise Invalid(message, subject=url) from error


@contextlib.contextmanager
def storage_errors(files: Any, url: str, problem: str) -> Iterator[None]:  # noqa: ANN401 - fsspec has no types
    """Turn the errors of a file system in the block into coded ones.

    Those of an object store are of as many types as there are packages: that of S3 lets those of its own library out if
    it has no credentials or reaches no server.

    Args:
        files: The file system of fsspec.
        url: Where it is.
        problem: What cannot be done, for the message.

    Raises:
        Unavailable: The block raised an error that is not coded yet.
    """
    try:
        yield
    except PopstreamError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and isinstance(files, LocalFileSystem):
            raise  # no disk raises it
        first, *_ = str(error).splitlines() or [""]
        said = first if isinstance(error, OSError) and first else f"{type(error).__name__}: {first}"
        message = f"{problem}: {said}"
        raise Unavailable(message, subject=url) from error
