//! Parquet files for Python: footers, and files without some of their rows.

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

/// What ``rewrite`` wrote.
#[pyclass(frozen, get_all, module = "fencepost._native")]
pub(crate) struct Rewritten {
    /// Rows of the new file.
    rows: u64,
    /// Its bytes.
    bytes: u64,
    /// CRC-32 of its footer.
    footer_crc: u32,
    /// CRC-32 of the footer of the file that the rows are from.
    source_crc: u32,
    /// Row groups that were copied as bytes.
    groups_copied: u64,
    /// Row groups that were written anew.
    groups_rewritten: u64,
}

/// A Parquet file without these rows, or with ``keep`` only these, everything else as it is.
///
/// ``first_rows``, ``counts``: arrays of integers of one length, a range of rows each; sorted and disjoint.
/// ``target`` must not exist; it is not synced. Row groups of which every row stays are copied as bytes, those of
/// which none stays are left out. Memory: some thousand rows of a column, and its pages where it has a dictionary.
/// Raises SourceError (path, position), StoreError (path, errno) where storage does not give the source,
/// FileNotFoundError, ValueError for other ranges, OSError where the target cannot be written; then there is none. The interpreter is released.
/// ``object``: the source, as of RunScan.
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
        let mut goes_on = || {
            interrupt = Python::attach(|py| py.check_signals().err());
            interrupt.is_none()
        };
        let file = open(&source, object.as_ref(), Blocks::WHOLE)?;
        lake::rewrite(file, &target, &ranges, keep, &mut goes_on).map_err(Failure::from)
    });
    if let Some(interrupt) = interrupt {
        return Err(interrupt);
    }
    let lake::Rewritten { rows, bytes, footer_crc, source_crc, groups_copied, groups_rewritten } =
        written.map_err(|failure| failure.raise(py))?;
    Ok(Rewritten { rows, bytes, footer_crc, source_crc, groups_copied, groups_rewritten })
}

/// What ``arrange`` wrote, and from what.
#[pyclass(frozen, get_all, module = "fencepost._native")]
pub(crate) struct Arranged {
    /// Rows of each target.
    rows: Vec<u64>,
    /// Its bytes.
    bytes: Vec<u64>,
    /// CRC-32 of its footer.
    footer_crc: Vec<u32>,
    /// CRC-32 of the footer of each source.
    source_crc: Vec<u32>,
    /// Row groups that were copied as bytes.
    groups_copied: u64,
    /// Row groups that were gathered.
    groups_gathered: u64,
}

/// A path, and three arrays of one length: sources, first rows and counts.
type Target = (PathBuf, AnyArray, AnyArray, AnyArray);

/// Parquet files of rows of others, in any order. The schemas of the sources must be equal.
///
/// ``targets``: for each a path, which must not exist, and arrays of integers of one length, a range of rows each: the
/// place of its source, its first row, and how many follow each other. They are not synced. ``objects``: the sources, as
/// of RunScan. ``without``: a column at the top of the schema that is left out. ``metadata``: key-value metadata in place
/// of those of the first source. Memory: a column of the row groups that are written together. Raises SourceError (path,
/// position), StoreError (path, errno), FileNotFoundError, BatchError (column), ValueError for other ranges, OSError
/// where a target cannot be written; then there is none. The interpreter is released.
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
        let mut goes_on = || {
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
        let done = lake::arrange(files, &targets, &lake::Arranging { without, metadata }, &mut goes_on)?;
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
        return Err(Failure::Value(format!("{}: sources, first rows and counts: one of each a range", path.display())));
    }
    let ranges = sources.into_iter().zip(first_rows).zip(counts);
    let rows = ranges.map(|((source, first), count)| {
        let source = u32::try_from(source).map_err(|_| Failure::Value(format!("source {source}: no such source")))?;
        Ok(lake::Rows { source, first, count })
    });
    Ok(lake::Target { path, rows: rows.collect::<Result<_, Failure>>()? })
}

/// A file of this machine, or an object of a store, whose name the path is then.
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
            return Err(wrong(format!("is of type {}, integers are needed", chunk.data_type())));
        }
        let wide = cast_with_options(chunk, &DataType::UInt64, &CastOptions { safe: true, ..Default::default() })?;
        if wide.null_count() > 0 {
            return Err(wrong("a row is null or below 0".into()));
        }
        rows.extend_from_slice(wide.as_primitive::<UInt64Type>().values());
    }
    Ok(rows)
}

/// What a Parquet file's footer says.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct ParquetFooter {
    /// Rows of the file.
    #[pyo3(get)]
    rows: u64,
    /// How many row groups it has.
    #[pyo3(get)]
    row_groups: usize,
    /// CRC-32 of the footer, which holds the place and length of everything else.
    #[pyo3(get)]
    footer_crc: u32,
    schema: SchemaRef,
    /// For each column that was asked for: least and greatest value of each row group, None where it is not told.
    #[pyo3(get)]
    bounds: HashMap<String, lake::Bounds>,
}

#[pymethods]
impl ParquetFooter {
    /// All columns of the file, as an Arrow schema: of what the Parquet types say, each of them nullable.
    #[getter]
    fn schema(&self) -> PySchema {
        PySchema::new(self.schema.clone())
    }
}

/// Reads a Parquet file's footer, and the bounds of some integer columns by their names.
///
/// Raises SourceError (path, position), StoreError (path, errno) where storage does not give the file,
/// FileNotFoundError, and BatchError for a column that is not there or not plain. ``object``: as of RunScan.
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
