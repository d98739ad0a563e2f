//! Rows made outside the clock, and what a right judge says of them.

use crate::shape::Shape;
use fencepost_bench::random;
use fencepost_core::{Batch, Dictionary, Seqs, encode_bytes};
use std::borrow::Cow;

/// Rows of a call.
pub(crate) const BATCH_ROWS: usize = 1 << 16;
/// One step in 20 repeats a key's last rows.
const REPEAT_EVERY: u64 = 20;

/// The timestamps of every other key, and by how much those of the others are later.
pub(crate) const OLD_MS: i64 = 1_700_000_000_000;
pub(crate) const LATER_MS: i64 = 3_600_000;

/// The rows of one call. Columns that the shape does not have are empty.
pub(crate) struct Rows {
    shape: &'static Shape,
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    narrow: Vec<i32>,
    wide: Vec<i64>,
    timestamp: Vec<i64>,
    /// The producers' names, encoded as keys, one after the other.
    names: Vec<u8>,
    name_ends: Vec<usize>,
    /// How many of the rows a right judge refuses.
    pub(crate) repeats: u64,
}

impl Rows {
    fn new(shape: &'static Shape) -> Rows {
        let (pid, partition, epoch) = (vec![], vec![], vec![]);
        let (narrow, wide, timestamp, names, name_ends) = (vec![], vec![], vec![], vec![], vec![]);
        Rows { shape, pid, partition, epoch, narrow, wide, timestamp, names, name_ends, repeats: 0 }
    }

    /// `rows` rows of a key, from its `number`th on.
    fn push(&mut self, key: usize, number: u32, rows: usize) {
        let pid = key / self.shape.partitions;
        for number in i64::from(number)..i64::from(number) + rows as i64 {
            self.pid.push(pid as i64);
            self.partition.push((key % self.shape.partitions) as i32);
            if self.shape.is_wide() {
                self.wide.push(self.shape.first_seq() + number);
            } else {
                self.narrow.push(number as i32);
                self.epoch.push(0);
            }
            if self.shape.has_timestamps {
                self.timestamp.push(if key.is_multiple_of(2) { OLD_MS } else { OLD_MS + LATER_MS });
            }
            if self.shape.has_names {
                encode_bytes(&mut self.names, format!("producer-{pid:010}").as_bytes());
                self.name_ends.push(self.names.len());
            }
        }
    }

    /// The producers as the core takes them: a named one gets its number, as at the doors.
    pub(crate) fn numbers(&self, dictionary: &mut Dictionary) -> Cow<'_, [i64]> {
        if !self.shape.has_names {
            return Cow::Borrowed(&self.pid);
        }
        let mut from = 0;
        let number = |&end: &usize| {
            let name = &self.names[from..end];
            from = end;
            i64::from(dictionary.intern(name).expect("memory"))
        };
        self.name_ends.iter().map(number).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.pid.len()
    }

    pub(crate) fn batch<'a>(&'a self, pid: &'a [i64]) -> Batch<'a> {
        let (epoch, seq) = if self.shape.is_wide() {
            (None, Seqs::I64(&self.wide))
        } else {
            (Some(&self.epoch[..]), Seqs::I32(&self.narrow))
        };
        let timestamp = self.shape.has_timestamps.then_some(&self.timestamp[..]);
        Batch { pid, partition: &self.partition, epoch, seq, timestamp }
    }

    /// Reads the columns once and adds everything up: the least that any judge must do.
    pub(crate) fn sum(&self) -> i64 {
        let wide = |sum: i64, value: i64| sum.wrapping_add(value);
        self.pid.iter().copied().fold(0, wide)
            + self.partition.iter().map(|&it| i64::from(it)).fold(0, wide)
            + self.epoch.iter().map(|&it| i64::from(it)).fold(0, wide)
            + self.narrow.iter().map(|&it| i64::from(it)).fold(0, wide)
            + self.wide.iter().copied().fold(0, wide)
            + self.timestamp.iter().copied().fold(0, wide)
    }
}

/// The first row of each of `entries` keys, the keys in an order that jumps about: a multiple of a stride that shares
/// no factor with their number.
pub(crate) fn first_rows(shape: &'static Shape, entries: usize) -> impl Iterator<Item = Rows> {
    let stride = stride(entries);
    (0..entries).step_by(BATCH_ROWS).map(move |from| {
        let mut rows = Rows::new(shape);
        for place in from..(from + BATCH_ROWS).min(entries) {
            rows.push((place as u128 * stride as u128 % entries as u128) as usize, 0, 1);
        }
        rows
    })
}

fn stride(entries: usize) -> usize {
    let golden = (entries as f64 * 0.618) as usize;
    let is_coprime = |&stride: &usize| {
        let (mut a, mut b) = (stride, entries);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (golden.max(1)..).find(is_coprime).expect("entries + 1 is coprime to entries")
}

/// The position of every key.
pub(crate) struct Stream {
    shape: &'static Shape,
    next: Vec<u32>,
}

impl Stream {
    /// After the first row of every key.
    pub(crate) fn after_first_rows(shape: &'static Shape, entries: usize) -> Stream {
        Stream { shape, next: vec![1; entries] }
    }

    /// About `count` rows in calls of 64 k rows: the next `run` rows of a key drawn at random, or the last ones of
    /// another again. An equal seed gives equal keys, and where `run` is 1 an equal pattern of repeats.
    pub(crate) fn random(&mut self, seed: u64, count: usize, run: usize) -> Vec<Rows> {
        let mut state = seed;
        let mut batches = vec![Rows::new(self.shape)];
        for _ in 0..count.div_ceil(run) {
            if batches[batches.len() - 1].len() + run > BATCH_ROWS {
                batches.push(Rows::new(self.shape));
            }
            let last = batches.len() - 1;
            let rows = &mut batches[last];
            let key = (random(&mut state) % self.next.len() as u64) as usize;
            let next = &mut self.next[key];
            let is_repeat = random(&mut state).is_multiple_of(REPEAT_EVERY);
            if is_repeat && *next as usize >= run {
                rows.push(key, *next - run as u32, run);
                rows.repeats += run as u64;
            } else {
                rows.push(key, *next, run);
                *next += run as u32;
            }
        }
        batches
    }

    /// The next rows of random keys in runs of `run`, as `random` gives them but without repeats, and the same rows
    /// with one in ten moved up to `lag_max` rows back.
    pub(crate) fn ordered_and_displaced(
        &mut self,
        seed: u64,
        count: usize,
        run: usize,
        lag_max: u64,
    ) -> (Vec<Rows>, Vec<Rows>) {
        let mut state = seed;
        let mut order = Vec::with_capacity(count + run);
        while order.len() < count {
            let key = (random(&mut state) % self.next.len() as u64) as usize;
            order.extend((self.next[key]..self.next[key] + run as u32).map(|number| (key, number)));
            self.next[key] += run as u32;
        }
        let mut places: Vec<(u64, (usize, u32))> = Vec::with_capacity(order.len());
        for (place, &row) in order.iter().enumerate() {
            let is_late = random(&mut state).is_multiple_of(10);
            let lag = if is_late { 1 + random(&mut state) % lag_max } else { 0 };
            places.push((place as u64 + lag, row));
        }
        let ordered = self.cut(order.into_iter());
        places.sort_by_key(|&(place, _)| place);
        (ordered, self.cut(places.into_iter().map(|(_, row)| row)))
    }

    fn cut(&self, rows: impl Iterator<Item = (usize, u32)>) -> Vec<Rows> {
        let mut batches = vec![Rows::new(self.shape)];
        for (key, number) in rows {
            if batches[batches.len() - 1].len() == BATCH_ROWS {
                batches.push(Rows::new(self.shape));
            }
            let last = batches.len() - 1;
            batches[last].push(key, number, 1);
        }
        batches
    }
}
