//! Compares columns of every kind with references that read row by row.

use crate::{
    ColumnNames, Constant, Failure, Identity, Rows, Scan, ScanOptions, apply_and_keep, judge_and_keep, keep,
    shard_of_rows,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_cast::cast;
use arrow_schema::DataType;
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use fencepost_core::{Keys, Policy, StateTable};
use fencepost_lake::{ParquetFile, ReadAt};
use fencepost_testkit::workload::Random;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

fn names() -> ColumnNames {
    let one = |name: &str| vec![name.to_string()];
    ColumnNames {
        pid: one("pid"),
        epoch: None,
        partition: one("partition"),
        seq: "seq".into(),
        timestamp: None,
        length: None,
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns")
}

/// Texts that often equal the previous row; some rows have no producer.
fn texts(rows: usize) -> Vec<Option<String>> {
    let mut random = Random::new(1);
    let mut before = Some("first".to_string());
    (0..rows)
        .map(|_| {
            if random.chance(40) {
                before = (!random.chance(5)).then(|| format!("producer {}", random.below(300)));
            }
            before.clone()
        })
        .collect()
}

/// One column of texts in every type for texts.
fn text_columns(texts: &[Option<String>]) -> Vec<ArrayRef> {
    let plain: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    let dictionary: DictionaryArray<Int32Type> = texts.iter().map(Option::as_deref).collect();
    let kinds = [DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, DataType::BinaryView];
    let mut columns: Vec<_> = kinds.iter().map(|kind| cast(&plain, kind).expect("texts")).collect();
    columns.extend([plain, Arc::new(dictionary) as ArrayRef]);
    columns
}

fn identity(pid: ArrayRef) -> Identity {
    let rows = pid.len();
    let columns = vec![
        ("seq", Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("partition", Arc::new(Int32Array::from_iter_values((0..rows as i32).map(|row| row / 7 % 3)))),
        ("pid", pid),
    ];
    Identity::read(&names(), Rows::of_batch(batch(columns))).expect("rows")
}

/// Rows are numbered 512 at a time, and these rows cross several such limits.
#[test]
fn keys_are_numbered_in_order_of_appearance_whatever_their_type() {
    let texts = texts(3000);
    let mut numbers = HashMap::new();
    let expected: Vec<i64> = texts
        .iter()
        .map(|text| match text {
            None => -1,
            Some(text) => {
                let next = numbers.len() as i64;
                *numbers.entry(text).or_insert(next)
            }
        })
        .collect();
    for column in text_columns(&texts) {
        let (kind, identity) = (column.data_type().clone(), identity(column));
        let mut keys = Keys::default();
        let (pid, partition) = identity.key_kinds().expect("a chunk");
        keys.fix(pid, partition).expect("types of an empty table");
        let numbered = identity.number(&mut keys).expect("numbers");
        let found: Vec<i64> = numbered[0].keys().map(|(pid, _)| pid).collect();
        assert_eq!(found, expected, "{kind}");
        assert_eq!(keys.pid.dictionary.len(), numbers.len(), "{kind}");
    }
}

#[test]
fn shards_depend_on_the_key_alone() {
    let texts = texts(2000);
    let mut of_key: HashMap<(String, usize), u32> = HashMap::new();
    for column in text_columns(&texts) {
        let kind = column.data_type().clone();
        let is_text = !matches!(kind, DataType::Binary | DataType::BinaryView);
        let shards = shard_of_rows(&identity(column), &names(), 5).expect("keys");
        let shards = shards.as_primitive::<UInt32Type>();
        for (row, text) in texts.iter().enumerate() {
            assert_eq!(shards.is_null(row), text.is_none(), "{kind}, row {row}");
            // Neighbouring partitions of a producer share a shard.
            if let Some(text) = text.as_ref().filter(|_| is_text) {
                let shard = *of_key.entry((text.clone(), 0)).or_insert(shards.value(row));
                assert_eq!(shards.value(row), shard, "{kind}, row {row}");
                assert!(shard < 5);
            }
        }
    }
    let used: std::collections::HashSet<_> = of_key.values().collect();
    assert_eq!(used.len(), 5);
    let negative = identity_keys(Arc::new(Int64Array::from(vec![3, -2])));
    let Err(Failure::Batch { column, row, .. }) = shard_of_rows(&negative, &names(), 5) else { panic!("no key") };
    assert_eq!((column.as_deref(), row), (Some("pid"), Some(1)));
}

fn identity_keys(pid: ArrayRef) -> Identity {
    let partition: ArrayRef = Arc::new(Int32Array::from(vec![0; pid.len()]));
    let rows = Rows::of_batch(batch(vec![("pid", pid), ("partition", partition)]));
    Identity::read_keys(&names(), rows, 0).expect("keys")
}

/// The ways of `keep`: repeats found by hashes, the table for other rows, and the table for all rows.
#[test]
fn rows_are_kept_as_the_table_accepts_them() {
    let mut random = Random::new(3);
    let texts = texts(20_000);
    let seq: ArrayRef = Arc::new(Int64Array::from_iter_values((0..texts.len()).map(|_| random.below(60) as i64 * 3)));
    let partition: ArrayRef = Arc::new(Int32Array::from(vec![0; texts.len()]));
    for pid in text_columns(&texts) {
        let kind = pid.data_type().clone();
        let rows = batch(vec![("pid", pid), ("partition", partition.clone()), ("seq", seq.clone())]);
        let identity = Identity::read(&names(), Rows::of_batch(rows)).expect("rows");
        for policy in ["any_order", "in_order"] {
            let preset = fencepost_core::PRESETS.iter().find(|it| it.name == policy).expect("a preset");
            let table = || StateTable::new(Policy { epochs: fencepost_core::Epochs::Ignore, ..preset.policy });
            let mut table = [table().expect("rules"), table().expect("rules"), table().expect("rules")];
            let kept = keep(&mut table[0], &identity, &names()).expect("rows");
            assert_eq!(kept, apply_and_keep(&mut table[1], &identity, &names()).expect("rows"), "{policy}, {kind}");
            let verdicts =
                judge_and_keep(&mut table[2], &identity, &names(), true, |table, batches, _| table.apply(batches));
            assert_eq!(kept, verdicts.expect("rows").kept_bits(), "{policy}, {kind}");
            assert!((2000..20_000).contains(&kept.count_set_bits()), "{}", kept.count_set_bits());
        }
    }
}

struct Memory(Vec<u8>);

impl ReadAt for Memory {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.0[(position as usize).min(self.0.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

fn file(rows: &RecordBatch) -> ParquetFile {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100_000)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).expect("a schema");
    writer.write(rows).expect("rows");
    let bytes = Bytes::from(writer.into_inner().expect("a file"));
    ParquetFile::of_reader(Path::new("file"), Arc::new(Memory(bytes.to_vec()))).expect("a file")
}

/// A hot producer whose rows continue across decoded batches, and others in between.
fn file_rows(is_text: bool) -> RecordBatch {
    const ROWS: usize = 150_000;
    let mut random = Random::new(5);
    let mut next = [0_i64; 9];
    let (mut pids, mut seqs, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut of = 0;
    for row in 0..ROWS {
        let in_hot_part = (50_000..90_000).contains(&row);
        if !in_hot_part && random.chance(10) {
            of = random.below(9) as usize;
        }
        pids.push((of > 0).then_some(of as i64));
        seqs.push(next[of]);
        times.push(row as i64 / 30_000);
        next[of] += if random.chance(1) && !in_hot_part { 2 } else { 1 };
    }
    let ints: ArrayRef = Arc::new(Int64Array::from(pids));
    let pid = if is_text { cast(&ints, &DataType::Utf8).expect("texts") } else { ints };
    batch(vec![("pid", pid), ("seq", Arc::new(Int64Array::from(seqs))), ("time", Arc::new(Int64Array::from(times)))])
}

fn options(order_by: &[&str], by_row: bool) -> ScanOptions {
    let order_by = order_by.iter().map(ToString::to_string).collect();
    ScanOptions { names: names(), order_by, by_row, shards: 4, ordinal: 7, seq_max: i64::MAX }
}

fn scan(rows: &RecordBatch, options: ScanOptions, steps: usize) -> (Vec<(u32, RecordBatch)>, u64) {
    let file = file(rows);
    let constants = HashMap::from([("partition".to_string(), Some(Constant::Int(2)))]);
    let mut scan = Scan::open(&file, 0..file.row_groups(), options, constants).expect("a file");
    let (mut spans, mut has_more) = (Vec::new(), true);
    while has_more {
        for _ in 0..steps {
            has_more = has_more && scan.step().expect("rows");
        }
        assert_eq!(scan.spans_held() > 0, has_more || scan.spans_held() > 0);
        spans.extend(scan.take_spans().expect("spans"));
        assert_eq!(scan.spans_held(), 0);
    }
    assert_eq!(scan.spans(), spans.iter().map(|(_, batch)| batch.num_rows() as u64).sum::<u64>());
    (spans, scan.untracked())
}

/// The rows of spans with their shard: (row, pid, seq).
fn rows_of(spans: &[(u32, RecordBatch)]) -> Vec<(u64, u32, String, i64)> {
    let mut rows = Vec::new();
    for (shard, batch) in spans {
        let column = |name: &str| batch.column_by_name(name).expect("a column");
        let pid = cast(column("pid"), &DataType::Utf8).expect("texts");
        let (first, seq) = (column("_row").as_primitive::<UInt64Type>(), column("seq").as_primitive::<Int64Type>());
        let lengths: &UInt32Array = column("_length").as_primitive();
        for span in 0..batch.num_rows() {
            rows.extend((0..lengths.value(span)).map(|at| {
                let pid = pid.as_string::<i32>().value(span).to_string();
                (first.value(span) + u64::from(at), *shard, pid, seq.value(span) + i64::from(at))
            }));
        }
        assert!(column("_file").as_primitive::<UInt32Type>().values().iter().all(|&it| it == 7));
    }
    rows
}

#[test]
fn spans_of_a_file_are_its_rows() {
    for is_text in [false, true] {
        let rows = file_rows(is_text);
        let pid = cast(rows.column(0), &DataType::Utf8).expect("texts");
        let pid = pid.as_string::<i32>();
        let seq = rows.column(1).as_primitive::<Int64Type>();
        let shards = {
            let partition: ArrayRef = Arc::new(Int32Array::from(vec![2; rows.num_rows()]));
            let keys = batch(vec![("pid", rows.column(0).clone()), ("partition", partition)]);
            shard_of_rows(&Identity::read_keys(&names(), Rows::of_batch(keys), 0).expect("keys"), &names(), 4)
        };
        let shards = shards.expect("keys");
        let shards = shards.as_primitive::<UInt32Type>();
        let tracked = (0..rows.num_rows()).filter(|&row| pid.is_valid(row));
        let expected: Vec<_> =
            tracked.map(|row| (row as u64, shards.value(row), pid.value(row).to_string(), seq.value(row))).collect();
        let count = |spans: &[(u32, RecordBatch)]| spans.iter().map(|(_, it)| it.num_rows()).sum::<usize>();
        let mut counts = Vec::new();
        for (order_by, by_row, steps) in
            [(&[][..], false, usize::from(u16::MAX)), (&[], false, 1), (&["time"], false, 9), (&[], true, 2)]
        {
            let (spans, untracked) = scan(&rows, options(order_by, by_row), steps);
            let mut found = rows_of(&spans);
            found.sort();
            assert_eq!(found, expected, "{order_by:?}");
            assert_eq!(untracked as usize + expected.len(), rows.num_rows());
            counts.push(count(&spans));
        }
        let breaks = (1..rows.num_rows()).filter(|&row| {
            let is_new = pid.is_null(row - 1) || pid.value(row) != pid.value(row - 1);
            pid.is_valid(row) && (is_new || seq.value(row) != seq.value(row - 1) + 1)
        });
        let least = breaks.count() + usize::from(pid.is_valid(0));
        // A span continues across decoded batches, but not across returned ones. The times cut at most 4 more.
        assert_eq!(counts[0], least);
        assert!((least + 1..least + 4).contains(&counts[1]), "{counts:?}, {least}");
        assert!((least + 1..least + 5).contains(&counts[2]), "{counts:?}, {least}");
        assert_eq!(counts[3], expected.len());
    }
}

/// Spans of a shard are in the order of the file, with the columns in one order and of one type.
#[test]
fn spans_of_a_shard_are_in_the_order_of_the_file() {
    let rows = file_rows(true);
    let (spans, _) = scan(&rows, options(&["time"], false), 1);
    let schema = spans[0].1.schema();
    let columns: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(columns, ["pid", "partition", "seq", "time", "_length", "_file", "_row"]);
    assert_eq!(schema.field(0).data_type(), &DataType::Utf8);
    for shard in 0..4 {
        let of_shard: Vec<_> = spans.iter().filter(|it| it.0 == shard).map(|it| it.1.clone()).collect();
        let all = concat_batches(&schema, &of_shard).expect("one schema");
        assert!(all.column(6).as_primitive::<UInt64Type>().values().is_sorted());
    }
}

/// The error of a bad value has its row in the file, and the scan cannot be used afterwards.
#[test]
fn a_bad_value_in_a_file_names_its_row() {
    let mut seqs: Vec<i64> = (0..70_000).collect();
    seqs[66_000] = -5;
    let pid: ArrayRef = Arc::new(Int64Array::from(vec![1; seqs.len()]));
    let file = file(&batch(vec![("pid", pid), ("seq", Arc::new(Int64Array::from(seqs)))]));
    let constants = HashMap::from([("partition".to_string(), None::<Constant>)]);
    let failed = Scan::open(&file, 0..1, options(&[], false), constants).and_then(|mut scan| scan.step());
    assert!(matches!(failed, Err(Failure::Batch { column: Some(column), .. }) if column == "partition"));
    let constants = HashMap::from([("partition".to_string(), Some(Constant::Text("east".into())))]);
    let mut scan = Scan::open(&file, 0..1, options(&[], false), constants).expect("a file");
    assert!(scan.step().expect("rows"));
    let Err(Failure::Batch { column, row, message }) = scan.step() else { panic!("a value below 0") };
    assert_eq!((column.as_deref(), row), (Some("seq"), Some(66_000)), "{message}");
    assert!(message.contains("-5") && message.contains("file"), "{message}");
    assert!(matches!(scan.step(), Err(Failure::Source { .. })));
}
