"""Finds a file of a table that is damaged or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.delta.damage import damaged_data_file, size_problem
from connectors.delta.data_files import data_schema
from connectors.delta.log.table_log import checkpoint_damage, read_data_files
from connectors.delta.opened_file import OpenedFile
from connectors.delta.tables import TABLES
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["damage_in"]


def damage_in(path: Path, *, read_all: bool = True) -> Corrupt | None:
    """Return what is damaged in the table of a folder, or None.

    Args:
        path: The folder; its name is that of the table.
        read_all: Read all rows, too, which takes long; otherwise only the names and sizes of files count.
    """
    try:
        found = read_data_files(path)
        damage = checkpoint_damage(path)
    except Corrupt as error:
        return error
    except OSError:  # the folder is not there: no damage
        return None
    if damage is not None:
        return damage
    files = [] if found is None else found.files
    for file in files:
        if (problem := size_problem(path / file.relative_path, file.size)) is not None:
            return damaged_data_file(path, path / file.relative_path, problem)
    table = TABLES.get(path.name)
    schema, may_lack = (None, ()) if table is None else (data_schema(table), table.optional_columns)
    for file in files if read_all else []:
        try:
            with OpenedFile.of(path, file) as opened:
                for _ in opened.in_parts(schema, may_lack):
                    pass
        except Corrupt as error:
            return error
    return None
