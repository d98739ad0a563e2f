//! The targets without libFuzzer: over the corpus, over what comes of it by chance, and over broken subjects.

use fencepost_core::{Batch, KeyKind, PRESETS, PartKind, Policy, Seqs, StateTable};
use fencepost_fuzz::{operations, operations_with, seal, snapshot};
use fencepost_testkit::workload::{Random, Shape, stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const MUTATIONS: usize = 2_000;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder(target)).expect("a committed corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(paths.len() >= 6, "a corpus of {} inputs", paths.len());
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// Some bytes replaced, removed, repeated, or taken from another input.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let pick = |random: &mut Random| corpus[random.below(corpus.len() as u64) as usize].clone();
    let mut bytes = pick(random);
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let to = (at + random.below(16) as usize).min(bytes.len());
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] = random.bits() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..to)),
            3 => bytes.splice(at..at, bytes[at..to].to_vec()).for_each(drop),
            _ => {
                let other = pick(random);
                bytes.splice(at.., other[at.min(other.len())..].to_vec()).for_each(drop);
            }
        }
    }
    bytes
}

fn run(target: fn(&[u8]), name: &str) {
    let corpus = corpus(name);
    corpus.iter().for_each(|bytes| target(bytes));
    let mut random = Random::new(1);
    for number in 0..MUTATIONS {
        let bytes = mutate(&mut random, &corpus);
        let ended = catch_unwind(|| target(&bytes));
        assert!(ended.is_ok(), "{name}, mutation {number}: {bytes:?}");
    }
}

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
    let broken: [fn(&mut Policy); 4] = [
        |policy| policy.window += 1,
        |policy| policy.max_jump = None,
        |policy| policy.first = fencepost_core::First::Any,
        |policy| policy.epochs = fencepost_core::Epochs::Ignore,
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
        assert!(StateTable::restore(&other).is_err());
        assert!(StateTable::restore(&seal(&other)).is_ok());
    }
}

/// The corpus holds snapshots of this version: one of another would stop at its version number.
#[test]
fn the_corpus_is_of_this_version() {
    let corpus = corpus("snapshot");
    for bytes in snapshots() {
        assert!(corpus.contains(&bytes), "write the corpus anew: make fuzz-corpus");
    }
}

/// Tables of every preset, and one whose keys are strings.
fn snapshots() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = PRESETS.iter().map(|preset| table(preset.policy, false).snapshot()).collect();
    all.push(table(Policy::preset("any_order").expect("a preset"), true).snapshot());
    all
}

fn table(policy: Policy, has_names: bool) -> StateTable {
    let mut table = StateTable::new(policy).expect("a preset is valid");
    if has_names {
        let parts = KeyKind::Parts(vec![PartKind::FixedBinary(2)]);
        table.keys_mut().fix(parts, KeyKind::Plain).expect("not used yet");
        for number in [7u8, 0, 3, 255] {
            let mut key = Vec::new();
            fencepost_core::encode_bytes(&mut key, &[number, 0]);
            table.keys_mut().pid.dictionary.intern(&key);
        }
    }
    let rows = stream(7, 200, &Shape::mixed(policy.wrap));
    let (pid, partition): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.pid, row.partition)).unzip();
    let (epoch, seq): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.epoch, row.seq)).unzip();
    let epoch = (policy.epochs != fencepost_core::Epochs::Ignore).then_some(&epoch[..]);
    table
        .apply(&[Batch { pid: &pid, partition: &partition, epoch, seq: Seqs::I64(&seq), timestamp: None }])
        .expect("valid rows");
    table
}

/// Operations of every policy, long enough to meet every rule.
fn programs() -> Vec<Vec<u8>> {
    (0..12u8)
        .map(|policy| {
            let mut random = Random::new(u64::from(policy) + 1);
            let mut bytes = vec![policy];
            while bytes.len() < 600 {
                bytes.extend([random.bits() as u8, random.below(32) as u8]);
                let key = random.bits() as u8 & 0x77;
                let from = random.below(40) as u8;
                let more = (0..20).flat_map(|step| [key, from + step / (1 + random.below(2) as u8)]);
                bytes.extend(more.collect::<Vec<_>>());
            }
            bytes
        })
        .collect()
}

/// Not a test: writes the corpus. `make fuzz-corpus` after a change of the format or of the operations.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    for (target, inputs) in [("snapshot", snapshots()), ("operations", programs())] {
        for (number, bytes) in inputs.iter().enumerate() {
            std::fs::write(folder(target).join(format!("seed-{number:02}")), bytes).expect("a folder to write to");
        }
    }
}
