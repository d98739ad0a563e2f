//! `on_damage="cut"`: everything from the first damage on is removed, in any segment.

use crate::simulated::{Fault, SimDisk};
use crate::{batch, open, options, read};
use fencepost_log::{Disk, Error, LogFile, Options, Policy};
use fencepost_testkit::workload::Random;
use std::collections::BTreeMap;

/// A closed log of some segments, its content, and the positions of its batches.
struct Sample {
    disk: SimDisk,
    records: Vec<(i64, Vec<u8>)>,
    segments: Vec<String>,
}

fn sample() -> Sample {
    let (disk, records) = crate::sample(14, true);
    let mut segments = disk.names().expect("in memory");
    segments.retain(|name| name.ends_with(".log"));
    assert!(segments.len() >= 4, "{segments:?}");
    Sample { disk, records, segments }
}

fn cuts() -> Options {
    Options { cuts_damage: true, ..options(Policy::Group, 500) }
}

fn files(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    disk.names().expect("in memory").into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

/// Opens with "cut": the records before the damage are there, and the log continues after them, now and after a
/// restart.
fn check_cut(disk: &SimDisk, records: &[(i64, Vec<u8>)], case: &str) -> usize {
    let bytes_before = log_bytes(disk);
    let log = open(disk, &cuts()).unwrap_or_else(|error| panic!("{case}: {error}"));
    let found = read(&log, 0, false);
    assert!(records.starts_with(&found), "{case}");
    assert_eq!(log.recovered().cut_bytes, bytes_before - log_bytes(disk), "{case}");
    let seq = log.log_end().expect("open") as i32;
    assert_eq!(seq as usize, found.len(), "{case}");
    log.append(&mut [batch(7, 0, seq, false, &[vec![1]])]).unwrap_or_else(|error| panic!("{case}: {error}"));
    drop(log);
    let log = open(disk, &options(Policy::Group, 500)).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(read(&log, 0, false).len(), found.len() + 1, "{case}");
    found.len()
}

fn log_bytes(disk: &SimDisk) -> u64 {
    files(disk).iter().filter(|(name, _)| name.ends_with(".log")).map(|(_, bytes)| bytes.len() as u64).sum()
}

fn without_states(disk: &SimDisk) {
    for name in disk.names().expect("in memory") {
        if name.ends_with(".state") || name.ends_with(".snapshot") {
            disk.remove(&name).expect("in memory");
        }
    }
    disk.sync().expect("in memory");
}

#[test]
fn damage_is_cut_with_everything_after_it() {
    let Sample { disk, records, segments } = sample();
    let (mut counts, mut refused) = (std::collections::BTreeSet::new(), 0);
    for (number, name) in segments.iter().enumerate() {
        let whole = disk.bytes(name);
        for at in (0..whole.len()).step_by(5) {
            for keeps_states in [true, false] {
                let bent = disk.after_kill();
                let mut bytes = whole.clone();
                bytes[at] ^= 4;
                bent.set_bytes(name, &bytes);
                if !keeps_states {
                    without_states(&bent);
                }
                let case = format!("{name}, byte {at}, states: {keeps_states}");
                if number + 1 < segments.len() && !keeps_states {
                    let before = files(&bent);
                    if let Err(error) = open(&bent, &options(Policy::Group, 500)) {
                        assert!(matches!(&error, Error::Damaged(_)), "{case}: {error}");
                        assert!(error.to_string().contains("on_damage=\"cut\""), "{case}: {error}");
                        assert!(files(&bent) == before, "{case}: nothing was changed");
                        refused += 1;
                    }
                }
                counts.insert(check_cut(&bent, &records, &case));
            }
        }
    }
    assert!(refused > 100 && counts.len() >= 12 && counts.contains(&0), "{refused} refused, {counts:?}");
}

#[test]
fn a_segment_that_is_missing_or_short_or_twice_is_cut_with_everything_behind_it() {
    let Sample { disk, records, segments } = sample();
    for name in &segments[1..] {
        let base: usize = name[..20].parse().expect("an offset");
        for keeps_states in [true, false] {
            let missing = disk.after_kill();
            missing.remove(name).expect("in memory");
            let short = disk.after_kill();
            short.set_bytes(name, &disk.bytes(name)[..70]);
            let emptied = disk.after_kill();
            emptied.set_bytes(name, b"");
            let twice = disk.after_kill();
            let beside = format!("{:020}.log", base - 1);
            twice.set_bytes(&beside, &disk.bytes(name));
            for (what, bent) in [("missing", missing), ("short", short), ("emptied", emptied), ("twice", twice)] {
                if !keeps_states {
                    without_states(&bent);
                }
                let case = format!("{} is {what}, states: {keeps_states}", name);
                assert_eq!(check_cut(&bent, &records, &case), base, "{case}");
            }
        }
    }
}

/// A repair that fails in the middle can be repeated. If the log opens without repair in between, it has the same end.
#[test]
fn a_cut_that_fails_is_refused_until_it_is_done() {
    let Sample { disk, records, segments } = sample();
    let (mut failures, mut done) = (0, 0);
    for forever in [false, true] {
        for at in 0.. {
            let bent = disk.after_kill();
            let mut bytes = disk.bytes(&segments[1]);
            bytes[90] ^= 1;
            bent.set_bytes(&segments[1], &bytes);
            without_states(&bent);
            bent.fail(Some(Fault { at, forever }));
            let opened = open(&bent, &cuts());
            bent.fail(None);
            let Err(error) = opened else {
                done += 1;
                break;
            };
            assert!(matches!(error, Error::Io { .. }), "{error}");
            failures += 1;
            for bent in [bent.after_kill(), bent.after_power_loss(&mut Random::new(at))] {
                let base: usize = segments[1][..20].parse().expect("an offset");
                match open(&bent.after_kill(), &options(Policy::Group, 500)) {
                    Ok(log) => assert_eq!(read(&log, 0, false), records[..base], "{at}"),
                    Err(error) => assert!(matches!(&error, Error::Damaged(_)), "{at}: {error}"),
                }
                let log = open(&bent, &cuts()).expect("a disk that works again");
                assert_eq!(read(&log, 0, false), records[..base], "{at}");
            }
        }
    }
    assert!(failures > 10 && done == 2, "{failures} failures");
}

#[test]
fn an_unreadable_file_is_not_damage() {
    struct Unreadable(SimDisk, String);
    impl Disk for Unreadable {
        fn path(&self, name: &str) -> String {
            self.0.path(name)
        }
        fn names(&self) -> std::io::Result<Vec<String>> {
            self.0.names()
        }
        fn create(&self, name: &str) -> std::io::Result<std::sync::Arc<dyn LogFile>> {
            self.0.create(name)
        }
        fn open(&self, name: &str) -> std::io::Result<std::sync::Arc<dyn LogFile>> {
            if name == self.1 { Err(std::io::Error::from_raw_os_error(5)) } else { self.0.open(name) }
        }
        fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
            self.0.put(name, bytes)
        }
        fn remove(&self, name: &str) -> std::io::Result<()> {
            self.0.remove(name)
        }
        fn sync(&self) -> std::io::Result<()> {
            self.0.sync()
        }
    }
    let Sample { disk, segments, .. } = sample();
    let before = files(&disk);
    for name in &segments {
        let bent = Unreadable(disk.clone(), name.clone());
        let error =
            fencepost_log::PartitionLog::open(std::sync::Arc::new(bent), None, cuts()).err().expect("unreadable");
        assert!(matches!(&error, Error::Io { path, .. } if path.ends_with(name)), "{error}");
        assert!(files(&disk) == before, "nothing was changed");
    }
}
