"""An S3-compatible server on 127.0.0.1: moto's, from the environment that `make s3-test` makes for it."""

from __future__ import annotations

import http.client
import re
import time
from typing import TYPE_CHECKING, Self

from connectors.local_servers.loopback import HOST, free_port
from connectors.local_servers.watched_process import WatchedProcess

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

BUCKET = "popstream-test"
SECRET = "secret-that-no-log-may-have"  # noqa: S105 - it opens a server of the tests
START_LIMIT_S = 120.0
LOG_BYTES_MAX = 16 * 1024 * 1024


class S3Server:
    """From entry to exit, with one bucket.

    Args:
        program: moto's server.
        folder: Folder of its log.
        bucket: Name of the bucket.
    """

    def __init__(self, program: Path, folder: Path, bucket: str) -> None:
        self._program = program
        self._folder = folder
        self._bucket = bucket
        self._port = free_port()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        """Start it, and make the bucket."""
        self._process = WatchedProcess(
            [str(self._program), "-H", HOST, "-p", str(self._port)],
            self._folder / "s3.log",
            log_bytes_max=LOG_BYTES_MAX,
            grace_s=2.0,
            cwd=self._folder,
        )
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._make_bucket():
            assert self._process.exit_code is None, (self._folder / "s3.log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self._process.stop()

    def keys(self, prefix: str) -> list[str]:
        """Names of the objects that begin with a prefix, at most 1,000."""
        status, listed = self._ask("GET", f"/{self._bucket}?list-type=2&prefix={prefix}")
        assert status == http.client.OK
        return re.findall("<Key>([^<]*)</Key>", listed.decode())

    def _make_bucket(self) -> bool:
        try:
            status, _ = self._ask("PUT", f"/{self._bucket}")
        except OSError:  # it does not listen yet
            return False
        return status == http.client.OK

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=30)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
