//! A failed sync is final: the next sync succeeds without the bytes, so no thread may rely on it.

use crate::simulated::{Fault, Moment, SimDisk};
use crate::{Writer, batch, open, options, read};
use fencepost_log::{Error, Options, PartitionLog, Policy, Result};
use fencepost_testkit::workload::Random;
use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The action of a second thread while the sync of the first one fails. Each action syncs the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// Appends a batch that does not fit into the segment.
    Roll,
    /// Appends, and the write fails. Cutting its bytes is also a sync.
    Cut,
    Sync,
    Close,
}

/// Time for a second thread to act, if it does not wait for the first one.
const CHANCE: Duration = Duration::from_millis(200);

fn values(text: &str, bytes: usize) -> Vec<Vec<u8>> {
    vec![[text.as_bytes(), &vec![b'x'; bytes][..]].concat()]
}

/// Holds the failing sync at a moment, until another thread has acted or evidently waits.
fn hold_failing(disk: &SimDisk, at: Moment) -> (Receiver<()>, mpsc::Sender<()>) {
    let (held, is_held) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    let is_done = Mutex::new(is_done);
    disk.set_pause(Some(Arc::new(move |moment, is_failing| {
        if is_failing && moment == at {
            held.send(()).expect("the test listens");
            let _ = is_done.lock().expect("one sync fails").recv_timeout(CHANCE);
        }
    })));
    (is_held, done)
}

fn act(log: &PartitionLog, disk: &SimDisk, other: Other) -> Result<()> {
    let append = |bytes| log.append(&mut [batch(8, 0, 0, false, &values("other", bytes))]).map(drop);
    match other {
        Other::Roll => append(500),
        Other::Cut => {
            disk.fail(Some(Fault { at: 0, forever: false }));
            append(1)
        }
        Other::Sync => log.sync(),
        Other::Close => log.close(),
    }
}

#[test]
fn a_sync_that_failed_fails_every_thread_that_waits() {
    for other in [Other::Roll, Other::Cut, Other::Sync, Other::Close] {
        for moment in [Moment::Begun, Moment::Done, Moment::Reported] {
            let options = options(Policy::Group, 700);
            let disk = SimDisk::new();
            let log = open(&disk, &options).expect("a disk that works");
            let mut writer = Writer::new();
            let first = values("first", 1);
            let appended = log.append(&mut [batch(7, 0, 0, false, &first)]).expect("a disk that works");
            writer.note(appended[0], first);

            let lost = values("lost", 100);
            let (is_held, done) = hold_failing(&disk, moment);
            // A write, then the sync that fails.
            disk.fail(Some(Fault { at: 1, forever: false }));
            let (led, acted) = thread::scope(|scope| {
                let leader = scope.spawn(|| log.append(&mut [batch(7, 0, 1, false, &lost)]));
                is_held.recv().expect("the sync fails");
                let acted = act(&log, &disk, other);
                // The leader may have continued.
                let _ = done.send(());
                (leader.join().expect("no panic"), acted)
            });
            let case = format!("{other:?} while {moment:?}");
            let error = led.expect_err(&case);
            assert!(matches!(error, Error::Poisoned(_) | Error::Closed), "{case}: {error}");
            let error = acted.expect_err(&case);
            assert!(matches!(error, Error::Poisoned(_)), "{case}: {error}");
            let error = log.append(&mut [batch(9, 0, 0, false, &values("later", 1))]).expect_err(&case);
            assert!(matches!(error, Error::Poisoned(_) | Error::Closed), "{case}: {error}");
            drop(log);
            disk.set_pause(None);
            disk.fail(None);
            for seed in 0..8 {
                let log = open(&disk.after_power_loss(&mut Random::new(seed)), &options).expect(&case);
                assert!(read(&log, 0, false).starts_with(&writer.acknowledged), "{case}");
            }
            // The log acknowledges the retry after it is opened again, so it is then on disk.
            let log = open(&disk, &options).expect(&case);
            let appended = log.append(&mut [batch(7, 0, 1, false, &lost)]).expect(&case);
            writer.note(appended[0], lost);
            for seed in 0..8 {
                let log = open(&disk.after_power_loss(&mut Random::new(seed)), &options).expect(&case);
                assert!(read(&log, 0, false).starts_with(&writer.acknowledged), "{case}");
            }
        }
    }
}

#[test]
fn closing_reports_that_acknowledged_batches_may_be_lost() {
    for (policy, is_lost) in [(Policy::Interval(Duration::from_secs(3600)), true), (Policy::Group, false)] {
        let disk = SimDisk::new();
        let log = open(&disk, &options(policy, 1 << 20)).expect("a disk that works");
        log.append(&mut [batch(7, 0, 0, false, &values("first", 1))]).expect("a disk that works");
        // The sync fails: of the syncing thread, or of the append after its write.
        disk.fail(Some(Fault { at: u64::from(!is_lost), forever: false }));
        let failed =
            if is_lost { log.sync() } else { log.append(&mut [batch(7, 0, 1, false, &values("second", 1))]).map(drop) };
        assert!(matches!(failed, Err(Error::Poisoned(_))), "{policy:?}");
        assert_eq!(matches!(log.close(), Err(Error::Poisoned(_))), is_lost, "{policy:?}");
        log.close().expect("it is closed");
    }
}

/// Appends until an operation fails. Returns the values of the failed batch.
fn append_all(log: &PartitionLog, writer: &mut Writer, random: &mut Random) -> Option<Vec<Vec<u8>>> {
    for _ in 0..8 {
        let values = writer.next(random);
        match log.append(&mut [batch(writer.pid, 0, writer.seq, false, &values)]) {
            Ok(appended) => writer.note(appended[0], values),
            Err(Error::Poisoned(_) | Error::Io { .. }) => return Some(values),
            Err(other) => panic!("{other}"),
        }
    }
    None
}

fn open_or_cut(disk: &SimDisk, options: &Options) -> PartitionLog {
    open(disk, options)
        .or_else(|error| match error {
            // Several batches were not acknowledged.
            Error::Damaged(_) => open(disk, &Options { cuts_damage: true, ..options.clone() }),
            other => Err(other),
        })
        .expect("a disk that works again")
}

fn check_acknowledged(log: &PartitionLog, writers: &[Writer], case: &str) {
    let found = read(log, 0, false);
    for one in writers.iter().flat_map(|writer| &writer.acknowledged) {
        assert!(found.get(one.0 as usize) == Some(one), "{case}: offset {} was acknowledged", one.0);
    }
}

/// Threads, small segments, an operation that fails at any place, and random scheduling.
#[test]
fn acknowledged_batches_are_on_disk_in_any_schedule() {
    let (mut failures, mut retried) = (0, 0);
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let policy = [Policy::Group, Policy::Group, Policy::Each][random.below(3) as usize];
        let options = options(policy, 600 + random.below(900));
        let disk = SimDisk::new();
        let log = open(&disk, &options).expect("a disk that works");
        let turns = AtomicU32::new(0);
        disk.set_pause(Some(Arc::new(move |_, _| {
            let turn = turns.fetch_add(1, Ordering::Relaxed);
            let mut random = Random::new(seed << 32 | u64::from(turn));
            (0..random.below(2000)).for_each(|_| hint::spin_loop());
            // On a busy machine each of these takes milliseconds.
            (0..random.below(12) / 10).for_each(|_| thread::yield_now());
        })));
        disk.fail(Some(Fault { at: random.below(25), forever: random.chance(40) }));
        let mut writers: Vec<Writer> = (0..4).map(|pid| Writer { pid, seq: 0, acknowledged: Vec::new() }).collect();
        let failed: Vec<Option<Vec<Vec<u8>>>> = thread::scope(|scope| {
            let (log, random) = (&log, &random);
            let append = |writer| {
                let mut random = random.clone();
                scope.spawn(move || append_all(log, writer, &mut random))
            };
            let threads: Vec<_> = writers.iter_mut().map(append).collect();
            threads.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        drop(log);
        disk.fail(None);
        disk.set_pause(None);
        failures += failed.iter().flatten().count();
        let case = format!("seed {seed}, {policy:?}");
        check_acknowledged(&open_or_cut(&disk.after_power_loss(&mut random), &options), &writers, &case);
        let log = open_or_cut(&disk, &options);
        check_acknowledged(&log, &writers, &case);
        for (writer, values) in writers.iter_mut().zip(failed) {
            let Some(values) = values else { continue };
            let appended = log.append(&mut [batch(writer.pid, 0, writer.seq, false, &values)]).expect(&case);
            writer.note(appended[0], values);
            retried += 1;
        }
        drop(log);
        check_acknowledged(&open_or_cut(&disk.after_power_loss(&mut random), &options), &writers, &case);
    }
    assert!(failures > 500 && retried > 500, "{failures} failures, {retried} retried");
}
