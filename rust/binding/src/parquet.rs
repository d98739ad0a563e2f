//! Parquet files for Python: read footers, copy files without some of their rows, and arrange rows in new files.

use crate::objects::{Blocks, Object};
use crate::raise::Raise;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, SchemaRef};
use fencepost_columns::Failure;
use fencepost_lake as lake;
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use pyo3_arrow::input::AnyArray;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of ``rewrite``.
#[pyclass(frozen, get_all, module = "fencepost._native")]
pub(crate) struct Rewritten {
    /// Number of rows of the new file.
    rows: u64,
    /// Size of the new file in bytes.
    bytes: u64,
    /// CRC-32 of the footer of the new file.
    footer_crc: u32,
    /// CRC-32 of the footer of the source.
    source_crc: u32,
    /// Number of row groups that were copied as bytes.
    groups_copied: u64,
    /// Number of row groups that were rewritten.
    groups_rewritten: u64,
}

/// Copy a Parquet file without some ranges of rows, or with only these ranges (``keep``).
///
/// Row groups that stay whole are copied as bytes. Row groups of which no row stays are left out. Memory: some thousand
/// rows of a column, and its pages if it has a dictionary. The interpreter is released.
///
/// Args:
///     source: The file.
///     target: The new file, which must not exist. It is not synced.
///     first_rows, counts: Integer arrays of equal length with one value per range of rows. Ranges are sorted and
///         disjoint.
///     keep: Keep only these rows.
///     object: An object to read instead of ``source``, as for SpanScan.
///
/// Raises:
///     SourceError: The source is damaged (path, position).
///     StoreError: The storage cannot read the source (path, errno).
///     FileNotFoundError: The source does not exist.
///     ValueError: The ranges are invalid.
///     OSError: The target cannot be written. It then does not exist.
#[pyfunction]
#[pyo3(signature = (source, target, first_rows, counts, *, keep=false, object=None))]
pub(crate) fn rewrite(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    first_rows: AnyArray,
    counts: AnyArray,
    keep: bool,
    object: Option<Py<PyAny>>,
) -> PyResult<Rewritten> {
    let mut interrupt = None;
    let written = py.detach(|| {
        let (first_rows, counts) = (rows_of(first_rows, "first_rows")?, rows_of(counts, "counts")?);
        let ranges = lake::RowRanges::new(&first_rows, &counts)?;
        let mut can_continue = || {
            interrupt = Python::attach(|py| py.check_signals().err());
            interrupt.is_none()
        };
        let file = open(&source, object.as_ref(), Blocks::WHOLE)?;
        lake::rewrite(file, &target, &ranges, keep, &mut can_continue).map_err(Failure::from)
    });
    if let Some(interrupt) = interrupt {
        return Err(interrupt);
    }
    let lake::Rewritten { rows, bytes, footer_crc, source_crc, groups_copied, groups_rewritten } =
        written.map_err(|failure| failure.raise(py))?;
    Ok(Rewritten { rows, bytes, footer_crc, source_crc, groups_copied, groups_rewritten })
}

/// The result of ``arrange``.
#[pyclass(frozen, get_all, module = "fencepost._native")]
pub(crate) struct Arranged {
    /// Number of rows of each target.
    rows: Vec<u64>,
    /// Size of each target in bytes.
    bytes: Vec<u64>,
    /// CRC-32 of the footer of each target.
    footer_crc: Vec<u32>,
    /// CRC-32 of the footer of each source.
    source_crc: Vec<u32>,
    /// Number of row groups that were copied as bytes.
    groups_copied: u64,
    /// Number of row groups that were assembled from rows of several places.
    groups_gathered: u64,
}

/// A path, and three arrays of equal length: sources, first rows and counts.
type Target = (PathBuf, AnyArray, AnyArray, AnyArray);

/// Write Parquet files from rows of other files, in any order. The sources must have equal schemas.
///
/// Memory: one column of the row groups that are written together. The interpreter is released.
///
/// Args:
///     sources: The files.
///     targets: (path, sources, first rows, counts) of each new file. The last three are integer arrays of equal length
///         with one value per range of rows: the index of its source, its first row and its number of rows. The path
///         must not exist. The file is not synced.
///     objects: Objects to read instead of the sources, as for SpanScan.
///     without: A top-level column to leave out.
///     metadata: Key-value metadata. Default: that of the first source.
///
/// Raises:
///     SourceError: A source is damaged (path, position).
///     StoreError: The storage cannot read a source (path, errno).
///     FileNotFoundError: A source does not exist.
///     BatchError: A column does not exist or does not fit (column).
///     ValueError: The ranges are invalid.
///     OSError: A target cannot be written. It then does not exist.
#[pyfunction]
#[pyo3(signature = (sources, targets, *, objects=None, without=None, metadata=None))]
pub(crate) fn arrange(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    targets: Vec<Target>,
    objects: Option<Vec<Option<Py<PyAny>>>>,
    without: Option<String>,
    metadata: Option<Vec<(String, Option<String>)>>,
) -> PyResult<Arranged> {
    let mut interrupt = None;
    let written = py.detach(|| {
        let targets = targets.into_iter().map(target_of).collect::<Result<Vec<_>, _>>()?;
        let mut can_continue = || {
            interrupt = Python::attach(|py| py.check_signals().err());
            interrupt.is_none()
        };
        let mut files = Vec::with_capacity(sources.len());
        for (place, path) in sources.iter().enumerate() {
            let object = objects.as_ref().and_then(|all| all.get(place)).and_then(Option::as_ref);
            files.push(match object {
                None => lake::ParquetFile::open_among_many(path),
                Some(object) => open(path, Some(object), Blocks::WHOLE),
            }?);
        }
        let source_crc = files.iter().map(lake::ParquetFile::footer_crc).collect();
        let done = lake::arrange(files, &targets, &lake::Arranging { without, metadata }, &mut can_continue)?;
        Ok((source_crc, done))
    });
    if let Some(interrupt) = interrupt {
        return Err(interrupt);
    }
    let (source_crc, done) = written.map_err(|failure: Failure| failure.raise(py))?;
    Ok(Arranged {
        rows: done.iter().map(|it| it.rows).collect(),
        bytes: done.iter().map(|it| it.bytes).collect(),
        footer_crc: done.iter().map(|it| it.footer_crc).collect(),
        source_crc,
        groups_copied: done.iter().map(|it| it.groups_copied).sum(),
        groups_gathered: done.iter().map(|it| it.groups_gathered).sum(),
    })
}

fn target_of((path, sources, first_rows, counts): Target) -> Result<lake::Target, Failure> {
    let sources = rows_of(sources, "sources")?;
    let (first_rows, counts) = (rows_of(first_rows, "first_rows")?, rows_of(counts, "counts")?);
    if sources.len() != first_rows.len() || sources.len() != counts.len() {
        let problem = "sources, first rows and counts must have one value for each range";
        return Err(Failure::Value(format!("{}: {problem}", path.display())));
    }
    let ranges = sources.into_iter().zip(first_rows).zip(counts);
    let rows = ranges.map(|((source, first), count)| {
        let source = u32::try_from(source).map_err(|_| Failure::Value(format!("source {source}: no such source")))?;
        Ok(lake::Rows { source, first, count })
    });
    Ok(lake::Target { path, rows: rows.collect::<Result<_, Failure>>()? })
}

/// Opens a local file, or an object of a store; then the path is only its name.
pub(crate) fn open(path: &Path, object: Option<&Py<PyAny>>, blocks: Blocks) -> lake::Result<lake::ParquetFile> {
    match reader(path, object, blocks)? {
        None => lake::ParquetFile::open(path),
        Some(reader) => lake::ParquetFile::of_reader(path, reader),
    }
}

fn reader(path: &Path, object: Option<&Py<PyAny>>, blocks: Blocks) -> lake::Result<Option<Arc<dyn lake::ReadAt>>> {
    let opened = object.map(|object| Object::open(object, blocks)).transpose();
    let opened = opened.map_err(|error| lake::Error::Read { path: path.into(), error })?;
    Ok(opened.map(|object| Arc::new(object) as Arc<dyn lake::ReadAt>))
}

fn rows_of(array: AnyArray, name: &str) -> Result<Vec<u64>, Failure> {
    let wrong = |problem: String| Failure::Value(format!("{name}: {problem}"));
    let chunks = array.into_chunked_array().map_err(|error| wrong(error.to_string()))?;
    let mut rows = Vec::with_capacity(chunks.chunks().iter().map(|chunk| chunk.len()).sum());
    for chunk in chunks.chunks() {
        let chunk: &ArrayRef = chunk;
        if !chunk.data_type().is_integer() {
            return Err(wrong(format!("is of type {}, but must be integers", chunk.data_type())));
        }
        let wide = cast_with_options(chunk, &DataType::UInt64, &CastOptions { safe: true, ..Default::default() })?;
        if wide.null_count() > 0 {
            return Err(wrong("a value is null or below 0".into()));
        }
        rows.extend_from_slice(wide.as_primitive::<UInt64Type>().values());
    }
    Ok(rows)
}

/// The content of a Parquet file's footer.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct ParquetFooter {
    /// Number of rows of the file.
    #[pyo3(get)]
    rows: u64,
    /// Number of row groups.
    #[pyo3(get)]
    row_groups: usize,
    /// CRC-32 of the footer, which has the position and length of all other parts of the file.
    #[pyo3(get)]
    footer_crc: u32,
    schema: SchemaRef,
    /// Least and greatest value of each row group, by requested column. None if the footer does not have them.
    #[pyo3(get)]
    bounds: HashMap<String, lake::Bounds>,
}

#[pymethods]
impl ParquetFooter {
    /// All columns of the file as an Arrow schema, derived from the Parquet types. All of them are nullable.
    #[getter]
    fn schema(&self) -> PySchema {
        PySchema::new(self.schema.clone())
    }
}

/// Read a Parquet file's footer, and the bounds of some integer columns by name.
///
/// Args:
///     path: The file.
///     columns: Names of the columns whose bounds to read.
///     object: An object to read instead of ``path``, as for SpanScan.
///
/// Raises:
///     SourceError: The file is damaged (path, position).
///     StoreError: The storage cannot read the file (path, errno).
///     FileNotFoundError: The file does not exist.
///     BatchError: A column does not exist or is not a plain column (column).
#[pyfunction]
#[pyo3(signature = (path, columns=vec![], *, object=None), text_signature = "(path, columns=(), *, object=None)")]
pub(crate) fn parquet_footer(
    py: Python<'_>,
    path: PathBuf,
    columns: Vec<String>,
    object: Option<Py<PyAny>>,
) -> PyResult<ParquetFooter> {
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let read = py.detach(|| {
        let reader = reader(&path, object.as_ref(), Blocks::COLUMNS)?;
        let (file, bounds) = lake::ParquetFile::open_for_bounds(&path, reader.as_ref(), &names)?;
        let schema = file.schema()?;
        lake::Result::Ok((file, bounds, schema))
    });
    let (file, bounds, schema) = read.map_err(|error| Failure::from(error).raise(py))?;
    Ok(ParquetFooter {
        rows: file.rows(),
        row_groups: file.row_groups(),
        footer_crc: file.footer_crc(),
        schema: schema.into(),
        bounds: columns.into_iter().zip(bounds).collect(),
    })
}
