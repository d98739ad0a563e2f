use fencepost_core::{Batch, Epochs, Judged, Policy, Seqs, StateTable, Verdict};
use fencepost_testkit::oracle::{self, Oracle, Tracked};

type Key = (i64, i32);

/// Preset and changed fields, as both sides read them.
const POLICIES: [(&str, &[(&str, &str)]); 12] = [
    ("any_order", &[]),
    ("any_order", &[("wrap", "16")]),
    ("any_order", &[("wrap", "none"), ("first", "zero")]),
    ("any_order", &[("wrap", "64"), ("max_jump", "20"), ("epochs", "fence")]),
    ("in_order", &[]),
    ("in_order", &[("wrap", "none"), ("epochs", "key"), ("late", "duplicate")]),
    ("kafka", &[]),
    ("kafka", &[("wrap", "64"), ("window", "40")]),
    ("kafka", &[("wrap", "none"), ("window", "100"), ("epochs", "key")]),
    ("strict", &[("window", "14")]),
    ("watermark", &[]),
    ("kafka_offsets", &[]),
];

const PARTITIONS: [i32; 8] = [0, 1, 4, 5, 7, 8, 1000, i32::MAX];

/// A sequence of operations, made from any bytes: the core says what the oracle says, and neither cuts
/// nor snapshots show.
pub fn operations(bytes: &[u8]) {
    operations_with(bytes, |_| ());
}

/// The same of a core whose policy was changed and the oracle's was not.
pub fn operations_with(bytes: &[u8], change: impl Fn(&mut Policy)) {
    let mut bytes = Bytes(bytes);
    let (preset, fields) = POLICIES[usize::from(bytes.next()) % POLICIES.len()];
    let mut policy = Policy::preset(preset).expect("a preset");
    fields.iter().for_each(|(field, value)| policy.set(field, value).expect("a field"));
    let owned: Vec<_> = fields.iter().map(|&(field, value)| (field.to_string(), value.to_string())).collect();
    let mut oracle = Oracle::new(oracle::Policy::named(preset, &owned).expect("a policy"));
    change(&mut policy);
    let Ok(mut table) = StateTable::new(policy) else { return };
    let (mut all, mut verdicts) = (Rows::default(), Vec::new());
    while !bytes.0.is_empty() {
        let operation = bytes.next();
        if operation.is_multiple_of(4) {
            table = restored(&table);
        }
        let calls: Vec<Rows> = (0..1 + operation / 4 % 3).map(|_| Rows::read(&mut bytes, policy)).collect();
        let batches: Vec<_> = calls.iter().map(|rows| rows.batch(policy)).collect();
        let checked = table.check(&batches).expect("valid rows");
        let judged = table.apply(&batches).expect("valid rows");
        assert_eq!(checked, judged, "check and apply disagree");
        verdicts.extend_from_slice(&judged.verdicts);
        let tracked: Vec<_> = calls.iter().flat_map(Rows::tracked).collect();
        assert_eq!(core_said(judged), oracle_said(oracle.apply(&tracked)), "core and oracle disagree");
        calls.iter().for_each(|rows| all.extend(rows));
    }
    assert_eq!(core_open(&table), oracle_open(&oracle), "core and oracle disagree on what is missing");
    assert_eq!(table.len(), oracle.len(), "core and oracle disagree on the number of entries");
    let mut whole = StateTable::new(policy).expect("a policy");
    assert_eq!(whole.apply(&[all.batch(policy)]).expect("valid rows").verdicts, verdicts, "a cut shows");
    assert!(whole.snapshot() == table.snapshot(), "equal tables, other bytes");
}

fn restored(table: &StateTable) -> StateTable {
    let bytes = table.snapshot();
    let back = StateTable::restore(&bytes).expect("its own snapshot");
    assert!(back.snapshot() == bytes, "restoring shows");
    back
}

/// Bytes that never end: zeros follow.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

/// The rows of a batch by column.
#[derive(Default)]
struct Rows {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
}

impl Rows {
    /// Up to 31 rows of two bytes each, some longer.
    fn read(bytes: &mut Bytes<'_>, policy: Policy) -> Rows {
        let mut rows = Rows::default();
        for _ in 0..bytes.next() % 32 {
            let key = bytes.next();
            rows.pid.push([1, 2, i64::MAX, -1][usize::from(key % 4)]);
            rows.partition.push(PARTITIONS[usize::from(key / 4 % 8)]);
            rows.epoch.push([0, 1, 2, i16::MAX][usize::from(key / 32 % 4)]);
            rows.seq.push(seq(bytes, policy));
        }
        rows
    }

    fn extend(&mut self, other: &Rows) {
        self.pid.extend_from_slice(&other.pid);
        self.partition.extend_from_slice(&other.partition);
        self.epoch.extend_from_slice(&other.epoch);
        self.seq.extend_from_slice(&other.seq);
    }

    fn batch(&self, policy: Policy) -> Batch<'_> {
        let epoch = (policy.epochs != Epochs::Ignore).then_some(&self.epoch[..]);
        Batch { pid: &self.pid, partition: &self.partition, epoch, seq: Seqs::I64(&self.seq), timestamp: None }
    }

    fn tracked(&self) -> impl Iterator<Item = Option<Tracked<Key>>> {
        let row = |row: usize| Tracked {
            key: (self.pid[row], self.partition[row]),
            epoch: self.epoch[row].into(),
            seq: self.seq[row],
            timestamp: 0,
        };
        (0..self.pid.len()).map(move |at| (self.pid[at] != -1).then(|| row(at)))
    }
}

/// A small sequence number, one just before the end, or any.
fn seq(bytes: &mut Bytes<'_>, policy: Policy) -> i64 {
    let end = policy.seq_max();
    match bytes.next() {
        small @ 0..200 => i64::from(small) % end.saturating_add(1).max(1),
        near @ 200..240 => (end - i64::from(near - 200)).max(0),
        _ => {
            let any = u64::from_le_bytes(std::array::from_fn(|_| bytes.next()));
            (any % (end as u64 + 1)) as i64
        }
    }
}

/// Everything that a call says, in a form that both sides can be brought to.
type Said = (Vec<u8>, Vec<(u64, i64)>, Vec<(Key, i64, i64, i64, i64)>, u64, u64);

fn core_said(judged: Judged) -> Said {
    let missing = judged
        .missing
        .iter()
        .map(|it| ((it.pid, it.partition), it.epoch.into(), it.first_seq, it.last_seq, it.count as i64))
        .collect();
    (judged.verdicts, judged.expected, missing, judged.stale_epoch, judged.border)
}

fn oracle_said(judged: oracle::Judged<Key>) -> Said {
    let code = |verdict: &oracle::Verdict| {
        Verdict::ALL.iter().position(|it| it.name() == verdict.name()).expect("a verdict") as u8
    };
    let missing =
        judged.missing.iter().map(|it| (it.key, it.epoch.unwrap_or(0), it.first_seq, it.last_seq, it.count)).collect();
    let expected = judged.expected.iter().enumerate().filter_map(|(row, &seq)| Some((row as u64, seq?))).collect();
    (judged.verdicts.iter().map(code).collect(), expected, missing, judged.stale_epoch, judged.border)
}

fn core_open(table: &StateTable) -> Vec<(Key, i64, i64, i64)> {
    table.missing().map(|it| ((it.pid, it.partition), it.epoch.into(), it.first_seq, it.last_seq)).collect()
}

fn oracle_open(oracle: &Oracle<Key>) -> Vec<(Key, i64, i64, i64)> {
    oracle.missing().iter().map(|it| (it.key, it.epoch.unwrap_or(0), it.first_seq, it.last_seq)).collect()
}
