//! Tabular data: a stream or a batch by the PyCapsule protocol, or a mapping of names to arrays.

use crate::failure::Failure;
use crate::panics::without_panic;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, make_array, new_empty_array};
use arrow_schema::{ArrowError, DataType, SchemaRef};

/// Rows from Python. They can be read without the interpreter.
pub enum Rows {
    /// Batches that are read one after the other.
    Stream(Box<dyn RecordBatchReader + Send>),
    /// Columns that are not needed have only a name.
    Mapping(Vec<(String, Option<Column>)>),
}

/// A column of a mapping.
pub struct Column {
    /// Its type, because there can be no chunks.
    pub kind: DataType,
    /// Its values.
    pub chunks: Vec<ArrayRef>,
    /// Whether other threads of Python can write to the memory.
    pub is_writable: bool,
}

/// The requested columns, chunk by chunk. All chunks have the same columns in the same order.
pub(crate) type Chunks = Vec<Vec<ArrayRef>>;

/// Batches of one schema.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, Failure>> + Send>;

impl Rows {
    /// Whether there is a column of that name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Rows::Stream(reader) => reader.schema().field_with_name(name).is_ok(),
            Rows::Mapping(columns) => columns.iter().any(|(known, _)| known == name),
        }
    }

    /// One batch.
    pub fn of_batch(batch: RecordBatch) -> Rows {
        let schema = batch.schema();
        Rows::of_batches(schema, vec![batch])
    }

    /// Several batches.
    pub fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Rows {
        Rows::Stream(Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema)))
    }

    /// Selects columns by name. Every name must exist exactly once.
    pub fn select(self, names: &[&str]) -> Result<Chunks, Failure> {
        match self {
            Rows::Stream(reader) => {
                let schema = reader.schema();
                let found: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let positions = positions(&found, names)?;
                let project = |batch: RecordBatch| positions.iter().map(|&at| batch.column(at).clone()).collect();
                guarded(reader).map(|batch| Ok(project(batch?))).collect()
            }
            Rows::Mapping(columns) => {
                let found: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                let positions = positions(&found, names)?;
                let one = |&at: &usize| {
                    columns[at].1.as_ref().map_or_else(|| unreachable!("a needed column"), Column::one_array)
                };
                let arrays = positions.iter().map(one).collect::<Result<Vec<_>, _>>()?;
                check_lengths(names, &arrays)?;
                Ok(vec![arrays])
            }
        }
    }

    /// Reads all rows as batches.
    pub fn collect(self) -> Result<(SchemaRef, Vec<RecordBatch>), Failure> {
        let (schema, batches) = self.batches()?;
        Ok((schema, batches.collect::<Result<_, _>>()?))
    }

    /// Reads all rows, one batch after the other. It holds no more batches than the source does.
    pub fn batches(self) -> Result<(SchemaRef, Batches), Failure> {
        match self {
            Rows::Stream(reader) => Ok((reader.schema(), Box::new(guarded(reader).map(|batch| Ok(batch?))))),
            Rows::Mapping(columns) => {
                let taken = || columns.iter().filter_map(|(name, column)| Some((name.as_str(), column.as_ref()?)));
                let names: Vec<&str> = taken().map(|(name, _)| name).collect();
                let arrays = taken().map(|(_, column)| column.one_array()).collect::<Result<Vec<_>, _>>()?;
                check_lengths(&names, &arrays)?;
                let columns = names.into_iter().zip(arrays).map(|(name, array)| (name, array, true));
                let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
                Ok((batch.schema(), Box::new(std::iter::once(Ok(batch)))))
            }
        }
    }
}

/// The batches of a stream. Arrow's import panics on some valid data, such as slices of structs in structs.
fn guarded(
    mut reader: Box<dyn RecordBatchReader + Send>,
) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send {
    std::iter::from_fn(move || without_panic(|| reader.next()))
}

impl Column {
    /// The values as one array that no other code writes. They are read more than once, for validation and judging.
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

/// Copies numbers. Returns `Failure::Memory` if there is no memory.
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
