//! Snapshots: what was written comes back, and what was damaged does not.

use fencepost_core::{Batch, Entry, Error, Policy, Seqs, StateTable};
use fencepost_testkit::workload::{Shape, stream};

fn table(policy: &str) -> StateTable {
    let policy = Policy::preset(policy).expect("a preset");
    let rows = stream(7, 400, &Shape::mixed(policy.wrap));
    let (pid, partition): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.pid, row.partition)).unzip();
    let (epoch, seq): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.epoch, row.seq)).unzip();
    let epoch = (policy.epochs != fencepost_core::Epochs::Ignore).then_some(&epoch[..]);
    let mut table = StateTable::new(policy).expect("a preset is valid");
    table
        .apply(&[Batch { pid: &pid, partition: &partition, epoch, seq: Seqs::I64(&seq), timestamp: None }])
        .expect("valid rows");
    table
}

#[test]
fn every_entry_comes_back() {
    for preset in fencepost_core::PRESETS {
        let table = table(preset.name).with_entries_max(Some(77)).with_label("a label".into());
        let back = StateTable::restore(&table.snapshot()).expect("its own snapshot");
        assert_eq!(back.entries(), table.entries(), "{}", preset.name);
        assert_eq!((back.policy(), back.entries_max(), back.label()), (table.policy(), Some(77), "a label"));
        assert!(!back.is_empty());
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = table("any_order").snapshot();
    for count in 0..bytes.len() {
        let error = StateTable::restore(&bytes[..count]).err().expect("a snapshot that was cut");
        assert!(matches!(&error, Error::Snapshot(reason) if reason.contains("truncated")), "{count}: {error}");
    }
}

#[test]
fn every_flipped_byte_is_refused() {
    let bytes = table("any_order").snapshot();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            let error = StateTable::restore(&damaged).err();
            assert!(matches!(error, Some(Error::Snapshot(_))), "byte {at} of {}: {error:?}", bytes.len());
        }
    }
}

#[test]
fn bytes_behind_a_snapshot_are_refused() {
    let mut bytes = table("kafka").snapshot();
    bytes.push(0);
    let error = StateTable::restore(&bytes).err().expect("a byte too many");
    assert_eq!(error.to_string(), "1 bytes follow the snapshot");
}

#[test]
fn the_last_64_bit_sequence_number_comes_back() {
    let mut table = StateTable::new(Policy::preset("kafka_offsets").expect("a preset")).expect("valid");
    let seq = [0, i64::MAX - 2, i64::MAX];
    table
        .apply(&[Batch { pid: &[1; 3], partition: &[0; 3], epoch: None, seq: Seqs::I64(&seq), timestamp: None }])
        .expect("valid rows");
    let back = StateTable::restore(&table.snapshot()).expect("its own snapshot");
    assert_eq!(back.entries(), table.entries());
}

#[test]
fn an_entry_beyond_the_last_lap_is_refused() {
    let mut policy = Policy::preset("any_order").expect("a preset");
    policy.wrap = Some(1 << 33);
    let entry = |last| Entry {
        pid: 1,
        partition: 0,
        epoch: 0,
        first: last,
        last,
        holes: vec![],
        final_range: None,
        last_timestamp: None,
    };
    let mut table = StateTable::new(policy).expect("valid");
    assert!(matches!(table.insert(&entry(1 << 62)), Err(Error::Snapshot(_))));
    table.insert(&entry((1 << 61) + (1 << 32))).expect("on the last lap");
    let seq = [(1 << 33) - 1, 0, 1];
    table
        .apply(&[Batch {
            pid: &[1; 3],
            partition: &[0; 3],
            epoch: Some(&[0; 3]),
            seq: Seqs::I64(&seq),
            timestamp: None,
        }])
        .expect("rows");
    let back = StateTable::restore(&table.snapshot()).expect("its own snapshot");
    assert_eq!(back.entries(), table.entries());
}
