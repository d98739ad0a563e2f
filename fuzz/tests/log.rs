//! The targets of Kafka's files without libFuzzer: over the corpus, and over what comes of it by chance.

mod inputs;

use fencepost_fuzz::log;
use fencepost_testkit::log::{Batch, CONTROL, Compression, Record, TRANSACTIONAL, crc32c};
use inputs::{run, write};
use std::io::Write;

type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

const TARGETS: [Target; 6] = [
    ("log_headers", log::headers, segments),
    ("log_records", log::records, segments),
    ("log_payload", log::payload, payloads),
    ("log_snapshot", log::snapshot, snapshots),
    ("log_aborted", log::aborted, aborted),
    ("log_index", log::index, indexes),
];

#[test]
fn no_bytes_break_a_decoder() {
    for (name, target, _) in TARGETS {
        run(target, name);
    }
}

/// What is decoded at all shows that the corpus reaches behind the checks.
#[test]
fn the_corpus_is_read() {
    for bytes in segments() {
        let mut scan = fencepost_kafka::SegmentScan::new(Box::new(bytes.clone()), None).expect("a segment");
        let mut columns = fencepost_kafka::BatchColumns::default();
        assert_eq!(scan.read(&mut columns, usize::MAX), Ok(false));
        assert!(!columns.is_empty());
    }
    assert!(snapshots().iter().all(|bytes| fencepost_kafka::snapshot::read(bytes).is_ok()));
    assert!(aborted().iter().all(|bytes| fencepost_kafka::aborted::read(bytes).is_ok()));
    assert!(indexes().iter().all(|bytes| fencepost_kafka::index::read(&bytes[1..], 0).is_ok()));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes every write")
}

fn snappy(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes).expect("short enough")
}

fn xerial(bytes: &[u8]) -> Vec<u8> {
    let block = snappy(bytes);
    [b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01", &(block.len() as i32).to_be_bytes()[..], &block].concat()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).expect("a Vec takes every write");
    encoder.finish().expect("a Vec takes every write")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).expect("in memory")
}

const CODECS: [Compression; 6] = [(0, <[u8]>::to_vec), (1, gzip), (2, snappy), (2, xerial), (3, lz4), (4, zstd)];

fn batch(compression: Compression) -> Batch {
    let record = |number: i32| Record {
        offset_delta: 2 * number,
        timestamp_delta: i64::from(number) - 2,
        key: (number != 1).then(|| vec![b'k'; number as usize]),
        value: (number != 2).then(|| b"value".to_vec()),
        headers: vec![("h".into(), None), ("ü".into(), Some(vec![0, 255]))],
    };
    Batch { compression, records: (0..4).map(record).collect(), ..Batch::of_producer(7, i32::MAX - 1, 3, 0, b"") }
}

/// A segment for each compression, with markers and what compaction leaves.
fn segments() -> Vec<Vec<u8>> {
    let segment = |compression| {
        let empty = Batch { base_offset: 12, last_offset_delta: Some(8), ..Batch::default() };
        let cleaned = Batch { base_offset: 22, attributes: CONTROL | TRANSACTIONAL, ..Batch::default() };
        let in_txn = Batch { base_offset: 30, attributes: TRANSACTIONAL, ..batch(compression) };
        let all =
            [batch(compression), Batch::marker(7, 11, true, 1), empty, cleaned, in_txn, Batch::marker(7, 40, false, 1)];
        all.iter().flat_map(Batch::bytes).collect()
    };
    CODECS.map(segment).to_vec()
}

/// The compression, the declared number of records less one, and the records.
fn payloads() -> Vec<Vec<u8>> {
    let payload = |compression: Compression| [&[compression.0 as u8, 3], &batch(compression).bytes()[61..]].concat();
    CODECS.map(payload).to_vec()
}

fn snapshots() -> Vec<Vec<u8>> {
    let file = |count: u8| {
        let entry = |number: u8| [&[0, 0, 0, 0, 0, 0, 0, number][..], &[number; 38]].concat();
        let body = [&[0, 0, 0, count][..], &(0..count).flat_map(entry).collect::<Vec<_>>()].concat();
        [&[0, 1][..], &crc32c(&body).to_be_bytes(), &body].concat()
    };
    (0..6).map(file).collect()
}

fn aborted() -> Vec<Vec<u8>> {
    let entry = |number: i64| {
        let fields = [number, 10 * number, 10 * number + 5, 10 * number + 6];
        [vec![0, 0], fields.iter().flat_map(|field| field.to_be_bytes()).collect()].concat()
    };
    (0..6).map(|count| (0..count).flat_map(entry).collect()).collect()
}

fn indexes() -> Vec<Vec<u8>> {
    let entry = |number: u32| [(7 * number).to_be_bytes(), (4096 * number).to_be_bytes()].concat();
    let index = |count: u32| [vec![0], (1..count).flat_map(entry).collect(), vec![0; 8 * count as usize]].concat();
    (0..6).map(index).collect()
}

/// Not a test: writes the corpus. `make fuzz-corpus` after a change of a target.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    for (name, _, inputs) in TARGETS {
        write(name, &inputs());
    }
}
