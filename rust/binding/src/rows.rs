//! Tabular data: a stream or a batch by the PyCapsule protocol, or a mapping of names to arrays.

use crate::raise::Raise;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use fencepost_columns::{Column, Failure, Rows};
use fencepost_lake::caught;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMapping, PyMemoryView};
use pyo3_arrow::input::{AnyArray, AnyRecordBatch};
use pyo3_arrow::{PyArray, PyTable};
use std::fmt::Write;

/// Takes rows from Python. `needed`: the columns that are read, all if `None`. Other columns may have any type.
pub(crate) fn take_rows(rows: &Bound<'_, PyAny>, needed: Option<&[&str]>) -> PyResult<Rows> {
    if rows.hasattr("__arrow_c_stream__")? || rows.hasattr("__arrow_c_array__")? {
        return take_stream(&rows.py().import("fencepost.inputs")?.call_method1("narrowed", (rows, needed))?);
    }
    let Ok(mapping) = rows.cast::<PyMapping>() else { return Err(not_tabular(rows, "")) };
    let mut columns = Vec::new();
    for item in mapping.items()? {
        let (name, values): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let Ok(name) = name.extract::<String>() else {
            return Err(not_tabular(rows, &format!(" ({} is not a column name)", name.repr()?)));
        };
        let is_needed = needed.is_none_or(|needed| needed.contains(&name.as_str()));
        let column = if is_needed { Some(take_column(&name, &values)?) } else { None };
        columns.push((name, column));
    }
    Ok(Rows::Mapping(columns))
}

/// A table of batches with one schema, at least one.
pub(crate) fn table_of(batches: Vec<RecordBatch>) -> PyResult<PyTable> {
    let schema = batches[0].schema();
    PyTable::try_new(batches, schema)
}

/// The rows that were kept, as an Arrow stream that can be read more than once.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct FilteredRows {
    table: Py<PyTable>,
    schema: SchemaRef,
}

impl FilteredRows {
    pub(crate) fn new(py: Python<'_>, batches: Vec<RecordBatch>, schema: SchemaRef) -> PyResult<FilteredRows> {
        Ok(FilteredRows { table: Py::new(py, PyTable::try_new(batches, schema.clone())?)?, schema })
    }
}

#[pymethods]
impl FilteredRows {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.table.bind(py).call_method1("__arrow_c_stream__", (requested_schema,))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.table.bind(py).call_method0("__arrow_c_schema__")
    }

    fn __len__(&self) -> usize {
        self.table.get().batches().iter().map(RecordBatch::num_rows).sum()
    }

    /// Shows the number of rows and the first rows, or the columns if a value cannot be shown. Published wheels have few
    /// time zones (.cargo/config.toml), and cannot show timestamps of others.
    fn __repr__(&self) -> String {
        let mut first = String::new();
        let shown = match caught(|| write!(first, "{}", self.table.get())) {
            Ok(Ok(())) => first.split_once('\n').map_or("", |(_, rows)| rows).to_string(),
            _ => {
                let fields = self.schema.fields().iter();
                fields.map(|field| format!("{}: {}\n", field.name(), field.data_type())).collect()
            }
        };
        format!("{} rows\n{}", self.__len__(), shown.trim_end())
    }
}

fn take_stream(rows: &Bound<'_, PyAny>) -> PyResult<Rows> {
    // The beginnings of pyo3-arrow's ValueErrors for Arrow data that has no columns.
    const NO_COLUMNS: [&str; 3] = ["Unexpected data type", "C Data interface error", "Cannot import a StructArray"];
    match imported(|| rows.extract::<AnyRecordBatch>()) {
        Ok(found) => Ok(Rows::Stream(found.into_reader()?)),
        Err(error) => {
            let text = error.value(rows.py()).to_string();
            let is_ours = NO_COLUMNS.iter().any(|start| text.starts_with(start));
            Err(if is_ours { not_tabular(rows, &format!(" ({text})")) } else { error })
        }
    }
}

/// Imports Arrow data. A panic, such as that of a slice of structs in a struct, becomes an error.
fn imported<T>(import: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    caught(import).unwrap_or_else(|why| Err(PyValueError::new_err(format!("the data cannot be imported: {why}"))))
}

fn not_tabular(rows: &Bound<'_, PyAny>, why: &str) -> PyErr {
    let kind = match rows.get_type().fully_qualified_name() {
        Ok(kind) => kind,
        Err(error) => return error,
    };
    PyTypeError::new_err(format!(
        "rows of type {kind} are not tabular{why}: pass an object with __arrow_c_stream__ or __arrow_c_array__ \
         (pyarrow, polars, duckdb, pandas, ...) or a mapping of column name to NumPy or Arrow array"
    ))
}

fn take_column(name: &str, values: &Bound<'_, PyAny>) -> PyResult<Column> {
    let is_arrow = values.hasattr("__arrow_c_array__")? || values.hasattr("__arrow_c_stream__")?;
    let found = match is_arrow {
        true => imported(|| values.extract::<AnyArray>()).map(|found| (found, false)),
        false => take_buffer(values),
    };
    let (found, is_writable) = match found {
        Ok(found) => found,
        Err(error) => {
            let kind = values.get_type().fully_qualified_name()?;
            let dtype = values.getattr("dtype").map(|dtype| format!(" of dtype {dtype}")).unwrap_or_default();
            let why = if is_arrow { format!(" ({})", error.value(values.py())) } else { String::new() };
            let problem = format!(
                "{kind}{dtype} is neither an Arrow array nor a one-dimensional NumPy array of numbers{why}. \
                 Pass strings, and values with nulls, as an Arrow array"
            );
            return Err(Failure::batch(name, None, problem).raise(values.py()));
        }
    };
    let (chunks, field) = found.into_chunked_array()?.into_inner();
    Ok(Column { kind: field.data_type().clone(), chunks, is_writable })
}

/// Takes numbers by the buffer protocol. They are used in place if their layout is that of Arrow; otherwise NumPy
/// copies them. Also returns whether other code can write to that memory.
fn take_buffer(values: &Bound<'_, PyAny>) -> PyResult<(AnyArray, bool)> {
    let view = PyMemoryView::from(values)?;
    // The buffer does not contain the mask, so masked values would be judged.
    if view.getattr("ndim")?.extract::<usize>()? != 1 || values.hasattr("mask")? {
        return Err(PyValueError::new_err("not a column"));
    }
    let format = view.getattr("format")?.extract::<String>()?;
    if format == "?" {
        return take_flags(values).map(|found| (found, false));
    }
    // PyO3 0.30 accepts '>' as the native byte order, so the format is checked here.
    let is_swapped = format.starts_with(['>', '!']);
    if !is_swapped && let Ok(found) = values.extract::<AnyArray>() {
        return Ok((found, !view.getattr("readonly")?.extract::<bool>()?));
    }
    let native = values.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
    Ok((values.call_method1("astype", (native, "C"))?.extract::<AnyArray>()?, false))
}

/// NumPy stores a boolean as a byte, Arrow as a bit.
fn take_flags(values: &Bound<'_, PyAny>) -> PyResult<AnyArray> {
    let (chunks, _) =
        values.call_method1("astype", ("uint8",))?.extract::<AnyArray>()?.into_chunked_array()?.into_inner();
    let bytes = chunks.iter().map(|chunk| chunk.as_ref()).collect::<Vec<_>>();
    let flags = arrow_select::concat::concat(&bytes).and_then(|bytes| arrow_cast::cast(&bytes, &DataType::Boolean));
    let flags = flags.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(AnyArray::Array(PyArray::from_array_ref(flags)))
}
