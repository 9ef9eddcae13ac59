"""Claim: a table whose columns must not be null is refused where Delta would check that, and nobody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from connectors.delta.log.table_log import require_table_log
from connectors.delta.store import require_appendable
from connectors.delta.tables import TABLES
from popstream.wire.base_errors import Invalid
from tests.support.delta_files import create_table

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_with_a_column_that_is_not_null_is_refused(tmp_path: Path) -> None:
    path, table = create_table(tmp_path, "operations"), TABLES["operations"]
    log = require_table_log(path)
    require_appendable(path, table)
    not_null = msgspec.structs.replace(log, schema=log.schema.replace('"nullable":true', '"nullable":false', 1))
    with pytest.raises(Invalid, match="has NOT NULL columns, with which popstream cannot append rows"):
        require_appendable(path, table, not_null)
