//! Snapshots of a `BrokerTable`: round trips, and refused bytes.

use fencepost_core::{
    BrokerOptions, BrokerTable, Error, KeyKind, Origin, Origins, PartKind, ProduceBatches, encode_bytes,
};

/// Columns of batches that different producers write to different partitions, some in transactions.
struct Columns {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    base_seq: Vec<i32>,
    count: Vec<i32>,
    offset: Vec<i64>,
    timestamp: Vec<i64>,
    transactional: Vec<u8>,
    control: Vec<u8>,
    coordinator_epoch: Vec<i32>,
}

impl Columns {
    fn new(rows: i32, partitions: i32) -> Columns {
        let each = |value: fn(i32) -> i64| (0..rows).map(value).collect::<Vec<i64>>();
        let narrow = |value: fn(i32) -> i32| (0..rows).map(value).collect::<Vec<i32>>();
        Columns {
            pid: each(|row| i64::from(row % 97) << 33),
            partition: (0..rows).map(|row| row % 97 % partitions).collect(),
            epoch: vec![1; rows as usize],
            // Every fifth round breaks the sequence, like a log that lost batches.
            base_seq: narrow(|row| row / 97 * 10 + row / 485 * 3),
            count: narrow(|row| if row % 7 == 0 { 100_000 } else { 10 }),
            offset: each(|row| i64::from(row) * 200_000),
            timestamp: each(|row| 1_700_000_000_000 + i64::from(row)),
            transactional: (0..rows).map(|row| u8::from(row % 97 < 20)).collect(),
            control: (0..rows).map(|row| u8::from(row % 97 < 10 && row / 97 % 6 == 5)).collect(),
            coordinator_epoch: narrow(|row| row % 3),
        }
    }

    fn batches(&self, is_whole: bool) -> ProduceBatches<'_> {
        ProduceBatches {
            pid: &self.pid,
            partition: &self.partition,
            epoch: &self.epoch,
            base_seq: &self.base_seq,
            last_seq: None,
            count: Some(&self.count),
            offset: is_whole.then_some(&self.offset[..]),
            last_offset: None,
            timestamp: is_whole.then_some(&self.timestamp[..]),
            transactional: Some(&self.transactional),
            control: Some(&self.control),
            coordinator_epoch: is_whole.then_some(&self.coordinator_epoch[..]),
            transaction_version: None,
            origin: Origins::All(Origin::Replica),
        }
    }
}

fn table(rows: i32, is_whole: bool, options: BrokerOptions) -> BrokerTable {
    let mut table = BrokerTable::new(options).expect("options that make sense");
    table.apply(&[Columns::new(rows, 5).batches(is_whole)]).expect("valid batches");
    table
}

#[test]
fn a_restored_table_is_the_same() {
    let options = [
        BrokerOptions::default(),
        BrokerOptions { assigns_offsets: true, window: 9, ..BrokerOptions::default() },
        BrokerOptions { version: "4.5".parse().expect("known"), max_idle_ms: 5, ..BrokerOptions::default() },
    ];
    // If offsets are assigned, the batches of a replica still need theirs.
    let cases = options.into_iter().flat_map(|it| [(it.clone(), true), (it, false)]);
    for (options, is_whole) in cases.filter(|(options, is_whole)| *is_whole || !options.assigns_offsets) {
        for rows in [0, 1, 3000, 20_000] {
            let table = table(rows, is_whole, options.clone());
            let bytes = table.snapshot();
            let mut restored = BrokerTable::restore(&bytes).expect("just written");
            assert_eq!(restored.options(), table.options());
            assert_eq!(restored.log_ends(), table.log_ends());
            assert!(restored.entries().eq(table.entries()) && restored.len() == table.len());
            assert_eq!(restored.snapshot(), bytes, "{rows} rows");
            let mut first = BrokerTable::restore(&bytes).expect("just written");
            let next = Columns::new(97, 5);
            assert_eq!(first.apply(&[next.batches(is_whole)]), restored.apply(&[next.batches(is_whole)]));
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_history_of_a_table() {
    let columns = Columns::new(5000, 5);
    let whole = table(5000, true, BrokerOptions::default());
    let mut cut = BrokerTable::new(BrokerOptions::default()).expect("default options");
    // Narrow lines first: the first call has no offsets, but later ones have.
    for from in (0..5000).step_by(313) {
        let to = (from + 313).min(5000);
        let ProduceBatches { pid, partition, epoch, base_seq, .. } = columns.batches(true);
        cut.apply(&[ProduceBatches {
            pid: &pid[from..to],
            partition: &partition[from..to],
            epoch: &epoch[from..to],
            base_seq: &base_seq[from..to],
            count: Some(&columns.count[from..to]),
            offset: Some(&columns.offset[from..to]),
            timestamp: Some(&columns.timestamp[from..to]),
            transactional: Some(&columns.transactional[from..to]),
            control: Some(&columns.control[from..to]),
            coordinator_epoch: Some(&columns.coordinator_epoch[from..to]),
            ..columns.batches(true)
        }])
        .expect("valid batches");
    }
    assert_eq!(cut.snapshot(), whole.snapshot());
}

#[test]
fn partitions_of_any_type_round_trip() {
    let kind = KeyKind::Parts(vec![PartKind::Utf8]);
    let [table, other] = [["orders", "clicks"], ["clicks", "orders"]].map(|names| {
        let mut table = BrokerTable::new(BrokerOptions::default()).expect("default options");
        table.keys_mut().fix(KeyKind::Plain, kind.clone()).expect("an empty table");
        let number = |table: &mut BrokerTable, name: &str| {
            let mut bytes = Vec::new();
            encode_bytes(&mut bytes, name.as_bytes());
            table.keys_mut().partition.dictionary.intern(&bytes).expect("memory") as i32
        };
        // The numbers have another order; an unused key is not written.
        let numbers = names.map(|name| number(&mut table, name));
        number(&mut table, "unused");
        let mut columns = Columns::new(2, 1);
        let is_clicks = |at: usize| names[at] == "clicks";
        columns.partition = vec![numbers[0], numbers[1]];
        columns.pid = [0, 1].map(|at| if is_clicks(at) { 5 } else { 9 }).to_vec();
        columns.count = vec![10; 2];
        columns.offset = vec![0; 2];
        columns.timestamp = vec![0; 2];
        columns.coordinator_epoch = vec![-1; 2];
        columns.transactional = vec![0; 2];
        table.apply(&[columns.batches(true)]).expect("valid batches");
        table
    });
    assert_eq!(table.snapshot(), other.snapshot());
    let restored = BrokerTable::restore(&table.snapshot()).expect("just written");
    assert_eq!(restored.keys().partition.kind(), &kind);
    assert_eq!((restored.len(), restored.keys().partition.dictionary.len()), (2, 2));
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused() {
    let bytes = table(200, true, BrokerOptions { assigns_offsets: true, ..BrokerOptions::default() }).snapshot();
    let is_refused = |bytes: &[u8]| matches!(BrokerTable::restore(bytes), Err(Error::Snapshot(_)));
    assert!(bytes.len() > 1000 && !is_refused(&bytes));
    for end in 0..bytes.len() {
        assert!(is_refused(&bytes[..end]), "cut at {end}");
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x41;
        assert!(is_refused(&flipped), "byte {at}");
    }
    assert!(is_refused(&[&bytes[..], &[0]].concat()));
}

/// Bytes of released versions. They are never written again: a version that cannot read them, or writes them
/// differently, breaks compatibility. `FENCEPOST_GOLDEN=add` writes the file if it does not exist.
#[test]
fn a_golden_snapshot_is_read_and_written_back() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/snapshots/broker/v1.state");
    let table = table(1000, true, BrokerOptions { version: "4.5".parse().expect("known"), ..BrokerOptions::default() });
    if std::env::var("FENCEPOST_GOLDEN").is_ok_and(|value| value == "add") && !std::fs::exists(path).expect("a folder")
    {
        std::fs::write(path, table.snapshot()).expect("a folder to write to");
    }
    let golden = std::fs::read(path).expect("a golden snapshot");
    let restored = BrokerTable::restore(&golden).expect("of this version");
    assert!(restored.entries().eq(table.entries()) && restored.log_ends() == table.log_ends());
    assert_eq!(restored.options(), table.options());
    assert!(restored.snapshot() == golden, "other bytes than those that are on disks");
}
