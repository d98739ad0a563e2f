//! Reads whole and damaged segments with the reader of headers and that of records.

use fencepost_kafka::{
    BATCH_BYTES_MAX, BatchColumns, Control, Error, Kind, Outcomes, PartitionScan, ReadAt, RecordColumns, RecordScan,
    Result, Segment, SegmentScan, View,
};
use fencepost_testkit::log::{Batch, CONTROL, Compression, Record, TRANSACTIONAL, seal};
use fencepost_testkit::workload::Random;
use std::io::{self, Write};

fn headers_of(reader: Box<dyn ReadAt>) -> (BatchColumns, Result<()>) {
    let mut columns = BatchColumns::default();
    let read = || {
        let mut scan = SegmentScan::new(reader, None)?;
        while scan.read(&mut columns, usize::MAX)? {}
        Ok(())
    };
    let read = read();
    (columns, read)
}

fn headers(bytes: &[u8]) -> (BatchColumns, Result<()>) {
    headers_of(Box::new(bytes.to_vec()))
}

fn segment(path: &str, base_offset: Option<i64>, bytes: Vec<u8>) -> Segment {
    let path = path.to_string();
    Segment { path, base_offset, open: Box::new(move || Ok(Box::new(bytes.clone()))) }
}

fn records_with(bytes: &[u8], view: View, rows_max: usize) -> (RecordColumns, Result<()>) {
    let mut columns = RecordColumns::default();
    let partition = PartitionScan::new([segment("s.log", None, bytes.to_vec())]);
    let mut scan = RecordScan::new(partition, view, BATCH_BYTES_MAX);
    let mut all = RecordColumns::default();
    let mut read = || {
        while scan.read(&mut columns, rows_max)? {
            append(&mut all, &std::mem::take(&mut columns));
        }
        Ok(())
    };
    let read = read();
    append(&mut all, &columns);
    (all, read)
}

fn append(all: &mut RecordColumns, more: &RecordColumns) {
    all.offset.extend(&more.offset);
    all.timestamp.extend(&more.timestamp);
    all.seq.extend(&more.seq);
    all.pid.extend(&more.pid);
    for (all, more) in [(&mut all.key, &more.key), (&mut all.value, &more.value)] {
        let (rows, bytes) = (all.len() as u32, all.bytes.len() as i32);
        all.nulls.extend(more.nulls.iter().map(|row| rows + row));
        all.offsets.extend(more.offsets[1..].iter().map(|offset| bytes + offset));
        all.bytes.extend(&more.bytes);
    }
}

fn records(bytes: &[u8]) -> (RecordColumns, Result<()>) {
    records_with(bytes, View::uncommitted(), 1000)
}

/// Three batches of data, the middle one in a transaction, and its marker.
fn small() -> Vec<Batch> {
    let in_txn = Batch { attributes: TRANSACTIONAL, ..Batch::of_producer(9, 0, 5, 2, b"inside") };
    vec![
        Batch::of_producer(7, 0, 0, 5, b"one"),
        in_txn,
        Batch::marker(9, 7, false, 4),
        Batch::of_producer(7, 5, 8, 1, b""),
    ]
}

fn joined(batches: &[Batch]) -> Vec<u8> {
    batches.iter().flat_map(Batch::bytes).collect()
}

fn is_prefix(some: &BatchColumns, all: &BatchColumns) -> bool {
    some.len() <= all.len()
        && some.position == all.position[..some.len()]
        && some.last_offset == all.last_offset[..some.len()]
        && some.pid == all.pid[..some.len()]
}

#[test]
fn headers_match_the_written_ones() {
    let batches = small();
    let (columns, read) = headers(&joined(&batches));
    assert_eq!(read, Ok(()));
    let lengths: Vec<i32> = batches.iter().map(|batch| batch.bytes().len() as i32).collect();
    assert_eq!(columns.bytes, lengths);
    assert_eq!(columns.position[1..], [lengths[0], lengths[0] + lengths[1], lengths[..3].iter().sum()].map(i64::from));
    assert_eq!((&columns.base_offset[..], &columns.last_offset[..]), (&[0, 5, 7, 8][..], &[4, 6, 7, 8][..]));
    assert_eq!((&columns.count[..], &columns.pid[..]), (&[5, 2, 1, 1][..], &[7, 9, 9, 7][..]));
    assert_eq!((&columns.base_seq[..], &columns.last_seq[..]), (&[0, 0, -1, 5][..], &[4, 1, -1, 5][..]));
    assert_eq!(columns.max_timestamp, [1_000_004, 1_000_001, 0, 1_000_000]);
    assert_eq!([0, 1, 2, 3].map(|row| columns.is_transactional(row)), [false, true, true, false]);
    let [marker] = columns.markers[..] else { panic!("one marker: {:?}", columns.markers) };
    assert_eq!((marker.row, marker.control, marker.coordinator_epoch), (2, Control::Abort, Some(4)));
}

#[test]
fn control_batches_have_their_kind() {
    let other = |kind: u8| {
        let record = Record { key: Some(vec![0, 0, 0, kind]), value: Some(vec![0; 9]), ..Record::default() };
        Batch { attributes: CONTROL, records: vec![record], ..Batch::default() }
    };
    let empty = Batch { attributes: CONTROL | TRANSACTIONAL, pid: 3, ..Batch::default() };
    let mut batches = [Batch::marker(1, 0, true, -1), empty, other(2), other(5), Batch::marker(1, 0, false, 7)];
    for (offset, batch) in batches.iter_mut().enumerate() {
        batch.base_offset = offset as i64;
    }
    let (columns, read) = headers(&joined(&batches));
    assert_eq!(read, Ok(()));
    let found: Vec<_> = columns.markers.iter().map(|it| (it.control.name(), it.coordinator_epoch)).collect();
    let expected = [("commit", Some(-1)), ("empty", None), ("other", None), ("other", None), ("abort", Some(7))];
    assert_eq!(found, expected);
}

#[test]
fn a_marker_with_a_changed_bit_is_damage_in_headers_too() {
    let data = Batch { attributes: TRANSACTIONAL, ..Batch::of_producer(1, 0, 0, 1, b"x") }.bytes();
    for (batch, kind) in [(Batch::marker(1, 1, true, 0), 0), (Batch::marker(1, 1, false, 0), 1)] {
        let mut marker = batch.bytes();
        let end = marker.len();
        marker[end - 9] = kind; // the last byte of the key
        let (columns, read) = headers(&[&data[..], &marker].concat());
        let error = read.expect_err("damaged");
        assert_eq!((error.kind, error.position, columns.len()), (Kind::Checksum, Some(data.len() as u64), 1));
    }
}

#[test]
fn sequences_go_on_with_zero() {
    let batches = [Batch::of_producer(1, i32::MAX - 1, 0, 4, b"x"), Batch::of_producer(1, i32::MAX, 4, 1, b"x")];
    let (columns, _) = headers(&joined(&batches));
    assert_eq!(columns.last_seq, [1, i32::MAX]);
    let (columns, _) = records(&joined(&batches));
    assert_eq!(columns.seq, [i32::MAX - 1, i32::MAX, 0, 1, i32::MAX]);
}

/// Sizes on both sides of the limits for skipping and for reading.
#[test]
fn boundaries_of_reads_do_not_matter() {
    let mut random = Random::new(5);
    let mut bytes = Vec::new();
    let (mut offset, mut positions) = (0, Vec::new());
    while bytes.len() < 3 << 20 {
        let length = [0, 90, 1000, 17_000, 300_000][random.below(5) as usize] + random.below(200) as usize;
        let batch = match random.below(6) {
            0 => Batch::marker(1, offset, true, 0),
            _ => Batch::of_producer(1, 0, offset, 1, &vec![7; length]),
        };
        positions.push(bytes.len() as i64);
        bytes.extend(batch.bytes());
        offset += 1;
    }
    let (whole, read) = headers(&bytes);
    assert_eq!((read, &whole.position), (Ok(()), &positions));
    for rows_max in [1, 7, 64] {
        let mut scan = SegmentScan::new(Box::new(bytes.clone()), Some(0)).expect("a segment");
        let (mut columns, mut rows) = (BatchColumns::default(), 0);
        while scan.read(&mut columns, rows_max).expect("a whole one") {
            assert_eq!(columns.position, whole.position[rows..rows + rows_max]);
            rows += columns.len();
            columns.clear();
        }
        assert_eq!(rows + columns.len(), whole.len());
    }
    let (all, read) = records(&bytes);
    let data: Vec<i64> = (0..offset).filter(|&at| !whole.markers.iter().any(|it| i64::from(it.row) == at)).collect();
    assert_eq!((read, all.offset), (Ok(()), data));
}

/// Batches whose payload has batches, so that a second thread sometimes begins at a wrong position.
fn with_decoys(random: &mut Random, batches: u64) -> Vec<u8> {
    let decoy = joined(&[Batch::of_producer(3, 0, 1 << 40, 1, b"no"), Batch::of_producer(3, 0, 1 << 41, 1, b"no")]);
    let mut bytes = Vec::new();
    for number in 0..batches as i64 {
        let value = if random.chance(30) { decoy.clone() } else { vec![0; random.below(40) as usize] };
        let batch = match random.below(9) {
            0 => Batch::marker(1, number, true, 0),
            _ => Batch::of_producer(1, 0, number, 1, &value),
        };
        bytes.extend(batch.bytes());
    }
    bytes
}

#[test]
fn a_second_thread_does_not_show() {
    let mut random = Random::new(8);
    let whole = with_decoys(&mut random, 40_000);
    let (columns, read) = headers(&whole);
    assert_eq!((read, columns.len()), (Ok(()), 40_000));
    let mut bent = whole.clone();
    bent[columns.position[33_333] as usize + 16] = 9;
    let mut pairs = 0;
    for bytes in [&whole[..], &bent, &whole[..columns.position[30_000] as usize + 20]] {
        let (expected, expected_end) = headers(bytes);
        for rows_max in [500, 4096, 9000] {
            let mut scan = SegmentScan::new(Box::new(bytes.to_vec()), Some(0)).expect("a segment");
            let mut rows = 0;
            let end = loop {
                let mut pieces = [BatchColumns::default(), BatchColumns::default()];
                let read = scan.read_two(&mut pieces, rows_max);
                pairs += usize::from(!pieces[1].is_empty());
                for piece in &pieces {
                    assert_eq!(piece.position, expected.position[rows..rows + piece.len()]);
                    let markers =
                        expected.markers.iter().filter(|it| (rows..rows + piece.len()).contains(&(it.row as usize)));
                    assert!(
                        piece.markers.iter().map(|it| rows + it.row as usize).eq(markers.map(|it| it.row as usize))
                    );
                    rows += piece.len();
                }
                match read {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            assert_eq!((rows, end), (expected.len(), expected_end.clone()));
        }
    }
    assert!(pairs > 20 || std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1), "{pairs} pairs");
}

#[test]
fn every_truncation_leaves_the_batches_before_it() {
    let batches = small();
    let (whole, bytes) = (headers(&joined(&batches)).0, joined(&batches));
    let all = records(&bytes).0;
    for length in 0..bytes.len() {
        let ends = whole.position.iter().position(|&start| start as usize == length);
        let (columns, read) = headers(&bytes[..length]);
        assert!(is_prefix(&columns, &whole));
        let (found, records_read) = records(&bytes[..length]);
        assert_eq!(found.offset, all.offset[..found.len()]);
        match ends {
            Some(rows) => assert_eq!((read, records_read, columns.len()), (Ok(()), Ok(()), rows)),
            None => {
                let error = read.expect_err("torn");
                let start = whole.position.iter().rfind(|&&start| (start as usize) < length).copied();
                assert_eq!((error.kind, error.position), (Kind::Torn, start.map(|it| it as u64)), "{length} bytes");
                assert_eq!(records_read.expect_err("torn").kind, Kind::Torn);
            }
        }
    }
}

/// The checksum does not include base offset and leader epoch, and the lengths of other batches depend on their own.
#[test]
fn every_flipped_bit_is_an_error_or_outside_the_checksum() {
    let batches = small();
    let bytes = joined(&batches);
    let whole = headers(&bytes).0;
    let all = records(&bytes).0;
    for bit in 0..8 * bytes.len() {
        let mut bent = bytes.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        let row = whole.position.iter().rposition(|&start| start as usize <= bit / 8).expect("a batch");
        let field = bit / 8 - whole.position[row] as usize;
        let (columns, _) = headers(&bent);
        let before = BatchColumns { position: whole.position[..row].to_vec(), ..whole.clone() };
        assert!(columns.len() >= row && columns.position[..row] == before.position);
        let (found, read) = records(&bent);
        if !(0..8).contains(&field) && !(12..16).contains(&field) {
            let error = read.expect_err("a flipped bit");
            assert_eq!(error.position, Some(whole.position[row] as u64), "bit {bit}: {error}");
            assert_eq!(
                (&found.value, &found.offset),
                (&prefix(&all, found.len()).value, &all.offset[..found.len()].to_vec())
            );
        }
    }
}

fn prefix(all: &RecordColumns, rows: usize) -> RecordColumns {
    let mut some = all.clone();
    some.value.offsets.truncate(rows + 1);
    some.value.bytes.truncate(some.value.offsets[rows] as usize);
    some.value.nulls.retain(|&row| (row as usize) < rows);
    some
}

/// The same with valid checksums: data that the broker would have to refuse too.
#[test]
fn no_flipped_bit_behind_a_right_checksum_breaks_the_decoder() {
    for batch in [&small()[1], &with_headers(), &small()[2]] {
        let bytes = batch.bytes();
        let mut refused = 0;
        for bit in 8 * 21..8 * bytes.len() {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            seal(&mut bent);
            refused += usize::from(records(&bent).1.is_err() || headers(&bent).1.is_err());
        }
        assert!(refused > 50, "{refused} were refused");
    }
}

fn with_headers() -> Batch {
    let record = |number: i32| Record {
        offset_delta: number,
        key: (number > 0).then(|| vec![b'k'; number as usize]),
        value: (number != 1).then(Vec::new),
        headers: vec![("name".into(), Some(vec![1, 2])), ("name".into(), None), (String::new(), Some(vec![]))],
        ..Record::default()
    };
    Batch { records: (0..3).map(record).collect(), ..Batch::default() }
}

#[test]
fn null_and_empty_are_two_things() {
    let mut batch = with_headers();
    batch.attributes = 0x08;
    batch.max_timestamp = 77;
    let partition = PartitionScan::new([segment("s.log", None, batch.bytes())]);
    let mut columns = RecordColumns::default();
    RecordScan::new(partition, View::uncommitted(), BATCH_BYTES_MAX).read(&mut columns, 10).expect("a whole one");
    assert_eq!((&columns.key.nulls[..], &columns.key.offsets[..]), (&[0][..], &[0, 0, 1, 3][..]));
    assert_eq!((&columns.value.nulls[..], &columns.value.offsets[..]), (&[1][..], &[0, 0, 0, 0][..]));
    assert_eq!(columns.header_offsets, [0, 3, 6, 9]);
    assert_eq!(columns.header_key.bytes, b"namename".repeat(3));
    assert_eq!(columns.header_value.nulls, [1, 4, 7]);
    assert_eq!(columns.timestamp, [77; 3], "the broker's clock");
    assert_eq!((&columns.pid[..], &columns.seq[..]), (&[-1; 3][..], &[-1; 3][..]));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes every write")
}

fn snappy(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes).expect("short enough")
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).expect("a Vec takes every write");
    encoder.finish().expect("a Vec takes every write")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("in memory")
}

#[test]
fn every_compression_is_read_in_pieces_of_any_size() {
    let codecs: [Compression; 5] = [(0, <[u8]>::to_vec), (1, gzip), (2, snappy), (3, lz4), (4, zstd)];
    for compression in codecs {
        let batch = |number: i32| {
            let batch = Batch::of_producer(1, 100 * number, 100 * i64::from(number), 100, &number.to_be_bytes());
            Batch { compression, ..batch }
        };
        let bytes = joined(&(0..20).map(batch).collect::<Vec<_>>());
        for rows_max in [1, 77, 5000] {
            let (columns, read) = records_with(&bytes, View::uncommitted(), rows_max);
            assert_eq!((read, columns.len()), (Ok(()), 2000), "compression {}", compression.0);
            assert!(columns.offset.iter().copied().eq(0..2000) && columns.seq.iter().copied().eq(0..2000));
            assert_eq!(columns.value.bytes[4 * 1234..][..4], 12i32.to_be_bytes());
        }
    }
}

/// The error of a file.
fn error_of(bytes: &[u8]) -> Error {
    let error = headers(bytes).1.expect_err("damaged");
    assert_eq!(records(bytes).1.expect_err("damaged").in_file(""), error.clone().in_file("s.log"));
    error
}

#[test]
fn each_damage_has_a_name() {
    let good = Batch::of_producer(7, 0, 0, 5, b"one").bytes();
    let end = good.len() as u64;
    let after = |more: &[u8]| error_of(&[&good[..], more].concat());
    let next = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Batch::of_producer(7, 5, 5, 5, b"two").bytes();
        change(&mut bytes);
        seal(&mut bytes);
        after(&bytes)
    };
    let put = |at: usize, field: &[u8]| {
        let field = field.to_vec();
        move |bytes: &mut Vec<u8>| bytes[at..at + field.len()].copy_from_slice(&field)
    };
    let cases = [
        (after(&[0; 5000]), Kind::Zeros, "5000 bytes: preallocated"),
        (after(&[0; 12]), Kind::Zeros, "12 bytes"),
        (after(&[0; 11]), Kind::Torn, "11 bytes"),
        (after(&[1; 9]), Kind::Torn, "9 bytes are left"),
        (next(&put(16, &[0])), Kind::Version, "(magic 0), which brokers wrote before 0.11"),
        (next(&put(16, &[1])), Kind::Version, "(magic 1)"),
        (next(&put(16, &[3])), Kind::Version, "(magic 3) is unknown"),
        (next(&put(8, &i32::MAX.to_be_bytes())), Kind::Field, "2147483647"),
        (next(&put(8, &1000i32.to_be_bytes())), Kind::Torn, "a batch declares 1012 bytes"),
        (next(&put(8, &48i32.to_be_bytes())), Kind::Field, "less than its header"),
        (next(&put(8, &(-1i32).to_be_bytes())), Kind::Field, "length -1"),
        (next(&put(0, &4i64.to_be_bytes())), Kind::Offsets, "offset 4 follows 4"),
        (next(&put(0, &(-4i64).to_be_bytes())), Kind::Field, "base offset -4"),
        (next(&put(0, &i64::MAX.to_be_bytes())), Kind::Field, "base offset 9223372036854775807"),
        (next(&put(0, &(i64::MAX - 4).to_be_bytes())), Kind::Field, "base offset 9223372036854775803"),
        (next(&put(23, &(-1i32).to_be_bytes())), Kind::Field, "delta -1"),
        (next(&put(22, &[5])), Kind::Compression, "compression 5 is unknown"),
        (next(&put(57, &(-1i32).to_be_bytes())), Kind::Field, "-1 records"),
        (next(&put(57, &6i32.to_be_bytes())), Kind::Field, "declares 6 records, but 5 offsets"),
        (next(&put(57, &0i32.to_be_bytes())), Kind::Field, "declares 0 records, but has"),
    ];
    for (error, kind, reason) in cases {
        assert_eq!((error.kind, error.position), (kind, Some(end)), "{error}");
        assert!(error.reason.contains(reason), "{error}, not {reason}");
    }
    // A message of version 0 can be shorter than a header.
    assert_eq!(error_of(&[&[0; 8][..], &14i32.to_be_bytes(), &[9, 9, 9, 9, 0, 0, 1, 2]].concat()).kind, Kind::Version);
}

#[test]
fn damage_in_records_has_a_name_too() {
    let bytes = |change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::of_producer(7, 0, 0, 5, b"value");
        change(&mut batch);
        batch.bytes()
    };
    let cases = [
        (bytes(&|batch| batch.records[2].offset_delta = 1), Kind::Field, "record 3 of 5 in the batch: its offset"),
        (bytes(&|batch| batch.last_offset_delta = Some(9)), Kind::Field, ""),
        (bytes(&|batch| batch.records[4].offset_delta = 5), Kind::Field, "record 5 of 5"),
        (bytes(&|batch| batch.compression = (1, <[u8]>::to_vec)), Kind::Compression, "as gzip"),
        (bytes(&|batch| batch.compression = (2, <[u8]>::to_vec)), Kind::Compression, "as snappy"),
        (bytes(&|batch| batch.compression = (3, <[u8]>::to_vec)), Kind::Compression, "as lz4"),
        (bytes(&|batch| batch.compression = (4, <[u8]>::to_vec)), Kind::Compression, "as zstd"),
        (bytes(&|batch| batch.compression = (4, |_| zstd(b"some bytes"))), Kind::Field, "declares 5 records, but has"),
        (bytes(&|batch| batch.compression = (0, |records| [records, b"?"].concat())), Kind::Field, "1 bytes after"),
    ];
    for (number, (mut bytes, kind, reason)) in cases.into_iter().enumerate() {
        match number {
            // Compaction leaves such batches.
            1 => assert_eq!(records(&bytes).1, Ok(())),
            2 => {
                bytes[23..27].copy_from_slice(&4i32.to_be_bytes());
                seal(&mut bytes);
                assert!(records(&bytes).1.expect_err("lies outside").reason.contains(reason));
            }
            _ => {
                let error = records(&bytes).1.expect_err("damaged");
                assert!(error.kind == kind && error.reason.contains(reason), "{error}, not {reason}");
            }
        }
        assert_eq!(headers(&bytes).1, Ok(()), "headers do not look at records");
    }
    let mut bent = bytes(&|_| ());
    *bent.last_mut().expect("a byte") ^= 1;
    assert_eq!(records(&bent).1.expect_err("damaged").kind, Kind::Checksum);
}

#[test]
fn a_batch_above_the_limit_is_refused() {
    let read = |batch: Batch, bytes_max| {
        let partition = PartitionScan::new([segment("s.log", None, batch.bytes())]);
        RecordScan::new(partition, View::uncommitted(), bytes_max)
            .read(&mut RecordColumns::default(), 10)
            .map_err(|error| error.kind)
    };
    let plain = Batch::of_producer(1, 0, 0, 1, &[0; 1000]);
    let packed = Batch { compression: (3, lz4), ..plain.clone() };
    assert_eq!(read(plain, 1000), Err(Kind::TooLarge));
    assert_eq!(read(packed.clone(), 1000), Err(Kind::TooLarge));
    assert_eq!(read(packed, 1100), Ok(true));
}

/// A file that declares more bytes than it has: it was truncated after it was opened.
struct Cut(Vec<u8>, u64);

impl ReadAt for Cut {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.1)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(position, buffer)
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_an_error() {
    let bytes = joined(&small());
    let (_, read) = headers_of(Box::new(Cut(bytes[..100].to_vec(), bytes.len() as u64)));
    let error = read.expect_err("cut");
    assert_eq!((error.kind, error.position), (Kind::Unreadable, Some(0)));
    assert!(error.reason.contains("cut while it was read"), "{error}");
}

#[test]
fn segments_follow_each_other() {
    let at = |offset: i64| Batch::of_producer(1, 0, offset, 10, b"x").bytes();
    let scan = |segments: Vec<Segment>| {
        let mut scan = PartitionScan::new(segments);
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        loop {
            let mut columns = BatchColumns::default();
            let read = scan.read(&mut columns, 100);
            found.extend(columns.base_offset.iter().map(|&offset| (scan.path().to_string(), offset)));
            problems.extend(scan.take_gap());
            match read {
                Ok(true) => {}
                Ok(false) => return (found, problems),
                Err(error) => problems.push(error),
            }
        }
    };
    let (found, problems) = scan(vec![segment("a", Some(0), at(0)), segment("b", Some(10), at(10))]);
    assert_eq!((found, problems), (vec![("a".into(), 0), ("b".into(), 10)], vec![]));
    let (found, problems) =
        scan(vec![segment("a", Some(0), at(0)), segment("b", Some(9), at(9)), segment("c", Some(25), at(25))]);
    assert_eq!(found, vec![("a".into(), 0), ("c".into(), 25)]);
    let problems: Vec<String> = problems.iter().map(Error::to_string).collect();
    assert_eq!(
        problems,
        [
            "b, byte 0: the segment begins at offset 9, the one before it ends at 9",
            "c, byte 0: offsets 10 to 24 are in no segment: removed by compaction, or lost"
        ]
    );
    // Damage in one segment is reported, and the next segment is still read.
    let (found, problems) =
        scan(vec![segment("a", Some(0), [at(0), vec![1; 9]].concat()), segment("b", Some(10), at(10))]);
    assert_eq!((found.len(), problems.len(), problems[0].kind), (2, 1, Kind::Torn));
    let (_, problems) = scan(vec![segment("a", Some(5), at(4))]);
    assert_eq!(problems[0].kind, Kind::Offsets, "a batch before the segment's first offset");
    let gone = Segment { open: Box::new(|| Err(io::ErrorKind::NotFound.into())), ..segment("gone", None, vec![]) };
    assert_eq!(scan(vec![gone]).1[0].to_string(), "gone: cannot be read: entity not found");
}

#[test]
fn nothing_of_aborted_and_open_transactions_is_seen() {
    let txn =
        |pid: i64, offset: i64| Batch { attributes: TRANSACTIONAL, ..Batch::of_producer(pid, 0, offset, 1, b"x") };
    let batches = [
        txn(1, 0),
        Batch::of_producer(2, 0, 1, 1, b"x"),
        txn(3, 2),
        Batch::marker(1, 3, false, 0),
        txn(1, 4),
        txn(3, 5),
        Batch::marker(1, 6, true, 0),
        Batch::marker(3, 7, false, 0),
        txn(4, 8),
        txn(1, 9),
        Batch::marker(1, 10, true, 0),
    ];
    let bytes = joined(&batches);
    let mut outcomes = Outcomes::default();
    outcomes.add(&headers(&bytes).0);
    assert_eq!(outcomes.last_stable_offset(), 8);
    assert_eq!(outcomes.open().collect::<Vec<_>>(), [(4, 8)]);
    let aborted: Vec<_> = outcomes.aborted().iter().map(|it| (it.pid, it.first_offset, it.last_offset)).collect();
    assert_eq!(aborted, [(1, 0, 3), (3, 2, 7)]);
    assert_eq!(records_with(&bytes, outcomes.view(), 100).0.offset, [1, 4]);
    assert_eq!(records(&bytes).0.offset, [0, 1, 2, 4, 5, 8, 9]);
    let empty = Outcomes::default();
    assert_eq!((empty.last_stable_offset(), empty.aborted().len()), (0, 0));
}
