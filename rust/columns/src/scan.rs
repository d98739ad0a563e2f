//! Reads the rows of a Parquet file as spans, split by shard.

use crate::failure::Failure;
use crate::identity::{Chunk, ColumnNames, Identity, Parts};
use crate::shards::{key_ref, shard_of};
use crate::spans::{Spans, cut_where};
use arrow_array::{
    Array, ArrayRef, Int16Array, Int32Array, Int64Array, NullArray, RecordBatch, StringViewArray, UInt32Array,
    UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat;
use arrow_select::take::take;
use fencepost_core::{Batch, Domain, Error, Keys, Seqs, Untracked, find_spans};
use fencepost_lake as lake;
use std::collections::HashMap;
use std::iter::repeat_n;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of rows that are decoded at a time. Smaller numbers were not faster.
const BATCH_ROWS: usize = 1 << 16;

/// The value of a column that is in the name of a folder.
#[derive(Debug)]
pub enum Constant {
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
}

/// The options of a scan.
pub struct ScanOptions {
    /// The identity columns.
    pub names: ColumnNames,
    /// Columns whose values are equal in all rows of a span.
    pub order_by: Vec<String>,
    /// Whether each row is a span.
    pub by_row: bool,
    /// Number of shards.
    pub shards: u32,
    /// The number of the file, which each span has in `_file`.
    pub ordinal: u32,
    /// The greatest sequence number.
    pub seq_max: i64,
}

/// Reads the identity columns of a Parquet file, and returns its rows as spans, split by shard.
pub struct Scan {
    path: PathBuf,
    options: ScanOptions,
    columns: lake::Columns,
    /// The origin of each identity column, in the order of `ColumnNames::all`.
    identity: Vec<Origin>,
    /// The `order_by` columns, which are equal within a span and returned beside the identity.
    order: Vec<Order>,
    is_broken: bool,
    /// The next row of the file.
    row: u64,
    /// Spans by shard, since the last call.
    held: Vec<PendingSpans>,
    spans_held: u64,
    /// The span of the last row, if the next row can continue it.
    open: Option<OpenSpan>,
    spans: u64,
    untracked: u64,
    newest_timestamp: Option<i64>,
    scratch: Scratch,
}

enum Origin {
    /// A column of the file, by its index among those that are read.
    File(usize),
    /// The same value in every row, for as many rows as are decoded at a time.
    Constant(ArrayRef),
}

struct Order {
    name: String,
    origin: Origin,
}

/// Columns of spans.
#[derive(Default)]
struct PendingSpans {
    columns: Vec<Values>,
    lengths: Vec<u32>,
    rows: Vec<u64>,
}

enum Values {
    I64(Vec<i64>),
    I32(Vec<i32>),
    I16(Vec<i16>),
    Arrays(Vec<ArrayRef>),
}

struct OpenSpan {
    shard: usize,
    pid: Vec<u8>,
    partition: Vec<u8>,
    epoch: Option<i16>,
    seq: i64,
    timestamp: Option<i64>,
    order: Vec<ArrayRef>,
}

/// Buffers that are reused for every batch.
#[derive(Default)]
struct Scratch {
    starts: Vec<u32>,
    cut: Vec<u32>,
    spans: Spans,
}

impl Scan {
    /// `constants`: values of columns that are not read from the file.
    pub fn open(
        file: &lake::ParquetFile,
        groups: Range<usize>,
        options: ScanOptions,
        constants: HashMap<String, Option<Constant>>,
    ) -> Result<Scan, Failure> {
        let constants: HashMap<String, ArrayRef> =
            constants.into_iter().map(|(name, value)| (name, constant(value))).collect();
        let origin = |name: &str, file_columns: &mut Vec<String>| match constants.get(name) {
            Some(values) => Origin::Constant(values.clone()),
            None => Origin::File(file_columns.iter().position(|it| it == name).unwrap_or_else(|| {
                file_columns.push(name.to_string());
                file_columns.len() - 1
            })),
        };
        let mut file_columns: Vec<String> = Vec::new();
        let names = &options.names;
        let identity = names.all().into_iter().map(|name| origin(name, &mut file_columns)).collect();
        let mut order: Vec<Order> = Vec::new();
        for name in &options.order_by {
            let is_known = order.iter().any(|it| it.name == *name)
                || names.keys().contains(&name.as_str())
                || names.epoch.as_ref() == Some(name);
            if !is_known {
                order.push(Order { name: name.clone(), origin: origin(name, &mut file_columns) });
            }
        }
        let read: Vec<&str> = file_columns.iter().map(String::as_str).collect();
        let row = file.first_row(groups.start);
        let columns = lake::Columns::open(file, groups, &read, BATCH_ROWS)?;
        let held = (0..options.shards).map(|_| PendingSpans::default()).collect();
        Ok(Scan {
            path: file.path().into(),
            options,
            columns,
            identity,
            order,
            is_broken: false,
            row,
            held,
            spans_held: 0,
            open: None,
            spans: 0,
            untracked: 0,
            newest_timestamp: None,
            scratch: Scratch::default(),
        })
    }

    /// Number of spans that [`Scan::take_spans`] would return.
    pub fn spans_held(&self) -> u64 {
        self.spans_held
    }

    /// Number of spans so far.
    pub fn spans(&self) -> u64 {
        self.spans
    }

    /// Number of rows without a producer so far. They are not part of any span.
    pub fn untracked(&self) -> u64 {
        self.untracked
    }

    /// The greatest timestamp so far of rows with a producer, in milliseconds.
    pub fn newest_timestamp(&self) -> Option<i64> {
        self.newest_timestamp
    }

    /// Reads the next rows. Returns false at the end of the file.
    pub fn step(&mut self) -> Result<bool, Failure> {
        if self.is_broken {
            let message = format!("{}: an earlier read failed midway; open the file again", self.path.display());
            return Err(Failure::Source { path: self.path.display().to_string(), position: None, message });
        }
        self.is_broken = true;
        let has_more = match self.columns.next_batch()? {
            None => false,
            Some((rows, columns)) => {
                self.take_in(rows, &columns).map_err(|failure| failure.in_file(&self.path))?;
                self.row += rows as u64;
                true
            }
        };
        self.is_broken = false;
        Ok(has_more)
    }

    fn take_in(&mut self, rows: usize, columns: &[ArrayRef]) -> Result<(), Failure> {
        let of_origin = |origin: &Origin| match origin {
            Origin::File(place) => columns[*place].clone(),
            Origin::Constant(values) => values.slice(0, rows),
        };
        let rows_before = self.row as usize;
        let identity = self.identity.iter().map(of_origin).collect();
        let order: Vec<ArrayRef> = self.order.iter().map(|it| of_origin(&it.origin)).collect();
        for (column, Order { name, .. }) in order.iter().zip(&self.order) {
            if let Some(row) = column.logical_nulls().and_then(|nulls| (0..rows).find(|&row| nulls.is_null(row))) {
                return Err(Failure::batch(name, Some(rows_before + row), "null, but order_by needs a value"));
            }
        }
        let identity = Identity::of_columns(&self.options.names, identity, rows_before)?;
        let mut keys = Keys::default();
        let numbered = identity.number(&mut keys)?;
        let (Some(chunk), Some(numbered)) = (identity.chunks().first(), numbered.first()) else { return Ok(()) };
        let batch = numbered.batch();
        let mut scratch = std::mem::take(&mut self.scratch);
        self.find_spans(&batch, &order, rows_before, &mut scratch)?;
        self.split(chunk, &batch, &order, &mut scratch)?;
        self.scratch = scratch;
        Ok(())
    }

    /// Validates the rows and finds where spans begin.
    fn find_spans(
        &self,
        batch: &Batch<'_>,
        order: &[ArrayRef],
        rows_before: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let domain = Domain { seq_max: self.options.seq_max, untracked: Untracked::Keep };
        find_spans(batch, &domain, &mut scratch.starts).map_err(|error| {
            let error = match error {
                Error::Batch { column, row, problem } => {
                    Error::Batch { column, row: row.map(|row| row + rows_before), problem }
                }
                other => other,
            };
            Failure::of_core(error, &self.options.names)
        })?;
        let rows = batch.len() as u32;
        let Scratch { starts, cut, .. } = scratch;
        if self.options.by_row {
            starts.clear();
            starts.extend(0..rows);
            return Ok(());
        }
        if let Some(timestamp) = batch.timestamp {
            cut_where(starts, cut, rows, |row| timestamp[row] != timestamp[row - 1]);
        }
        for column in order {
            if rows > 1 {
                let before = column.slice(0, rows as usize - 1);
                let same = arrow_ord::cmp::not_distinct(&before, &column.slice(1, rows as usize - 1));
                match same {
                    Ok(same) => cut_where(starts, cut, rows, |row| !same.value(row - 1)),
                    // Types without an order known here make each row its own span.
                    Err(_) => cut_where(starts, cut, rows, |_| true),
                }
            }
        }
        Ok(())
    }

    /// Assigns the spans to shards.
    fn split(
        &mut self,
        chunk: &Chunk,
        batch: &Batch<'_>,
        order: &[ArrayRef],
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let rows = batch.len();
        if rows == 0 {
            return Ok(());
        }
        let Scratch { starts, spans, .. } = scratch;
        spans.clear(self.options.shards);
        let (mut pids, mut partitions) = (Vec::new(), Vec::new());
        // Only plain keys are cheaper to compare than to hash.
        let mut before: Option<(i64, i32, u32)> = None;
        let open = self.open.take();
        let mut continued_shard = None;
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).map_or(rows, |&end| end as usize);
            let (row, count) = (start as usize, (end - start as usize) as u32);
            if batch.pid[row] == -1 {
                self.untracked += u64::from(count);
                continue;
            }
            if number == 0
                && let Some(open) = &open
                && self.is_continued_by(open, chunk, batch, order)
            {
                let lengths = &mut self.held[open.shard].lengths;
                if let Some(last) = lengths.last_mut()
                    && let Some(longer) = last.checked_add(count)
                {
                    *last = longer;
                    continued_shard = Some(open.shard);
                    continue;
                }
            }
            let key = (batch.pid[row], batch.partition[row]);
            let to = match before {
                Some((pid, partition, to)) if (pid, partition) == key => to,
                _ => {
                    let pid = key_ref(&chunk.pid, row, &mut pids);
                    shard_of(pid, key_ref(&chunk.partition, row, &mut partitions), self.options.shards)
                }
            };
            before = Some((key.0, key.1, to));
            spans.push(to, start, count);
        }
        let last_shard = spans.last_shard().or(continued_shard);
        if let Some(shard) = last_shard.filter(|_| !self.options.by_row && batch.pid[rows - 1] != -1) {
            self.open = Some(OpenSpan::of_last_row(shard, chunk, batch, order));
        }
        spans.sort();
        if let Some(timestamp) = batch.timestamp {
            let newest = spans.first_rows().iter().map(|&row| timestamp[row as usize]).max();
            self.newest_timestamp = self.newest_timestamp.max(newest);
        }
        self.spans += spans.len() as u64;
        self.spans_held += spans.len() as u64;
        let columns = self.source_columns(chunk, batch, order);
        for (held, (first, lengths)) in self.held.iter_mut().zip(spans.by_shard()) {
            if !first.is_empty() {
                held.extend(&columns, first, lengths, self.row)?;
            }
        }
        Ok(())
    }

    /// Whether the first row of a batch continues a span of the previous batch.
    fn is_continued_by(&self, open: &OpenSpan, chunk: &Chunk, batch: &Batch<'_>, order: &[ArrayRef]) -> bool {
        let is_same = |one: &ArrayRef, other: &ArrayRef| {
            arrow_ord::cmp::not_distinct(one, &other.slice(0, 1)).is_ok_and(|same| same.value(0))
        };
        batch.epoch.map(|epoch| epoch[0]) == open.epoch
            && open.seq.checked_add(1) == Some(seq_at(batch, 0))
            && batch.timestamp.map(|it| it[0]) == open.timestamp
            && key_bytes(&chunk.pid, 0) == open.pid
            && key_bytes(&chunk.partition, 0) == open.partition
            && open.order.iter().zip(order).all(|(one, other)| is_same(one, other))
    }

    /// The returned columns of this batch.
    fn source_columns<'a>(&self, chunk: &'a Chunk, batch: &Batch<'a>, order: &[ArrayRef]) -> Vec<SourceColumn<'a>> {
        let mut columns = Vec::new();
        let names = &self.options.names;
        match &chunk.pid {
            Parts::Plain(values) => columns.push(SourceColumn::I64(values)),
            Parts::Several(parts) => columns.extend(parts.iter().map(|part| SourceColumn::Array(part.array()))),
        }
        match &chunk.partition {
            _ if names.partition.is_empty() => {}
            Parts::Plain(values) => columns.push(SourceColumn::I32(values)),
            Parts::Several(parts) => columns.extend(parts.iter().map(|part| SourceColumn::Array(part.array()))),
        }
        columns.extend(batch.epoch.map(SourceColumn::I16));
        columns.push(match batch.seq {
            Seqs::I32(values) => SourceColumn::I32(values),
            Seqs::I64(values) => SourceColumn::I64(values),
        });
        columns.extend(batch.timestamp.filter(|_| !self.replaces_timestamp()).map(SourceColumn::I64));
        let others = self.order.iter().zip(order).filter(|(it, _)| it.name != names.seq);
        columns.extend(others.map(|(_, array)| SourceColumn::Array(array.clone())));
        columns
    }

    /// Whether the timestamps are also an `order_by` column. That column is returned, because the other one is rounded.
    fn replaces_timestamp(&self) -> bool {
        self.order.iter().any(|it| self.options.names.timestamp.as_ref() == Some(&it.name))
    }

    fn names(&self) -> Vec<&str> {
        let names = &self.options.names;
        let mut all = names.all();
        if self.replaces_timestamp() {
            all.pop();
        }
        all.extend(self.order.iter().map(|it| it.name.as_str()).filter(|&name| name != names.seq));
        all
    }

    /// Returns the pending spans by shard, and clears them.
    pub fn take_spans(&mut self) -> Result<Vec<(u32, RecordBatch)>, Failure> {
        self.open = None;
        self.spans_held = 0;
        let held: Vec<PendingSpans> = self.held.iter_mut().map(std::mem::take).collect();
        let names = self.names();
        let mut schema: Option<SchemaRef> = None;
        let mut batches = Vec::new();
        for (shard, held) in held.into_iter().enumerate() {
            if !held.lengths.is_empty() {
                batches.push((shard as u32, held.into_batch(&names, self.options.ordinal, &mut schema)?));
            }
        }
        Ok(batches)
    }
}

fn seq_at(batch: &Batch<'_>, row: usize) -> i64 {
    match batch.seq {
        Seqs::I32(values) => values[row].into(),
        Seqs::I64(values) => values[row],
    }
}

fn key_bytes<T: arrow_buffer::ArrowNativeType + Into<i64>>(parts: &Parts<T>, row: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    match key_ref(parts, row, &mut bytes) {
        fencepost_core::KeyRef::Plain(value) => value.to_be_bytes().to_vec(),
        fencepost_core::KeyRef::Encoded(bytes) => bytes.to_vec(),
    }
}

impl OpenSpan {
    fn of_last_row(shard: usize, chunk: &Chunk, batch: &Batch<'_>, order: &[ArrayRef]) -> OpenSpan {
        let row = batch.len() - 1;
        OpenSpan {
            shard,
            pid: key_bytes(&chunk.pid, row),
            partition: key_bytes(&chunk.partition, row),
            epoch: batch.epoch.map(|epoch| epoch[row]),
            seq: seq_at(batch, row),
            timestamp: batch.timestamp.map(|it| it[row]),
            order: order.iter().map(|column| column.slice(row, 1)).collect(),
        }
    }
}

/// A column of a batch of rows.
enum SourceColumn<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
    I16(&'a [i16]),
    Array(ArrayRef),
}

impl PendingSpans {
    /// Adds the spans that begin in these rows.
    fn extend(
        &mut self,
        columns: &[SourceColumn<'_>],
        first: &[u32],
        lengths: &[u32],
        rows_before: u64,
    ) -> Result<(), Failure> {
        if self.columns.is_empty() {
            self.columns.extend(columns.iter().map(|column| match column {
                SourceColumn::I64(_) => Values::I64(vec![]),
                SourceColumn::I32(_) => Values::I32(vec![]),
                SourceColumn::I16(_) => Values::I16(vec![]),
                SourceColumn::Array(_) => Values::Arrays(vec![]),
            }));
        }
        for (values, column) in self.columns.iter_mut().zip(columns) {
            match (values, column) {
                (Values::I64(values), SourceColumn::I64(from)) => {
                    values.extend(first.iter().map(|&row| from[row as usize]));
                }
                (Values::I32(values), SourceColumn::I32(from)) => {
                    values.extend(first.iter().map(|&row| from[row as usize]));
                }
                (Values::I16(values), SourceColumn::I16(from)) => {
                    values.extend(first.iter().map(|&row| from[row as usize]));
                }
                (Values::Arrays(values), SourceColumn::Array(from)) => {
                    let taken = take(from, &UInt32Array::from(first.to_vec()), None)?;
                    // Views would keep their pages in memory.
                    values.push(arrow_cast::cast(&taken, &output_kind(taken.data_type()))?);
                }
                _ => unreachable!("a file's columns keep their types"),
            }
        }
        self.lengths.extend_from_slice(lengths);
        self.rows.extend(first.iter().map(|&row| rows_before + u64::from(row)));
        Ok(())
    }

    fn into_batch(self, names: &[&str], ordinal: u32, schema: &mut Option<SchemaRef>) -> Result<RecordBatch, Failure> {
        let spans = self.lengths.len();
        let mut arrays = Vec::with_capacity(self.columns.len() + 3);
        for values in self.columns {
            arrays.push(match values {
                Values::I64(values) => Arc::new(Int64Array::from(values)) as ArrayRef,
                Values::I32(values) => Arc::new(Int32Array::from(values)),
                Values::I16(values) => Arc::new(Int16Array::from(values)),
                Values::Arrays(arrays) => concat(&arrays.iter().map(|it| it.as_ref()).collect::<Vec<_>>())?,
            });
        }
        arrays.push(Arc::new(UInt32Array::from(self.lengths)));
        arrays.push(Arc::new(UInt32Array::from_iter_values(repeat_n(ordinal, spans))));
        arrays.push(Arc::new(UInt64Array::from(self.rows)));
        let schema = schema.get_or_insert_with(|| {
            let names = names.iter().chain(&["_length", "_file", "_row"]);
            let fields = names.zip(&arrays).map(|(name, it)| Field::new(*name, it.data_type().clone(), false));
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        });
        Ok(RecordBatch::try_new(schema.clone(), arrays)?)
    }
}

/// The output type: text and binary in the types that all readers support.
fn output_kind(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView | DataType::LargeBinary => DataType::Binary,
        other => other.clone(),
    }
}

fn constant(value: Option<Constant>) -> ArrayRef {
    match value {
        None => Arc::new(NullArray::new(BATCH_ROWS)),
        Some(Constant::Int(value)) => Arc::new(Int64Array::from(vec![value; BATCH_ROWS])),
        Some(Constant::Text(value)) => Arc::new(StringViewArray::from_iter_values(repeat_n(value, BATCH_ROWS))),
    }
}
