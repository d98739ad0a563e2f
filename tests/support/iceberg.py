"""Iceberg catalogs of tests, and what their tables hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from support.lake import SCHEMA

NAME = "iceberg://test/db.events"


def properties_of(root: Path) -> dict[str, Any]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db?timeout=60", "warehouse": f"file://{root}/warehouse"}


def catalog_of(root: Path) -> SqlCatalog:
    root.mkdir(exist_ok=True)
    found = SqlCatalog("test", **properties_of(root))
    found.create_namespace_if_not_exists("db")
    return found


def rows_of(catalog: SqlCatalog, name: str = "db.events") -> pl.DataFrame:
    rows = catalog.load_table(name).scan().to_arrow().select(SCHEMA.names).cast(SCHEMA)
    return pl.DataFrame(rows).sort(SCHEMA.names)


def versions_of(table: Table) -> list[int]:
    """The versions of the job, in the order of their snapshots."""
    summaries = [it.summary.additional_properties for it in table.snapshots() if it.summary is not None]
    return [int(it["fencepost.version"]) for it in summaries if "fencepost.version" in it]


def files_of(table: Table) -> list[Any]:
    return [it.file for it in table.scan().plan_files()]


def paths_of(catalog: SqlCatalog) -> list[Path]:
    """The data files of `NAME`, which are in folders."""
    return [Path(it.file_path.removeprefix("file://")) for it in files_of(catalog.load_table("db.events"))]


def pretend_delete_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every manifest says that its files delete rows: the library writes no such files."""
    monkeypatch.setattr(ManifestFile, "content", property(lambda self: ManifestContent.DELETES))
