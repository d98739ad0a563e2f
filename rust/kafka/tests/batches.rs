//! Compares batches built here with those that the testkit writes exactly by the format.

use fencepost_kafka::{BatchBuilder, BatchColumns, Compression, Kind, RecoveryScan, SegmentScan, Stamp, marker, place};
use fencepost_testkit::log::{self, Record, TRANSACTIONAL};
use fencepost_testkit::workload::Random;
use std::sync::Arc;

fn some_bytes(random: &mut Random) -> Option<Vec<u8>> {
    let lengths = [0, 1, 63, 64, 100, 8191, 8192, 20_000];
    let length = lengths[random.below(lengths.len() as u64) as usize];
    (!random.chance(20)).then(|| (0..length).map(|_| random.bits() as u8).collect())
}

fn some_batch(random: &mut Random) -> log::Batch {
    let count = 1 + random.below(9) as i32;
    let times: Vec<i64> = (0..count).map(|_| random.below(1 << 41) as i64).collect();
    let record = |number: i32| Record {
        offset_delta: number,
        timestamp_delta: times[number as usize] - times[0],
        key: some_bytes(random),
        value: some_bytes(random),
        headers: (0..random.below(3)).map(|at| ("ö".repeat(at as usize * 40), some_bytes(random))).collect(),
    };
    let records = (0..count).map(record).collect();
    log::Batch {
        attributes: if random.chance(50) { TRANSACTIONAL } else { 0 },
        base_timestamp: times[0],
        max_timestamp: *times.iter().max().expect("one or more"),
        pid: random.below(i64::MAX as u64) as i64,
        epoch: random.below(1 << 15) as i16,
        base_seq: random.below(1 << 31) as i32,
        base_offset: random.below(1 << 62) as i64,
        leader_epoch: random.below(1 << 31) as i32,
        records,
        ..log::Batch::default()
    }
}

fn built(batch: &log::Batch, compression: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for record in &batch.records {
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref())).collect();
        let timestamp = batch.base_timestamp + record.timestamp_delta;
        builder.push(timestamp, record.key.as_deref(), record.value.as_deref(), headers.into_iter());
    }
    let is_transactional = batch.attributes & TRANSACTIONAL != 0;
    let stamp = Stamp { pid: batch.pid, epoch: batch.epoch, base_seq: batch.base_seq, is_transactional };
    let mut bytes = builder.finish(&stamp, compression).expect("in memory");
    place(&mut bytes, batch.base_offset, batch.leader_epoch);
    bytes
}

#[test]
fn batches_are_written_by_the_letter_of_the_format() {
    let mut random = Random::new(1);
    for _ in 0..200 {
        let batch = some_batch(&mut random);
        assert!(built(&batch, Compression::None) == batch.bytes(), "{batch:?}");
    }
}

#[test]
fn markers_are_written_by_the_letter_of_the_format() {
    for (is_commit, coordinator_epoch) in [(true, 0), (false, 7), (true, i32::MAX)] {
        let expected = log::Batch {
            base_timestamp: 1_700_000_000_000,
            max_timestamp: 1_700_000_000_000,
            epoch: 3,
            ..log::Batch::marker(9, 77, is_commit, coordinator_epoch)
        };
        let mut bytes = marker(9, 3, is_commit, coordinator_epoch, 1_700_000_000_000);
        place(&mut bytes, 77, 0);
        assert_eq!(bytes, expected.bytes());
    }
}

#[test]
fn compressed_batches_have_the_same_header_but_for_length_and_checksum() {
    let mut random = Random::new(2);
    let batch = some_batch(&mut random);
    for compression in Compression::ALL {
        let bytes = built(&batch, compression);
        let mut columns = BatchColumns::default();
        SegmentScan::new(Box::new(bytes.clone()), None).and_then(|mut scan| scan.read(&mut columns, 9)).expect("whole");
        assert_eq!((columns.len(), columns.bytes[0] as usize), (1, bytes.len()));
        assert_eq!(columns.attributes[0] & 7, compression as u8);
        assert_eq!(bytes[23..61], batch.bytes()[23..61]);
    }
}

fn scanned(bytes: &[u8]) -> (RecoveryScan, BatchColumns, Option<Kind>) {
    let mut scan = RecoveryScan::new(Arc::new(bytes.to_vec()), 0).expect("in memory");
    let mut columns = BatchColumns::default();
    let read = scan.read(&mut columns, usize::MAX);
    (scan, columns, read.err().map(|error| error.kind))
}

fn three() -> Vec<Vec<u8>> {
    [0, 5, 10].map(|offset| log::Batch::of_producer(7, offset, offset.into(), 5, b"some value").bytes()).to_vec()
}

#[test]
fn a_torn_end_has_no_whole_batch_after_it() {
    let (batches, whole) = (three(), three().concat());
    for length in 0..whole.len() {
        let (scan, columns, damage) = scanned(&whole[..length]);
        let batches_before = length / batches[0].len();
        assert_eq!(
            (columns.len(), damage.is_some()),
            (batches_before, length % batches[0].len() > 0),
            "{length} bytes"
        );
        assert_eq!(scan.position(), (batches_before * batches[0].len()) as u64);
        assert_eq!(scan.next_whole_batch(), Ok(None), "{length} bytes");
    }
}

#[test]
fn damage_before_a_whole_batch_is_distinguished_from_a_torn_end() {
    let (batches, whole) = (three(), three().concat());
    let length = batches[0].len();
    for at in 0..whole.len() {
        let mut bent = whole.clone();
        bent[at] ^= 0x10;
        let (scan, columns, damage) = scanned(&bent);
        let batch = at / length;
        // The epoch of the leader is not verified.
        let is_leader_epoch = (12..16).contains(&(at % length));
        assert_eq!(damage.is_some(), !is_leader_epoch, "byte {at}");
        if !is_leader_epoch {
            assert_eq!(columns.len(), batch, "byte {at}");
            let next = (batch < 2).then(|| (((batch + 1) * length) as u64, (batch as i64 + 1) * 5));
            assert_eq!(scan.next_whole_batch(), Ok(next), "byte {at}");
        }
    }
}

#[test]
fn a_file_that_looks_like_batches_everywhere_ends_the_search() {
    // Consecutive headers that each declare a batch up to the end of the file, none with a valid checksum.
    let count = 2000;
    let header = |number: usize| {
        let mut header = log::Batch { base_offset: number as i64, ..log::Batch::default() }.bytes();
        let rest = (count - number) * 61 - 12;
        header[8..12].copy_from_slice(&(rest as i32).to_be_bytes());
        header[57..61].copy_from_slice(&1i32.to_be_bytes());
        header
    };
    let bytes: Vec<u8> = (0..count).flat_map(header).collect();
    let (scan, _, damage) = scanned(&bytes);
    assert_eq!(damage, Some(Kind::Checksum));
    assert_eq!(scan.next_whole_batch().expect_err("too much to sum up").kind, Kind::Field);
}
