use super::calls::{apply, apply_spans, check};
use super::columns::Form;
use super::restored::insert;
use crate::bytes::Bytes;
use crate::memory::bounded;
use crate::operations::POLICIES;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use fencepost_columns::{ColumnNames, entries_batches, missing_batches, restore};
use fencepost_core::StateTable;
use fencepost_testkit::pair::Rules;
use std::sync::Arc;

/// What a call may hold whatever the rows are, and for each byte of the input.
const BYTES_FREE: usize = 1 << 20;
const BYTES_PER_BYTE: usize = 1 << 12;
/// Rows that are judged one by one to compare.
const ROWS_MAX: u64 = 1 << 14;

const NAMES: [&str; 6] = ["pid", "epoch", "partition", "seq", "timestamp", "more"];
const PID: usize = 0;
const EPOCH: usize = 1;
const PARTITION: usize = 2;
const SEQ: usize = 3;
const TIMESTAMP: usize = 4;
const MORE: usize = 5;

/// Any bytes as batches of any types: refused as a whole, or judged, and then neither the types, nor where batches and
/// buffers begin, nor a look ahead show. The input chooses which of these each call is compared with.
pub fn rows(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let stream = Stream::read(&mut input);
    let mut table = stream.rules.table();
    for _ in 0..1 + input.below(3) {
        let (beside, batches) = (input.next(), stream.batches(&mut input));
        stream.apply(&mut table, &batches, beside, bytes.len());
    }
    let entries = entries_batches(&table);
    let again = insert(stream.rules.table(), entries.clone()).expect("its own entries");
    assert!(entries_batches(&again) == entries, "entries do not come back");
    let missing: usize = missing_batches(&table).iter().map(RecordBatch::num_rows).sum();
    assert_eq!(missing, table.missing().len());
}

/// Any bytes as spans: judged like their rows one by one.
pub fn spans(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let stream = Stream::read(&mut input);
    let mut table = stream.rules.table();
    for _ in 0..1 + input.below(3) {
        let lines = stream.batches(&mut input);
        let form = Form::read(&mut input);
        let lengths: Vec<Vec<Option<i64>>> = lines.iter().map(|lines| lengths(&mut input, lines.rows)).collect();
        stream.apply_spans(&mut table, &lines, form, &lengths, bytes.len());
    }
}

/// Mostly a few rows; at times none, fewer than none, or more than there is memory for.
fn lengths(bytes: &mut Bytes<'_>, lines: usize) -> Vec<Option<i64>> {
    let length = |_| match bytes.next() {
        few @ 0..240 => Some(i64::from(few % 8) + 1),
        240..248 => Some(200),
        248 => Some(0),
        249 => Some(-1),
        250 => None,
        251 => Some(1 << 32),
        _ => Some(u32::MAX.into()),
    };
    (0..lines).map(length).collect()
}

/// How the rows of an input come: policy, columns and their types.
struct Stream {
    rules: Rules,
    columns: ColumnNames,
    forms: [Form; NAMES.len()],
}

/// A batch before it is put into Arrow.
struct Values {
    rows: usize,
    columns: [Vec<Option<i64>>; NAMES.len()],
}

impl Stream {
    fn read(bytes: &mut Bytes<'_>) -> Stream {
        let (preset, fields, keeps_timestamp) = POLICIES[usize::from(bytes.next()) % POLICIES.len()];
        let rules = Rules::new(preset, fields, keeps_timestamp);
        let (roles, name) = (bytes.next(), |at: usize| NAMES[at].to_string());
        let has_epochs = rules.core.epochs != fencepost_core::Epochs::Ignore;
        let columns = ColumnNames {
            pid: [name(PID), name(MORE)][..1 + usize::from(roles & 7 == 1)].to_vec(),
            epoch: has_epochs.then(|| name(EPOCH)),
            partition: match roles >> 3 & 7 {
                0 => vec![],
                1 => vec![name(PARTITION), name(MORE)],
                _ => vec![name(PARTITION)],
            },
            seq: name(SEQ),
            timestamp: keeps_timestamp.then(|| name(TIMESTAMP)),
            length: None,
        };
        Stream { rules, columns, forms: std::array::from_fn(|_| Form::read(bytes)) }
    }

    fn batches(&self, bytes: &mut Bytes<'_>) -> Vec<Values> {
        (0..1 + bytes.below(3)).map(|_| self.values(bytes)).collect()
    }

    fn values(&self, bytes: &mut Bytes<'_>) -> Values {
        let rows = usize::from(bytes.below(24));
        let mut columns: [Vec<Option<i64>>; NAMES.len()] = std::array::from_fn(|_| Vec::with_capacity(rows));
        for row in 0..rows {
            let key = bytes.next();
            columns[PID].push([Some(1), Some(2), Some(3), None][usize::from(key % 4)]);
            columns[PARTITION].push(Some(i64::from(key / 4 % 4)));
            columns[EPOCH].push(Some(i64::from(key / 16 % 2)));
            columns[MORE].push(Some(i64::from(key / 32 % 2)));
            columns[SEQ].push(Some(i64::from(bytes.next() % 64)));
            columns[TIMESTAMP].push(Some(row as i64 * 1000 + i64::from(key)));
            if key >= 240 {
                let column = &mut columns[usize::from(bytes.below(6))];
                *column.last_mut().expect("a row") = odd(bytes);
            }
        }
        Values { rows, columns }
    }

    fn batch(&self, values: &Values, more: Option<(&str, ArrayRef)>) -> RecordBatch {
        let named = NAMES.iter().zip(&values.columns).zip(&self.forms);
        batch(named.map(|((name, values), form)| (*name, form.array(values))).chain(more))
    }

    /// The same values in the types that are used where they lie.
    fn plain(&self, values: &Values) -> RecordBatch {
        let seq = if self.forms[SEQ].is_narrow() { DataType::Int32 } else { DataType::Int64 };
        let kinds = [DataType::Int64, DataType::Int16, DataType::Int32, seq, DataType::Int64];
        let named = NAMES.iter().zip(&values.columns).zip(self.forms.iter().zip(kinds));
        let columns = named.map(|((name, values), (form, kind))| {
            if form.is_text() {
                return (*name, cast(&form.array(values), &DataType::Utf8).expect("texts"));
            }
            let wide = cast(&form.array(values), &DataType::Int64).expect("integers");
            // What the role's type cannot hold is refused in the one form as in the other.
            let narrow = cast(&wide, &kind).expect("integers");
            (*name, if narrow.null_count() == wide.null_count() { narrow } else { wide })
        });
        batch(columns)
    }

    /// Whether every column that is read holds integers, or texts as a key.
    fn is_plain(&self) -> bool {
        let ColumnNames { pid, partition, .. } = &self.columns;
        let fits = |at: usize| self.forms[at].is_integer() || matches!(at, PID | PARTITION) && self.forms[at].is_text();
        pid.len() == 1 && partition.len() < 2 && (0..MORE).all(fits)
    }

    /// `beside`: what the call is compared with.
    fn apply(&self, table: &mut StateTable, values: &[Values], beside: u8, bytes: usize) {
        let batches: Vec<RecordBatch> = values.iter().map(|values| self.batch(values, None)).collect();
        let before = table.snapshot();
        let looked = beside.is_multiple_of(3).then(|| check(table, batches.clone(), &self.columns));
        assert!(looked.is_none() || table.snapshot() == before, "a look ahead shows");
        let limit = BYTES_FREE + BYTES_PER_BYTE * bytes;
        let judged = bounded(limit, || apply(table, batches.clone(), &self.columns));
        match (&judged, looked) {
            (_, None) => {}
            (Ok(judged), Some(Ok(looked))) => assert_eq!(*judged, looked, "a look ahead says something else"),
            (Err(judged), Some(Err(looked))) => assert_eq!(format!("{judged:?}"), format!("{looked:?}")),
            (Err(_), Some(Ok(_))) => panic!("a look ahead is not refused"),
            (Ok(_), Some(Err(looked))) => panic!("a look ahead is refused: {looked:?}"),
        }
        if beside % 3 == 1 && self.is_plain() {
            let mut copy = restored(&before);
            let plain = values.iter().map(|values| self.plain(values)).collect();
            let plain = apply(&mut copy, plain, &self.columns);
            assert_eq!(judged.as_ref().ok(), plain.as_ref().ok(), "types show: {judged:?} {plain:?}");
            assert!(copy.snapshot() == table.snapshot(), "types show in the table");
        }
        let Ok(judged) = judged else {
            assert!(table.snapshot() == before, "a refused call shows");
            return;
        };
        if beside % 3 == 2 && self.rules.core.intervals_max.is_none() {
            let mut copy = restored(&before);
            let pieces = batches.iter().flat_map(pieces);
            let cut = pieces.flat_map(|rows| apply(&mut copy, vec![rows], &self.columns).expect("valid rows"));
            assert_eq!(cut.collect::<Vec<u8>>(), judged, "a cut shows");
            assert!(entries_batches(&copy) == entries_batches(table), "a cut shows in the table");
        }
    }

    fn apply_spans(
        &self,
        table: &mut StateTable,
        values: &[Values],
        form: Form,
        lengths: &[Vec<Option<i64>>],
        bytes: usize,
    ) {
        let is_long = |length: &Option<i64>| length.is_some_and(|length| length > 200);
        let sum: u64 = lengths.iter().flatten().map(|length| length.unwrap_or(0).clamp(0, 1 << 32) as u64).sum();
        let mut lines: Vec<RecordBatch> = vec![];
        for (values, lengths) in values.iter().zip(lengths) {
            lines.push(self.batch(values, Some(("length", form.array(lengths)))));
        }
        if lengths.iter().flatten().any(is_long) {
            // A verdict a row: only a line that is refused keeps this from taking gigabytes.
            let Some(last) = values.last() else { return };
            let mut columns = last.columns.clone();
            columns.iter_mut().for_each(|column| column.push(Some(i64::MIN)));
            let bad = Values { rows: last.rows + 1, columns };
            let length = [&lengths[lengths.len() - 1][..], &[Some(1)]].concat();
            lines.pop();
            lines.push(self.batch(&bad, Some(("length", form.array(&length)))));
            let is_untracked = |name: &str| {
                let parts = lines.last().and_then(|line| line.column_by_name(name));
                parts.and_then(|it| it.logical_nulls()).is_some_and(|nulls| nulls.is_null(last.rows))
            };
            if self.columns.pid.iter().any(|name| is_untracked(name)) {
                return; // nothing else of the line is looked at
            }
        }
        let before = table.snapshot();
        let limit = BYTES_FREE + BYTES_PER_BYTE * bytes;
        let judged = bounded(limit, || apply_spans(table, lines.clone(), &self.columns));
        let Ok(judged) = judged else {
            assert!(table.snapshot() == before, "a refused call shows");
            return;
        };
        assert!(sum <= ROWS_MAX, "{sum} rows were judged");
        if let Some(rows) = self.expanded(values, form, lengths) {
            let mut copy = restored(&before);
            let single = apply(&mut copy, rows, &self.columns).expect("valid rows");
            assert_eq!(single, judged, "spans show");
            assert!(entries_batches(&copy) == entries_batches(table), "spans show in the table");
        }
    }

    /// The rows of spans; none where a span goes past the end of its type or its space.
    fn expanded(&self, values: &[Values], form: Form, lengths: &[Vec<Option<i64>>]) -> Option<Vec<RecordBatch>> {
        let end = self.rules.core.seq_max().min(127);
        let mut batches = vec![];
        for (values, lengths) in values.iter().zip(lengths) {
            let lengths = cast(&form.array(lengths), &DataType::Int64).ok()?;
            let lengths = lengths.as_any().downcast_ref::<Int64Array>()?;
            let mut columns: [Vec<Option<i64>>; NAMES.len()] = Default::default();
            for row in 0..values.rows {
                let (first, length) = (values.columns[SEQ][row]?, lengths.value(row));
                if !(0..=end).contains(&first) || first + length - 1 > end {
                    return None;
                }
                for step in 0..length {
                    for (column, values) in columns.iter_mut().zip(&values.columns) {
                        column.push(values[row]);
                    }
                    *columns[SEQ].last_mut()? = Some(first + step);
                }
            }
            batches.push(Values { rows: columns[SEQ].len(), columns });
        }
        Some(batches.iter().map(|values| self.batch(values, None)).collect())
    }
}

/// The first row alone, and three pieces: each call takes as long as hundreds of rows.
fn pieces(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + '_ {
    let rows = batch.num_rows();
    let third = (rows / 3).max(1);
    let ends = [0, 1, 1 + third, 1 + 2 * third, rows].map(|end| end.min(rows));
    (1..ends.len())
        .filter(move |&at| ends[at - 1] < ends[at])
        .map(move |at| batch.slice(ends[at - 1], ends[at] - ends[at - 1]))
}

fn odd(bytes: &mut Bytes<'_>) -> Option<i64> {
    match bytes.next() % 12 {
        0 => None,
        1 => Some(-1),
        2 => Some(-2),
        3 => Some(i64::MAX),
        4 => Some(i64::MIN),
        5 => Some(i32::MAX.into()),
        6 => Some(1 << 31),
        7 => Some(i16::MAX.into()),
        8 => Some(1 << 15),
        9 => Some(127),
        10 => Some(u32::MAX.into()),
        _ => Some(bytes.wide().cast_signed()),
    }
}

fn batch<'a>(columns: impl Iterator<Item = (&'a str, ArrayRef)>) -> RecordBatch {
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) =
        columns.map(|(name, array)| (Field::new(name, array.data_type().clone(), true), array)).unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of one length")
}

fn restored(snapshot: &[u8]) -> StateTable {
    restore(snapshot, [].into_iter()).expect("its own snapshot")
}
