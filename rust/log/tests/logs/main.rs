//! Logs on a simulated disk that loses unsynced bytes, fails during operations, and returns wrong data.

mod damage;
mod failed_syncs;
mod simulated;

use fencepost_core::{Control, Verdict};
use fencepost_kafka::{BATCH_BYTES_MAX, BatchBuilder, Compression, RecordColumns, RecordScan, Stamp, marker};
use fencepost_log::{Appended, Batch, Disk, Error, Options, PartitionLog, Policy, Result};
use fencepost_testkit::workload::Random;
use simulated::{Fault, SimDisk};
use std::sync::Arc;
use std::time::Duration;

const TIME: i64 = 1_700_000_000_000;

fn options(policy: Policy, segment_bytes: u64) -> Options {
    Options { policy, segment_bytes, ..Options::default() }
}

fn open(disk: &SimDisk, options: &Options) -> Result<PartitionLog> {
    PartitionLog::open(Arc::new(disk.clone()), None, options.clone())
}

fn batch(pid: i64, epoch: i16, base_seq: i32, is_transactional: bool, values: &[Vec<u8>]) -> Batch {
    let mut builder = BatchBuilder::default();
    values.iter().for_each(|value| builder.push(TIME, None, Some(value), std::iter::empty()));
    let stamp = Stamp { pid, epoch, base_seq, is_transactional };
    Batch {
        pid,
        epoch,
        base_seq,
        count: values.len() as i32,
        timestamp: TIME,
        is_transactional,
        control: Control::Data,
        coordinator_epoch: -1,
        transaction_version: -1,
        bytes: builder.finish(&stamp, Compression::None).expect("in memory"),
    }
}

fn end(pid: i64, epoch: i16, is_commit: bool) -> Batch {
    Batch {
        pid,
        epoch,
        base_seq: -1,
        count: 1,
        timestamp: TIME,
        is_transactional: true,
        control: if is_commit { Control::Commit } else { Control::Abort },
        coordinator_epoch: 0,
        transaction_version: 0,
        bytes: marker(pid, epoch, is_commit, 0, TIME),
    }
}

/// Values by offset.
fn read(log: &PartitionLog, from: i64, is_committed: bool) -> Vec<(i64, Vec<u8>)> {
    let reading = log.read(from, is_committed).expect("an offset of the log");
    let mut scan = RecordScan::new(reading.partition, reading.view, BATCH_BYTES_MAX);
    let mut found = Vec::new();
    loop {
        let mut columns = RecordColumns::default();
        let has_more = scan.read(&mut columns, 7).expect("whole");
        let value = |row: usize| {
            let [from, upto] = [row, row + 1].map(|at| columns.value.offsets[at] as usize);
            (columns.offset[row], columns.value.bytes[from..upto].to_vec())
        };
        found.extend((0..columns.len()).map(value));
        if !has_more {
            return found;
        }
    }
}

/// A producer that retries until it gets an answer, and the values it knows.
struct Writer {
    pid: i64,
    seq: i32,
    /// Acknowledged values, in order.
    acknowledged: Vec<(i64, Vec<u8>)>,
}

impl Writer {
    fn new() -> Writer {
        Writer { pid: 7, seq: 0, acknowledged: Vec::new() }
    }

    /// Appends the next values, to a log whose disk works.
    fn append(&mut self, log: &PartitionLog, random: &mut Random) {
        let values = self.next(random);
        let appended = log.append(&mut [batch(self.pid, 0, self.seq, false, &values)]).expect("a disk that works");
        self.note(appended[0], values);
    }

    fn next(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let count = 1 + random.below(4);
        let value = |number: u64| {
            let text = format!("{}:{}:", self.pid, i64::from(self.seq) + number as i64);
            [text.into_bytes(), vec![b'x'; random.below(90) as usize]].concat()
        };
        (0..count).map(value).collect()
    }

    fn note(&mut self, appended: Appended, values: Vec<Vec<u8>>) {
        assert!(matches!(appended.verdict, Verdict::Accepted | Verdict::Duplicate), "{appended:?}");
        let offset = appended.offset.expect("it is in the log");
        self.seq += values.len() as i32;
        self.acknowledged.extend(values.into_iter().enumerate().map(|(at, value)| (offset + at as i64, value)));
    }
}

/// Checks that all acknowledged batches are there, and at most one other batch, which was not acknowledged yet.
fn check(log: &PartitionLog, writer: &Writer, on_its_way: &[Vec<u8>]) {
    let found = read(log, 0, false);
    let count = writer.acknowledged.len();
    assert_eq!(found.get(..count), Some(&writer.acknowledged[..]));
    let more: Vec<Vec<u8>> = found[count..].iter().map(|(_, value)| value.clone()).collect();
    assert!(more.is_empty() || more == on_its_way, "{more:?}");
    assert_eq!(log.log_end().expect("open"), found.len() as i64);
}

#[test]
fn a_power_loss_takes_nothing_that_was_acknowledged() {
    let (mut losses, mut cuts, mut states) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let policy = if random.chance(50) { Policy::Each } else { Policy::Group };
        let options = options(policy, 600 + random.below(1500));
        let mut disk = SimDisk::new();
        let mut writer = Writer::new();
        for _ in 0..8 {
            let log = open(&disk, &options).expect("what a power loss leaves is a log");
            cuts += u32::from(log.recovered().cut_bytes > 0);
            states += u32::from(log.recovered().state.is_some());
            check(&log, &writer, &[]);
            for _ in 0..random.below(30) {
                writer.append(&log, &mut random);
            }
            // A batch that is written, and whose sync fails with the power.
            let values = writer.next(&mut random);
            if random.chance(30) {
                log.close().expect("a disk that works");
            } else if random.chance(60) {
                disk.fail(Some(Fault { at: 1, forever: true }));
                log.append(&mut [batch(7, 0, writer.seq, false, &values)]).expect_err("the power is gone");
            }
            let is_killed = random.chance(30);
            let after = if is_killed { disk.after_kill() } else { disk.after_power_loss(&mut random) };
            losses += 1;
            let log = open(&after, &options).expect("what a power loss leaves is a log");
            check(&log, &writer, &values);
            // The producer got no answer, and tries again.
            if log.log_end().expect("open") > writer.acknowledged.len() as i64 || random.chance(50) {
                let appended = log.append(&mut [batch(7, 0, writer.seq, false, &values)]).expect("a disk that works");
                writer.note(appended[0], values);
                check(&log, &writer, &[]);
            }
            drop(log);
            disk = after.after_power_loss(&mut random);
        }
    }
    assert!(losses == 2400 && cuts + states > 1000, "{losses} losses, {cuts} cuts, {states} states");
}

/// With an interval, only the end of the last segment can be lost.
#[test]
fn an_interval_loses_nothing_of_finished_segments() {
    let (mut lost, mut segments) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let options = options(Policy::Interval(Duration::from_secs(3600)), 600);
        let disk = SimDisk::new();
        let log = open(&disk, &options).expect("a disk that works");
        let mut writer = Writer::new();
        for _ in 0..random.below(20) {
            writer.append(&log, &mut random);
        }
        let after = disk.after_power_loss(&mut random);
        let cuts = Options { cuts_damage: true, ..options };
        let log = open(&after, &cuts).expect("what a power loss leaves is a log");
        let found = read(&log, 0, false);
        assert!(writer.acknowledged.starts_with(&found), "seed {seed}");
        let base: usize = last_segment(&disk)[..20].parse().expect("an offset");
        assert!(found.len() >= base, "seed {seed}");
        lost += u32::from(found.len() < writer.acknowledged.len());
        segments += u32::from(base > 0);
    }
    assert!(lost > 50 && segments > 50, "{lost} lost, {segments} of several segments");
}

/// Several batches of one call can reach the disk in any order. The log then does not open without repair, or it has
/// all acknowledged batches.
#[test]
fn several_unsynced_batches_are_refused_or_cut_but_never_mixed() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let options = options(Policy::Group, 1 << 20);
        let disk = SimDisk::new();
        let log = open(&disk, &options).expect("a disk that works");
        let mut writer = Writer::new();
        for _ in 0..random.below(5) {
            writer.append(&log, &mut random);
        }
        let mut seq = writer.seq;
        let mut call: Vec<Batch> = (0..6)
            .map(|_| {
                let batch = batch(7, 0, seq, false, &[vec![b'y'; 50], vec![b'z'; 20]]);
                seq += 2;
                batch
            })
            .collect();
        disk.fail(Some(Fault { at: 1, forever: true }));
        log.append(&mut call).expect_err("the power is gone");
        let after = disk.after_power_loss(&mut random);
        let log = match open(&after, &options) {
            Err(Error::Damaged(damage)) => {
                assert!(damage.reason.contains("Not the torn end of a write"), "{damage}");
                assert_eq!(after.operations(), 0, "nothing was changed");
                refused += 1;
                open(&after, &Options { cuts_damage: true, ..options.clone() }).expect("cut")
            }
            log => {
                opened += 1;
                log.expect("nothing but damage")
            }
        };
        let found = read(&log, 0, false);
        let count = writer.acknowledged.len();
        assert_eq!(found.get(..count), Some(&writer.acknowledged[..]));
        let more = found[count..].iter().map(|(_, value)| value[0]).collect::<Vec<_>>();
        assert!(b"yzyzyzyzyzyz".starts_with(&more) && more.len() % 2 == 0, "{more:?}");
    }
    assert!(refused > 20 && opened > 20, "{refused} refused, {opened} opened");
}

/// Every operation fails once, or from then on. The error describes the resulting state.
#[test]
fn an_append_that_fails_leaves_no_trace() {
    let (mut unchanged, mut poisoned, mut unopened) = (0, 0, 0);
    for policy in [Policy::Each, Policy::Group] {
        for forever in [false, true] {
            for at in 0.. {
                let options = options(policy, 400);
                let disk = SimDisk::new();
                let fault = Fault { at, forever };
                disk.fail(Some(fault));
                let Ok(log) = open(&disk, &options) else {
                    unopened += 1;
                    disk.fail(None);
                    let log = open(&disk, &options).expect("a disk that works again");
                    assert_eq!(log.log_end().expect("open"), 0);
                    continue;
                };
                let mut writer = Writer::new();
                let (mut random, mut log, mut failures) = (Random::new(5), log, 0);
                for _ in 0..12 {
                    let values = writer.next(&mut random);
                    let try_it = |log: &PartitionLog| log.append(&mut [batch(7, 0, writer.seq, false, &values)]);
                    let before = all_segments(&disk);
                    let appended = match try_it(&log) {
                        Ok(appended) => appended,
                        Err(error) => {
                            failures += 1;
                            disk.fail(None);
                            match &error {
                                Error::Io { state, .. } => {
                                    assert!(state.starts_with("nothing was appended"), "{error}");
                                    unchanged += 1;
                                    assert!(all_segments(&disk) == before, "{error}");
                                    check(&log, &writer, &[]);
                                }
                                Error::Poisoned(_) => {
                                    poisoned += 1;
                                    log.append(&mut []).expect_err("poisoned");
                                    drop(log);
                                    log = open(&disk, &options).expect("a disk that works again");
                                    check(&log, &writer, &values);
                                }
                                other => panic!("{other}"),
                            }
                            try_it(&log).expect("a disk that works again")
                        }
                    };
                    writer.note(appended[0], values);
                }
                check(&log, &writer, &[]);
                if log.close().is_err() {
                    disk.fail(None);
                }
                drop(log);
                let log = open(&disk.after_kill(), &options).expect("a disk that works");
                check(&log, &writer, &[]);
                if failures == 0 && disk.operations() <= at {
                    break;
                }
            }
        }
    }
    assert!(unchanged > 20 && poisoned > 20 && unopened > 3, "{unchanged}, {poisoned}, {unopened}");
}

/// The index of aborted transactions matches the log, whatever failed.
#[test]
fn an_abort_that_fails_can_be_tried_again() {
    let committed_values = |log: &PartitionLog| read(log, 0, true).into_iter().map(|it| it.1[0]).collect::<Vec<_>>();
    let mut failures = 0;
    for at in 0..40 {
        let options = options(Policy::Group, 1 << 20);
        let disk = SimDisk::new();
        let mut log = open(&disk, &options).expect("a disk that works");
        log.append(&mut [batch(9, 0, 0, true, &[vec![b'a']]), batch(7, 0, 0, false, &[vec![b'p']])]).expect("works");
        assert_eq!((committed_values(&log), log.last_stable_offset().expect("open")), (vec![], 0));
        disk.fail(Some(Fault { at, forever: false }));
        if let Err(error) = log.append(&mut [end(9, 0, false)]) {
            failures += 1;
            if matches!(error, Error::Poisoned(_)) {
                drop(log);
                log = open(&disk, &options).expect("a disk that works again");
            }
            assert_eq!(log.last_stable_offset().expect("open"), 0, "{error}");
            log.append(&mut [end(9, 0, false)]).expect("works again");
        }
        disk.fail(None);
        assert_eq!((committed_values(&log), log.last_stable_offset().expect("open")), (vec![b'p'], 3));
        drop(log);
        for disk in [disk.after_kill(), disk.after_power_loss(&mut Random::new(at))] {
            let log = open(&disk, &options).expect("a disk that works");
            assert_eq!((committed_values(&log), log.last_stable_offset().expect("open")), (vec![b'p'], 3));
        }
    }
    assert!(failures >= 4, "{failures}");
}

/// A log that was closed, or not, and all its files.
fn sample(batches: usize, closes: bool) -> (SimDisk, Vec<(i64, Vec<u8>)>) {
    let disk = SimDisk::new();
    let log = open(&disk, &options(Policy::Group, 500)).expect("a disk that works");
    let (mut random, mut writer) = (Random::new(3), Writer::new());
    for _ in 0..batches {
        writer.append(&log, &mut random);
    }
    if closes {
        log.close().expect("a disk that works");
    }
    (disk, writer.acknowledged)
}

/// The concatenated segments. A segment that began for a batch that then failed is empty.
fn all_segments(disk: &SimDisk) -> Vec<u8> {
    let names = disk.names().expect("in memory");
    names.iter().filter(|name| name.ends_with(".log")).flat_map(|name| disk.bytes(name)).collect()
}

fn last_segment(disk: &SimDisk) -> String {
    let names = disk.names().expect("in memory");
    names.into_iter().filter(|name| name.ends_with(".log")).max().expect("a segment")
}

#[test]
fn every_truncation_opens_with_the_whole_batches_before_it() {
    let (disk, acknowledged) = sample(12, false);
    let name = last_segment(&disk);
    let whole = disk.bytes(&name);
    let mut counts = std::collections::BTreeSet::new();
    for length in 0..=whole.len() {
        let cut = disk.after_kill();
        cut.set_bytes(&name, &whole[..length]);
        let log = open(&cut, &options(Policy::Group, 500)).expect("torn at its end");
        let found = read(&log, 0, false);
        assert!(acknowledged.starts_with(&found), "{length} bytes");
        assert_eq!(cut.bytes(&name).len() as u64 + log.recovered().cut_bytes, length as u64);
        counts.insert(found.len());
    }
    assert!(counts.len() >= 3 && counts.contains(&acknowledged.len()), "{counts:?}");
}

#[test]
fn a_log_that_was_closed_and_is_shorter_now_is_refused() {
    let (disk, acknowledged) = sample(12, true);
    let name = last_segment(&disk);
    let whole = disk.bytes(&name);
    for length in 0..whole.len() {
        let cut = disk.after_kill();
        cut.set_bytes(&name, &whole[..length]);
        let error = open(&cut, &options(Policy::Group, 500)).err().expect("less than was on disk");
        assert!(matches!(error, Error::Damaged(_)) && cut.operations() == 0, "{error}");
        let cuts = Options { cuts_damage: true, ..options(Policy::Group, 500) };
        let log = open(&cut, &cuts).expect("cut");
        assert!(acknowledged.starts_with(&read(&log, 0, false)), "{length} bytes");
        let seq = log.log_end().expect("open") as i32;
        log.append(&mut [batch(7, 0, seq, false, &[vec![1]])]).expect("works");
    }
}

#[test]
fn a_flipped_bit_is_refused_or_cut_if_nothing_follows() {
    let (disk, acknowledged) = sample(12, false);
    let name = last_segment(&disk);
    let whole = disk.bytes(&name);
    let (mut refused, mut cut) = (0, 0);
    for bit in 0..8 * whole.len() {
        let bent = disk.after_kill();
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bent.set_bytes(&name, &bytes);
        match open(&bent, &options(Policy::Group, 500)) {
            Ok(log) => {
                let found = read(&log, 0, false);
                cut += u32::from(found.len() < acknowledged.len());
                // Changed bits of the leader's epoch are not visible.
                assert!(acknowledged.starts_with(&found), "bit {bit}");
            }
            Err(Error::Damaged(_)) => {
                refused += 1;
                assert_eq!(bent.operations(), 0, "bit {bit}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 500 && cut > 500, "{refused} refused, {cut} cut");
}

/// Whatever is in the folder, opening it results in an error at worst.
#[test]
fn any_bytes_can_be_opened() {
    let (disk, _) = sample(12, true);
    let mut opened = 0;
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let bent = disk.after_kill();
        for name in bent.names().expect("in memory") {
            if !random.chance(40) {
                continue;
            }
            let mut bytes = bent.bytes(&name);
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64 + 1) as usize;
                match random.below(5) {
                    0 => bytes.truncate(at),
                    1 => bytes.extend((0..random.below(200)).map(|_| random.bits() as u8)),
                    2 => bytes.extend(vec![0; random.below(200) as usize]),
                    3 => bytes.splice(at..at, bytes.clone()).for_each(drop),
                    _ if at < bytes.len() => bytes[at] = random.bits() as u8,
                    _ => {}
                }
            }
            bent.set_bytes(&name, &bytes);
        }
        for cuts_damage in [false, true] {
            let options = Options { cuts_damage, ..options(Policy::Each, 500) };
            if let Ok(log) = open(&bent, &options) {
                opened += 1;
                log.append(&mut [batch(1, 0, 0, false, &[vec![1]])]).expect("works");
                log.close().expect("works");
            }
        }
    }
    assert!(opened > 300, "{opened}");
}

#[test]
fn damaged_states_are_skipped() {
    let (disk, acknowledged) = sample(12, true);
    let names = |ending: &str| {
        let mut names = disk.names().expect("in memory");
        names.retain(|name| name.ends_with(ending));
        names
    };
    let (states, snapshots) = (names(".state"), names(".snapshot"));
    assert!(states.len() == 2 && snapshots.len() >= 2, "{states:?}, {snapshots:?}");
    let damaged = |some: &[&String]| {
        let copy = disk.after_kill();
        some.iter().for_each(|name| copy.set_bytes(name, b"no state"));
        let log = open(&copy, &options(Policy::Group, 500)).expect("a log without them");
        assert_eq!(read(&log, 0, false), acknowledged);
        (log.recovered().clone(), log)
    };
    let (newest_state, newest_snapshot) = (states.last().expect("two"), snapshots.last().expect("two"));
    let (found, _) = damaged(&[]);
    assert_eq!((found.state.as_ref(), found.batches), (Some(newest_state), 0));
    let (found, _) = damaged(&[newest_state]);
    assert_eq!((found.state.as_ref(), found.batches > 0), (states.first(), true), "a snapshot has less data");
    assert_eq!(found.skipped_states, std::slice::from_ref(newest_state));
    let (found, _) = damaged(&states.iter().collect::<Vec<_>>());
    assert_eq!((found.state.as_ref(), found.skipped_states.len()), (Some(newest_snapshot), 2));
    let all: Vec<&String> = states.iter().chain(&snapshots).collect();
    let (found, log) = damaged(&all);
    assert_eq!((found.state, found.batches, found.skipped_states.len()), (None, 12, all.len()));
    let appended = log.append(&mut [batch(7, 0, acknowledged.len() as i32, false, &[vec![1]])]).expect("works");
    assert_eq!(appended[0].verdict, Verdict::Accepted);
}

/// Threads that append concurrently wait for fewer syncs than there are appends.
#[test]
fn a_group_shares_its_syncs() {
    let count = |policy| {
        let disk = SimDisk::new();
        let log = open(&disk, &options(policy, 1 << 20)).expect("a disk that works");
        disk.set_sync_time(Duration::from_micros(500));
        let before = disk.syncs();
        std::thread::scope(|scope| {
            for pid in 0..8 {
                let log = &log;
                scope.spawn(move || {
                    for seq in 0..200 {
                        let values = [format!("{pid}:{seq}").into_bytes()];
                        let appended = log.append(&mut [batch(pid, 0, seq, false, &values)]).expect("works");
                        assert_eq!(appended[0].verdict, Verdict::Accepted);
                        // It can be read at once, because it is on disk.
                        let offset = appended[0].offset.expect("accepted");
                        assert_eq!(read(log, offset, false)[0], (offset, values[0].clone()));
                    }
                });
            }
        });
        assert_eq!(read(&log, 0, false).len(), 1600);
        disk.syncs() - before
    };
    assert_eq!(count(Policy::Each), 1600);
    let shared = count(Policy::Group);
    assert!(shared < 800, "{shared} syncs for 1600 appends of 8 threads");
}

#[test]
fn an_interval_promises_nothing_before_its_sync() {
    let disk = SimDisk::new();
    let log = open(&disk, &options(Policy::Interval(Duration::from_secs(3600)), 1 << 20)).expect("works");
    log.append(&mut [batch(7, 0, 0, false, &[vec![1]])]).expect("works");
    assert_eq!(read(&log, 0, false).len(), 1, "promised without");
    let lost = disk.after_power_loss(&mut Random::new(0));
    assert!(open(&lost, &Options::default()).expect("a log").log_end().expect("open") <= 1);
    let syncs = disk.syncs();
    log.sync().expect("works");
    assert_eq!(disk.syncs(), syncs + 1);
    let kept = disk.after_power_loss(&mut Random::new(0));
    assert_eq!(open(&kept, &Options::default()).expect("a log").log_end().expect("open"), 1);

    let disk = disk.after_kill();
    let log = open(&disk, &options(Policy::Interval(Duration::from_millis(5)), 1 << 20)).expect("works");
    let syncs = disk.syncs();
    log.append(&mut [batch(7, 0, 1, false, &[vec![1]])]).expect("works");
    let has_synced = || {
        disk.syncs() > syncs || {
            std::thread::sleep(Duration::from_millis(5));
            false
        }
    };
    assert!((0..2000).any(|_| has_synced()), "an interval has passed");
}

/// Until a sync is complete, its batches are invisible, and a retry of them waits as well.
#[test]
fn unsynced_batches_are_neither_visible_nor_acknowledged() {
    let disk = SimDisk::new();
    let log = open(&disk, &options(Policy::Group, 1 << 20)).expect("works");
    log.append(&mut [batch(9, 0, 0, true, &[vec![b'a']])]).expect("works");
    disk.set_sync_time(Duration::from_millis(300));
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| log.append(&mut [end(9, 0, true)]).expect("works"));
        while log.log_end().expect("open") < 2 {
            std::thread::yield_now();
        }
        // The marker is written but could be lost: for readers the transaction is open.
        assert_eq!((read(&log, 0, true).len(), log.last_stable_offset().expect("open")), (0, 0));
        assert!(matches!(log.read(2, true), Err(Error::Value(_))));
        let retried = log.append(&mut [batch(9, 0, 0, true, &[vec![b'a']])]).expect("works");
        assert_eq!((retried[0].verdict, retried[0].offset), (Verdict::Duplicate, Some(0)));
        assert_eq!(log.last_stable_offset().expect("open"), 2, "it has waited for the marker's sync");
        ended.join().expect("no panic");
    });
    assert_eq!(read(&log, 0, true).len(), 1);
}

#[test]
fn reads_begin_within_batches_and_segments() {
    let (disk, acknowledged) = sample(12, true);
    let log = open(&disk, &options(Policy::Group, 500)).expect("works");
    for from in 0..=acknowledged.len() {
        assert_eq!(read(&log, from as i64, true), acknowledged[from..]);
    }
    for from in [-1, acknowledged.len() as i64 + 1] {
        assert!(matches!(log.read(from, true), Err(Error::Value(_))));
    }
}

/// No checksum covers an index.
#[test]
fn a_flipped_bit_of_an_index_hides_no_record() {
    let (disk, options) = (SimDisk::new(), options(Policy::Group, 20_000));
    let log = open(&disk, &options).expect("works");
    for seq in 0..30 {
        log.append(&mut [batch(7, 0, seq, false, &[vec![b'x'; 1500]])]).expect("works");
    }
    log.close().expect("works");
    let log = open(&disk, &options).expect("works");
    let (records, name) = (read(&log, 0, false), format!("{:020}.index", 0));
    let index = disk.bytes(&name);
    assert!(index.len() >= 24, "{}", index.len());
    for bit in 0..8 * index.len() {
        let mut damaged = index.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        disk.set_bytes(&name, &damaged);
        for from in 0..records.len() {
            assert!(read(&log, from as i64, false) == records[from..], "bit {bit}, offset {from}");
        }
    }
}

#[test]
fn segments_that_were_removed_are_not_passed_over() {
    let (disk, records) = sample(12, true);
    let names = disk.names().expect("in memory");
    let mut bases: Vec<i64> = names.iter().filter_map(|it| it.strip_suffix(".log")?.parse().ok()).collect();
    bases.sort_unstable();
    let remove = |base: i64| {
        let disk = disk.after_kill();
        disk.remove(&format!("{base:020}.log")).expect("in memory");
        open(&disk, &options(Policy::Group, 500)).expect("the last segment is whole")
    };
    let log = remove(0);
    assert_eq!(read(&log, 0, false), records[bases[1] as usize..]);
    assert_eq!(read(&log, bases[1], false), records[bases[1] as usize..]);
    let error = log.read(bases[1] - 1, false).err().expect("its segment is gone");
    assert!(error.to_string().contains(&format!("the log begins at offset {}", bases[1])), "{error}");
    let log = remove(bases[1]);
    let reading = log.read(0, false).expect("an offset of the log");
    let mut scan = RecordScan::new(reading.partition, reading.view, BATCH_BYTES_MAX);
    let error = loop {
        match scan.read(&mut RecordColumns::default(), 7) {
            Ok(true) => {}
            Ok(false) => panic!("a segment is missing"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("are in no segment"), "{error}");
}

#[test]
fn a_log_that_was_closed_does_nothing_more() {
    let (disk, _) = sample(12, false);
    let log = open(&disk, &options(Policy::Group, 500)).expect("works");
    log.close().expect("works");
    log.close().expect("again");
    assert!(matches!(log.append(&mut [batch(7, 0, 0, false, &[vec![1]])]), Err(Error::Closed)));
    assert!(matches!(log.log_end(), Err(Error::Closed)));
    let big = PartitionLog::open(Arc::new(disk), None, options(Policy::Group, 1 << 31));
    assert!(matches!(big, Err(Error::Value(_))));
}

#[test]
fn segments_without_the_log_before_a_state_are_refused() {
    let (disk, _) = sample(12, true);
    for name in disk.names().expect("in memory").iter().filter(|name| name.ends_with(".log")) {
        disk.remove(name).expect("in memory");
    }
    let error = open(&disk, &options(Policy::Group, 500)).err().expect("the log is gone");
    assert!(error.to_string().contains("the segments were removed"), "{error}");
}
