//! Some columns of a file, batch by batch.

use crate::error::{Error, Result, guard};
use crate::file::ParquetFile;
use crate::pages::Pages;
use crate::read_at::Source;
use arrow_array::{ArrayRef, RecordBatchReader};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{PageIterator, PageReader};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of the values of a column of a fixed length that are read at a time, nulls included.
const FIXED_BYTES: usize = 64 << 20;

/// Reads columns of the first level, batch by batch: a row group is never held whole.
///
/// Text and binary come as views, which lie where the decoder put them; dictionaries come as their values.
pub struct Columns {
    path: PathBuf,
    source: Source,
    reader: Option<ParquetRecordBatchReader>,
    /// Where each wanted column stands in what the reader gives.
    places: Vec<usize>,
    rows: u64,
    rows_read: u64,
}

impl Columns {
    /// The columns of these names, each of which must be there once, in these row groups.
    pub fn open(file: &ParquetFile, groups: Range<usize>, names: &[&str], batch_rows: usize) -> Result<Columns> {
        let roots = names.iter().map(|name| root(file, name)).collect::<Result<Vec<usize>>>()?;
        let mut in_file_order = roots.clone();
        in_file_order.sort_unstable();
        in_file_order.dedup();
        let place = |root: &usize| in_file_order.binary_search(root).unwrap_or_default();
        let places = roots.iter().map(place).collect();
        let rows = file.first_row(groups.end) - file.first_row(groups.start);
        let reader = guard(file.path(), file.source(), || {
            open(file, groups, &in_file_order, batch_rows).map_err(|error| file.decoding(None, &error))
        })?;
        let (path, source) = (file.path().into(), file.source().clone());
        Ok(Columns { path, source, reader: Some(reader), places, rows, rows_read: 0 })
    }

    /// The types in which the columns come, in the order of the names.
    pub fn kinds(&self) -> Vec<DataType> {
        let schema = self.reader.as_ref().map(|reader| reader.schema());
        let kind = |&place: &usize| schema.as_ref().map_or(DataType::Null, |it| it.field(place).data_type().clone());
        self.places.iter().map(kind).collect()
    }

    /// The columns of the next rows, in the order of the names, and how many rows that is; none at the end.
    pub fn next_batch(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        let Some(mut reader) = self.reader.take() else { return Ok(None) };
        // The reader is put back only if it is sound.
        let (batch, reader) = guard(&self.path, &self.source, || {
            let batch = reader.next().transpose().map_err(|error| Error::decoding(&self.path, None, &error))?;
            Ok((batch, reader))
        })?;
        let Some(batch) = batch else {
            if self.rows_read != self.rows {
                let problem = format!("its pages have {} rows, but its footer declares {}", self.rows_read, self.rows);
                return Err(Error::source(&self.path, None, problem));
            }
            return Ok(None);
        };
        self.reader = Some(reader);
        self.rows_read += batch.num_rows() as u64;
        let columns = self.places.iter().map(|&place| batch.column(place).clone()).collect();
        Ok(Some((batch.num_rows(), columns)))
    }
}

/// Where a column stands among those of the first level.
fn root(file: &ParquetFile, name: &str) -> Result<usize> {
    let fields = file.metadata().file_metadata().schema_descr().root_schema().get_fields();
    let mut found = (0..fields.len()).filter(|&at| fields[at].name() == name);
    let problem = match (found.next(), found.next()) {
        (Some(root), None) => return Ok(root),
        (Some(_), Some(_)) => "occurs more than once in it".to_string(),
        (None, _) => {
            let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
            format!("missing; it has {}", names.join(", "))
        }
    };
    Err(Error::Column { path: file.path().into(), name: name.into(), problem })
}

fn open(
    file: &ParquetFile,
    groups: Range<usize>,
    roots: &[usize],
    batch_rows: usize,
) -> parquet::errors::Result<ParquetRecordBatchReader> {
    let mut metadata = ArrowReaderMetadata::try_new(file.metadata().clone(), ArrowReaderOptions::new())?;
    let schema = metadata.schema();
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    let mut is_other = false;
    for &root in roots {
        let kind = as_read(fields[root].data_type());
        if kind != *fields[root].data_type() {
            fields[root] = Arc::new(Field::clone(&fields[root]).with_data_type(kind));
            is_other = true;
        }
    }
    if is_other {
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let options = ArrowReaderOptions::new().with_schema(schema);
        metadata = ArrowReaderMetadata::try_new(file.metadata().clone(), options)?;
    }
    let descriptor = file.metadata().file_metadata().schema_descr();
    let mask = ProjectionMask::roots(descriptor, roots.iter().copied());
    let leaves = (0..descriptor.num_columns()).filter(|&leaf| mask.leaf_included(leaf));
    let value_bytes = leaves.map(|leaf| descriptor.column(leaf).type_length()).max().unwrap_or(0).max(1) as usize;
    let rows = usize::try_from(file.rows()).unwrap_or(usize::MAX);
    let batch_rows = batch_rows.min(rows).min(FIXED_BYTES / value_bytes).max(1);
    let levels = parquet_to_arrow_field_levels(descriptor, mask, Some(metadata.schema().fields()))?;
    let groups = Groups { source: file.source().clone(), metadata: file.metadata().clone(), groups };
    ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, batch_rows, None)
}

/// Some row groups of a file, whose pages are read by [`Pages`].
struct Groups {
    source: Source,
    metadata: Arc<ParquetMetaData>,
    groups: Range<usize>,
}

impl RowGroups for Groups {
    fn num_rows(&self) -> usize {
        self.row_groups().map(|group| group.num_rows() as usize).sum()
    }

    fn column_chunks(&self, column: usize) -> parquet::errors::Result<Box<dyn PageIterator>> {
        let Groups { source, metadata, groups } = self;
        Ok(Box::new(Chunks { source: source.clone(), metadata: metadata.clone(), column, groups: groups.clone() }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups()[self.groups.clone()].iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of a column, group by group.
struct Chunks {
    source: Source,
    metadata: Arc<ParquetMetaData>,
    column: usize,
    groups: Range<usize>,
}

impl Iterator for Chunks {
    type Item = parquet::errors::Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.metadata.row_groups().get(self.groups.next()?)?;
        let pages = Pages::open(&self.source, group.column(self.column), group.num_rows() as u64);
        Some(pages.map(|pages| Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for Chunks {}

/// The type to read a column as.
fn as_read(kind: &DataType) -> DataType {
    match kind {
        DataType::Dictionary(_, values) => as_read(values),
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        other => other.clone(),
    }
}
