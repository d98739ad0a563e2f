//! Anything tabular: a stream or a batch by the PyCapsule protocol, or a mapping of names to arrays.

use crate::failure::Failure;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, make_array, new_empty_array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyMemoryView};
use pyo3_arrow::PyArray;
use pyo3_arrow::input::{AnyArray, AnyRecordBatch};
use std::sync::Arc;

/// Rows taken from Python; reading them needs the interpreter no more.
pub(crate) enum Rows {
    Stream(Box<dyn RecordBatchReader + Send>),
    /// Columns that are not wanted are known by name only.
    Mapping(Vec<(String, Option<Column>)>),
}

/// A column of a mapping. Its type, for there may be no chunk to show it.
pub(crate) struct Column {
    kind: DataType,
    chunks: Vec<ArrayRef>,
    /// Whether the values lie in memory that other threads of Python may write.
    is_writable: bool,
}

/// The columns that were asked for, chunk by chunk: all chunks have the same columns in that order.
pub(crate) type Chunks = Vec<Vec<ArrayRef>>;

/// Batches of one schema.
pub(crate) type Batches = Box<dyn Iterator<Item = Result<RecordBatch, Failure>> + Send>;

impl Rows {
    /// `wanted`: the columns that will be asked for, every one if `None`. Others may be of any type.
    pub(crate) fn take(rows: &Bound<'_, PyAny>, wanted: Option<&[&str]>) -> PyResult<Rows> {
        if rows.hasattr("__arrow_c_stream__")? || rows.hasattr("__arrow_c_array__")? {
            return take_stream(rows);
        }
        let Ok(mapping) = rows.cast::<PyMapping>() else { return Err(not_tabular(rows, "")) };
        let mut columns = Vec::new();
        for item in mapping.items()? {
            let (name, values): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let Ok(name) = name.extract::<String>() else {
                return Err(not_tabular(rows, &format!(" ({} is not a column name)", name.repr()?)));
            };
            let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&name.as_str()));
            let column = if is_wanted { Some(take_column(&name, &values)?) } else { None };
            columns.push((name, column));
        }
        Ok(Rows::Mapping(columns))
    }

    /// Whether there is a column of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Rows::Stream(reader) => reader.schema().field_with_name(name).is_ok(),
            Rows::Mapping(columns) => columns.iter().any(|(known, _)| known == name),
        }
    }

    pub(crate) fn of_batch(batch: RecordBatch) -> Rows {
        let schema = batch.schema();
        Rows::of_batches(schema, vec![batch])
    }

    pub(crate) fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Rows {
        Rows::Stream(Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema)))
    }

    /// The named columns. Every name must be there once.
    pub(crate) fn select(self, names: &[&str]) -> Result<Chunks, Failure> {
        match self {
            Rows::Stream(reader) => {
                let schema = reader.schema();
                let found: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let positions = positions(&found, names)?;
                let project = |batch: RecordBatch| positions.iter().map(|&at| batch.column(at).clone()).collect();
                reader.map(|batch| Ok(project(batch?))).collect()
            }
            Rows::Mapping(columns) => {
                let found: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                let positions = positions(&found, names)?;
                let one =
                    |&at: &usize| columns[at].1.as_ref().map_or_else(|| unreachable!("wanted"), Column::one_array);
                let arrays = positions.iter().map(one).collect::<Result<Vec<_>, _>>()?;
                check_lengths(names, &arrays)?;
                Ok(vec![arrays])
            }
        }
    }

    /// Everything, as batches.
    pub(crate) fn collect(self) -> Result<(SchemaRef, Vec<RecordBatch>), Failure> {
        let (schema, batches) = self.batches()?;
        Ok((schema, batches.collect::<Result<_, _>>()?))
    }

    /// Everything, one batch after the other: no more of them is held than the source holds.
    pub(crate) fn batches(self) -> Result<(SchemaRef, Batches), Failure> {
        match self {
            Rows::Stream(reader) => Ok((reader.schema(), Box::new(reader.map(|batch| Ok(batch?))))),
            Rows::Mapping(columns) => {
                let taken = || columns.iter().filter_map(|(name, column)| Some((name.as_str(), column.as_ref()?)));
                let names: Vec<&str> = taken().map(|(name, _)| name).collect();
                let arrays = taken().map(|(_, column)| column.one_array()).collect::<Result<Vec<_>, _>>()?;
                check_lengths(&names, &arrays)?;
                let field = |(name, array): (&&str, &ArrayRef)| Field::new(*name, array.data_type().clone(), true);
                let schema = Arc::new(Schema::new(names.iter().zip(&arrays).map(field).collect::<Vec<_>>()));
                let batch = RecordBatch::try_new(schema.clone(), arrays)?;
                Ok((schema, Box::new(std::iter::once(Ok(batch)))))
            }
        }
    }
}

fn take_stream(rows: &Bound<'_, PyAny>) -> PyResult<Rows> {
    // What pyo3-arrow says, as a bare ValueError, of Arrow data whose rows have no columns.
    const NO_COLUMNS: [&str; 3] = ["Unexpected data type", "C Data interface error", "Cannot import a StructArray"];
    match rows.extract::<AnyRecordBatch>() {
        Ok(found) => Ok(Rows::Stream(found.into_reader()?)),
        Err(error) => {
            let text = error.value(rows.py()).to_string();
            let is_ours = NO_COLUMNS.iter().any(|start| text.starts_with(start));
            Err(if is_ours { not_tabular(rows, &format!(" ({text})")) } else { error })
        }
    }
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
        true => values.extract::<AnyArray>().map(|found| (found, false)),
        false => take_buffer(values),
    };
    let Ok((found, is_writable)) = found else {
        let kind = values.get_type().fully_qualified_name()?;
        let dtype = values.getattr("dtype").map(|dtype| format!(" of dtype {dtype}")).unwrap_or_default();
        let problem = format!(
            "{kind}{dtype} is neither an Arrow array nor a one-dimensional NumPy array of numbers \
             (of strings or with nulls: make it an Arrow array)"
        );
        return Err(Failure::batch(name, None, problem).raise(values.py()));
    };
    let (chunks, field) = found.into_chunked_array()?.into_inner();
    Ok(Column { kind: field.data_type().clone(), chunks, is_writable })
}

/// Numbers by the buffer protocol: used where they lie if they lie as Arrow's do, else NumPy puts them so. And whether
/// that is memory which may be written meanwhile.
fn take_buffer(values: &Bound<'_, PyAny>) -> PyResult<(AnyArray, bool)> {
    let view = PyMemoryView::from(values)?;
    // A mask is not part of the buffer: what it hides would be judged.
    if view.getattr("ndim")?.extract::<usize>()? != 1 || values.hasattr("mask")? {
        return Err(PyValueError::new_err("not a column"));
    }
    let format = view.getattr("format")?.extract::<String>()?;
    if format == "?" {
        return take_flags(values).map(|found| (found, false));
    }
    // PyO3 0.30 takes '>' for the native byte order, so the format is looked at here.
    let is_swapped = format.starts_with(['>', '!']);
    if !is_swapped && let Ok(found) = values.extract::<AnyArray>() {
        return Ok((found, !view.getattr("readonly")?.extract::<bool>()?));
    }
    let native = values.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
    Ok((values.call_method1("astype", (native, "C"))?.extract::<AnyArray>()?, false))
}

/// NumPy has a byte for a boolean, Arrow a bit.
fn take_flags(values: &Bound<'_, PyAny>) -> PyResult<AnyArray> {
    let (chunks, _) =
        values.call_method1("astype", ("uint8",))?.extract::<AnyArray>()?.into_chunked_array()?.into_inner();
    let bytes = chunks.iter().map(|chunk| chunk.as_ref()).collect::<Vec<_>>();
    let flags = arrow_select::concat::concat(&bytes).and_then(|bytes| arrow_cast::cast(&bytes, &DataType::Boolean));
    let flags = flags.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(AnyArray::Array(PyArray::from_array_ref(flags)))
}

impl Column {
    /// The values as one array that nobody writes to: validated and judged, they are read more than once.
    fn one_array(&self) -> Result<ArrayRef, Failure> {
        match &self.chunks[..] {
            [] => Ok(new_empty_array(&self.kind)),
            [one] if self.is_writable => copied(one),
            [one] => Ok(one.clone()),
            several => {
                let several: Vec<_> = several.iter().map(|chunk| chunk.as_ref()).collect();
                Ok(arrow_select::concat::concat(&several)?)
            }
        }
    }
}

/// Numbers in memory of their own. `Failure::Memory` where there is none.
fn copied(numbers: &ArrayRef) -> Result<ArrayRef, Failure> {
    let data = numbers.to_data();
    let (Some(width), [buffer]) = (data.data_type().primitive_width(), data.buffers()) else {
        unreachable!("NumPy's arrays are of numbers")
    };
    let bytes = &buffer[data.offset() * width..][..data.len() * width];
    let mut copy = Vec::new();
    let count = bytes.len();
    let refused = |_| Failure::Memory(format!("the rows need {count} bytes more, but the system has no memory left"));
    copy.try_reserve_exact(count).map_err(refused)?;
    copy.extend_from_slice(bytes);
    let copy = data.into_builder().offset(0).buffers(vec![copy.into()]).align_buffers(true);
    Ok(make_array(copy.build()?))
}

fn positions(found: &[&str], names: &[&str]) -> Result<Vec<usize>, Failure> {
    let position = |&name: &&str| {
        let mut places = (0..found.len()).filter(|&at| found[at] == name);
        match (places.next(), places.next()) {
            (Some(at), None) => Ok(at),
            (None, _) => {
                Err(Failure::batch(name, None, format!("missing; the rows have the columns {}", found.join(", "))))
            }
            (Some(_), Some(_)) => Err(Failure::batch(name, None, "occurs twice in the rows")),
        }
    };
    names.iter().map(position).collect()
}

fn check_lengths(names: &[&str], arrays: &[ArrayRef]) -> Result<(), Failure> {
    let Some(first) = arrays.first() else { return Ok(()) };
    for (name, array) in names.iter().zip(arrays) {
        if array.len() != first.len() {
            let problem = format!("has {} rows, column '{}' has {}", array.len(), names[0], first.len());
            return Err(Failure::batch(name, None, problem));
        }
    }
    Ok(())
}
