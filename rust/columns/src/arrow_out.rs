//! Converts entries and missing ranges to Arrow, and entries back.

use crate::failure::Failure;
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, Int64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use fencepost_core::{
    Dictionary, Entry, Epochs, Hole, KeyKind, KeySpace, Keys, Missing, PartKind, PartValue, ProducerEntry, Stale,
    StateTable, WindowBatch, decode_parts,
};
use std::collections::HashMap;
use std::sync::Arc;

/// The columns of a pid or a partition: `pid`, or `pid_0`, `pid_1` … if it has several parts.
pub(crate) fn key_columns(name: &str, space: &KeySpace, plain: DataType, numbers: &[i64]) -> Vec<(Field, ArrayRef)> {
    let parts = match space.kind() {
        KeyKind::Plain if plain == DataType::Int32 => {
            let values: Int32Array = numbers.iter().map(|&value| value as i32).collect();
            return vec![(Field::new(name, plain, false), Arc::new(values) as ArrayRef)];
        }
        KeyKind::Plain => {
            let values = Int64Array::from(numbers.to_vec());
            return vec![(Field::new(name, plain, false), Arc::new(values) as ArrayRef)];
        }
        KeyKind::Parts(parts) => parts,
    };
    let column = |(at, &kind): (usize, &PartKind)| {
        let array = part_column(kind, at, parts, &space.dictionary, numbers);
        let name = if parts.len() == 1 { name.to_string() } else { format!("{name}_{at}") };
        (Field::new(name, array.data_type().clone(), false), array)
    };
    parts.iter().enumerate().map(column).collect()
}

/// One part of each key. This crate encoded the keys, so they can be decoded.
fn part_column(kind: PartKind, at: usize, parts: &[PartKind], dictionary: &Dictionary, numbers: &[i64]) -> ArrayRef {
    let values = numbers.iter().map(|&number| {
        let mut values = decode_parts(parts, dictionary.bytes(number as u32)).expect("encoded when it was numbered");
        values.swap_remove(at)
    });
    let bytes = |value: PartValue| match value {
        PartValue::Bytes(bytes) => bytes,
        PartValue::Int(_) => unreachable!("a part of bytes holds bytes"),
    };
    match kind {
        PartKind::Int => {
            let mut out = Int64Builder::new();
            values.for_each(|value| match value {
                PartValue::Int(value) => out.append_value(value),
                PartValue::Bytes(_) => unreachable!("an integer part holds integers"),
            });
            Arc::new(out.finish())
        }
        PartKind::Utf8 => {
            let mut out = StringBuilder::new();
            values.for_each(|value| out.append_value(String::from_utf8_lossy(&bytes(value))));
            Arc::new(out.finish())
        }
        PartKind::Binary => {
            let mut out = BinaryBuilder::new();
            values.for_each(|value| out.append_value(bytes(value)));
            Arc::new(out.finish())
        }
        PartKind::FixedBinary(count) => {
            // Without a capacity, the builder allocates a thousand values, however long they are.
            let mut out = FixedSizeBinaryBuilder::with_capacity(numbers.len(), count as i32);
            values.for_each(|value| out.append_value(bytes(value)).expect("of that length when it was numbered"));
            Arc::new(out.finish())
        }
    }
}

pub(crate) fn batch(columns: Vec<(Field, ArrayRef)>, metadata: HashMap<String, String>) -> RecordBatch {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let schema = Schema::new(fields).with_metadata(metadata);
    RecordBatch::try_new(Arc::new(schema), arrays).expect("columns of one length with the types of their fields")
}

pub(crate) fn ints(name: &str, values: impl Iterator<Item = i64>) -> (Field, ArrayRef) {
    (Field::new(name, DataType::Int64, false), Arc::new(Int64Array::from_iter_values(values)))
}

/// Whether the policy of the table has epochs.
pub fn has_epochs(table: &StateTable) -> bool {
    table.policy().epochs != Epochs::Ignore
}

/// The key columns of pid and partition, and the epoch, which is null if there are none.
fn identity_columns(
    keys: &Keys,
    has_epochs: bool,
    of: impl Iterator<Item = (i64, i32, i16)>,
) -> Vec<(Field, ArrayRef)> {
    let mut identities = Identities::with_capacity(of.size_hint().0);
    of.for_each(|key| identities.push(key));
    identities.columns(keys, has_epochs)
}

/// Pids, partitions and epochs of rows.
struct Identities {
    pids: Vec<i64>,
    partitions: Vec<i64>,
    epochs: Vec<i16>,
}

impl Identities {
    fn with_capacity(rows: usize) -> Identities {
        Identities {
            pids: Vec::with_capacity(rows),
            partitions: Vec::with_capacity(rows),
            epochs: Vec::with_capacity(rows),
        }
    }

    #[inline]
    fn push(&mut self, (pid, partition, epoch): (i64, i32, i16)) {
        self.pids.push(pid);
        self.partitions.push(partition.into());
        self.epochs.push(epoch);
    }

    fn columns(self, keys: &Keys, has_epochs: bool) -> Vec<(Field, ArrayRef)> {
        let mut columns = key_columns("pid", &keys.pid, DataType::Int64, &self.pids);
        columns.extend(key_columns("partition", &keys.partition, DataType::Int32, &self.partitions));
        let epochs = match has_epochs {
            true => Int16Array::from(self.epochs),
            false => Int16Array::new_null(self.epochs.len()),
        };
        columns.push((Field::new("epoch", DataType::Int16, !has_epochs), Arc::new(epochs)));
        columns
    }
}

/// Maximum number of rows of a batch, and of bytes of its keys: Arrow's strings have 32-bit offsets.
const BATCH_ROWS: usize = 1 << 16;
const BATCH_BYTES: usize = 1 << 30;

/// Converts items to batches, some at a time, so that few exist twice. There is at least one batch, which can be empty.
/// `weight`: how much an item adds to 32-bit offsets, in bytes of keys or items of a list.
pub(crate) fn in_batches<T>(
    items: impl Iterator<Item = T>,
    weight: impl Fn(&T) -> usize,
    batch: impl Fn(&[T]) -> RecordBatch,
) -> Vec<RecordBatch> {
    let mut items = items.peekable();
    let mut batches = Vec::new();
    loop {
        let (mut some, mut total) = (Vec::new(), 0_usize);
        while let Some(item) = items.next_if(|item| {
            total = total.saturating_add(weight(item));
            some.is_empty() || (some.len() < BATCH_ROWS && total <= BATCH_BYTES)
        }) {
            some.push(item);
        }
        if some.is_empty() && !batches.is_empty() {
            return batches;
        }
        batches.push(batch(&some));
    }
}

/// Number of bytes of a key that is not a plain integer.
pub(crate) fn bytes_of_key(keys: &Keys, pid: i64, partition: i32) -> usize {
    keys.pid.bytes_of(pid).saturating_add(keys.partition.bytes_of(partition.into()))
}

/// All missing ranges of a table as batches: key columns, epoch, first_seq, last_seq, count. There is at least one
/// batch, which can be empty.
pub fn missing_batches(table: &StateTable) -> Vec<RecordBatch> {
    let mut batches = MissingBatches::new(table.keys(), has_epochs(table), table.holes());
    table.for_each_missing(|range| batches.push(&range));
    batches.finish()
}

/// Some missing ranges as batches like those of [`missing_batches`].
pub fn listed_batches(keys: &Keys, has_epochs: bool, missing: impl Iterator<Item = Missing>) -> Vec<RecordBatch> {
    let mut batches = MissingBatches::new(keys, has_epochs, missing.size_hint().0);
    missing.for_each(|range| batches.push(&range));
    batches.finish()
}

/// Appends each value directly to its column, because a table with many gaps has millions of ranges.
struct MissingBatches<'a> {
    keys: &'a Keys,
    has_epochs: bool,
    batches: Vec<RecordBatch>,
    next: MissingColumns,
    /// In the next batch.
    key_bytes: usize,
}

/// The columns of a batch.
struct MissingColumns {
    identities: Identities,
    first_seq: Vec<i64>,
    last_seq: Vec<i64>,
    count: Vec<i64>,
}

impl MissingColumns {
    fn with_capacity(rows: usize) -> MissingColumns {
        let numbers = || Vec::with_capacity(rows);
        let identities = Identities::with_capacity(rows);
        MissingColumns { identities, first_seq: numbers(), last_seq: numbers(), count: numbers() }
    }
}

impl<'a> MissingBatches<'a> {
    /// `ranges`: the expected number of ranges.
    fn new(keys: &'a Keys, has_epochs: bool, ranges: usize) -> MissingBatches<'a> {
        let next = MissingColumns::with_capacity(ranges.min(BATCH_ROWS));
        MissingBatches { keys, has_epochs, batches: Vec::new(), next, key_bytes: 0 }
    }

    #[inline]
    fn push(&mut self, range: &Missing) {
        let key_bytes = bytes_of_key(self.keys, range.pid, range.partition);
        let rows = self.next.count.len();
        if rows == BATCH_ROWS || (rows > 0 && self.key_bytes.saturating_add(key_bytes) > BATCH_BYTES) {
            self.end_batch(rows);
        }
        self.key_bytes = self.key_bytes.saturating_add(key_bytes);
        let next = &mut self.next;
        next.identities.push((range.pid, range.partition, range.epoch));
        next.first_seq.push(range.first_seq);
        next.last_seq.push(range.last_seq);
        next.count.push(range.count as i64);
    }

    /// `rows`: the expected number of rows of the batch that follows.
    #[cold]
    fn end_batch(&mut self, rows: usize) {
        let new = MissingColumns::with_capacity(rows);
        let MissingColumns { identities, first_seq, last_seq, count } = std::mem::replace(&mut self.next, new);
        let mut columns = identities.columns(self.keys, self.has_epochs);
        for (name, values) in [("first_seq", first_seq), ("last_seq", last_seq), ("count", count)] {
            columns.push((Field::new(name, DataType::Int64, false), Arc::new(Int64Array::from(values))));
        }
        self.batches.push(batch(columns, HashMap::new()));
        self.key_bytes = 0;
    }

    fn finish(mut self) -> Vec<RecordBatch> {
        if self.batches.is_empty() || !self.next.count.is_empty() {
            self.end_batch(0);
        }
        self.batches
    }
}

/// Stale rows as batches: key columns, epoch, count.
pub(crate) fn stale_batches(keys: &Keys, has_epochs: bool, stale: &[Stale]) -> Vec<RecordBatch> {
    let weight = |it: &Stale| bytes_of_key(keys, it.pid, it.partition);
    in_batches(stale.iter().copied(), weight, |some| stale_batch(keys, has_epochs, some))
}

/// Producers as batches of [`producers_batch`].
pub fn producers_batches(keys: &Keys, entries: impl Iterator<Item = ProducerEntry>) -> Vec<RecordBatch> {
    let weight = |it: &ProducerEntry| bytes_of_key(keys, it.pid, it.partition);
    in_batches(entries, weight, |some| producers_batch(keys, some))
}

fn stale_batch(keys: &Keys, has_epochs: bool, stale: &[Stale]) -> RecordBatch {
    let mut columns = identity_columns(keys, has_epochs, stale.iter().map(|it| (it.pid, it.partition, it.epoch)));
    columns.push(ints("count", stale.iter().map(|it| it.rows as i64)));
    batch(columns, HashMap::new())
}

/// The producer state of a table of produce batches.
fn producers_batch(keys: &Keys, entries: &[ProducerEntry]) -> RecordBatch {
    let mut columns = identity_columns(keys, true, entries.iter().map(|it| (it.pid, it.partition, it.epoch)));
    let known = |number: i64| (number != -1).then_some(number);
    let coordinators: Int32Array = entries.iter().map(|it| Some(it.coordinator_epoch).filter(|&it| it != -1)).collect();
    columns.push((Field::new("coordinator_epoch", DataType::Int32, true), Arc::new(coordinators)));
    columns.push(optional_ints("last_timestamp", entries.iter().map(|it| known(it.last_timestamp))));
    let open: BooleanArray = entries.iter().map(|it| Some(it.is_open)).collect();
    columns.push((Field::new("transaction_open", DataType::Boolean, false), Arc::new(open)));
    columns.push(optional_ints("transaction_first_offset", entries.iter().map(|it| known(it.open_from))));
    columns.push(batches_column(entries));
    batch(columns, HashMap::new())
}

fn batches_column(entries: &[ProducerEntry]) -> (Field, ArrayRef) {
    let batches = || entries.iter().flat_map(|entry| &entry.batches);
    let seqs = |of: fn(&WindowBatch) -> i32| -> ArrayRef {
        Arc::new(batches().map(of).map(|seq| Some(seq).filter(|&seq| seq != -1)).collect::<Int32Array>())
    };
    let offsets = |of: fn(&WindowBatch) -> i64| -> ArrayRef {
        Arc::new(batches().map(of).map(|offset| Some(offset).filter(|&offset| offset != -1)).collect::<Int64Array>())
    };
    let field = |name, kind| Field::new(name, kind, true);
    let fields = Fields::from(vec![
        field("first_seq", DataType::Int32),
        field("last_seq", DataType::Int32),
        field("first_offset", DataType::Int64),
        field("last_offset", DataType::Int64),
    ]);
    let columns = vec![
        seqs(WindowBatch::first_seq),
        seqs(|batch| batch.last_seq),
        offsets(WindowBatch::first_offset),
        offsets(|batch| batch.last_offset),
    ];
    let structs = StructArray::new(fields.clone(), columns, None);
    let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
    let lengths = OffsetBuffer::from_lengths(entries.iter().map(|entry| entry.batches.len()));
    let lists = ListArray::new(item, lengths, Arc::new(structs), None);
    (Field::new("batches", lists.data_type().clone(), false), Arc::new(lists))
}

fn hole_fields() -> Fields {
    Fields::from(vec![
        Field::new("first", DataType::Int64, false),
        Field::new("last", DataType::Int64, false),
        Field::new("timestamp", DataType::Int64, true),
    ])
}

fn holes_column(entries: &[Entry]) -> (Field, ArrayRef) {
    let holes = || entries.iter().flat_map(|entry| &entry.holes);
    let structs = StructArray::new(
        hole_fields(),
        vec![
            Arc::new(Int64Array::from_iter_values(holes().map(|hole| hole.first))),
            Arc::new(Int64Array::from_iter_values(holes().map(|hole| hole.last))),
            Arc::new(holes().map(|hole| hole.timestamp).collect::<Int64Array>()),
        ],
        None,
    );
    let item = Arc::new(Field::new_list_field(DataType::Struct(hole_fields()), false));
    let offsets = OffsetBuffer::from_lengths(entries.iter().map(|entry| entry.holes.len()));
    let list = ListArray::new(item.clone(), offsets, Arc::new(structs), None);
    (Field::new("holes", DataType::List(item), false), Arc::new(list))
}

pub(crate) fn optional_ints(name: &str, values: impl Iterator<Item = Option<i64>>) -> (Field, ArrayRef) {
    (Field::new(name, DataType::Int64, true), Arc::new(values.collect::<Int64Array>()))
}

/// Key columns, epoch, first, last, holes, final_first, final_last, last_timestamp.
pub(crate) fn entries_batch(table: &StateTable, entries: &[Entry], metadata: HashMap<String, String>) -> RecordBatch {
    let mut columns =
        identity_columns(table.keys(), has_epochs(table), entries.iter().map(|it| (it.pid, it.partition, it.epoch)));
    columns.push(ints("first", entries.iter().map(|it| it.first)));
    columns.push(ints("last", entries.iter().map(|it| it.last)));
    columns.push(holes_column(entries));
    columns.push(optional_ints("final_first", entries.iter().map(|it| it.final_range.map(|range| range.0))));
    columns.push(optional_ints("final_last", entries.iter().map(|it| it.final_range.map(|range| range.1))));
    columns.push(optional_ints("last_timestamp", entries.iter().map(|it| it.last_timestamp)));
    batch(columns, metadata)
}

/// The columns `pid` and `partition`, or their parts, as a stream of entries names them.
pub(crate) fn key_names(schema: &SchemaRef, name: &str) -> Result<Vec<String>, Failure> {
    if schema.field_with_name(name).is_ok() {
        return Ok(vec![name.into()]);
    }
    let part = |at: usize| format!("{name}_{at}");
    let parts: Vec<_> = (0..).map(part).take_while(|part| schema.field_with_name(part).is_ok()).collect();
    if parts.is_empty() { Err(missing(name)) } else { Ok(parts) }
}

fn missing(name: &str) -> Failure {
    Failure::batch(name, None, "missing; pass the columns that StateTable.entries() returns")
}

/// The entries of a batch, without their keys. Columns of final ranges and timestamps are optional. `rows_before`:
/// number of rows of the stream before this batch.
pub(crate) fn entries_of(batch: &RecordBatch, has_epochs: bool, rows_before: usize) -> Result<Vec<Entry>, Failure> {
    let column = |name| EntryColumn::read(batch, name, &DataType::Int64, rows_before);
    let epochs = match has_epochs {
        true => EntryColumn::read(batch, "epoch", &DataType::Int16, rows_before)?,
        false => EntryColumn::nulls("epoch", batch.num_rows()),
    };
    let (first, last) = (column("first")?, column("last")?);
    let [final_first, final_last, last_timestamp] = ["final_first", "final_last", "last_timestamp"].map(|name| {
        let is_there = batch.column_by_name(name).is_some();
        if is_there { column(name) } else { Ok(EntryColumn::nulls(name, batch.num_rows())) }
    });
    let (final_first, final_last, last_timestamp) = (final_first?, final_last?, last_timestamp?);
    let holes = HoleLists::read(batch, rows_before)?;
    let entry = |row: usize| {
        let final_range = match (final_first.get(row), final_last.get(row)) {
            (None, None) => None,
            _ => Some((final_first.must(row)?, final_last.must(row)?)),
        };
        Ok(Entry {
            pid: 0,
            partition: 0,
            epoch: if has_epochs { epochs.must(row)? as i16 } else { 0 },
            first: first.must(row)?,
            last: last.must(row)?,
            holes: holes.of_entry(row)?,
            final_range,
            last_timestamp: last_timestamp.get(row),
        })
    };
    (0..batch.num_rows()).map(entry).collect()
}

/// A numeric column of entries.
struct EntryColumn<'a> {
    name: &'a str,
    rows_before: usize,
    values: Int64Array,
}

impl<'a> EntryColumn<'a> {
    /// Reads a column. Every value must fit `kind`; the caller handles nulls.
    fn read(batch: &RecordBatch, name: &'a str, kind: &DataType, rows_before: usize) -> Result<Self, Failure> {
        let column = batch.column_by_name(name).ok_or_else(|| missing(name))?;
        if !column.data_type().is_integer() && !column.data_type().is_null() {
            return Err(wrong_entries(name, column));
        }
        let narrow = arrow_cast::cast(column, kind).map_err(|_| wrong_entries(name, column))?;
        if let Some(row) = (0..column.len()).find(|&row| narrow.is_null(row) && !column.is_null(row)) {
            let value = arrow_cast::display::array_value_to_string(column, row)?;
            let range = if *kind == DataType::Int16 { "0..=32767" } else { "the 64-bit integers" };
            return Err(Failure::batch(name, Some(rows_before + row), format!("value {value} is outside {range}")));
        }
        let values = arrow_cast::cast(&narrow, &DataType::Int64)?.as_primitive().clone();
        Ok(EntryColumn { name, rows_before, values })
    }

    fn nulls(name: &'a str, rows: usize) -> Self {
        EntryColumn { name, rows_before: 0, values: Int64Array::new_null(rows) }
    }

    fn get(&self, row: usize) -> Option<i64> {
        self.values.is_valid(row).then(|| self.values.value(row))
    }

    fn must(&self, row: usize) -> Result<i64, Failure> {
        let null = || Failure::batch(self.name, Some(self.rows_before + row), "null, but this entry needs a value");
        self.get(row).ok_or_else(null)
    }
}

/// The holes of entries: lists of struct (first, last, timestamp).
struct HoleLists {
    rows_before: usize,
    lists: ListArray,
}

impl HoleLists {
    fn read(batch: &RecordBatch, rows_before: usize) -> Result<Self, Failure> {
        let holes = batch.column_by_name("holes").ok_or_else(|| missing("holes"))?;
        let fields: Fields = hole_fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let list = DataType::new_list(DataType::Struct(fields), true);
        let lists = arrow_cast::cast(holes, &list).map_err(|_| wrong_entries("holes", holes))?;
        Ok(HoleLists { rows_before, lists: lists.as_list().clone() })
    }

    fn of_entry(&self, row: usize) -> Result<Vec<Hole>, Failure> {
        if self.lists.is_null(row) {
            return Ok(vec![]);
        }
        let structs = self.lists.value(row);
        let structs = structs.as_struct();
        let [first, last, timestamp] = [0, 1, 2].map(|at| structs.column(at).as_primitive::<Int64Type>());
        let hole = |at: usize| {
            if structs.is_null(at) || first.is_null(at) || last.is_null(at) {
                return Err(Failure::batch("holes", Some(self.rows_before + row), "a hole, its first or last is null"));
            }
            let timestamp = timestamp.is_valid(at).then(|| timestamp.value(at));
            Ok(Hole { first: first.value(at), last: last.value(at), timestamp })
        };
        (0..structs.len()).map(hole).collect()
    }
}

fn wrong_entries(name: &str, column: &ArrayRef) -> Failure {
    let expected = if name == "holes" { "lists of structs of first, last and timestamp" } else { "integers" };
    let problem = format!("is of type {}, but StateTable.entries() returns {expected}", column.data_type());
    Failure::batch(name, None, problem)
}
