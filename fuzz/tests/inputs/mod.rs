//! The corpus of a target, and what comes of it by chance.

use fencepost_testkit::workload::Random;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

const MUTATIONS: usize = 2_000;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder(target)).expect("a committed corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(paths.len() >= 6, "a corpus of {} inputs", paths.len());
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// Writes inputs of a target to its corpus.
pub(crate) fn write(target: &str, inputs: &[Vec<u8>]) {
    std::fs::create_dir_all(folder(target)).expect("a folder to write to");
    for (number, bytes) in inputs.iter().enumerate() {
        std::fs::write(folder(target).join(format!("seed-{number:02}")), bytes).expect("a folder to write to");
    }
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

pub(crate) fn run(target: fn(&[u8]), name: &str) {
    let corpus = corpus(name);
    corpus.iter().for_each(|bytes| target(bytes));
    let mut random = Random::new(1);
    for number in 0..MUTATIONS {
        let bytes = mutate(&mut random, &corpus);
        let ended = catch_unwind(|| target(&bytes));
        assert!(ended.is_ok(), "{name}, mutation {number}: {bytes:?}");
    }
}
