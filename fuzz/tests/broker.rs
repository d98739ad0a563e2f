//! The target of tables of produce batches, without libFuzzer.

mod inputs;

use fencepost_core::{BrokerOptions, BrokerTable, KeyKind, PartKind, ProducerEntry, WindowBatch, encode_bytes};
use fencepost_fuzz::{broker, seal};
use inputs::{corpus, run, write};

#[test]
fn no_bytes_break_the_decoder() {
    run(broker, "broker");
}

/// Without right checksums nothing behind the first one would ever be decoded.
#[test]
fn a_sealed_snapshot_is_one() {
    for bytes in snapshots() {
        assert_eq!(seal(&bytes), bytes, "the seal is not the format's");
        let mut other = bytes.clone();
        *other.last_mut().expect("a checksum") ^= 1;
        assert!(BrokerTable::restore(&other).is_err() && BrokerTable::restore(&seal(&other)).is_ok());
    }
}

/// The corpus holds snapshots of this version: one of another would stop at its version number.
#[test]
fn the_corpus_is_of_this_version() {
    let corpus = corpus("broker");
    for bytes in snapshots() {
        assert!(corpus.contains(&bytes), "write the corpus again: make fuzz-corpus");
    }
}

/// Tables of several options: empty, of sequence numbers alone, with offsets and transactions, with names.
fn snapshots() -> Vec<Vec<u8>> {
    let options = BrokerOptions::default();
    let assigns = BrokerOptions { assigns_offsets: true, window: 7, ..options.clone() };
    let newest = BrokerOptions { version: "4.5".parse().expect("known"), begins_at_zero: true, ..options.clone() };
    let mut all: Vec<_> = [&options, &assigns, &newest].map(|options| table(options, false, 0)).into();
    all.extend([(&options, false), (&assigns, false), (&newest, true)].map(|(it, has_names)| table(it, has_names, 40)));
    all.iter().map(BrokerTable::snapshot).collect()
}

fn table(options: &BrokerOptions, has_names: bool, entries: i64) -> BrokerTable {
    let mut table = BrokerTable::new(options.clone()).expect("options that make sense");
    if has_names {
        table.keys_mut().fix(KeyKind::Plain, KeyKind::Parts(vec![PartKind::Utf8])).expect("not used yet");
        for name in ["orders", "clicks", "carts"] {
            let mut key = Vec::new();
            encode_bytes(&mut key, name.as_bytes());
            table.keys_mut().partition.dictionary.intern(&key).expect("memory");
        }
    }
    for number in 0..entries {
        table.add(&entry(number)).expect("an entry that a broker could have");
    }
    if table.follows_log_ends() && entries > 0 {
        table.set_log_end(2, 1 << 40).expect("an offset");
    }
    table
}

fn entry(number: i64) -> ProducerEntry {
    let is_open = number % 5 == 0;
    let batch = |at: i64| WindowBatch {
        last_seq: (number * 100 + at * 10 + 9) as i32,
        offset_delta: 9 + i32::from(number % 7 == 3) * 70_000 * (at as i32 + 1),
        last_offset: if number % 4 == 1 { -1 } else { 1_000_000 + number * 1000 + at * 80_000 },
    };
    ProducerEntry {
        pid: number << (number % 30),
        partition: (number % 3) as i32,
        epoch: (number % 4) as i16,
        coordinator_epoch: if is_open { 3 } else { -1 },
        last_timestamp: if number % 6 == 2 { -1 } else { 1_700_000_000_000 + number },
        is_open,
        open_from: if is_open && number % 2 == 0 { 77 } else { -1 },
        batches: (0..number % 6).map(batch).collect(),
    }
}

/// Not a test: writes the corpus. `make fuzz-corpus` after a change of the format.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    write("broker", &snapshots());
}
