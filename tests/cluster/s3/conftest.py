"""An S3 of this machine, for all tests of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import ROOT
from tests.support.s3_server import BUCKET, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = ROOT / "var" / "s3-server"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(ENVIRONMENT / "bin" / "moto_server", tmp_path_factory.mktemp("s3"), BUCKET) as server:
        yield server
