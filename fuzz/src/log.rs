//! Kafka's files: whatever their bytes, each decoder refuses or decodes them without a panic and without memory that
//! they do not justify. The boundaries of calls do not matter.

use crate::memory::decode_within;
use fencepost_kafka as kafka;
use fencepost_testkit::log::{seal, segment_with_payload};
use kafka::{BatchColumns, Error, PartitionScan, RecordColumns, RecordScan, Segment, SegmentScan, View};

/// Bytes that reading may allocate for any input: the piece that is read at a time, and the buffers of a frame of lz4,
/// which has blocks of up to 8 MiB.
const BYTES_FREE: usize = 40 << 20;
/// A header of 61 bytes becomes a row of as many, in columns that can double. A record header of two bytes becomes
/// eight.
const BYTES_PER_BYTE: usize = 64;
/// Maximum size of a batch here.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Any bytes as a segment's headers.
pub fn headers(bytes: &[u8]) {
    let whole = bounded(bytes.len(), 0, || read_headers(bytes, usize::MAX));
    let pieces = read_headers(bytes, 3);
    assert!(whole == pieces, "where a call ends shows");
    let (columns, _) = whole;
    for row in 0..columns.len() {
        let end = columns.position[row] + i64::from(columns.bytes[row]);
        assert!(end <= bytes.len() as i64, "a batch behind the end");
        assert!(columns.position.get(row + 1).is_none_or(|&next| next == end), "a hole between batches");
        assert!(columns.base_offset[row] <= columns.last_offset[row], "offsets go back");
        assert!(columns.base_offset.get(row + 1).is_none_or(|&next| next > columns.last_offset[row]));
    }
    let mut outcomes = kafka::Outcomes::default();
    outcomes.add(&columns);
    assert!(outcomes.aborted().iter().all(|range| range.first_offset <= range.last_offset));
}

fn read_headers(bytes: &[u8], rows_max: usize) -> (BatchColumns, Option<Error>) {
    let mut all = BatchColumns::default();
    let mut scan = match SegmentScan::new(Box::new(bytes.to_vec()), None) {
        Ok(scan) => scan,
        Err(error) => return (all, Some(error)),
    };
    loop {
        let rows = rows_max.saturating_add(all.len());
        match scan.read(&mut all, rows) {
            Ok(true) => {}
            Ok(false) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

/// Any bytes as a segment's records, unchanged and with valid checksums.
pub fn records(bytes: &[u8]) {
    check_records(bytes);
    let mut sealed = bytes.to_vec();
    for row in 0.. {
        let (columns, _) = read_headers(&sealed, usize::MAX);
        let Some(&start) = columns.position.get(row) else { break };
        let end = start as usize + columns.bytes[row] as usize;
        seal(&mut sealed[start as usize..end]);
    }
    check_records(&sealed);
}

/// Any bytes as the payload of an otherwise valid batch. The first byte chooses the compression, the second the
/// declared number of records.
pub fn payload(bytes: &[u8]) {
    let [compression, count, payload @ ..] = bytes else { return };
    check_records(&segment_with_payload(i16::from(compression % 5), i32::from(*count) + 1, payload));
}

fn check_records(bytes: &[u8]) {
    let whole = bounded(bytes.len(), 4 * BATCH_BYTES_MAX, || read_records(bytes, usize::MAX));
    assert!(whole.offsets.is_sorted_by(|one, next| one < next), "offsets go back");
    assert!(whole == read_records(bytes, 3), "where a call ends shows");
}

/// The result of reading records, however many are read at a time.
#[derive(PartialEq)]
struct Read {
    offsets: Vec<i64>,
    values: Vec<u8>,
    headers: usize,
    error: Option<Error>,
}

fn read_records(bytes: &[u8], rows_max: usize) -> Read {
    let bytes = bytes.to_vec();
    let open = Box::new(move || Ok(Box::new(bytes.clone()) as Box<dyn kafka::ReadAt>));
    let partition = PartitionScan::new([Segment { path: "segment".into(), base_offset: None, open }]);
    let mut scan = RecordScan::new(partition, View::uncommitted(), BATCH_BYTES_MAX);
    let mut all = Read { offsets: Vec::new(), values: Vec::new(), headers: 0, error: None };
    loop {
        let mut columns = RecordColumns::default();
        let read = scan.read(&mut columns, rows_max);
        assert!([columns.key.len(), columns.value.len(), columns.seq.len()] == [columns.len(); 3]);
        assert_eq!(columns.header_offsets.last().map(|&end| end as usize), Some(columns.header_key.len()));
        assert!(str::from_utf8(&columns.header_key.bytes).is_ok(), "a header's name is no text");
        all.offsets.extend(&columns.offset);
        all.values.extend(&columns.value.bytes);
        all.headers += columns.header_key.len();
        match read {
            Ok(true) => {}
            Ok(false) => return all,
            Err(error) => return Read { error: Some(error), ..all },
        }
    }
}

/// Any bytes as a snapshot of producer state: what is read is written back byte for byte. The same bytes with a valid
/// checksum pass the checksum test.
pub fn snapshot(bytes: &[u8]) {
    check_snapshot(bytes);
    let mut sealed = bytes.to_vec();
    if let Some((head, body)) = sealed.split_at_mut_checked(6) {
        head[2..].copy_from_slice(&fencepost_testkit::log::crc32c(body).to_be_bytes());
        check_snapshot(&sealed);
    }
}

fn check_snapshot(bytes: &[u8]) {
    if let Ok(entries) = bounded(bytes.len(), 0, || kafka::snapshot::read(bytes)) {
        assert!(kafka::snapshot::write(&entries) == bytes, "other bytes");
    }
}

/// Any bytes as an index of aborted transactions.
pub fn aborted(bytes: &[u8]) {
    if let Ok(entries) = bounded(bytes.len(), 0, || kafka::aborted::read(bytes)) {
        assert_eq!(entries.len() * 34, bytes.len());
        assert!(entries.is_sorted_by(|one, next| one.last_offset < next.last_offset));
        assert!(entries.iter().all(|it| it.first_offset <= it.last_offset));
    }
}

/// Any bytes as an offset index; the first byte is the segment's base offset. The index is also compared with no
/// segment.
pub fn index(bytes: &[u8]) {
    let Some((&base, bytes)) = bytes.split_first() else { return };
    let base = if base == 255 { i64::MAX } else { i64::from(base) };
    if let Ok(entries) = bounded(bytes.len(), 0, || kafka::index::read(bytes, base)) {
        assert!(entries.is_sorted_by(|one, next| one.offset < next.offset && one.position < next.position));
        let has_entries = !entries.is_empty();
        let mut check = kafka::index::IndexCheck::new(entries);
        assert_eq!(check.finish().is_err(), has_entries);
    }
}

/// Runs work on this many bytes. They justify a proportional amount of memory, and `more`.
fn bounded<T>(bytes: usize, more: usize, decode: impl FnOnce() -> T) -> T {
    decode_within(BYTES_FREE + BYTES_PER_BYTE * (bytes + more), bytes, decode)
}
