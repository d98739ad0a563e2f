"""The same rows in every kind of DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arro3.core
import datafusion
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


KINDS: dict[str, tuple[Callable[[pa.Table], Any], type]] = {
    "pyarrow-table": (lambda rows: rows, pa.Table),
    "pyarrow-batch": (one_batch, pa.RecordBatch),
    "pyarrow-reader": (lambda rows: rows.to_reader(), pa.Table),
    "polars": (pl.DataFrame, pl.DataFrame),
    "pandas": (lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype), pd.DataFrame),
}


OTHERS: dict[str, Callable[[pa.Table], Any]] = {
    "arro3": arro3.core.Table.from_arrow,
    "duckdb": duckdb.from_arrow,
    "datafusion": lambda rows: datafusion.SessionContext().from_arrow(rows),
    "mapping": lambda rows: {name: rows[name] for name in rows.column_names},
}
