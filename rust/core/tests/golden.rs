//! Tests the snapshots in tests/snapshots: reads them, compares them with their text, and writes them back byte for
//! byte.
//!
//! `FENCEPOST_GOLDEN=add cargo test -p fencepost-core --test golden` writes missing ones. An existing one is never
//! written again, because it represents the files of users.

use fencepost_core::{
    Entry, Hole, KeyKind, KeySpace, PRESETS, PartKind, PartValue, Policy, StateTable, decode_parts, encode_bytes,
    encode_int,
};
use fencepost_testkit::pair::Columns;
use fencepost_testkit::workload::{Shape, stream};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots")
}

/// Maximum number of entries in a listing; the others are verified by the bytes that are written back.
const LISTED_MAX: usize = 60;

/// A table as text, one entry per line.
fn listing(table: &StateTable) -> String {
    let mut text = format!("policy {}\n", table.policy());
    let optional = |value: Option<i64>| value.map_or("none".into(), |value| value.to_string());
    let untracked = if table.untracked() == fencepost_core::Untracked::Keep { "keep" } else { "fail" };
    let keep = if table.keeps_timestamp() { "timestamp" } else { "" };
    let entries_max = optional(table.entries_max().map(|entries| entries as i64));
    let horizon = optional(table.horizon_ms());
    writeln!(text, "keep [{keep}] entries_max {entries_max} untracked {untracked} horizon {horizon}").expect("a text");
    for entry in table.entries().take(LISTED_MAX) {
        let pid = key(&table.keys().pid, entry.pid);
        let partition = key(&table.keys().partition, entry.partition.into());
        let holes: Vec<String> = entry
            .holes
            .iter()
            .map(|hole| format!("{}..{} at {}", hole.first, hole.last, optional(hole.timestamp)))
            .collect();
        let last_range = entry.final_range.map_or("none".into(), |(first, last)| format!("{first}..{last}"));
        let (epoch, first, last, at) = (entry.epoch, entry.first, entry.last, optional(entry.last_timestamp));
        writeln!(text, "{pid} | {partition} | {epoch} | {first}..{last} at {at} | {} | {last_range}", holes.join(", "))
            .expect("a text");
    }
    writeln!(text, "{} entries", table.len()).expect("a text");
    text
}

fn key(space: &KeySpace, number: i64) -> String {
    let KeyKind::Parts(parts) = space.kind() else { return number.to_string() };
    let values = decode_parts(parts, space.dictionary.bytes(number as u32)).expect("an encoded key");
    let texts = values.iter().zip(parts).map(|(value, part)| match (value, part) {
        (PartValue::Int(value), _) => value.to_string(),
        (PartValue::Bytes(bytes), PartKind::Utf8) => String::from_utf8_lossy(bytes).into_owned(),
        (PartValue::Bytes(bytes), _) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    });
    texts.collect::<Vec<String>>().join(", ")
}

fn feed(table: &mut StateTable, seed: u64, rows: usize, now: i64) {
    let policy = table.policy();
    let rows = stream(seed, rows, &Shape::mixed(policy.wrap));
    let columns = Columns::of(rows.into_iter().zip((now..).step_by(10)));
    table.apply(&[columns.batch(&policy)]).expect("valid rows");
}

fn table(policy: &str, keeps_timestamp: bool) -> StateTable {
    let policy = Policy::preset(policy).expect("a preset");
    StateTable::new(policy).expect("valid").with_keep_timestamp(keeps_timestamp)
}

/// Every golden table by name: the first snapshot, and the deltas that follow it.
fn cases() -> Vec<(String, Vec<Vec<u8>>)> {
    let mut cases = Vec::new();
    for preset in PRESETS {
        let mut table = table(preset.name, false);
        feed(&mut table, 1, 60, 0);
        cases.push((preset.name.to_string(), vec![table.snapshot()]));
    }
    cases.push(("empty".into(), vec![table("any_order", false).snapshot()]));
    let mut forgetful = table("any_order", true).with_entries_max(Some(1000));
    feed(&mut forgetful, 2, 120, 1_000);
    forgetful.evict(2_500, 900).expect("timestamps are kept");
    cases.push(("timestamps".into(), vec![forgetful.snapshot()]));
    cases.push(("many".into(), vec![many().snapshot()]));
    cases.push(("keys".into(), vec![keyed().snapshot()]));
    cases.push(("deltas".into(), deltas()));
    cases
}

/// More than one frame of entries, in several blocks of partitions.
fn many() -> StateTable {
    let mut table = table("kafka", false);
    for key in 0..5_000i64 {
        let entry =
            Entry { pid: key / 2500 * 1_000_003, partition: (key % 2500) as i32, last: key * 421 % 65_537, ..empty() };
        table.insert(&Entry { first: entry.last, ..entry }).expect("a new key");
    }
    table
}

fn empty() -> Entry {
    Entry { pid: 0, partition: 0, epoch: 0, first: 0, last: 0, holes: vec![], final_range: None, last_timestamp: None }
}

/// A pid of a string and a number, a partition of bytes; holes.
fn keyed() -> StateTable {
    let mut table = table("any_order", false);
    let (pid, partition) = (vec![PartKind::Utf8, PartKind::Int], vec![PartKind::FixedBinary(2)]);
    table.keys_mut().fix(KeyKind::Parts(pid), KeyKind::Parts(partition)).expect("the first use");
    for number in (0..20u8).rev() {
        let (mut pid, mut partition) = (Vec::new(), Vec::new());
        encode_bytes(&mut pid, format!("producer \u{e9} {}", number % 3).as_bytes());
        encode_int(&mut pid, i64::from(number) - 10);
        encode_bytes(&mut partition, &[number % 2, 0]);
        let pid = table.keys_mut().pid.dictionary.intern(&pid).expect("memory").into();
        let partition = table.keys_mut().partition.dictionary.intern(&partition).expect("memory") as i32;
        let hole = |first| Hole { first, last: first + i64::from(number), timestamp: None };
        table.insert(&Entry { pid, partition, last: 1000, holes: vec![hole(10), hole(100)], ..empty() }).expect("new");
    }
    table
}

fn deltas() -> Vec<Vec<u8>> {
    let mut table = table("any_order", true);
    feed(&mut table, 3, 60, 1_000);
    table.track_changes(true);
    let mut chain = Vec::new();
    let mut bytes = Vec::new();
    let mut checksum = table.write_snapshot(&mut bytes).expect("a Vec takes every write");
    chain.push(bytes);
    for link in 1..=2 {
        table.begin_changes(checksum);
        table.forget(link, Some(1));
        table.evict(link * 1_000, 300).expect("timestamps are kept");
        feed(&mut table, 4 + link as u64, 20, 1_700 + link * 1_000);
        let mut bytes = Vec::new();
        checksum = table.delta().expect("tracked").write(&mut bytes).expect("a Vec takes every write");
        chain.push(bytes);
    }
    chain
}

fn rebuilt(chain: &[Vec<u8>]) -> StateTable {
    let mut table = StateTable::restore(&chain[0]).expect("a whole snapshot");
    chain[1..].iter().for_each(|delta| table.apply_delta(delta).expect("the next delta"));
    table
}

/// The file of the n-th link of a chain: the snapshot, then its deltas.
fn file(name: &str, link: usize) -> PathBuf {
    let ending = if link == 0 { "state".into() } else { format!("delta{link}") };
    folder().join(format!("v1-{name}.{ending}"))
}

#[test]
fn golden_snapshots_are_read_and_written_back() {
    let is_adding = std::env::var("FENCEPOST_GOLDEN").is_ok_and(|value| value == "add");
    for (name, chain) in cases() {
        let text = folder().join(format!("v1-{name}.txt"));
        if is_adding && !text.exists() {
            chain.iter().enumerate().for_each(|(link, bytes)| fs::write(file(&name, link), bytes).expect("a file"));
            fs::write(&text, listing(&rebuilt(&chain))).expect("a file");
        }
        let files: Vec<_> = (0..chain.len()).map(|link| fs::read(file(&name, link)).expect("a golden file")).collect();
        let expected = fs::read_to_string(&text).expect("a listing");
        assert!(listing(&rebuilt(&files)) == expected, "{name}: another content");
        let base = StateTable::restore(&files[0]).expect("a golden file");
        assert!(base.snapshot() == files[0], "{name}: written back otherwise");
        assert!(files == chain, "{name}: the same rows give other bytes");
    }
    let texts = fs::read_dir(folder()).expect("a folder").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|ending| ending == "txt"))
    });
    assert_eq!(texts.count(), cases().len(), "every file in the folder is looked at");
}

#[test]
fn another_content_would_be_seen() {
    let (mut one, mut other) = (keyed(), keyed());
    one.forget(0, None);
    other.forget(1, None);
    assert!(listing(&one) != listing(&other) && listing(&one) != listing(&keyed()));
}
