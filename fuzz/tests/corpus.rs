//! The targets without libFuzzer: over the corpus, over what comes of it by chance, and over broken subjects.

mod inputs;

use fencepost_core::{KeyKind, PRESETS, PartKind, Policy, StateTable};
use fencepost_fuzz::{FOLLOWED, Named, POLICIES, operations, operations_with, seal, snapshot};
use fencepost_testkit::pair::Columns;
use fencepost_testkit::workload::{Random, Shape, stream};
use inputs::{corpus, run, write};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn no_snapshot_breaks_the_decoder() {
    run(snapshot, "snapshot");
}

#[test]
fn no_operations_set_core_and_oracle_apart() {
    run(operations, "operations");
}

#[test]
fn the_corpus_finds_a_broken_core() {
    let corpus = corpus("operations");
    let broken: [fn(&mut Policy); 7] = [
        |policy| policy.window += 1,
        |policy| policy.max_jump = None,
        |policy| policy.first = fencepost_core::First::Any,
        |policy| policy.epochs = fencepost_core::Epochs::Ignore,
        |policy| policy.reach = policy.reach.map(|reach| reach + 1),
        |policy| policy.reach = policy.reach.map(|reach| reach - 1),
        |policy| policy.intervals_max = policy.intervals_max.map(|holes| holes + 1),
    ];
    for (number, change) in broken.into_iter().enumerate() {
        let is_found = |bytes: &Vec<u8>| catch_unwind(AssertUnwindSafe(|| operations_with(bytes, change))).is_err();
        assert!(corpus.iter().any(is_found), "broken core {number} was not found out");
    }
}

/// Without right checksums nothing behind the first one would ever be decoded.
#[test]
fn a_sealed_snapshot_is_one() {
    for bytes in snapshots() {
        assert_eq!(seal(&bytes), bytes, "the seal is not the format's");
        let mut other = bytes.clone();
        *other.last_mut().expect("a checksum") ^= 1;
        assert!(is_read(&bytes) && !is_read(&other) && is_read(&seal(&other)));
    }
}

/// Whether a snapshot, and the delta behind it where there is one, are read.
fn is_read(mut bytes: &[u8]) -> bool {
    let count = bytes.len() as u64;
    let Ok(mut table) = StateTable::read_snapshot(&mut bytes, count) else { return false };
    table.begin_changes(FOLLOWED);
    bytes.is_empty() || table.apply_delta(bytes).is_ok()
}

/// The corpus holds snapshots of this version: one of another would stop at its version number.
#[test]
fn the_corpus_is_of_this_version() {
    let corpus = corpus("snapshot");
    for bytes in snapshots() {
        assert!(corpus.contains(&bytes), "write the corpus again: make fuzz-corpus");
    }
}

/// Tables of every preset and one whose keys are strings, then the same with timestamps and a delta behind.
fn snapshots() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for keeps_timestamp in [false, true] {
        let presets = PRESETS.iter().map(|preset| (preset.policy, false));
        for (policy, has_names) in presets.chain([(Policy::preset("any_order").expect("a preset"), true)]) {
            let mut table = table(policy, has_names, keeps_timestamp);
            let mut bytes = table.snapshot();
            if keeps_timestamp {
                bytes.extend(delta(&mut table));
            }
            all.push(bytes);
        }
    }
    all
}

fn table(policy: Policy, has_names: bool, keeps_timestamp: bool) -> StateTable {
    let table = StateTable::new(policy).expect("a preset is valid");
    let mut table = table.with_keep_timestamp(keeps_timestamp);
    if has_names {
        let parts = KeyKind::Parts(vec![PartKind::FixedBinary(2)]);
        table.keys_mut().fix(parts, KeyKind::Plain).expect("not used yet");
        for number in [7u8, 0, 3, 255] {
            let mut key = Vec::new();
            fencepost_core::encode_bytes(&mut key, &[number, 0]);
            table.keys_mut().pid.dictionary.intern(&key).expect("memory");
        }
    }
    feed(&mut table, 7, 200, 0);
    table
}

/// What changes when a producer and what is old are forgotten and others go on.
fn delta(table: &mut StateTable) -> Vec<u8> {
    table.track_changes(true);
    table.begin_changes(FOLLOWED);
    table.forget(1, Some(1));
    table.evict(200, 150).expect("timestamps are kept");
    feed(table, 8, 20, 200);
    let mut bytes = Vec::new();
    table.delta().expect("changes are tracked").write(&mut bytes).expect("a Vec takes every write");
    bytes
}

/// A seeded stream, one row a millisecond.
fn feed(table: &mut StateTable, seed: u64, rows: usize, now: i64) {
    let policy = table.policy();
    let rows = stream(seed, rows, &Shape::mixed(policy.wrap));
    let columns = Columns::of(rows.into_iter().zip(now..));
    table.apply(&[columns.batch(&policy)]).expect("valid rows");
}

/// Operations of every policy, long enough to meet every rule, and what chance does not come to.
fn programs() -> Vec<Vec<u8>> {
    let policies = 0..POLICIES.len() as u8;
    policies.flat_map(|policy| [1, 2].map(|seed| program(policy, seed))).chain([late_bump()]).collect()
}

/// An entry that is younger in the base than what replaces it, and that a delta must say is gone: a higher
/// epoch comes late and is evicted.
fn late_bump() -> Vec<u8> {
    let is_fence = |policy: &Named| policy.0 == "any_order" && policy.1.contains(&("epochs", "fence")) && policy.2;
    let policy = POLICIES.iter().position(is_fence).expect("a policy") as u8;
    let twenty_others = [vec![0, 20], [1, 0].repeat(20)].concat();
    let (old_epoch, new_epoch_late) = ([0, 1, 0, 5], [0, 1, 128 | 32, 12, 0]);
    let (follow, evict) = ([14], [8, 0, 8]);
    [&[policy], &twenty_others[..], &old_epoch, &follow, &new_epoch_late, &evict, &follow].concat()
}

fn program(policy: u8, seed: u64) -> Vec<u8> {
    let mut random = Random::new(u64::from(policy) << 8 | seed);
    let mut bytes = vec![policy];
    while bytes.len() < 800 {
        bytes.extend(operation(&mut random));
    }
    bytes
}

/// Rows, or whatever else may be done.
fn operation(random: &mut Random) -> Vec<u8> {
    let (kind, batches) = (random.below(16) as u8, 1 + random.below(3) as u8);
    let arguments = match kind {
        8 | 9 => vec![random.below(8) as u8, random.below(100) as u8],
        10 => vec![random.below(4) as u8],
        11 => vec![random.below(4) as u8, random.below(2) as u8],
        12.. => vec![],
        _ => (0..batches).flat_map(|_| batch_of_rows(random)).collect(),
    };
    [vec![kind + 16 * (batches - 1)], arguments].concat()
}

/// A batch of eight rows, mostly of one of eight keys and epochs.
fn batch_of_rows(random: &mut Random) -> Vec<u8> {
    let key = random.bits() as u8 & if random.chance(80) { 0xa5 } else { 0xe7 };
    let (from, step) = (random.below(40) as u8, 1 + random.below(2) as u8);
    let late = (key >= 128).then_some(random.below(60) as u8);
    let row = |number: u8| [key].into_iter().chain(late).chain([from + number / step]);
    [8].into_iter().chain((0..8).flat_map(row)).collect()
}

/// Not a test: writes the corpus. `make fuzz-corpus` after a change of the format or of the operations.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    write("snapshot", &snapshots());
    write("operations", &programs());
}
