//! Snapshots: round trips, equal bytes of equal tables, and refused damage.

use fencepost_core::{
    Batch, Entry, Error, Hole, KeyKind, PRESETS, PartKind, Policy, Seqs, StateTable, encode_bytes, encode_int,
};
use fencepost_testkit::pair::Columns;
use fencepost_testkit::workload::{Random, Row, Shape, stream};
use std::io::{self, Read, Write};

fn preset(name: &str) -> Policy {
    Policy::preset(name).expect("a preset")
}

/// Applies a seeded stream. Timestamps increase by ten per row from `now`.
fn feed(table: &mut StateTable, seed: u64, rows: usize, pid_from: i64, now: i64) {
    let policy = table.policy();
    let rows = stream(seed, rows, &Shape::mixed(policy.wrap)).into_iter();
    let rows = rows.map(|row| Row { pid: if row.pid < 0 { -1 } else { row.pid + pid_from }, ..row });
    let columns = Columns::of(rows.zip((now..).step_by(10)));
    table.apply(&[columns.batch(&policy)]).expect("valid rows");
}

fn table(name: &str, keeps_timestamp: bool) -> StateTable {
    let mut table = StateTable::new(preset(name)).expect("a preset is valid").with_keep_timestamp(keeps_timestamp);
    feed(&mut table, 7, 400, 0, 1_000);
    table
}

fn reason(result: Result<StateTable, Error>) -> String {
    match result.err() {
        Some(Error::Snapshot(reason)) => reason,
        other => panic!("refused as a snapshot, not {other:?}"),
    }
}

#[test]
fn every_entry_round_trips() {
    for (preset, keeps_timestamp) in PRESETS.iter().flat_map(|preset| [(preset, false), (preset, true)]) {
        let mut table = table(preset.name, keeps_timestamp).with_entries_max(Some(777)).with_label("a label".into());
        if keeps_timestamp {
            table.evict(3_000, 500).expect("timestamps are kept");
        }
        let bytes = table.snapshot();
        let back = StateTable::restore(&bytes).expect("its own snapshot");
        assert!(!back.is_empty() && back.entries().eq(table.entries()), "{}", preset.name);
        assert_eq!((back.policy(), back.entries_max(), back.label()), (table.policy(), Some(777), "a label"));
        assert_eq!((back.keeps_timestamp(), back.horizon_ms()), (keeps_timestamp, table.horizon_ms()));
        assert!(back.snapshot() == bytes, "{}: written again it is the same", preset.name);
    }
}

#[test]
fn the_order_of_rows_and_growth_leave_no_trace() {
    let entries: Vec<Entry> = {
        let mut table = table("any_order", true);
        (0..40).for_each(|seed| feed(&mut table, seed, 300, seed as i64 * 1000, 1_000));
        table.entries().collect()
    };
    let mut random = Random::new(3);
    let mut shuffled = entries.clone();
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(at, random.below(at as u64 + 1) as usize);
    }
    let of = |entries: &[Entry]| {
        let mut table = StateTable::new(preset("any_order")).expect("valid").with_keep_timestamp(true);
        entries.iter().for_each(|entry| table.insert(entry).expect("a new key"));
        table.snapshot()
    };
    assert!(entries.len() > 400 && of(&entries) == of(&shuffled));
}

#[test]
fn layouts_leave_no_trace_but_the_policy() {
    // The same entries in lines of 5, 8 and 3 partitions: the bytes after the policy are equal.
    let narrow = preset("kafka");
    let policies = [narrow, Policy { window: 20, ..narrow }, Policy { wrap: Some(1 << 40), ..narrow }];
    let of = |policy: Policy| {
        let mut table = StateTable::new(policy).expect("valid");
        for key in 0..3000i64 {
            let entry = Entry {
                pid: key / 97,
                partition: (key * 31 % 4001) as i32,
                epoch: 3,
                first: key,
                last: key + 3,
                ..empty()
            };
            table.insert(&entry).expect("a new key");
        }
        let bytes = table.snapshot();
        frames(&bytes)[1..].iter().flat_map(|frame| frame.to_vec()).collect::<Vec<u8>>()
    };
    let first = of(policies[0]);
    assert!(first.len() > 10_000 && policies.iter().all(|&policy| of(policy) == first));
}

fn empty() -> Entry {
    Entry { pid: 0, partition: 0, epoch: 0, first: 0, last: 0, holes: vec![], final_range: None, last_timestamp: None }
}

/// Strings for pids, a string and a number for partitions, numbered in the order given.
fn keyed(order: impl Iterator<Item = u32>) -> StateTable {
    let mut table = StateTable::new(preset("kafka")).expect("valid");
    let parts = KeyKind::Parts(vec![PartKind::Utf8, PartKind::Int]);
    table.keys_mut().fix(KeyKind::Parts(vec![PartKind::Utf8]), parts).expect("the first use");
    table.keys_mut().pid.dictionary.intern(b"never used\0\0").expect("memory");
    for key in order {
        let (mut pid, mut partition) = (Vec::new(), Vec::new());
        encode_bytes(&mut pid, format!("producer-{}", key / 50).as_bytes());
        encode_bytes(&mut partition, format!("topic-{}", key % 7).as_bytes());
        encode_int(&mut partition, i64::from(key % 50));
        let pid = table.keys_mut().pid.dictionary.intern(&pid).expect("memory").into();
        let partition = table.keys_mut().partition.dictionary.intern(&partition).expect("memory") as i32;
        let last = i64::from(key) * 7;
        table.insert(&Entry { pid, partition, first: last, last, ..empty() }).expect("a new key");
    }
    table
}

#[test]
fn numbers_of_keys_leave_no_trace() {
    let bytes = keyed(0..9_000).snapshot();
    assert!(bytes == keyed((0..9_000).rev()).snapshot());
    let back = StateTable::restore(&bytes).expect("its own snapshot");
    assert!(back.len() == 9_000 && back.snapshot() == bytes);
    assert!(back.keys().pid.dictionary.get(b"never used\0\0").is_none());
}

#[test]
fn every_truncation_is_refused() {
    for bytes in [table("any_order", true).snapshot(), keyed(0..30).snapshot()] {
        for count in 0..bytes.len() {
            assert!(reason(StateTable::restore(&bytes[..count])).contains("truncated"), "{count}");
        }
    }
}

#[test]
fn every_flipped_byte_is_refused() {
    for bytes in [table("any_order", true).snapshot(), keyed(0..30).snapshot()] {
        for at in 0..bytes.len() {
            for bit in [0x01, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= bit;
                reason(StateTable::restore(&damaged));
            }
        }
    }
}

#[test]
fn other_versions_of_a_snapshot_are_reported() {
    let bytes = table("kafka", false).snapshot();
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        reason(StateTable::restore(&bytes))
    };
    assert_eq!(with(0, b'X'), "not a fencepost snapshot: wrong magic");
    assert_eq!(with(8, 2), "the snapshot has version 2, but this fencepost reads version 1");
    assert_eq!(with(10, 1), "a delta where a whole snapshot is expected");
    assert_eq!(with(11, 1), "the kind 0 or the flags 1 of the snapshot are unknown");
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(reason(StateTable::restore(&longer)), "1 bytes follow the snapshot");
}

/// A writer with room for so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.0);
        self.0 -= count;
        if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader that fails after so many bytes, and must not be read again.
struct Failing<'a>(&'a [u8], bool);

impl Read for Failing<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        assert!(!self.1, "read after an error");
        let count = self.0.read(bytes)?;
        self.1 = count == 0;
        if self.1 { Err(io::Error::other("a bad sector")) } else { Ok(count) }
    }
}

/// So many entries that a second thread finds them for saving, and reads them for loading.
const LARGE: i64 = 300_000;

#[test]
fn large_snapshots_round_trip_and_damaged_ones_are_refused() {
    let mut table = StateTable::new(preset("any_order")).expect("valid");
    for pid in 0..if cfg!(miri) { 100 } else { LARGE } {
        let holes = if pid % 1000 == 0 { vec![Hole { first: 3, last: 4, timestamp: None }] } else { vec![] };
        table.insert(&Entry { pid, last: 9, holes, ..empty() }).expect("a new key");
    }
    let bytes = table.snapshot();
    let longer = [&bytes[..], b"next"].concat();
    let mut input = &longer[..];
    let back = StateTable::read_snapshot(&mut input, longer.len() as u64).expect("its own snapshot");
    assert_eq!(input, b"next");
    assert!(back.entries().eq(table.entries()) && back.snapshot() == bytes);
    let mut backwards = StateTable::new(preset("any_order")).expect("valid");
    let entries: Vec<_> = table.entries().collect();
    entries.iter().rev().for_each(|entry| backwards.insert(entry).expect("a new key"));
    assert!(backwards.snapshot() == bytes);
    for at in (1..20).map(|part| bytes.len() * part / 20) {
        let written = table.write_snapshot(&mut Full(at)).expect_err("there is no room");
        assert_eq!(written.kind(), io::ErrorKind::StorageFull);
        let unread = StateTable::read_snapshot(&mut Failing(&bytes[..at], false), bytes.len() as u64);
        assert!(reason(unread).contains("a bad sector"));
        assert!(reason(StateTable::restore(&bytes[..at])).contains("truncated"), "{at}");
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        reason(StateTable::restore(&damaged));
    }
}

/// The payloads of the frames.
fn frames(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut frames, mut at) = (Vec::new(), 12);
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight")) as usize;
        frames.push(&bytes[at + 8..at + 8 + length]);
        at += 8 + length + 4;
    }
    frames
}

/// A snapshot of these frames with valid checksums.
fn forged(head: &[u8], frames: &[Vec<u8>]) -> Vec<u8> {
    let (mut bytes, mut checksum) = (head.to_vec(), crc32fast::Hasher::new());
    checksum.update(head);
    for frame in frames {
        let length = (frame.len() as u64).to_le_bytes();
        checksum.update(&length);
        checksum.update(frame);
        bytes.extend([&length[..], frame, &checksum.clone().finalize().to_le_bytes()].concat());
    }
    bytes
}

/// A snapshot with one change and corrected checksums.
fn with_change(bytes: &[u8], change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let mut frames: Vec<Vec<u8>> = frames(bytes).into_iter().map(<[u8]>::to_vec).collect();
    change(&mut frames);
    forged(&bytes[..12], &frames)
}

#[test]
fn contradictions_with_a_valid_checksum_are_refused() {
    let bytes = table("any_order", true).snapshot();
    assert!(with_change(&bytes, |_| ()) == bytes);
    let policy = reason(StateTable::restore(&with_change(&bytes, |frames| frames[0][8..11].copy_from_slice(b"xxx"))));
    assert!(policy.contains("the policy cannot be read"), "{policy}");
    let twice = with_change(&bytes, |frames| {
        let frame = frames[1].clone();
        let entries = u64::from_le_bytes(frame[..8].try_into().expect("eight"));
        let at = frames[0].len() - 8;
        frames[0][at..].copy_from_slice(&(2 * entries).to_le_bytes());
        frames.push(frame);
    });
    assert_eq!(reason(StateTable::restore(&twice)), "the snapshot is damaged: entries are out of order");
    let fewer = with_change(&bytes, |frames| {
        let at = frames[0].len() - 8;
        frames[0][at..].copy_from_slice(&3u64.to_le_bytes());
    });
    assert!(reason(StateTable::restore(&fewer)).contains("no more than the 3 that are left"));
}

#[test]
fn every_byte_may_be_wrong() {
    for bytes in [table("any_order", true).snapshot(), table("kafka", false).snapshot(), keyed(0..30).snapshot()] {
        let counts: Vec<usize> = frames(&bytes).iter().map(|frame| frame.len()).collect();
        for (frame, count) in counts.into_iter().enumerate() {
            for at in 0..count {
                for byte in [0, 1, 0x7f, 0xff] {
                    let lie = with_change(&bytes, |frames| frames[frame][at] = byte);
                    // Some changes are valid for another table.
                    if let Ok(table) = StateTable::restore(&lie) {
                        assert!(table.len() <= 4096);
                    }
                }
            }
        }
    }
}

#[test]
fn a_failing_writer_is_reported() {
    let table = table("any_order", true);
    let bytes = table.snapshot();
    for count in 0..bytes.len() {
        let error = table.write_snapshot(&mut Full(count)).expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    table.write_snapshot(&mut Full(bytes.len())).expect("there is room");
    assert!(table.snapshot() == bytes);
}

#[test]
fn the_last_64_bit_sequence_number_round_trips() {
    let mut table = StateTable::new(preset("kafka_offsets")).expect("valid");
    let seq = [0, i64::MAX - 2, i64::MAX];
    let batch = Batch { pid: &[1; 3], partition: &[0; 3], epoch: None, seq: Seqs::I64(&seq), timestamp: None };
    table.apply(&[batch]).expect("valid rows");
    let back = StateTable::restore(&table.snapshot()).expect("its own snapshot");
    assert!(back.entries().eq(table.entries()));
}

#[test]
fn an_entry_beyond_the_last_lap_is_refused() {
    let mut policy = preset("any_order");
    policy.wrap = Some(1 << 33);
    let entry = |last| Entry { pid: 1, first: last, last, ..empty() };
    let mut table = StateTable::new(policy).expect("valid");
    assert!(matches!(table.insert(&entry(1 << 62)), Err(Error::Snapshot(_))));
    table.insert(&entry((1 << 61) + (1 << 32))).expect("on the last lap");
    let seq = [(1 << 33) - 1, 0, 1];
    let batch = Batch { pid: &[1; 3], partition: &[0; 3], epoch: Some(&[0; 3]), seq: Seqs::I64(&seq), timestamp: None };
    table.apply(&[batch]).expect("rows");
    let back = StateTable::restore(&table.snapshot()).expect("its own snapshot");
    assert!(back.entries().eq(table.entries()));
}

// Deltas

/// A chain of snapshots: the first is whole, the others are deltas.
fn chain(table: &mut StateTable, seed: u64, links: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    table.track_changes(true);
    let mut bytes = Vec::new();
    let checksum = table.write_snapshot(&mut bytes).expect("a Vec takes every write");
    table.begin_changes(checksum);
    let mut chain = vec![bytes];
    for link in 1..=links {
        for _ in 0..random.below(4) {
            let now = link as i64 * 5_000 + random.below(5_000) as i64;
            match random.below(8) {
                6 if link == 3 => (0..60).map(|pid| table.forget(pid, None)).sum(),
                7 if table.policy().admit == fencepost_core::Admit::Any => {
                    let other = StateTable::new(table.policy()).expect("valid");
                    let mut other = other.with_keep_timestamp(table.keeps_timestamp());
                    feed(&mut other, random.bits(), 40, random.below(9) as i64 * 4, now - 2_000);
                    // Refused if a key of both is on both sides of the border: a call without a trace.
                    table.merge(&other).map_or(0, |overlap| overlap.len())
                }
                0 => table.forget(random.below(30) as i64, None),
                1 => table.forget(random.below(30) as i64, Some(random.below(3) as i32)),
                2 if table.keeps_timestamp() => table.evict(now, random.below(12_000) as i64).expect("kept"),
                _ => {
                    feed(table, random.bits(), 60, random.below(9) as i64 * 4, now);
                    0
                }
            };
        }
        let mut bytes = Vec::new();
        let checksum = table.delta().expect("tracked").write(&mut bytes).expect("a Vec takes every write");
        table.begin_changes(checksum);
        chain.push(bytes);
    }
    chain
}

fn rebuilt(chain: &[Vec<u8>]) -> StateTable {
    let mut table = StateTable::restore(&chain[0]).expect("a whole snapshot");
    chain[1..].iter().for_each(|delta| table.apply_delta(delta).expect("the next delta"));
    table
}

#[test]
fn base_and_deltas_are_the_whole() {
    for (preset, keeps_timestamp) in PRESETS.iter().flat_map(|preset| [(preset, false), (preset, true)]) {
        for seed in 0..40 {
            let mut table = StateTable::new(preset.policy).expect("valid").with_keep_timestamp(keeps_timestamp);
            (0..6).for_each(|part| feed(&mut table, seed * 7 + part, 100, part as i64 * 4, 0));
            let chain = chain(&mut table, seed, 6);
            assert!(rebuilt(&chain).snapshot() == table.snapshot(), "{}, seed {seed}", preset.name);
        }
    }
}

#[test]
fn a_delta_has_the_changes_and_little_more() {
    let mut table = StateTable::new(preset("kafka")).expect("valid");
    (0..20_000).for_each(|pid| table.insert(&Entry { pid, ..empty() }).expect("a new key"));
    table.track_changes(true);
    table.begin_changes(1);
    let pid: Vec<i64> = (0..200).map(|row| row * 100).collect();
    let batch = |seq| Batch { pid: &pid, partition: &[0; 200], epoch: Some(&[0; 200]), seq, timestamp: None };
    table.apply(&[batch(Seqs::I32(&[0; 200]))]).expect("duplicates");
    let count = |table: &StateTable| {
        let mut bytes = Vec::new();
        table.delta().expect("tracked").write(&mut bytes).expect("a Vec takes every write");
        bytes.len()
    };
    let nothing = count(&table);
    assert!(nothing < 300, "{nothing} bytes though nothing was accepted");
    table.apply(&[batch(Seqs::I32(&[1; 200]))]).expect("rows that go on");
    let some = count(&table);
    assert!((1_000..3_000).contains(&some), "{some} bytes for 200 entries of 20 000");
}

#[test]
fn deltas_bring_their_keys() {
    let mut table = keyed(0..500);
    let mut base = Vec::new();
    let checksum = table.write_snapshot(&mut base).expect("a Vec takes every write");
    table.track_changes(true);
    table.begin_changes(checksum);
    let mut key = Vec::new();
    encode_bytes(&mut key, b"another");
    let pid = table.keys_mut().pid.dictionary.intern(&key).expect("memory").into();
    table.insert(&Entry { pid, partition: 3, ..empty() }).expect("a new key");
    table.forget(1, Some(1));
    let mut delta = Vec::new();
    table.delta().expect("tracked").write(&mut delta).expect("a Vec takes every write");
    assert!(rebuilt(&[base, delta]).snapshot() == table.snapshot());
}

#[test]
fn a_delta_that_does_not_follow_is_refused_and_changes_nothing() {
    let mut table = table("any_order", true);
    let chain = chain(&mut table, 5, 3);
    let mut back = StateTable::restore(&chain[0]).expect("a whole snapshot");
    let follows = "the delta follows another snapshot than the one of this table";
    let refused = |table: &mut StateTable, delta: &[u8], expected: &str| {
        let before = table.snapshot();
        match table.apply_delta(delta) {
            Err(Error::Snapshot(reason)) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{other:?} instead of: {expected}"),
        }
        assert!(table.snapshot() == before);
    };
    refused(&mut back, &chain[2], follows);
    refused(&mut back, &chain[0], "a whole snapshot where a delta is expected");
    for at in 0..chain[1].len() {
        refused(&mut back, &chain[1][..at], "truncated");
        let mut damaged = chain[1].clone();
        damaged[at] ^= 0x10;
        refused(&mut back, &damaged, "");
    }
    refused(&mut back, &[&chain[1][..], b"!"].concat(), "1 bytes follow");
    back.apply_delta(&chain[1]).expect("the next");
    refused(&mut back, &chain[1], follows);
    feed(&mut back, 1, 20, 0, 100_000);
    refused(&mut back, &chain[2], follows);
}

#[test]
fn a_delta_needs_a_snapshot_to_follow() {
    let mut table = table("kafka", false);
    let reason = |table: &StateTable| table.delta().err().expect("no delta").to_string();
    assert!(reason(&table).starts_with("the table does not track changes"));
    table.track_changes(true);
    assert!(reason(&table).starts_with("there is no snapshot yet"));
}
