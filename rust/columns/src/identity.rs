//! Converts the identity columns of rows to the types of the core.
//!
//! Columns with the right type are used in place. All others are cast. An error for a value that does not fit names its
//! column and row.

use crate::failure::Failure;
use crate::rows::{Chunks, Rows};
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int16Type, Int32Type, Int64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, Int64Array, PrimitiveArray, StringViewArray,
    UInt32Array,
};
use arrow_buffer::{ArrowNativeType, ScalarBuffer};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use arrow_select::nullif::nullif;
use arrow_select::take::take;
use fencepost_core::{
    self as core, Batch, Dictionary, KEY_BYTES_MAX, KeyColumns, KeyKind, KeyedRows, Keys, PartKind, Seqs, Strings,
    encode_bytes, encode_int, fold_bytes, fold_hash, prefetch,
};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The columns of each role, by their names in the input.
#[derive(Clone, Debug)]
pub struct ColumnNames {
    /// Columns of the producer.
    pub pid: Vec<String>,
    /// Column of its epoch, if it has one.
    pub epoch: Option<String>,
    /// Columns of the partition. Empty if rows have no partition.
    pub partition: Vec<String>,
    /// Column of the sequence number.
    pub seq: String,
    /// Only for tables that keep timestamps.
    pub timestamp: Option<String>,
    /// Only for rows grouped into spans: the number of rows of each line.
    pub length: Option<String>,
}

impl ColumnNames {
    /// Sets the column of timestamps: "timestamp" if no other is given, and none if timestamps are not kept.
    pub fn keeping_timestamps(self, is_kept: bool) -> ColumnNames {
        let timestamp = is_kept.then(|| self.timestamp.unwrap_or_else(|| "timestamp".into()));
        ColumnNames { timestamp, ..self }
    }

    /// The columns of pid and partition.
    pub fn keys(&self) -> Vec<&str> {
        self.pid.iter().chain(&self.partition).map(String::as_str).collect()
    }

    /// All columns, in the order in which they are converted.
    pub fn all(&self) -> Vec<&str> {
        let mut names = self.keys();
        names.extend(self.epoch.as_deref());
        names.push(&self.seq);
        names.extend(self.timestamp.as_deref());
        names.extend(self.length.as_deref());
        names
    }
}

/// The identity of some rows, chunk by chunk.
pub struct Identity {
    chunks: Vec<Chunk>,
}

/// One chunk: the key columns and the other columns.
pub struct Chunk {
    pub rows: usize,
    /// Whether a key column has only nulls and no type, so that no row has a key.
    is_keyless: bool,
    pub pid: Parts<i64>,
    pub partition: Parts<i32>,
    epoch: Option<ScalarBuffer<i16>>,
    seq: SeqColumn,
    /// Milliseconds of each row, if timestamps are read.
    timestamp: Option<ScalarBuffer<i64>>,
    /// Number of rows of each line, if rows are grouped into spans.
    length: Option<ScalarBuffer<u32>>,
}

enum SeqColumn {
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
}

/// Maximum number of bytes of one part of a key. The longest key has 64 parts of zeros, which take two bytes each.
const VALUE_BYTES_MAX: usize = KEY_BYTES_MAX / 256;

/// A pid or a partition.
pub enum Parts<T: ArrowNativeType> {
    /// One integer column; -1 for a null pid.
    Plain(ScalarBuffer<T>),
    /// Any other columns.
    Several(Vec<Part>),
}

/// One column of a key that is not a single integer column.
pub enum Part {
    Int(Int64Array),
    Utf8(StringViewArray),
    Binary(BinaryViewArray),
    Fixed(FixedSizeBinaryArray),
}

impl Identity {
    /// Reads and converts every identity column.
    pub fn read(names: &ColumnNames, rows: Rows) -> Result<Identity, Failure> {
        Self::convert(names, rows.select(&names.all())?, 0)
    }

    /// Converts columns that are already read, in the order of [`ColumnNames::all`]. `rows_before`: number of earlier
    /// rows in the input.
    pub fn of_columns(names: &ColumnNames, columns: Vec<ArrayRef>, rows_before: usize) -> Result<Self, Failure> {
        Self::convert(names, vec![columns], rows_before)
    }

    /// Reads and converts only the key columns; the others are left empty. `rows_before`: number of earlier rows in the
    /// input.
    pub fn read_keys(names: &ColumnNames, rows: Rows, rows_before: usize) -> Result<Identity, Failure> {
        Self::convert(names, rows.select(&names.keys())?, rows_before)
    }

    fn convert(names: &ColumnNames, chunks: Chunks, mut rows_before: usize) -> Result<Identity, Failure> {
        let convert = |columns: Vec<ArrayRef>| {
            let chunk = Chunk::convert(names, &columns, rows_before)?;
            rows_before += chunk.rows;
            Ok(chunk)
        };
        Ok(Identity { chunks: chunks.into_iter().map(convert).collect::<Result<_, Failure>>()? })
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.rows).sum()
    }

    /// The types of pid and partition, if any chunk shows them.
    pub fn key_kinds(&self) -> Option<(KeyKind, KeyKind)> {
        let first = self.chunks.first().filter(|chunk| !chunk.is_keyless);
        first.map(|chunk| (chunk.pid.kind(), chunk.partition.kind()))
    }

    /// The columns without numbering the keys.
    pub fn keyed(&self) -> Vec<KeyedRows<'_, Chunk>> {
        self.chunks.iter().map(|keys| KeyedRows { keys, epoch: keys.epoch.as_deref(), seq: keys.seqs() }).collect()
    }

    /// Whether keys are plain integers, which need no numbering.
    pub fn has_plain_keys(&self) -> bool {
        self.chunks.iter().all(|chunk| matches!((&chunk.pid, &chunk.partition), (Parts::Plain(_), Parts::Plain(_))))
    }

    /// Selects rows by number, in increasing order.
    pub fn take(&self, rows: &[u32]) -> Result<Identity, Failure> {
        let (mut chunks, mut rest, mut before) = (Vec::new(), rows, 0);
        for chunk in &self.chunks {
            let of_chunk;
            (of_chunk, rest) = rest.split_at(rest.partition_point(|&row| (row as usize) < before + chunk.rows));
            chunks.push(chunk.take(&of_chunk.iter().map(|&row| row - before as u32).collect::<Vec<_>>())?);
            before += chunk.rows;
        }
        Ok(Identity { chunks })
    }

    /// Numbers the keys that are not plain integers, and returns the columns in the types of the core.
    pub fn number(&self, keys: &mut Keys) -> core::Result<Vec<NumberedChunk<'_>>> {
        self.chunks.iter().map(|chunk| chunk.number(keys)).collect()
    }
}

/// A chunk whose keys are all numbers.
pub struct NumberedChunk<'a> {
    pid: ScalarBuffer<i64>,
    partition: ScalarBuffer<i32>,
    chunk: &'a Chunk,
}

impl NumberedChunk<'_> {
    /// Number of rows of each line. Empty if each line is a row.
    pub fn lengths(&self) -> &[u32] {
        self.chunk.length.as_deref().unwrap_or(&[])
    }

    /// Pid and partition of each row.
    pub fn keys(&self) -> impl Iterator<Item = (i64, i32)> + '_ {
        self.pid.iter().copied().zip(self.partition.iter().copied())
    }

    pub fn batch(&self) -> Batch<'_> {
        let (seq, Chunk { epoch, timestamp, .. }) = (self.chunk.seqs(), self.chunk);
        Batch {
            pid: &self.pid,
            partition: &self.partition,
            epoch: epoch.as_deref(),
            seq,
            timestamp: timestamp.as_deref(),
        }
    }
}

/// Number of rows whose keys are numbered together, and bytes of all their keys except the last.
const ROWS_TOGETHER: usize = 512;
const BYTES_TOGETHER: usize = 1 << 16;

impl Chunk {
    fn seqs(&self) -> Seqs<'_> {
        match &self.seq {
            SeqColumn::I32(values) => Seqs::I32(values),
            SeqColumn::I64(values) => Seqs::I64(values),
        }
    }

    /// Selects rows.
    fn take(&self, rows: &[u32]) -> Result<Chunk, Failure> {
        fn some<T: ArrowNativeType>(values: &ScalarBuffer<T>, rows: &[u32]) -> ScalarBuffer<T> {
            rows.iter().map(|&row| values[row as usize]).collect()
        }
        Ok(Chunk {
            rows: rows.len(),
            is_keyless: self.is_keyless,
            pid: self.pid.take(rows)?,
            partition: self.partition.take(rows)?,
            epoch: self.epoch.as_ref().map(|values| some(values, rows)),
            seq: match &self.seq {
                SeqColumn::I32(values) => SeqColumn::I32(some(values, rows)),
                SeqColumn::I64(values) => SeqColumn::I64(some(values, rows)),
            },
            timestamp: self.timestamp.as_ref().map(|values| some(values, rows)),
            length: self.length.as_ref().map(|values| some(values, rows)),
        })
    }

    fn number(&self, keys: &mut Keys) -> core::Result<NumberedChunk<'_>> {
        let pid = self.pid.number(self.rows, &mut keys.pid.dictionary, |row| self.pid.is_untracked(row))?;
        let partition = self.partition.number(self.rows, &mut keys.partition.dictionary, |row| pid[row] == -1)?;
        Ok(NumberedChunk { pid, partition, chunk: self })
    }

    /// `columns`: pid and partition. Unless only keys are read, then epoch if there is one, seq, and timestamp if it is
    /// kept.
    fn convert(names: &ColumnNames, columns: &[ArrayRef], rows_before: usize) -> Result<Chunk, Failure> {
        let rows = columns.first().map_or(0, |column| column.len());
        let (pids, rest) = columns.split_at(names.pid.len());
        let (partitions, rest) = rest.split_at(names.partition.len());
        let is_keyless = pids.iter().chain(partitions).any(is_null_type);
        let pid = convert_pid(&names.pid, pids, rows_before)?;
        let is_untracked = |row| pid.is_untracked(row);
        let reader = |name| IntReader { name, rows_before, is_untracked: &is_untracked };
        let partition = Parts::of_partition(&names.partition, partitions, rows, &reader)?;
        let mut rest = rest.iter();
        let epoch = names.epoch.as_ref().and_then(|name| Some((name, rest.next()?)));
        let epoch = epoch.map(|(name, epoch)| {
            let found = reader(name).read::<Int16Type>(epoch, "0..=32767");
            found.map_err(
                |failure| if cannot_be_epoch(epoch) { suggest_pid(failure, epoch, name, &names.pid) } else { failure },
            )
        });
        let epoch = epoch.transpose()?;
        let seq = match rest.next() {
            None => SeqColumn::I32(vec![].into()),
            Some(seq) if fits_32_bits(seq.data_type()) => {
                SeqColumn::I32(reader(&names.seq).read::<Int32Type>(seq, "the 32-bit integers")?)
            }
            Some(seq) => SeqColumn::I64(reader(&names.seq).read::<Int64Type>(seq, "0..=9223372036854775807")?),
        };
        let timestamp = names.timestamp.as_ref().and_then(|name| Some((name, rest.next()?)));
        let timestamp = timestamp.map(|(name, column)| reader(name).read_timestamps(column)).transpose()?;
        let length = names.length.as_ref().and_then(|name| Some((name, rest.next()?)));
        let length = length.map(|(name, column)| {
            let reader = IntReader { name, rows_before, is_untracked: &never };
            reader.read::<UInt32Type>(column, "1..=4294967295")
        });
        let length = length.transpose()?;
        Ok(Chunk { rows, is_keyless, pid, partition, epoch, seq, timestamp, length })
    }
}

/// Whether the values cannot be epochs: too large, such as times, or not integers, such as UUIDs.
fn cannot_be_epoch(column: &ArrayRef) -> bool {
    let is_large = |numbers: ArrayRef| numbers.as_primitive::<Int64Type>().iter().flatten().any(|it| it > 32767);
    !is_null_type(column) && (!is_integer(column) || cast("epoch", column, &DataType::Int64).is_ok_and(is_large))
}

/// Adds to the error how to use such a column.
fn suggest_pid(failure: Failure, values: &ArrayRef, name: &str, pid: &[String]) -> Failure {
    let Failure::Batch { column, row, message } = failure else { return failure };
    let names: Vec<_> = pid.iter().map(|it| format!("'{it}'")).collect();
    let remedy = format!(
        "if it identifies a start of the producer, such as a boot id or a start time, make it a part of pid: \
         Columns(pid=({}, '{name}'), epoch=None) with epochs='ignore' (--pid {} --pid {name} --set epochs=ignore)",
        names.join(", "),
        pid.join(" --pid "),
    );
    let is_time = value_type(values.data_type()).is_temporal();
    let cast = if is_time { ". Cast it to int64 first" } else { "" };
    Failure::Batch { column, row, message: format!("{message}; {remedy}{cast}") }
}

/// The seed of hashes of keys.
const SEED: u64 = 0x8ebc_6af0_9c88_c6e3;

impl KeyColumns for Chunk {
    fn hash_keys(&self, from: usize, hashes: &mut [u64]) {
        hashes.fill(SEED);
        self.pid.fold(from, hashes);
        self.partition.fold(from, hashes);
        if self.pid.may_be_untracked() {
            for (row, hash) in (from..).zip(hashes) {
                *hash = if self.pid.is_untracked(row) { 0 } else { (*hash).max(1) };
            }
        } else {
            hashes.iter_mut().for_each(|hash| *hash = (*hash).max(1));
        }
    }

    fn is_same_key(&self, row: usize, other: &Chunk, other_row: usize) -> bool {
        self.pid.is_same_as(row, &other.pid, other_row) && self.partition.is_same_as(row, &other.partition, other_row)
    }

    #[inline]
    fn prefetch_key(&self, row: usize) {
        self.pid.prefetch(row);
        self.partition.prefetch(row);
    }

    #[inline]
    fn prefetch_bytes(&self, row: usize) {
        self.pid.prefetch_bytes(row);
        self.partition.prefetch_bytes(row);
    }

    fn numbers(&self, rows: Range<usize>) -> (Cow<'_, [i64]>, Cow<'_, [i32]>) {
        let pid = match &self.pid {
            Parts::Plain(values) => Cow::Borrowed(&values[rows.clone()]),
            Parts::Several(_) if self.pid.may_be_untracked() => {
                rows.clone().map(|row| -i64::from(self.pid.is_untracked(row))).collect()
            }
            Parts::Several(_) => Cow::Owned(vec![0; rows.len()]),
        };
        let partition = match &self.partition {
            Parts::Plain(values) => Cow::Borrowed(&values[rows]),
            Parts::Several(_) => Cow::Owned(vec![0; rows.len()]),
        };
        (pid, partition)
    }
}

/// The valid pids, in errors.
pub(crate) const PIDS: &str = "0..=9223372036854775807 (-1 or null: untracked)";

fn convert_pid(names: &[String], columns: &[ArrayRef], rows_before: usize) -> Result<Parts<i64>, Failure> {
    if columns.iter().any(is_null_type) {
        return Ok(Parts::Plain(vec![-1; columns[0].len()].into()));
    }
    if let ([name], [column]) = (names, columns)
        && is_integer(column)
    {
        return Ok(Parts::Plain(IntReader::read_or::<Int64Type>(name, column, rows_before, PIDS, -1)?));
    }
    let parts = names.iter().zip(columns).map(|(name, column)| Part::convert(name, column, rows_before, &never));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    for (name, part) in names.iter().zip(&parts) {
        if let Some((row, value)) = part.ints().find(|&(_, value)| value < -1) {
            let problem = format!("value {value} is outside 0..=9223372036854775807 (-1 or null: untracked)");
            return Err(Failure::batch(name, Some(rows_before + row), problem));
        }
    }
    Ok(Parts::Several(parts))
}

impl Parts<i32> {
    /// Converts the columns of a partition. Without columns, every row has the partition 0.
    pub fn of_partition<'a>(
        names: &'a [String],
        columns: &[ArrayRef],
        rows: usize,
        reader: &dyn Fn(&'a str) -> IntReader<'a>,
    ) -> Result<Parts<i32>, Failure> {
        Ok(match (names, columns) {
            (_, []) => Parts::Plain(vec![0; rows].into()),
            ([name], [one]) if is_integer(one) || is_null_type(one) => {
                Parts::Plain(reader(name).read::<Int32Type>(one, "0..=2147483647")?)
            }
            _ => Parts::Several(convert_parts(names, columns, reader)?),
        })
    }
}

fn convert_parts<'a>(
    names: &'a [String],
    columns: &[ArrayRef],
    reader: &dyn Fn(&'a str) -> IntReader<'a>,
) -> Result<Vec<Part>, Failure> {
    let convert = |(name, column): (&'a String, &ArrayRef)| {
        let IntReader { rows_before, is_untracked, .. } = reader(name);
        let part = Part::convert(name, column, rows_before, is_untracked)?;
        let fail = |row: usize, problem| Err(Failure::batch(name, Some(rows_before + row), problem));
        if let Some(row) = (0..column.len()).find(|&row| part.is_null(row) && !is_untracked(row)) {
            return fail(row, "null, but a row with a producer needs a partition".to_string());
        }
        let is_outside = |value: i64| !(0..=i64::from(i32::MAX)).contains(&value);
        let outside = part.ints().find(|&(row, value)| is_outside(value) && !is_untracked(row));
        if let Some((row, value)) = outside {
            return fail(row, format!("value {value} is outside 0..=2147483647"));
        }
        Ok(part)
    };
    names.iter().zip(columns).map(convert).collect()
}

/// The type of values inside dictionaries and run-end encoding.
pub(crate) fn value_type(kind: &DataType) -> &DataType {
    match kind {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::RunEndEncoded(_, values) => value_type(values.data_type()),
        other => other,
    }
}

pub(crate) fn is_integer(column: &ArrayRef) -> bool {
    value_type(column.data_type()).is_integer()
}

/// Whether the column has the type that contains only nulls.
pub(crate) fn is_null_type(column: &ArrayRef) -> bool {
    *value_type(column.data_type()) == DataType::Null
}

fn fits_32_bits(kind: &DataType) -> bool {
    use DataType::{Int8, Int16, Int32, UInt8, UInt16};
    matches!(value_type(kind), Int8 | Int16 | Int32 | UInt8 | UInt16)
}

/// For columns in which no row may be null.
pub(crate) fn never(_: usize) -> bool {
    false
}

/// Reads integers of any width into one width. Untracked rows may have any value.
pub struct IntReader<'a> {
    pub name: &'a str,
    pub rows_before: usize,
    pub is_untracked: &'a dyn Fn(usize) -> bool,
}

impl IntReader<'_> {
    /// Like `read`, with a value instead of nulls.
    pub fn read_or<T: ArrowPrimitiveType>(
        name: &str,
        column: &ArrayRef,
        rows_before: usize,
        range: &str,
        in_place_of_null: T::Native,
    ) -> Result<ScalarBuffer<T::Native>, Failure> {
        Self::fill(name, column, rows_before, |reader| reader.read::<T>(column, range), |_| in_place_of_null)
    }

    /// Like `read`, with other values instead of nulls.
    pub fn fill<T: ArrowNativeType>(
        name: &str,
        column: &ArrayRef,
        rows_before: usize,
        read: impl FnOnce(&IntReader<'_>) -> Result<ScalarBuffer<T>, Failure>,
        in_place_of_null: impl Fn(usize) -> T,
    ) -> Result<ScalarBuffer<T>, Failure> {
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        let values = read(&IntReader { name, rows_before, is_untracked: &is_null })?;
        Ok(match &nulls {
            None => values,
            Some(nulls) => {
                let filled = nulls.iter().zip(values.iter()).enumerate();
                filled.map(|(row, (is_valid, &value))| if is_valid { value } else { in_place_of_null(row) }).collect()
            }
        })
    }

    pub fn read<T: ArrowPrimitiveType>(
        &self,
        column: &ArrayRef,
        range: &str,
    ) -> Result<ScalarBuffer<T::Native>, Failure> {
        if let Some(values) = column.as_primitive_opt::<T>()
            && values.null_count() == 0
        {
            return Ok(values.values().clone());
        }
        let cast = if is_integer(column) {
            cast(self.name, column, &T::DATA_TYPE)?.as_primitive().clone()
        } else if is_null_type(column) {
            PrimitiveArray::<T>::new_null(column.len())
        } else {
            return Err(wrong_type(self.name, column.data_type(), "integers"));
        };
        if cast.null_count() > 0 {
            self.explain_nulls(column, &cast, range)?;
        }
        Ok(cast.values().clone())
    }

    /// Reads milliseconds: from integers in milliseconds, or from timestamps of any unit, rounded down.
    pub fn read_timestamps(&self, column: &ArrayRef) -> Result<ScalarBuffer<i64>, Failure> {
        const RANGE: &str = "the milliseconds that 64 bits can hold";
        let kind = value_type(column.data_type());
        let DataType::Timestamp(unit, _) = kind else {
            if is_integer(column) || is_null_type(column) {
                return self.read::<Int64Type>(column, RANGE);
            }
            return Err(wrong_type(self.name, column.data_type(), "integers (milliseconds) or timestamps"));
        };
        let flat = cast(self.name, column, kind)?;
        let ticks = cast(self.name, &flat, &DataType::Int64)?;
        let ticks: &Int64Array = ticks.as_primitive();
        if *unit == TimeUnit::Millisecond && ticks.null_count() == 0 {
            return Ok(ticks.values().clone());
        }
        let in_ms = |tick: i64| match unit {
            TimeUnit::Second => tick.checked_mul(1000),
            TimeUnit::Millisecond => Some(tick),
            TimeUnit::Microsecond => Some(tick.div_euclid(1000)),
            TimeUnit::Nanosecond => Some(tick.div_euclid(1_000_000)),
        };
        let ms: Int64Array = ticks.iter().map(|tick| in_ms(tick?)).collect();
        if ms.null_count() > 0 {
            self.explain_nulls(&(Arc::new(ticks.clone()) as ArrayRef), &ms, RANGE)?;
        }
        Ok(ms.values().clone())
    }

    /// Distinguishes nulls of the input from values that did not fit, which the cast also makes null.
    fn explain_nulls(&self, column: &ArrayRef, cast: &dyn Array, range: &str) -> Result<(), Failure> {
        let Some(row) = (0..cast.len()).find(|&row| cast.is_null(row) && !(self.is_untracked)(row)) else {
            return Ok(());
        };
        let was_null = column.logical_nulls().is_some_and(|nulls| nulls.is_null(row));
        let problem = if was_null {
            "null, but a row with a producer needs a value".to_string()
        } else {
            format!("value {} is outside {range}", arrow_cast::display::array_value_to_string(column, row)?)
        };
        Err(Failure::batch(self.name, Some(self.rows_before + row), problem))
    }
}

/// The error for a column with an unsupported type.
pub(crate) fn wrong_type(name: &str, kind: &DataType, expected: &str) -> Failure {
    let hint =
        if kind.is_floating() { "; pandas makes floats of integers with nulls: use the dtype Int64" } else { "" };
    Failure::batch(name, None, format!("is of type {kind}, {expected} are needed{hint}"))
}

/// Casts a column; values that do not fit become null.
pub(crate) fn cast(name: &str, column: &ArrayRef, to: &DataType) -> Result<ArrayRef, Failure> {
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let wrong = |_| wrong_type(name, column.data_type(), &format!("{to}"));
    let cast = cast_with_options(column, to, &options).map_err(wrong)?;
    // Casts of dictionaries to views use the nulls of the keys, but not those of the values.
    match column.logical_nulls() {
        Some(nulls) if nulls.null_count() > cast.null_count() => {
            nullif(&cast, &BooleanArray::new(!nulls.inner(), None)).map_err(wrong)
        }
        _ => Ok(cast),
    }
}

impl<T: ArrowNativeType> Parts<T> {
    pub fn kind(&self) -> KeyKind {
        match self {
            Parts::Plain(_) => KeyKind::Plain,
            Parts::Several(parts) => KeyKind::Parts(parts.iter().map(Part::kind).collect()),
        }
    }

    /// Whether two rows with a key have the same key.
    pub fn is_same(&self, row: usize, other: usize) -> bool {
        self.is_same_as(row, self, other)
    }

    /// Like `is_same`, for a row of another chunk.
    fn is_same_as(&self, row: usize, chunk: &Self, other: usize) -> bool {
        match (self, chunk) {
            (Parts::Plain(mine), Parts::Plain(theirs)) => mine[row] == theirs[other],
            (Parts::Several(mine), Parts::Several(theirs)) => {
                mine.iter().zip(theirs).all(|(mine, theirs)| mine.is_same_as(row, theirs, other))
            }
            _ => unreachable!("chunks have columns of the same types"),
        }
    }

    /// Prefetches the values of a row, or the views of them.
    #[inline]
    fn prefetch(&self, row: usize) {
        match self {
            Parts::Plain(values) => prefetch(&raw const values[row]),
            Parts::Several(parts) => parts.iter().for_each(|part| part.prefetch(row)),
        }
    }

    /// Prefetches the bytes of the views.
    #[inline]
    fn prefetch_bytes(&self, row: usize) {
        if let Parts::Several(parts) = self {
            parts.iter().for_each(|part| part.prefetch_bytes(row));
        }
    }

    /// Folds the keys of rows from `from` on into their hashes.
    #[inline]
    fn fold(&self, from: usize, hashes: &mut [u64])
    where
        T: Into<i64>,
    {
        match self {
            Parts::Plain(values) => {
                for (hash, &value) in hashes.iter_mut().zip(&values[from..]) {
                    *hash = fold_hash(*hash, value.into() as u64);
                }
            }
            Parts::Several(parts) => parts.iter().for_each(|part| part.fold(from, hashes)),
        }
    }

    /// The number of each row's key; -1 if the row is untracked. Adjacent rows often share a key, which is then looked
    /// up once. After an error, earlier numbers remain: go back to a mark of the keys.
    pub fn number(
        &self,
        rows: usize,
        dictionary: &mut Dictionary,
        is_untracked: impl Fn(usize) -> bool,
    ) -> core::Result<ScalarBuffer<T>>
    where
        T: From<i32>,
    {
        let parts = match self {
            Parts::Plain(values) => return Ok(values.clone()),
            Parts::Several(parts) => parts,
        };
        let mut numbers = Vec::with_capacity(rows);
        // The keys of some rows, each once if adjacent rows share it, and the key of each row.
        let (mut strings, mut of_rows, mut found) = (Strings::default(), Vec::new(), Vec::new());
        while numbers.len() < rows {
            strings.clear();
            of_rows.clear();
            found.clear();
            let mut before = None;
            for row in numbers.len()..rows {
                if of_rows.len() == ROWS_TOGETHER || strings.bytes_len() > BYTES_TOGETHER {
                    break;
                }
                if is_untracked(row) {
                    of_rows.push(None);
                    continue;
                }
                if !before.is_some_and(|same| parts.iter().all(|part| part.is_same(same, row))) {
                    strings.push_with(|bytes| parts.iter().for_each(|part| part.encode(row, bytes)));
                    before = Some(row);
                }
                of_rows.push(Some(strings.len() - 1));
            }
            dictionary.intern_all(&strings, |number| found.push(number as i32))?;
            numbers.extend(of_rows.iter().map(|of_row| T::from(of_row.map_or(-1, |string: usize| found[string]))));
        }
        Ok(numbers.into())
    }

    fn take(&self, rows: &[u32]) -> Result<Self, Failure> {
        Ok(match self {
            Parts::Plain(values) => Parts::Plain(rows.iter().map(|&row| values[row as usize]).collect()),
            Parts::Several(parts) => {
                Parts::Several(parts.iter().map(|part| part.take(rows)).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl Parts<i64> {
    /// Whether there can be rows without a producer.
    fn may_be_untracked(&self) -> bool {
        match self {
            Parts::Plain(_) => true,
            Parts::Several(parts) => parts.iter().any(|part| match part {
                Part::Int(_) => true,
                Part::Utf8(values) => values.null_count() > 0,
                Part::Binary(values) => values.null_count() > 0,
                Part::Fixed(values) => values.null_count() > 0,
            }),
        }
    }

    /// Whether the row has no producer.
    pub fn is_untracked(&self, row: usize) -> bool {
        match self {
            Parts::Plain(values) => values[row] == -1,
            Parts::Several(parts) => parts.iter().any(|part| match part {
                Part::Int(values) => values.is_null(row) || values.value(row) == -1,
                _ => part.is_null(row),
            }),
        }
    }
}

/// Whether no value is longer than the maximum and all bytes are ASCII, if whole buffers show this faster than values.
fn has_short_ascii(values: &BinaryViewArray) -> bool {
    /// Maximum size of values that are stored in their view.
    const INLINE: u32 = 12;
    const HIGH_BITS: u128 = 0x8080_8080_8080_8080_8080_8080 << 32;
    let (mut longest, mut elsewhere, mut high_bits) = (0, 0, 0);
    for &view in values.views() {
        let length = view as u32;
        longest = longest.max(length);
        let is_inline = length <= INLINE;
        elsewhere += if is_inline { 0 } else { u64::from(length) };
        high_bits |= if is_inline { view & HIGH_BITS } else { 0 };
    }
    let buffers = values.data_buffers();
    let held: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    // If values are shared or are slices, the buffers can have many bytes that no view uses.
    let is_worth_it = held as u64 / 2 <= elsewhere;
    longest as usize <= VALUE_BYTES_MAX && high_bits == 0 && is_worth_it && buffers.iter().all(|it| it.is_ascii())
}

/// Prefetches the first and last byte of a value, which can be in two cache lines.
#[inline]
fn prefetch_ends(bytes: &[u8]) {
    prefetch(bytes.as_ptr());
    prefetch(bytes.as_ptr().wrapping_add(bytes.len()));
}

/// Folds values into the hashes of rows. The views of nulls can have any content.
fn fold_views<'a>(values: &BinaryViewArray, rows: impl Iterator<Item = (usize, &'a mut u64)>) {
    let nulls = values.nulls().filter(|nulls| nulls.null_count() > 0);
    for (row, hash) in rows {
        if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            *hash = fold_bytes(*hash, values.value(row));
        }
    }
}

impl Part {
    fn convert(
        name: &str,
        column: &ArrayRef,
        rows_before: usize,
        is_untracked: &dyn Fn(usize) -> bool,
    ) -> Result<Part, Failure> {
        match value_type(column.data_type()) {
            kind if kind.is_integer() => {
                let cast = cast(name, column, &DataType::Int64)?;
                if cast.null_count() > column.logical_null_count() {
                    let is_excused =
                        |row| is_untracked(row) || column.logical_nulls().is_some_and(|it| it.is_null(row));
                    let reader = IntReader { name, rows_before, is_untracked: &is_excused };
                    reader.explain_nulls(column, &cast, "0..=9223372036854775807")?;
                }
                Ok(Part::Int(cast.as_primitive().clone()))
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                let part = Part::Utf8(cast(name, column, &DataType::Utf8View)?.as_string_view().clone());
                part.check_bytes(name, rows_before, is_untracked)
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                let part = Part::Binary(cast(name, column, &DataType::BinaryView)?.as_binary_view().clone());
                part.check_bytes(name, rows_before, is_untracked)
            }
            kind @ DataType::FixedSizeBinary(width) => {
                if *width as usize > VALUE_BYTES_MAX {
                    let problem = format!("values of {width} bytes; a part of a key has at most {VALUE_BYTES_MAX}");
                    return Err(Failure::batch(name, None, problem));
                }
                Ok(Part::Fixed(cast(name, column, kind)?.as_fixed_size_binary().clone()))
            }
            DataType::Null => Ok(Part::Int(Int64Array::new_null(column.len()))),
            _ => Err(wrong_type(name, column.data_type(), "integers, strings or binary")),
        }
    }

    /// Arrow does not validate its buffers: texts that are not UTF-8, and values longer than an array can have, could
    /// not be returned.
    fn check_bytes(
        self,
        name: &str,
        rows_before: usize,
        is_untracked: &dyn Fn(usize) -> bool,
    ) -> Result<Part, Failure> {
        let (values, is_text) = match &self {
            Part::Utf8(values) => (values.clone().to_binary_view(), true),
            Part::Binary(values) => (values.clone(), false),
            Part::Int(_) | Part::Fixed(_) => return Ok(self),
        };
        if values.null_count() == 0 && has_short_ascii(&values) {
            return Ok(self);
        }
        let mut before = None;
        for (row, &view) in values.views().iter().enumerate() {
            // Adjacent values are often the same bytes at the same address.
            if values.is_null(row) || is_untracked(row) || before.replace(view) == Some(view) {
                continue;
            }
            let value = values.value(row);
            let problem = if value.len() > VALUE_BYTES_MAX {
                format!("a value of {} bytes; a part of a key has at most {VALUE_BYTES_MAX}", value.len())
            } else if is_text && !value.is_ascii() && std::str::from_utf8(value).is_err() {
                "a text that is not UTF-8; give such bytes as binary".to_string()
            } else {
                continue;
            };
            return Err(Failure::batch(name, Some(rows_before + row), problem));
        }
        Ok(self)
    }

    fn kind(&self) -> PartKind {
        match self {
            Part::Int(_) => PartKind::Int,
            Part::Utf8(_) => PartKind::Utf8,
            Part::Binary(_) => PartKind::Binary,
            Part::Fixed(values) => PartKind::FixedBinary(values.value_length() as u32),
        }
    }

    /// The values as an Arrow array.
    pub fn array(&self) -> ArrayRef {
        match self {
            Part::Int(values) => Arc::new(values.clone()),
            Part::Utf8(values) => Arc::new(values.clone()),
            Part::Binary(values) => Arc::new(values.clone()),
            Part::Fixed(values) => Arc::new(values.clone()),
        }
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Part::Int(values) => values.is_null(row),
            Part::Utf8(values) => values.is_null(row),
            Part::Binary(values) => values.is_null(row),
            Part::Fixed(values) => values.is_null(row),
        }
    }

    /// Whether two non-null rows have the same value.
    fn is_same(&self, row: usize, other: usize) -> bool {
        self.is_same_as(row, self, other)
    }

    /// Like `is_same`, for a row of another chunk.
    fn is_same_as(&self, row: usize, chunk: &Part, other: usize) -> bool {
        match (self, chunk) {
            (Part::Int(mine), Part::Int(theirs)) => mine.value(row) == theirs.value(other),
            (Part::Utf8(mine), Part::Utf8(theirs)) => mine.value(row) == theirs.value(other),
            (Part::Binary(mine), Part::Binary(theirs)) => mine.value(row) == theirs.value(other),
            (Part::Fixed(mine), Part::Fixed(theirs)) => mine.value(row) == theirs.value(other),
            _ => unreachable!("chunks have columns of the same types"),
        }
    }

    /// Prefetches the value of a row, or its view.
    #[inline]
    fn prefetch(&self, row: usize) {
        match self {
            Part::Int(values) => prefetch(&raw const values.values()[row]),
            Part::Utf8(values) => prefetch(&raw const values.views()[row]),
            Part::Binary(values) => prefetch(&raw const values.views()[row]),
            Part::Fixed(values) => prefetch(values.value(row).as_ptr()),
        }
    }

    /// Prefetches the bytes of a row's view. The row must have a value.
    #[inline]
    fn prefetch_bytes(&self, row: usize) {
        match self {
            Part::Utf8(values) => prefetch_ends(values.value(row).as_bytes()),
            Part::Binary(values) => prefetch_ends(values.value(row)),
            Part::Int(_) | Part::Fixed(_) => {}
        }
    }

    /// Folds the values of rows from `from` on into their hashes.
    fn fold(&self, from: usize, hashes: &mut [u64]) {
        let rows = (from..).zip(hashes);
        match self {
            Part::Int(values) => rows.for_each(|(row, hash)| *hash = fold_hash(*hash, values.value(row) as u64)),
            Part::Utf8(values) => fold_views(&values.clone().to_binary_view(), rows),
            Part::Binary(values) => fold_views(values, rows),
            Part::Fixed(values) => rows.for_each(|(row, hash)| *hash = fold_bytes(*hash, values.value(row))),
        }
    }

    fn take(&self, rows: &[u32]) -> Result<Part, Failure> {
        let taken = take(&self.array(), &UInt32Array::from_iter_values(rows.iter().copied()), None)?;
        Ok(match self {
            Part::Int(_) => Part::Int(taken.as_primitive().clone()),
            Part::Utf8(_) => Part::Utf8(taken.as_string_view().clone()),
            Part::Binary(_) => Part::Binary(taken.as_binary_view().clone()),
            Part::Fixed(_) => Part::Fixed(taken.as_fixed_size_binary().clone()),
        })
    }

    pub fn encode(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Part::Int(values) => encode_int(out, values.value(row)),
            Part::Utf8(values) => encode_bytes(out, values.value(row).as_bytes()),
            Part::Binary(values) => encode_bytes(out, values.value(row)),
            Part::Fixed(values) => encode_bytes(out, values.value(row)),
        }
    }

    /// The rows with integers, and the integers.
    fn ints(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        let ints = match self {
            Part::Int(values) => Some(values.iter()),
            _ => None,
        };
        ints.into_iter().flatten().enumerate().filter_map(|(row, value)| Some((row, value?)))
    }
}
