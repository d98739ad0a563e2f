//! Seeded streams of rows: spans, repeats, gaps, late rows, zombies and wraps. The same seed gives the same stream.

/// A row with numeric keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The producer, -1 if the row is untracked.
    pub pid: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The partition it numbers.
    pub partition: i32,
    /// The sequence number.
    pub seq: i64,
}

/// A small pseudo-random number generator (splitmix64): one word of state, the same on every platform.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Its numbers depend only on the seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..end`; `end` is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The shape of a stream. Percentages are of steps, each of which emits a span of one producer. The rest is the normal
/// case: the next rows in order.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of producers.
    pub pids: u64,
    /// Number of partitions of each producer.
    pub partitions: u64,
    /// The sequence space. Half of the producers begin just before its end.
    pub wrap: Option<u64>,
    /// Maximum length of a span.
    pub span_max: u64,
    /// Some of the last rows again.
    pub repeat_percent: u64,
    /// Rows from far back again.
    pub replay_percent: u64,
    /// Some rows are left out before the next.
    pub gap_percent: u64,
    /// Rows that were left out arrive.
    pub late_percent: u64,
    /// The epoch increases and the sequence restarts, mostly with 0.
    pub bump_percent: u64,
    /// The previous epoch continues.
    pub zombie_percent: u64,
    /// Any sequence.
    pub wild_percent: u64,
    /// A row without a producer.
    pub untracked_percent: u64,
}

impl Shape {
    /// A mixture of everything, for correctness and not for speed.
    pub fn mixed(wrap: Option<u64>) -> Shape {
        Shape {
            pids: 4,
            partitions: 3,
            wrap,
            span_max: 12,
            repeat_percent: 15,
            replay_percent: 5,
            gap_percent: 10,
            late_percent: 10,
            bump_percent: 3,
            zombie_percent: 5,
            wild_percent: 2,
            untracked_percent: 2,
        }
    }
}

/// The sequence of one producer in one partition.
struct Producer {
    pid: i64,
    partition: i32,
    epoch: i16,
    /// The first number of this epoch and the next one, not wrapped.
    first: u64,
    next: u64,
    /// The end of the previous epoch.
    ended: u64,
    /// Numbers that were left out.
    held: Vec<u64>,
}

/// A stream of that many rows. The same seed and shape give the same rows.
pub fn stream(seed: u64, len: usize, shape: &Shape) -> Vec<Row> {
    let mut random = Random::new(seed);
    let mut producers = producers(&mut random, shape);
    let mut rows = Vec::with_capacity(len + shape.span_max as usize);
    while rows.len() < len {
        let chosen = random.below(producers.len() as u64) as usize;
        step(&mut random, shape, &mut producers[chosen], &mut rows);
    }
    rows.truncate(len);
    rows
}

fn producers(random: &mut Random, shape: &Shape) -> Vec<Producer> {
    let mut producers = Vec::new();
    for pid in 0..shape.pids {
        for partition in 0..shape.partitions {
            let first = beginning(random, shape);
            let (pid, partition) = (pid as i64, partition as i32);
            producers.push(Producer { pid, partition, epoch: 0, first, next: first, ended: first, held: Vec::new() });
        }
    }
    producers
}

/// The first number of a stream: small, or just before the end of the sequence space.
fn beginning(random: &mut Random, shape: &Shape) -> u64 {
    let small = random.below(20);
    match shape.wrap {
        Some(wrap) if random.chance(50) => wrap - 1 - random.below(wrap.min(100)),
        _ => small,
    }
}

/// One step of one producer. The order of the cases is the order of the fields of [`Shape`].
fn step(random: &mut Random, shape: &Shape, producer: &mut Producer, rows: &mut Vec<Row>) {
    let length = 1 + random.below(shape.span_max);
    let (dice, mut threshold) = (random.below(100), 0);
    let mut falls = |percent: u64| {
        threshold += percent;
        dice < threshold
    };
    let epoch = producer.epoch;
    if falls(shape.repeat_percent) {
        let from = producer.next.saturating_sub(length).max(producer.first);
        producer.emit(shape, epoch, from..producer.next, rows);
    } else if falls(shape.replay_percent) {
        let from = producer.first + random.below(producer.next - producer.first + 1);
        producer.emit(shape, epoch, from..(from + length).min(producer.next), rows);
    } else if falls(shape.gap_percent) {
        let resume = producer.next + 1 + random.below(8);
        producer.held.extend(producer.next..resume);
        producer.next = resume;
        producer.advance(shape, 1, rows);
    } else if falls(shape.late_percent) {
        if !producer.held.is_empty() {
            let late = producer.held.swap_remove(random.below(producer.held.len() as u64) as usize);
            producer.emit(shape, epoch, late..late + 1, rows);
        }
    } else if falls(shape.bump_percent) {
        producer.bump(if random.chance(70) { 0 } else { beginning(random, shape) });
        producer.advance(shape, length, rows);
    } else if falls(shape.zombie_percent) {
        let before = (epoch - 1).max(0);
        producer.emit(shape, before, producer.ended..producer.ended + 1, rows);
        producer.ended += 1;
    } else if falls(shape.wild_percent) {
        let wild = random.below(shape.wrap.unwrap_or(1 << 40));
        producer.emit(shape, epoch, wild..wild + 1, rows);
    } else if falls(shape.untracked_percent) {
        rows.push(Row { pid: -1, epoch: -1, partition: -1, seq: -1 });
    } else {
        producer.advance(shape, length, rows);
    }
}

impl Producer {
    fn emit(&self, shape: &Shape, epoch: i16, numbers: std::ops::Range<u64>, rows: &mut Vec<Row>) {
        let (pid, partition) = (self.pid, self.partition);
        let seq = |number| shape.wrap.map_or(number, |wrap| number % wrap) as i64;
        rows.extend(numbers.map(|number| Row { pid, epoch, partition, seq: seq(number) }));
    }

    fn advance(&mut self, shape: &Shape, length: u64, rows: &mut Vec<Row>) {
        self.emit(shape, self.epoch, self.next..self.next + length, rows);
        self.next += length;
    }

    fn bump(&mut self, first: u64) {
        self.ended = self.next;
        self.epoch = self.epoch.saturating_add(1);
        (self.first, self.next) = (first, first);
        self.held.clear();
    }
}

/// The (epoch, seq) pairs of the small world: two epochs of the smallest sequence space, wrap 4.
pub const SMALL_WORLD: [(i16, i64); 8] = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)];

/// Every stream of `len` pairs over the alphabet, `alphabet.len()` to the power of `len` of them. Shorter
/// streams are their beginnings.
pub fn exhaustive(len: usize, alphabet: &[(i16, i64)]) -> impl Iterator<Item = Vec<(i16, i64)>> + '_ {
    let count = alphabet.len().pow(u32::try_from(len).expect("a short stream"));
    (0..count).map(move |number| {
        let mut digits = number;
        let mut pairs = Vec::with_capacity(len);
        for _ in 0..len {
            pairs.push(alphabet[digits % alphabet.len()]);
            digits /= alphabet.len();
        }
        pairs
    })
}

#[cfg(test)]
mod tests {
    use super::{Random, SMALL_WORLD, Shape, exhaustive, stream};
    use crate::oracle::{Oracle, PRESETS, Policy, Tracked, Verdict};
    use std::collections::BTreeSet;

    #[test]
    fn random_numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }

    #[test]
    fn a_seed_gives_one_stream_and_another_seed_another() {
        let shape = Shape::mixed(Some(16));
        assert_eq!(stream(1, 1000, &shape), stream(1, 1000, &shape));
        assert_ne!(stream(1, 1000, &shape), stream(2, 1000, &shape));
        assert_eq!(stream(1, 1000, &shape).len(), 1000);
    }

    #[test]
    fn every_short_stream_is_generated_once() {
        let streams: BTreeSet<_> = exhaustive(4, &SMALL_WORLD).collect();
        assert_eq!(streams.len(), 8usize.pow(4));
        assert!(streams.iter().all(|stream| stream.len() == 4));
        assert_eq!(exhaustive(0, &SMALL_WORLD).count(), 1);
    }

    /// A stream that never repeats, skips or fences would let any judge pass.
    #[test]
    fn a_mixed_stream_brings_every_verdict_a_hole_and_a_border() {
        for preset in PRESETS {
            for wrap in [None, Some(16), Some(1 << 31)] {
                let text = wrap.map_or("none".to_string(), |wrap: u64| wrap.to_string());
                let policy = Policy::named(preset, &[("wrap".into(), text)]).expect("a policy");
                let rows = stream(7, 20_000, &Shape::mixed(wrap));
                let tracked = rows.iter().map(|row| {
                    let key = (row.pid, row.partition);
                    (row.pid >= 0).then(|| Tracked { key, epoch: row.epoch.into(), seq: row.seq, timestamp: 0 })
                });
                let mut oracle = Oracle::new(policy);
                let judged = oracle.apply(&tracked.collect::<Vec<_>>());
                let found: BTreeSet<_> = judged.verdicts.iter().copied().collect();
                let mut expected = BTreeSet::from([Verdict::Accepted, Verdict::Duplicate, Verdict::Untracked]);
                if ["in_order", "kafka", "strict"].contains(&preset) {
                    expected.extend([Verdict::OutOfOrder, Verdict::Fenced]);
                }
                assert_eq!(found, expected, "{preset} {wrap:?}");
                assert_eq!(!judged.missing.is_empty(), ["any_order", "in_order"].contains(&preset), "{preset}");
                let has_border = wrap.is_some() && !["kafka", "strict"].contains(&preset);
                assert_eq!(judged.border > 0, has_border, "{preset} {wrap:?}");
                assert!(!oracle.is_empty() && oracle.len() >= 12);
            }
        }
    }
}
