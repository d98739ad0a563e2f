"""Types for tabular data that is exchanged by the Arrow PyCapsule protocol.

https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias


class ArrowArrayExportable(Protocol):
    """An Arrow array or record batch: ``pyarrow.array(it)``, ``polars.Series(it)``, ``numpy.asarray(it)``."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


class ArrowStreamExportable(Protocol):
    """An Arrow table: ``pyarrow.table(it)``, ``polars.DataFrame(it)``."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowSchemaExportable(Protocol):
    """An Arrow schema: ``pyarrow.schema(it)``."""

    def __arrow_c_schema__(self) -> object: ...


Rows: TypeAlias = ArrowStreamExportable | ArrowArrayExportable | Mapping[str, Any]
"""Any tabular data. A mapping maps column names to NumPy or Arrow arrays."""

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`. pyarrow is imported on first use."""
