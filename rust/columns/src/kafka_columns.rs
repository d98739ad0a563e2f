//! Converts headers and records to Arrow. Texts that are equal in all rows are built once and reused.

use arrow_array::builder::{ArrayBuilder, BooleanBufferBuilder, Int32Builder, StringBuilder};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, StructArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use fencepost_kafka::{BatchColumns, Bytes, Compression, RecordColumns};
use std::path::Path;
use std::sync::Arc;

fn required(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, false)
}

fn optional(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, true)
}

/// The same text, or null, in every row.
#[derive(Default)]
struct Constant {
    text: Option<String>,
    rows: Option<StringArray>,
}

impl Constant {
    fn new(text: Option<String>) -> Constant {
        Constant { text, rows: None }
    }

    fn set(&mut self, text: Option<&str>) {
        if self.text.as_deref() != text {
            *self = Constant::new(text.map(str::to_string));
        }
    }

    fn rows(&mut self, rows: usize) -> ArrayRef {
        let has_enough = |array: &StringArray| array.len() >= rows;
        if !self.rows.as_ref().is_some_and(has_enough) {
            self.rows = Some(match &self.text {
                None => StringArray::new_null(rows),
                Some(text) => std::iter::repeat_n(Some(text), rows).collect(),
            });
        }
        let rows = self.rows.as_ref().map(|array| array.slice(0, rows));
        Arc::new(rows.unwrap_or_else(|| unreachable!("made just now")))
    }
}

/// Topic and partition, the same in every row.
struct Place {
    topic: Constant,
    partition: Option<i32>,
}

impl Place {
    fn columns(&mut self, rows: usize) -> [ArrayRef; 2] {
        let partition = match self.partition {
            Some(partition) => Int32Array::from_value(partition, rows),
            None => Int32Array::new_null(rows),
        };
        [self.topic.rows(rows), Arc::new(partition)]
    }
}

/// Builds the record batches of `read_batches`.
pub struct BatchArrays {
    place: Place,
    segment: Constant,
    timestamp_type: Constant,
    compression: Constant,
    no_control: Constant,
    schema: SchemaRef,
}

impl BatchArrays {
    /// Topic and partition of all rows.
    pub fn new(topic: Option<String>, partition: Option<i32>) -> BatchArrays {
        let schema = Schema::new(vec![
            optional("topic", DataType::Utf8),
            optional("partition", DataType::Int32),
            required("segment", DataType::Utf8),
            required("position", DataType::Int64),
            required("bytes", DataType::Int32),
            required("base_offset", DataType::Int64),
            required("last_offset", DataType::Int64),
            required("count", DataType::Int32),
            required("pid", DataType::Int64),
            required("epoch", DataType::Int16),
            required("base_seq", DataType::Int32),
            required("last_seq", DataType::Int32),
            required("max_timestamp", DataType::Int64),
            required("timestamp_type", DataType::Utf8),
            required("transactional", DataType::Boolean),
            optional("control", DataType::Utf8),
            optional("coordinator_epoch", DataType::Int32),
            required("compression", DataType::Utf8),
            required("leader_epoch", DataType::Int32),
        ]);
        BatchArrays {
            place: Place { topic: Constant::new(topic), partition },
            segment: Constant::default(),
            timestamp_type: Constant::default(),
            compression: Constant::default(),
            no_control: Constant::default(),
            schema: Arc::new(schema),
        }
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// `path`: the path of the segment; the column has its file name.
    pub fn batch(&mut self, path: &str, columns: BatchColumns) -> RecordBatch {
        let rows = columns.len();
        let name = Path::new(path).file_name().map(|name| name.to_string_lossy());
        self.segment.set(Some(name.as_deref().unwrap_or(path)));
        let [topic, partition] = self.place.columns(rows);
        let (control, coordinator_epoch) = self.control(&columns);
        let timestamp_type = by_attributes(&mut self.timestamp_type, &columns.attributes, timestamp_type);
        let compression = by_attributes(&mut self.compression, &columns.attributes, compression);
        let transactional: BooleanArray = (0..rows).map(|row| Some(columns.is_transactional(row))).collect();
        let arrays: Vec<ArrayRef> = vec![
            topic,
            partition,
            self.segment.rows(rows),
            Arc::new(Int64Array::from(columns.position)),
            Arc::new(Int32Array::from(columns.bytes)),
            Arc::new(Int64Array::from(columns.base_offset)),
            Arc::new(Int64Array::from(columns.last_offset)),
            Arc::new(Int32Array::from(columns.count)),
            Arc::new(Int64Array::from(columns.pid)),
            Arc::new(Int16Array::from(columns.epoch)),
            Arc::new(Int32Array::from(columns.base_seq)),
            Arc::new(Int32Array::from(columns.last_seq)),
            Arc::new(Int64Array::from(columns.max_timestamp)),
            timestamp_type,
            Arc::new(transactional),
            control,
            coordinator_epoch,
            compression,
            Arc::new(Int32Array::from(columns.leader_epoch)),
        ];
        RecordBatch::try_new(self.schema.clone(), arrays).expect("columns of one length with the types of their fields")
    }

    fn control(&mut self, columns: &BatchColumns) -> (ArrayRef, ArrayRef) {
        let rows = columns.len();
        if columns.markers.is_empty() {
            return (self.no_control.rows(rows), Arc::new(Int32Array::new_null(rows)));
        }
        let (mut control, mut epoch) = (StringBuilder::new(), Int32Builder::with_capacity(rows));
        for marker in &columns.markers {
            let before = marker.row as usize - epoch.len();
            control.append_nulls(before);
            epoch.append_nulls(before);
            control.append_value(marker.control.name());
            epoch.append_option(marker.coordinator_epoch);
        }
        control.append_nulls(rows - epoch.len());
        epoch.append_nulls(rows - epoch.len());
        (Arc::new(control.finish()), Arc::new(epoch.finish()))
    }
}

fn timestamp_type(attributes: u8) -> &'static str {
    if attributes & fencepost_kafka::LOG_APPEND_TIME == 0 { "CreateTime" } else { "LogAppendTime" }
}

fn compression(attributes: u8) -> &'static str {
    Compression::of(attributes).map_or("", Compression::name)
}

/// A text per row; in most cases all are equal.
fn by_attributes(constant: &mut Constant, attributes: &[u8], text: fn(u8) -> &'static str) -> ArrayRef {
    let Some((&first, others)) = attributes.split_first() else { return Arc::new(StringArray::new_null(0)) };
    if others.iter().all(|&other| other == first) || others.iter().all(|&other| text(other) == text(first)) {
        constant.set(Some(text(first)));
        return constant.rows(attributes.len());
    }
    Arc::new(attributes.iter().map(|&attributes| Some(text(attributes))).collect::<StringArray>())
}

fn header_fields() -> Fields {
    Fields::from(vec![required("key", DataType::Utf8), optional("value", DataType::Binary)])
}

/// Builds the record batches of `read_records`.
pub struct RecordArrays {
    place: Place,
    schema: SchemaRef,
}

impl RecordArrays {
    /// Topic and partition of all rows.
    pub fn new(topic: Option<String>, partition: Option<i32>) -> RecordArrays {
        let header = Arc::new(Field::new_list_field(DataType::Struct(header_fields()), false));
        let schema = Schema::new(vec![
            optional("topic", DataType::Utf8),
            optional("partition", DataType::Int32),
            required("offset", DataType::Int64),
            required("timestamp", DataType::Int64),
            optional("key", DataType::Binary),
            optional("value", DataType::Binary),
            required("headers", DataType::List(header)),
            optional("pid", DataType::Int64),
            optional("epoch", DataType::Int16),
            optional("seq", DataType::Int32),
        ]);
        RecordArrays { place: Place { topic: Constant::new(topic), partition }, schema: Arc::new(schema) }
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Converts records to a batch.
    pub fn batch(&mut self, columns: RecordColumns) -> RecordBatch {
        let [topic, partition] = self.place.columns(columns.len());
        let no_pid = nulls_of(columns.pid.iter().map(|&pid| pid >= 0));
        let no_seq = nulls_of(columns.seq.iter().map(|&seq| seq >= 0));
        let header_keys = columns.header_key;
        let keys = StringArray::try_new(offsets(header_keys.offsets), Buffer::from_vec(header_keys.bytes), None);
        let headers = StructArray::new(
            header_fields(),
            vec![Arc::new(keys.expect("made of UTF-8")), Arc::new(binary(columns.header_value))],
            None,
        );
        let header = Arc::new(Field::new_list_field(DataType::Struct(header_fields()), false));
        let headers = ListArray::new(header, offsets(columns.header_offsets), Arc::new(headers), None);
        let arrays: Vec<ArrayRef> = vec![
            topic,
            partition,
            Arc::new(Int64Array::from(columns.offset)),
            Arc::new(Int64Array::from(columns.timestamp)),
            Arc::new(binary(columns.key)),
            Arc::new(binary(columns.value)),
            Arc::new(headers),
            Arc::new(Int64Array::new(columns.pid.into(), no_pid.clone())),
            Arc::new(Int16Array::new(columns.epoch.into(), no_pid)),
            Arc::new(Int32Array::new(columns.seq.into(), no_seq)),
        ];
        RecordBatch::try_new(self.schema.clone(), arrays).expect("columns of one length with the types of their fields")
    }
}

fn offsets(offsets: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(offsets))
}

fn nulls_of(valid: impl Iterator<Item = bool> + Clone) -> Option<NullBuffer> {
    let has_nulls = !valid.clone().all(|is_valid| is_valid);
    has_nulls.then(|| NullBuffer::from_iter(valid))
}

fn binary(column: Bytes) -> BinaryArray {
    let rows = column.len();
    let nulls = (!column.nulls.is_empty()).then(|| {
        let mut valid = BooleanBufferBuilder::new(rows);
        valid.append_n(rows, true);
        column.nulls.iter().for_each(|&row| valid.set_bit(row as usize, false));
        NullBuffer::new(valid.finish())
    });
    BinaryArray::new(offsets(column.offsets), Buffer::from_vec(column.bytes), nulls)
}
