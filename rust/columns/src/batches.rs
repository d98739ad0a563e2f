//! Converts the columns of produce batches and markers to the types of the core.

use crate::failure::Failure;
use crate::identity::{IntReader, PIDS, Parts, cast, is_null_type, never, value_type, wrong_type};
use crate::rows::Rows;
use crate::verdicts::Verdicts;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use fencepost_core::{self as core, Column, Control, Error, KeyKind, Keys, Origin, Origins, ProduceBatches};

/// The columns of each role, by their names in the input. The counterpart of a Python `BatchColumns`.
#[derive(Clone, Debug)]
pub struct BatchNames {
    /// The producer.
    pub pid: String,
    /// Its epoch.
    pub epoch: String,
    /// The partition. Empty if rows have none.
    pub partition: Vec<String>,
    /// The first sequence number.
    pub base_seq: String,
    /// Roles whose columns are read if the rows have them.
    pub optional: Vec<(Column, String)>,
    /// The origin of rows without one.
    pub default_origin: Origin,
}

impl BatchNames {
    /// The roles of optional columns.
    pub const OPTIONAL: [Column; 10] = [
        Column::Count,
        Column::LastSeq,
        Column::Offset,
        Column::LastOffset,
        Column::Timestamp,
        Column::Transactional,
        Column::Control,
        Column::CoordinatorEpoch,
        Column::TransactionVersion,
        Column::Origin,
    ];

    /// Every column that is read if the rows have it.
    pub fn all(&self) -> Vec<&str> {
        let needed = [&self.pid, &self.epoch, &self.base_seq];
        let names = needed.into_iter().chain(&self.partition).chain(self.optional.iter().map(|(_, name)| name));
        names.map(String::as_str).collect()
    }

    /// Removes columns that the rows do not have.
    fn found_in(&self, rows: &Rows) -> BatchNames {
        let optional = self.optional.iter().filter(|(_, name)| rows.has(name)).cloned().collect();
        BatchNames { optional, ..self.clone() }
    }

    /// The name in the input of the column with a role.
    pub fn of_role(&self, role: Column) -> String {
        match role {
            Column::Pid => self.pid.clone(),
            Column::Epoch => self.epoch.clone(),
            Column::Partition => self.partition.join(", "),
            Column::BaseSeq => self.base_seq.clone(),
            role => {
                let name = self.optional.iter().find(|(known, _)| *known == role).map(|(_, name)| name.clone());
                name.unwrap_or_else(|| role.to_string())
            }
        }
    }
}

/// Produce batches, chunk by chunk.
pub struct Produced {
    chunks: Vec<Chunk>,
    default_origin: Origin,
}

struct Chunk {
    rows: usize,
    pid: ScalarBuffer<i64>,
    partition: Parts<i32>,
    epoch: ScalarBuffer<i16>,
    base_seq: ScalarBuffer<i32>,
    count: Option<ScalarBuffer<i32>>,
    last_seq: Option<ScalarBuffer<i32>>,
    offset: Option<ScalarBuffer<i64>>,
    last_offset: Option<ScalarBuffer<i64>>,
    timestamp: Option<ScalarBuffer<i64>>,
    transactional: Option<Vec<u8>>,
    control: Option<Vec<u8>>,
    coordinator_epoch: Option<ScalarBuffer<i32>>,
    transaction_version: Option<ScalarBuffer<i8>>,
    origin: Option<Vec<u8>>,
}

impl Produced {
    /// Reads and converts every column. `needs_partitions`: batches that are not idempotent need one too.
    pub fn read(names: &BatchNames, rows: Rows, needs_partitions: bool) -> Result<Produced, Failure> {
        let names = names.found_in(&rows);
        let mut rows_before = 0;
        let convert = |columns: Vec<ArrayRef>| {
            let chunk = Chunk::convert(&names, &columns, rows_before, needs_partitions)?;
            rows_before += chunk.rows;
            Ok(chunk)
        };
        let chunks = rows.select(&names.all())?.into_iter().map(convert).collect::<Result<_, Failure>>()?;
        Ok(Produced { chunks, default_origin: names.default_origin })
    }

    /// The type of partitions, if any chunk shows it.
    pub fn partition_kind(&self) -> Option<KeyKind> {
        self.chunks.first().map(|chunk| chunk.partition.kind())
    }

    /// Numbers the partitions that are not plain integers.
    pub fn number(&self, keys: &mut Keys) -> core::Result<Vec<ScalarBuffer<i32>>> {
        let number = |chunk: &Chunk| chunk.partition.number(chunk.rows, &mut keys.partition.dictionary, never);
        self.chunks.iter().map(number).collect()
    }

    /// The columns in the types of the core.
    pub fn batches<'a>(&'a self, partitions: &'a [ScalarBuffer<i32>]) -> Vec<ProduceBatches<'a>> {
        let batches = |(chunk, partition): (&'a Chunk, &'a ScalarBuffer<i32>)| ProduceBatches {
            pid: &chunk.pid,
            partition,
            epoch: &chunk.epoch,
            base_seq: &chunk.base_seq,
            last_seq: chunk.last_seq.as_deref(),
            count: chunk.count.as_deref(),
            offset: chunk.offset.as_deref(),
            last_offset: chunk.last_offset.as_deref(),
            timestamp: chunk.timestamp.as_deref(),
            transactional: chunk.transactional.as_deref(),
            control: chunk.control.as_deref(),
            coordinator_epoch: chunk.coordinator_epoch.as_deref(),
            transaction_version: chunk.transaction_version.as_deref(),
            origin: match &chunk.origin {
                None => Origins::All(self.default_origin),
                Some(codes) => Origins::Each(codes, self.default_origin),
            },
        };
        self.chunks.iter().zip(partitions).map(batches).collect()
    }
}

impl Chunk {
    fn convert(
        names: &BatchNames,
        columns: &[ArrayRef],
        rows_before: usize,
        needs_partitions: bool,
    ) -> Result<Chunk, Failure> {
        let rows = columns[0].len();
        let (needed, rest) = columns.split_at(3);
        let (partitions, rest) = rest.split_at(names.partition.len());
        let pid = IntReader::read_or::<Int64Type>(&names.pid, &needed[0], rows_before, PIDS, -1)?;
        let is_untracked = |row| pid[row] == -1;
        let is_excused: &dyn Fn(usize) -> bool = if needs_partitions { &never } else { &is_untracked };
        let reader = |name| IntReader { name, rows_before, is_untracked: is_excused };
        let partition = Parts::of_partition(&names.partition, partitions, rows, &reader)?;
        let of_batches = IntReader { name: &names.epoch, rows_before, is_untracked: &is_untracked };
        let epoch = of_batches.read::<Int16Type>(&needed[1], "0..=32767")?;
        let base_seq = IntReader::read_or::<Int32Type>(&names.base_seq, &needed[2], rows_before, SEQS, -1)?;
        let optional = Optional { names, columns: rest, rows_before };
        Ok(Chunk {
            rows,
            partition,
            epoch,
            base_seq,
            count: optional.ints::<Int32Type>(Column::Count, "1..=2147483647", ProduceBatches::NO_INT)?,
            last_seq: optional.ints::<Int32Type>(Column::LastSeq, SEQS, ProduceBatches::NO_INT)?,
            offset: optional.ints::<Int64Type>(Column::Offset, OFFSETS, -1)?,
            last_offset: optional.ints::<Int64Type>(Column::LastOffset, OFFSETS, -1)?,
            timestamp: optional.read(Column::Timestamp, |name, column| read_timestamps(name, column, rows_before))?,
            transactional: optional.read(Column::Transactional, read_flags)?,
            control: optional.read(Column::Control, |name, column| read_control(name, column, rows_before))?,
            coordinator_epoch: optional.ints::<Int32Type>(Column::CoordinatorEpoch, SEQS, -1)?,
            transaction_version: optional.versions()?,
            origin: optional.origins()?,
            pid,
        })
    }
}

const SEQS: &str = "0..=2147483647";
const OFFSETS: &str = "0..=9223372036854775807";

/// The optional columns of rows.
struct Optional<'a> {
    names: &'a BatchNames,
    columns: &'a [ArrayRef],
    rows_before: usize,
}

impl Optional<'_> {
    /// The name and the values of a role's column, unless it does not exist or has only nulls.
    fn find(&self, role: Column) -> Option<(&str, &ArrayRef)> {
        let at = self.names.optional.iter().position(|(known, _)| *known == role)?;
        let column = &self.columns[at];
        (column.logical_null_count() < column.len()).then_some((&self.names.optional[at].1, column))
    }

    /// Reads the column of a role.
    fn read<T>(
        &self,
        role: Column,
        read: impl FnOnce(&str, &ArrayRef) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        self.find(role).map(|(name, column)| read(name, column)).transpose()
    }

    fn ints<T: arrow_array::types::ArrowPrimitiveType>(
        &self,
        role: Column,
        range: &str,
        in_place_of_null: T::Native,
    ) -> Result<Option<ScalarBuffer<T::Native>>, Failure> {
        self.read(role, |name, column| IntReader::read_or::<T>(name, column, self.rows_before, range, in_place_of_null))
    }

    fn versions(&self) -> Result<Option<ScalarBuffer<i8>>, Failure> {
        const RANGE: &str = "0..=127";
        let Some((name, column)) = self.find(Column::TransactionVersion) else { return Ok(None) };
        let versions = IntReader::read_or::<Int8Type>(name, column, self.rows_before, RANGE, -1)?;
        let is_wrong = |&row: &usize| versions[row] < 0 && !column.logical_nulls().is_some_and(|it| it.is_null(row));
        match (0..versions.len()).find(is_wrong) {
            None => Ok(Some(versions)),
            Some(row) => {
                let problem = format!("value {} is outside {RANGE}", versions[row]);
                Err(Failure::batch(name, Some(self.rows_before + row), problem))
            }
        }
    }

    fn origins(&self) -> Result<Option<Vec<u8>>, Failure> {
        let code = |text: &str| origin_of(text).map(|origin| origin as u8);
        self.read(Column::Origin, |name, column| {
            read_codes(name, column, self.rows_before, "client, replica, coordinator", code, ProduceBatches::NO_ORIGIN)
        })
    }
}

/// Reads timestamps in milliseconds; null becomes -1.
pub(crate) fn read_timestamps(name: &str, column: &ArrayRef, rows_before: usize) -> Result<ScalarBuffer<i64>, Failure> {
    IntReader::fill(name, column, rows_before, |reader| reader.read_timestamps(column), |_| -1)
}

/// Reads booleans: 1 for true, 0 for false and null.
pub(crate) fn read_flags(name: &str, column: &ArrayRef) -> Result<Vec<u8>, Failure> {
    if !is_null_type(column) && *value_type(column.data_type()) != DataType::Boolean {
        return Err(wrong_type(name, column.data_type(), "booleans"));
    }
    let flags = cast(name, column, &DataType::Boolean)?;
    let flags = flags.as_boolean();
    match flags.null_count() {
        0 => Ok(flags.values().iter().map(u8::from).collect()),
        _ => Ok(flags.iter().map(|flag| flag.unwrap_or(false).into()).collect()),
    }
}

/// Reads codes of [`Control`]; null is data.
pub(crate) fn read_control(name: &str, column: &ArrayRef, rows_before: usize) -> Result<Vec<u8>, Failure> {
    read_codes(name, column, rows_before, "commit, abort, empty, other", control_of, Control::Data as u8)
}

/// Reads the codes of a column of words.
fn read_codes(
    name: &str,
    column: &ArrayRef,
    rows_before: usize,
    words: &str,
    code: impl Fn(&str) -> Option<u8>,
    in_place_of_null: u8,
) -> Result<Vec<u8>, Failure> {
    let is_text = matches!(value_type(column.data_type()), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if !is_text && !is_null_type(column) {
        return Err(wrong_type(name, column.data_type(), "strings"));
    }
    let texts = cast(name, column, &DataType::Utf8View)?;
    let texts = texts.as_string_view();
    let mut codes = vec![in_place_of_null; column.len()];
    let mut read = |row: usize| {
        let text = texts.value(row);
        let wrong = || Failure::batch(name, Some(rows_before + row), format!("value '{text}' must be one of {words}"));
        codes[row] = code(text).ok_or_else(wrong)?;
        Ok::<_, Failure>(())
    };
    // Most rows of a log are null here.
    match texts.nulls() {
        Some(nulls) => nulls.valid_indices().try_for_each(&mut read)?,
        None => (0..column.len()).try_for_each(&mut read)?,
    }
    Ok(codes)
}

fn control_of(text: &str) -> Option<u8> {
    let control = match text {
        "commit" => Control::Commit,
        "abort" => Control::Abort,
        "empty" => Control::Empty,
        "other" => Control::Other,
        _ => return None,
    };
    Some(control as u8)
}

/// The origin with a name.
pub fn origin_of(text: &str) -> Option<Origin> {
    match text {
        "client" => Some(Origin::Client),
        "replica" => Some(Origin::Replica),
        "coordinator" => Some(Origin::Coordinator),
        _ => None,
    }
}

/// Judges batches with `call`. New keys of partitions stay in the table only if `keeps_keys` is true and nothing fails.
pub fn judge_batches(
    table: &mut core::BrokerTable,
    produced: &Produced,
    names: &BatchNames,
    keeps_keys: bool,
    call: BatchCall,
) -> Result<Verdicts, Failure> {
    let before = table.keys().mark();
    let judged = judge_produced(table, produced, call).map_err(|error| match error {
        Error::Batch { column, row, problem } => Failure::batch(&names.of_role(column), row, problem),
        other => Failure::from(other),
    });
    let verdicts = judged.map(|judged| Verdicts::of_batches(judged, table.keys()));
    // If nothing was accepted, no key is used, and the next call may have keys of another type.
    if verdicts.is_err() || !keeps_keys || table.is_blank() {
        table.keys_mut().go_back(before);
    }
    verdicts
}

/// The type of functions that judge batches.
pub type BatchCall = fn(&mut core::BrokerTable, &[ProduceBatches<'_>]) -> core::Result<core::BrokerJudged>;

fn judge_produced(
    table: &mut core::BrokerTable,
    produced: &Produced,
    call: BatchCall,
) -> core::Result<core::BrokerJudged> {
    if let Some(partition) = produced.partition_kind() {
        table.keys_mut().fix(KeyKind::Plain, partition)?;
    }
    let partitions = produced.number(table.keys_mut())?;
    call(table, &produced.batches(&partitions))
}
