"""The tables as a data source of Great Expectations: `type: popstream_tables` in great_expectations.yml.

A batch is one table. It holds no rows, only the name: the expectations run SQL on the opened tables
(`ExpectNoRows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from great_expectations.compatibility import pydantic
from great_expectations.core.batch import LegacyBatchDefinition
from great_expectations.core.batch_spec import RuntimeDataBatchSpec
from great_expectations.core.id_dict import IDDict
from great_expectations.datasource.fluent.batch_request import BatchRequest
from great_expectations.datasource.fluent.interfaces import Batch, DataAsset, Datasource
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine

from expectations.expect_no_rows import TABLE_COLUMN
from expectations.opened_tables import OpenedTables

__all__ = ["SOURCE", "TableAsset", "TablesDatasource"]

SOURCE = "tables"
"""Name of the data source in great_expectations.yml."""


class TableAsset(DataAsset):  # type: ignore[type-arg] # parameters would make another class of it
    """One table."""

    type: Literal["delta_table"] = "delta_table"

    def test_connection(self) -> None:
        """Do nothing: a table is looked for when it is validated."""

    def get_batch_parameters_keys(self, partitioner: None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return no keys: what is judged of the tables is a matter of their source."""
        return ()

    def build_batch_request(  # type: ignore[override]
        self,
        options: dict[str, Any] | None = None,  # noqa: ARG002
        batch_slice: None = None,  # noqa: ARG002
        partitioner: None = None,  # noqa: ARG002
    ) -> BatchRequest[Any]:
        """Return the request for the only batch."""
        return BatchRequest(datasource_name=self.datasource.name, data_asset_name=self.name, options={})

    def _validate_batch_request(self, batch_request: BatchRequest[Any]) -> None:
        assert (batch_request.datasource_name, batch_request.data_asset_name) == (self.datasource.name, self.name)

    def get_batch_identifiers_list(self, batch_request: BatchRequest[Any]) -> list[dict[str, Any]]:
        """Return the identifiers of the only batch."""
        return [IDDict(batch_request.options)]

    def get_batch(self, batch_request: BatchRequest[Any]) -> Batch:
        """Return the batch."""
        self._validate_batch_request(batch_request)
        opened = self.datasource.opened()
        engine = self.datasource.get_execution_engine()
        engine.tables = opened
        spec = RuntimeDataBatchSpec(batch_data=pd.DataFrame({TABLE_COLUMN: [self.name]}))
        data, markers = engine.get_batch_data_and_markers(batch_spec=spec)
        return Batch(
            datasource=self.datasource,
            data_asset=self,
            batch_request=batch_request,
            data=data,
            metadata={
                "version": opened.versions.get(self.name),
                "scope": opened.scope.name,
                "rows": opened.judged.get(self.name),
            },
            batch_markers=markers,
            batch_spec=spec,
            batch_definition=LegacyBatchDefinition(
                datasource_name=self.datasource.name,
                data_connector_name="fluent",
                data_asset_name=self.name,
                batch_identifiers=IDDict(),
                batch_spec_passthrough=None,
            ),
        )


_AssetTypes = Sequence[type[DataAsset]]  # type: ignore[type-arg]
_EngineType = type[PandasExecutionEngine]
"""Under other names: a source has a field `type`."""


class TablesDatasource(Datasource):  # type: ignore[type-arg]
    """The Delta tables of a job.

    Args:
        folder: Folder of the tables, such as `var/delta`. Opened at the first validation, unless `use` gave others.
    """

    asset_types: ClassVar[_AssetTypes] = [TableAsset]

    type: Literal["popstream_tables"] = "popstream_tables"
    folder: str
    assets: list[TableAsset] = []  # noqa: RUF012 - a field of pydantic

    _opened: Any = pydantic.PrivateAttr(None)

    @property
    def execution_engine_type(self) -> _EngineType:
        """Return that of Pandas: it has the least to do with a batch that is a name."""
        return PandasExecutionEngine

    def test_connection(self, test_assets: bool = True) -> None:  # noqa: FBT001, FBT002 - as the library names it
        """Do nothing: the tables may be made later."""

    def use(self, opened: OpenedTables) -> None:
        """Validate these tables."""
        self._opened = opened

    def opened(self) -> OpenedTables:
        """Return the tables that are validated."""
        if self._opened is None:
            self._opened = OpenedTables(Path(self.folder))
        opened: OpenedTables = self._opened
        return opened

    def close(self) -> None:
        """Close the tables: the next validation opens their newest versions."""
        if self._opened is not None:
            self._opened.__exit__()
            self._opened = None

    @classmethod
    def _get_exec_engine_excludes(cls) -> set[str]:
        return {*super()._get_exec_engine_excludes(), "folder"}
