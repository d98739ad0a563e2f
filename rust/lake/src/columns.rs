//! Reads some columns of a file, batch by batch.

use crate::error::{Error, Result, guard};
use crate::file::ParquetFile;
use crate::pages::Pages;
use crate::read_at::Source;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader, StructArray, make_array};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Repetition;
use parquet::column::page::{PageIterator, PageReader};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::{SchemaDescriptor, TypePtr};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of bytes of fixed-length values of a column that are read at a time, including nulls.
const FIXED_BYTES: usize = 64 << 20;

/// Reads top-level columns and fields of structs, batch by batch. A row group is never completely in memory.
///
/// Text and binary are returned as views of the decoder's memory; dictionaries are returned as their values.
pub struct Columns {
    path: PathBuf,
    source: Source,
    reader: Option<ParquetRecordBatchReader>,
    /// The place of each requested column in the reader's batches.
    places: Vec<Place>,
    rows: u64,
    rows_read: u64,
}

impl Columns {
    /// Opens columns by name in these row groups. Each name must exist exactly once.
    ///
    /// A name that is not a top-level column can be the path of a field in structs, such as `payload.seq`. The
    /// field is null where a struct is null.
    pub fn open(file: &ParquetFile, groups: Range<usize>, names: &[&str], batch_rows: usize) -> Result<Columns> {
        let places_in_file = names.iter().map(|name| find(file, name)).collect::<Result<Vec<Place>>>()?;
        let mut roots: Vec<usize> = places_in_file.iter().map(|place| place.root).collect();
        roots.sort_unstable();
        roots.dedup();
        let in_batch = |place: &Place| roots.binary_search(&place.root).unwrap_or_default();
        let places = places_in_file.iter().map(|it| Place { root: in_batch(it), fields: it.fields.clone() }).collect();
        let rows = file.first_row(groups.end) - file.first_row(groups.start);
        let reader = guard(file.path(), file.source(), || {
            open(file, groups, &places_in_file, batch_rows).map_err(|error| file.decoding(None, &error))
        })?;
        let (path, source) = (file.path().into(), file.source().clone());
        Ok(Columns { path, source, reader: Some(reader), places, rows, rows_read: 0 })
    }

    /// The types of the returned columns, in the order of the names.
    pub fn kinds(&self) -> Vec<DataType> {
        let schema = self.reader.as_ref().map(|reader| reader.schema());
        let kind = |place: &Place| schema.as_ref().map_or(DataType::Null, |it| place.kind(it));
        self.places.iter().map(kind).collect()
    }

    /// The columns of the next rows, in the order of the names, and the number of rows. `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        let Some(mut reader) = self.reader.take() else { return Ok(None) };
        // The reader is kept only if it did not fail.
        let of_batch = |batch: RecordBatch| -> std::result::Result<(usize, Vec<ArrayRef>), ArrowError> {
            let columns = self.places.iter().map(|place| place.column(batch.columns()));
            Ok((batch.num_rows(), columns.collect::<std::result::Result<_, _>>()?))
        };
        let (next, reader) = guard(&self.path, &self.source, || {
            let next = reader.next().map(|batch| batch.and_then(of_batch)).transpose();
            Ok((next.map_err(|error| Error::decoding(&self.path, None, &error))?, reader))
        })?;
        let Some((rows, columns)) = next else {
            if self.rows_read != self.rows {
                let problem = format!("its pages have {} rows, but its footer declares {}", self.rows_read, self.rows);
                return Err(Error::source(&self.path, None, problem));
            }
            return Ok(None);
        };
        self.reader = Some(reader);
        self.rows_read += rows as u64;
        Ok(Some((rows, columns)))
    }
}

/// A top-level column, and the path from it to a field of a struct.
struct Place {
    root: usize,
    fields: Vec<String>,
}

impl Place {
    fn kind(&self, schema: &Schema) -> DataType {
        let child = |kind: DataType, name: &String| match &kind {
            DataType::Struct(fields) => {
                fields.find(name).map_or(DataType::Null, |(_, field)| field.data_type().clone())
            }
            _ => DataType::Null,
        };
        self.fields.iter().fold(schema.field(self.root).data_type().clone(), child)
    }

    fn column(&self, columns: &[ArrayRef]) -> std::result::Result<ArrayRef, ArrowError> {
        self.fields.iter().try_fold(columns[self.root].clone(), |parent, name| {
            let field = parent.as_any().downcast_ref::<StructArray>().and_then(|it| it.column_by_name(name));
            let field = field.ok_or_else(|| ArrowError::SchemaError(format!("the struct has no field {name}")))?;
            if parent.null_count() == 0 {
                return Ok(field.clone());
            }
            let nulls = NullBuffer::union(parent.nulls(), field.nulls());
            Ok(make_array(field.to_data().into_builder().nulls(nulls).build()?))
        })
    }

    /// The leaves of the file that belong to the column.
    fn leaves(&self, descriptor: &SchemaDescriptor) -> Vec<usize> {
        let is_own = |&leaf: &usize| {
            let path = descriptor.column(leaf).path().parts()[1..].to_vec();
            descriptor.get_column_root_idx(leaf) == self.root && path.starts_with(&self.fields)
        };
        (0..descriptor.num_columns()).filter(is_own).collect()
    }
}

/// Finds a column in the file: a top-level column, otherwise a field of a struct.
fn find(file: &ParquetFile, name: &str) -> Result<Place> {
    let roots = file.metadata().file_metadata().schema_descr().root_schema().get_fields();
    let fail = |problem| Err(Error::Column { path: file.path().into(), name: name.into(), problem });
    let in_roots = match only(roots, name, "it") {
        Ok(root) => return Ok(Place { root, fields: Vec::new() }),
        Err(problem) => problem,
    };
    let mut path = name.split('.');
    let Some(Ok(root)) = path.next().map(|head| only(roots, head, "it")) else { return fail(in_roots) };
    let mut parent = &roots[root];
    let mut fields = Vec::new();
    for part in path {
        if !parent.is_group() || parent.get_basic_info().repetition() == Repetition::REPEATED {
            return fail(format!("'{}' is not a struct", parent.name()));
        }
        match only(parent.get_fields(), part, &format!("'{}'", parent.name())) {
            Ok(at) => parent = &parent.get_fields()[at],
            Err(problem) => return fail(problem),
        }
        fields.push(part.to_string());
    }
    if parent.get_basic_info().repetition() == Repetition::REPEATED {
        return fail(format!("'{}' is not a struct", parent.name()));
    }
    Ok(Place { root, fields })
}

/// The index of the only field with a name.
fn only(fields: &[TypePtr], name: &str, owner: &str) -> std::result::Result<usize, String> {
    let mut found = (0..fields.len()).filter(|&at| fields[at].name() == name);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => Err(format!("occurs more than once in {owner}")),
        (None, _) => {
            let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
            Err(format!("missing; {owner} has {}", names.join(", ")))
        }
    }
}

fn open(
    file: &ParquetFile,
    groups: Range<usize>,
    places: &[Place],
    batch_rows: usize,
) -> parquet::errors::Result<ParquetRecordBatchReader> {
    let mut metadata = ArrowReaderMetadata::try_new(file.metadata().clone(), ArrowReaderOptions::new())?;
    let schema = metadata.schema();
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    let mut is_other = false;
    for Place { root, fields: path } in places {
        let root = *root;
        let kind = as_read(fields[root].data_type(), path);
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
    let mask = ProjectionMask::leaves(descriptor, places.iter().flat_map(|place| place.leaves(descriptor)));
    let leaves = (0..descriptor.num_columns()).filter(|&leaf| mask.leaf_included(leaf));
    let value_bytes = leaves.map(|leaf| descriptor.column(leaf).type_length()).max().unwrap_or(0).max(1) as usize;
    let rows = usize::try_from(file.rows()).unwrap_or(usize::MAX);
    let batch_rows = batch_rows.min(rows).min(FIXED_BYTES / value_bytes).max(1);
    let levels = parquet_to_arrow_field_levels(descriptor, mask, Some(metadata.schema().fields()))?;
    let groups = Groups { source: file.source().clone(), metadata: file.metadata().clone(), groups };
    ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, batch_rows, None)
}

/// Some row groups of a file; [`Pages`] reads their pages.
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

/// The chunks of a column, one row group after the other.
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

/// The type in which a column is read. `path`: the path to the requested field of a struct.
fn as_read(kind: &DataType, path: &[String]) -> DataType {
    if let (DataType::Struct(fields), Some((name, rest))) = (kind, path.split_first()) {
        let read = |field: &Arc<Field>| match field.name() == name {
            true => Arc::new(Field::clone(field).with_data_type(as_read(field.data_type(), rest))),
            false => field.clone(),
        };
        return DataType::Struct(fields.iter().map(read).collect());
    }
    match kind {
        DataType::Dictionary(_, values) => as_read(values, path),
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        other => other.clone(),
    }
}
