use super::calls::{self, Scanned};
use crate::memory::bounded;
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{BooleanArray, RecordBatch};
use fencepost_columns::{ColumnNames, Failure};
use fencepost_lake::{Arranging, ParquetFile, RowRanges, Rows, Target, arrange, rewrite};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What reading may hold whatever the file is: some pages of 16 MiB, their decoded values, and the lengths of a page of
/// deltas.
const BYTES_FREE: usize = 1 << 30;
/// And for each of its bytes.
const BYTES_PER_BYTE: usize = 1 << 12;
/// Batches that are scanned, and rows of files that are rewritten: a run of a billion nulls takes six bytes.
const BATCHES_MAX: usize = 4;
const ROWS_MAX: u64 = 1 << 17;

/// Bytes of an input in front of the file: how it is read, and which of its rows are taken out.
pub const OPTIONS: usize = 3;

/// Any bytes as a Parquet file: refused, or scanned and rewritten or arranged as a job does these, without memory that
/// they do not justify, and then the rows that are kept are those of the file.
pub fn parquet(bytes: &[u8]) {
    let Some((options, file)) = bytes.split_first_chunk::<OPTIONS>() else { return };
    let limit = BYTES_FREE + BYTES_PER_BYTE * file.len();
    let Ok(opened) = bounded(limit, || ParquetFile::of_reader(Path::new("file"), Arc::new(file.to_vec()))) else {
        return;
    };
    let of = Of::read(options[0]);
    let scanned = bounded(limit, || of.scan(&opened));
    if let Ok(scanned) = &scanned
        && scanned.is_end
    {
        assert_eq!(scanned.untracked + rows_of(scanned), opened.rows(), "rows were lost");
    }
    let rows = opened.rows();
    if rows > ROWS_MAX {
        return;
    }
    let first = rows.min(u64::from(options[1]));
    let until = rows.min(first + u64::from(options[2]));
    let order = of.order(first..until, rows);
    let target = Temporary::new("target");
    let written = bounded(limit, || of.write(opened, &target.0, first..until, &order));
    let Some(written) = written else {
        assert!(!target.0.exists(), "what is left of a file that was not written");
        return;
    };
    assert_eq!(written, order.iter().map(|it| it.end - it.start).sum::<u64>());
    if let Ok(scanned) = scanned
        && scanned.is_end
    {
        let rewritten = ParquetFile::open(&target.0).expect("what was written");
        let again = of.scan(&rewritten).unwrap_or_else(|refused| panic!("what was written: {refused:?}"));
        of.compare(&scanned, &again, &order);
    }
}

/// What is asked of a file.
struct Of {
    columns: ColumnNames,
    order_by: Vec<String>,
    by_row: bool,
    keeps: bool,
    arranges: bool,
}

impl Of {
    fn read(options: u8) -> Of {
        let has = |bit: u8| options >> bit & 1 == 1;
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        Of {
            columns: ColumnNames {
                pid: names(if has(0) { &["pid", "name"] } else { &["pid"] }),
                epoch: has(1).then(|| "epoch".into()),
                partition: names(if has(2) { &[] } else { &["partition"] }),
                seq: "seq".into(),
                timestamp: has(3).then(|| "timestamp".into()),
                length: None,
            },
            order_by: names(if has(4) { &["name"] } else { &[] }),
            by_row: !has(5),
            keeps: has(6),
            arranges: has(7),
        }
    }

    fn scan(&self, file: &ParquetFile) -> Result<Scanned, Failure> {
        calls::scan(file, &self.columns, self.order_by.clone(), self.by_row, BATCHES_MAX)
    }

    /// The rows that are written, in their order: those of the range or all others, arranged with the last ones first.
    fn order(&self, range: Range<u64>, rows: u64) -> Vec<Range<u64>> {
        if self.keeps {
            vec![range]
        } else if self.arranges {
            vec![range.end..rows, 0..range.start]
        } else {
            vec![0..range.start, range.end..rows]
        }
    }

    /// Writes these rows to a file; how many, unless it was refused.
    fn write(&self, file: ParquetFile, path: &Path, range: Range<u64>, order: &[Range<u64>]) -> Option<u64> {
        if self.arranges {
            let rows = order.iter().map(|it| Rows { source: 0, first: it.start, count: it.end - it.start }).collect();
            let targets = [Target { path: path.to_path_buf(), rows }];
            return Some(arrange(vec![file], &targets, &Arranging::default(), &mut || true).ok()?[0].rows);
        }
        let ranges = RowRanges::new(&[range.start], &[range.end - range.start]).expect("one range");
        Some(rewrite(file, path, &ranges, self.keeps, &mut || true).ok()?.rows)
    }

    /// The rows that were written are what they were.
    fn compare(&self, before: &Scanned, after: &Scanned, order: &[Range<u64>]) {
        if !self.by_row || !after.is_end {
            return;
        }
        for shard in 0..2 {
            let of = |scanned: &Scanned, range: &Range<u64>| -> Vec<RecordBatch> {
                let own = scanned.spans.iter().filter(|(it, _)| *it == shard);
                own.flat_map(|(_, batch)| single_rows(batch, range)).collect()
            };
            let kept: Vec<RecordBatch> = order.iter().flat_map(|range| of(before, range)).collect();
            assert!(kept == of(after, &(0..u64::MAX)), "a row is another one");
        }
    }
}

/// The rows of a range, without their place and that of their file.
fn single_rows(batch: &RecordBatch, range: &Range<u64>) -> Vec<RecordBatch> {
    let places = batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>();
    let mask: BooleanArray = places.values().iter().map(|&row| Some(range.contains(&row))).collect();
    let kept = arrow_select::filter::filter_record_batch(batch, &mask).expect("a mask of its rows");
    let columns: Vec<usize> = (0..kept.num_columns() - 3).collect();
    let kept = kept.project(&columns).expect("columns that it has");
    (0..kept.num_rows()).map(|row| kept.slice(row, 1)).collect()
}

/// Number of rows of the spans.
fn rows_of(scanned: &Scanned) -> u64 {
    let lengths = |batch: &RecordBatch| -> u64 {
        let lengths = batch.column(batch.num_columns() - 3).as_primitive::<UInt32Type>();
        lengths.values().iter().map(|&length| u64::from(length)).sum()
    };
    scanned.spans.iter().map(|(_, batch)| lengths(batch)).sum()
}

/// Ends the process where code of this repository panics. Decoders of other crates may: what reads files makes errors of
/// that, and libFuzzer must not take it for the end.
pub fn end_at_panics_of_ours() {
    std::panic::set_hook(Box::new(|panic| {
        let is_others = |file: &str| file.contains("/registry/") || file.starts_with("/rustc/");
        if !panic.location().is_some_and(|it| is_others(it.file())) {
            eprintln!("{panic}");
            std::process::abort();
        }
    }));
}

/// A file that goes with the input; in memory where the system has a folder for that.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Temporary(folder.join(format!("fencepost-fuzz-{}-{number}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
