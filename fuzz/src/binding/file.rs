use crate::memory::bounded;
use _native::library::{self as binding, Columns, Refused, Scanned};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{BooleanArray, RecordBatch};
use fencepost_lake::{ParquetFile, ReadAt, RowRanges, rewrite};
use std::io;
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

/// Any bytes as a Parquet file: refused, or scanned and rewritten as a job does both, without memory that they do not
/// justify, and then the rows that are kept are those of the file.
pub fn parquet(bytes: &[u8]) {
    let Some((options, file)) = bytes.split_first_chunk::<OPTIONS>() else { return };
    let limit = BYTES_FREE + BYTES_PER_BYTE * file.len();
    let Ok(opened) = bounded(limit, || ParquetFile::of_reader(Path::new("file"), Arc::new(Memory(file.to_vec()))))
    else {
        return;
    };
    let of = Of::read(options[0]);
    let scanned = bounded(limit, || of.scan(&opened));
    if let Ok(scanned) = &scanned
        && scanned.is_end
    {
        assert_eq!(scanned.untracked + rows(scanned), opened.rows(), "rows were lost");
    }
    if opened.rows() > ROWS_MAX {
        return;
    }
    let (first, count) = (u64::from(options[1]), u64::from(options[2]));
    let first = first.min(opened.rows());
    let ranges = RowRanges::new(&[first], &[count.min(opened.rows() - first)]).expect("one range");
    let (rows_before, target) = (opened.rows(), Temporary::new("target"));
    let written = bounded(limit, || rewrite(opened, &target.0, &ranges, of.keeps, &mut || true));
    let Ok(written) = written else {
        assert!(!target.0.exists(), "what is left of a file that was not written");
        return;
    };
    let is_kept = |row: u64| (first..first + count).contains(&row) == of.keeps;
    assert_eq!(written.rows, (0..rows_before).filter(|&row| is_kept(row)).count() as u64);
    if let Ok(scanned) = scanned
        && scanned.is_end
    {
        let rewritten = ParquetFile::open(&target.0).expect("what was written");
        let again = of.scan(&rewritten).unwrap_or_else(|refused| panic!("what was written: {}", refused.0));
        of.compare(&scanned, &again, is_kept);
    }
}

/// What is asked of a file.
struct Of {
    columns: Columns,
    order_by: Vec<String>,
    by_row: bool,
    keeps: bool,
}

impl Of {
    fn read(options: u8) -> Of {
        let has = |bit: u8| options >> bit & 1 == 1;
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        Of {
            columns: Columns {
                pid: names(if has(0) { &["pid", "name"] } else { &["pid"] }),
                epoch: has(1).then(|| "epoch".into()),
                partition: names(if has(2) { &[] } else { &["partition"] }),
                seq: "seq".into(),
                timestamp: has(3).then(|| "timestamp".into()),
            },
            order_by: names(if has(4) { &["name"] } else { &[] }),
            by_row: !has(5),
            keeps: has(6),
        }
    }

    fn scan(&self, file: &ParquetFile) -> Result<Scanned, Refused> {
        binding::scan(file, &self.columns, self.order_by.clone(), self.by_row, BATCHES_MAX)
    }

    /// The rows that were kept are what they were.
    fn compare(&self, before: &Scanned, after: &Scanned, is_kept: impl Fn(u64) -> bool) {
        if !self.by_row || !after.is_end {
            return;
        }
        for shard in 0..2 {
            let of = |scanned: &Scanned, is_kept: &dyn Fn(u64) -> bool| -> Vec<RecordBatch> {
                let own = scanned.runs.iter().filter(|(it, _)| *it == shard);
                own.flat_map(|(_, batch)| single_rows(batch, is_kept)).collect()
            };
            assert!(of(before, &is_kept) == of(after, &|_| true), "a row is another one");
        }
    }
}

/// The rows that are kept, without their place and that of their file.
fn single_rows(batch: &RecordBatch, is_kept: &dyn Fn(u64) -> bool) -> Vec<RecordBatch> {
    let places = batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>();
    let mask: BooleanArray = places.values().iter().map(|&row| Some(is_kept(row))).collect();
    let kept = arrow_select::filter::filter_record_batch(batch, &mask).expect("a mask of its rows");
    let columns: Vec<usize> = (0..kept.num_columns() - 3).collect();
    let kept = kept.project(&columns).expect("columns that it has");
    (0..kept.num_rows()).map(|row| kept.slice(row, 1)).collect()
}

/// The rows that runs stand for.
fn rows(scanned: &Scanned) -> u64 {
    let lengths = |batch: &RecordBatch| -> u64 {
        let lengths = batch.column(batch.num_columns() - 3).as_primitive::<UInt32Type>();
        lengths.values().iter().map(|&length| u64::from(length)).sum()
    };
    scanned.runs.iter().map(|(_, batch)| lengths(batch)).sum()
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

struct Memory(Vec<u8>);

impl ReadAt for Memory {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.get(usize::try_from(position).unwrap_or(usize::MAX)..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
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
