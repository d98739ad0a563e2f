//! Kafka's log: headers and records a second, from a segment in the page cache; every answer is checked.

use divan::counter::{BytesCount, ItemsCount};
use fencepost_kafka::{
    BATCH_BYTES_MAX, BatchColumns, PartitionScan, RecordColumns, RecordScan, Segment, SegmentScan, View,
};
use fencepost_testkit::log::{Batch, Compression};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Rows that are read at a time, as the binding does.
const ROWS: usize = 1 << 16;
const SEGMENT_BYTES: usize = 256 << 20;

fn main() {
    divan::main();
}

/// A file of equal batches one behind the other, each at its own offsets; it is gone with this.
struct Written {
    path: PathBuf,
    batches: u64,
    records: i32,
    bytes: u64,
}

impl Written {
    fn new(name: &str, batch: &Batch) -> Written {
        let records = batch.records.len() as i32;
        let mut batch = batch.bytes();
        let path = std::env::temp_dir().join(format!("fencepost-bench-{name}-{}", std::process::id()));
        // In large pieces, as a copy is made: the system copies from a cache that was filled in pieces of 8 KB at half the
        // speed and less.
        let file = File::create(&path).expect("a folder to write to");
        let mut file = std::io::BufWriter::with_capacity(1 << 20, file);
        let batches = (SEGMENT_BYTES / batch.len()) as u64;
        for number in 0..batches {
            // The first offset is in no checksum.
            batch[..8].copy_from_slice(&(number as i64 * i64::from(records)).to_be_bytes());
            file.write_all(&batch).expect("room on the disk");
        }
        file.flush().expect("room on the disk");
        Written { path, batches, records, bytes: batches * batch.len() as u64 }
    }

    fn partition(&self) -> PartitionScan {
        let path = self.path.clone();
        let open = Box::new(move || Ok(Box::new(File::open(&path)?) as Box<dyn fencepost_kafka::ReadAt>));
        PartitionScan::new([Segment { path: "segment".into(), base_offset: Some(0), open }])
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("written here");
    }
}

/// Ten records make a batch of about a kilobyte.
#[divan::bench(args = [0, 90, 450, 1000, 20_000], sample_count = 10)]
fn headers_by_bytes_of_a_value(bencher: divan::Bencher<'_, '_>, value: usize) {
    let written = Written::new(&format!("headers-{value}"), &Batch::of_producer(7, 0, 0, 10, &vec![b'x'; value]));
    let counter = (ItemsCount::new(written.batches), BytesCount::new(written.bytes));
    let mut pieces = [BatchColumns::default(), BatchColumns::default()];
    bencher.counter(counter.0).counter(counter.1).bench_local(|| {
        let file = File::open(&written.path).expect("written just now");
        let mut scan = SegmentScan::new(Box::new(file), Some(0)).expect("a segment");
        let mut found = 0;
        let mut continues = true;
        while continues {
            pieces.iter_mut().for_each(BatchColumns::clear);
            continues = scan.read_two(&mut pieces, ROWS).expect("whole");
            found += pieces.iter().map(|columns| columns.len() as u64).sum::<u64>();
        }
        assert_eq!(found, written.batches);
        assert_eq!(scan.last_offset() + 1, written.batches as i64 * i64::from(written.records));
    });
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).and_then(|()| Ok(encoder.finish()?)).expect("a Vec takes every write")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 3).expect("in memory")
}

const CODECS: [(&str, Compression); 3] = [("none", (0, <[u8]>::to_vec)), ("lz4", (3, lz4)), ("zstd", (4, zstd))];

/// A thousand records of 100 bytes that look like text.
#[divan::bench(args = CODECS.map(|(name, _)| name), sample_count = 10)]
fn records_by_compression(bencher: divan::Bencher<'_, '_>, name: &str) {
    let (_, compression) = CODECS.into_iter().find(|(codec, _)| *codec == name).expect("a codec");
    let mut batch = Batch { compression, ..Batch::of_producer(7, 0, 0, 1000, b"") };
    let mut state = 1;
    for record in &mut batch.records {
        let letter = |_| b'a' + (fencepost_bench::random(&mut state) % 20) as u8;
        record.value = Some((0..50).map(letter).chain([b' '; 50]).collect());
    }
    let written = Written::new(name, &batch);
    let records = written.batches * written.records as u64;
    bencher.counter(ItemsCount::new(records)).counter(BytesCount::new(written.bytes)).bench_local(|| {
        let mut scan = RecordScan::new(written.partition(), View::uncommitted(), BATCH_BYTES_MAX);
        let (mut found, mut offsets) = (0, 0);
        loop {
            let mut columns = RecordColumns::default();
            let continues = scan.read(&mut columns, ROWS).expect("whole");
            found += columns.len() as u64;
            offsets += columns.offset.iter().sum::<i64>();
            assert_eq!(columns.value.bytes.len(), 100 * columns.len());
            if !continues {
                break;
            }
        }
        assert_eq!((found, offsets as u64), (records, records * (records - 1) / 2));
    });
}
