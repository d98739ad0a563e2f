//! The memory layout of producers: one per line, with optional data beside it.
//!
//! ```text
//! BatchLine, 30 bytes                 beside it, if rows have them
//!   pid       8                         times    6   last timestamp, 48 bits
//!   partition 4
//!   last_seq  4   of the newest batch   offsets 44   last timestamp 8, coordinator epoch 4, open from 8,
//!   deltas  5 × 2, newest separate                   last offset 8, distances to earlier ones 4 × 4
//!   epoch     2
//!   marks     2
//! ```
//!
//! The batches of a window have consecutive sequence numbers, because a leader accepts no others. One sequence number
//! and five lengths therefore describe all of them. Other producers are in the overflow, and the line has their number:
//! those with longer batches, gaps from a replayed log, offset commits without sequences, or windows of more than five
//! batches.

use super::batch::{Origin, Row, add, subtract};
use super::judge::{Producer, WindowBatch};
use super::{Control, NONE};
use crate::lines::{EntryKey, Line, LineKey};

/// Maximum number of batches of a window in a line.
const INLINE: usize = 5;

/// One producer of one partition.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(super) struct BatchLine<B: SideData> {
    pid: i64,
    group: u32,
    /// The last sequence number of the newest batch, or the number of an entry in the overflow.
    last_seq: i32,
    /// The deltas of the four batches before the newest, the nearest in the lowest bits.
    older_deltas: u64,
    newest_delta: u16,
    epoch: i16,
    /// `0 | overflow 1 | open 1 | taken 1 | batches 3`
    marks: u16,
    beside: B,
}

const BATCHES: u16 = 7;
const TAKEN: u16 = 1 << 3;
const OPEN: u16 = 1 << 4;
const OVERFLOW: u16 = 1 << 5;

/// Optional data beside a line.
pub(super) trait SideData: Copy + Sync {
    const NOTHING: Self;

    /// Adds a batch after the newest one. Returns false and changes nothing if it does not fit.
    fn push(&mut self, row: &Row) -> bool;

    /// Completes a producer whose window already has its sequence numbers.
    fn read(&self, producer: &mut Producer);

    /// Stores a producer for `read`. Returns false if some of its data does not fit.
    fn write(&mut self, producer: &Producer) -> bool;
}

impl SideData for () {
    const NOTHING: () = ();

    #[inline(always)]
    fn push(&mut self, row: &Row) -> bool {
        row.offset == NONE && row.timestamp == -1
    }

    fn read(&self, producer: &mut Producer) {
        producer.window.iter_mut().for_each(|batch| batch.last_offset = NONE);
    }

    fn write(&mut self, producer: &Producer) -> bool {
        producer.last_timestamp == -1 && Times::holds(producer)
    }
}

/// The last timestamp in 48 bits, all of them set if there is none.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(super) struct Times {
    low: u32,
    high: u16,
}

impl Times {
    const MAX: i64 = (1 << 48) - 2;

    fn of(timestamp: i64) -> Option<Times> {
        let is_within = (-1..=Self::MAX).contains(&timestamp);
        is_within.then_some(Times { low: timestamp as u32, high: (timestamp >> 32) as u16 })
    }

    /// Whether a producer has no optional data except a timestamp.
    fn holds(producer: &Producer) -> bool {
        producer.coordinator_epoch == -1
            && producer.open_from == NONE
            && producer.window.iter().all(|batch| batch.last_offset == NONE)
    }
}

impl SideData for Times {
    const NOTHING: Times = Times { low: u32::MAX, high: u16::MAX };

    #[inline(always)]
    fn push(&mut self, row: &Row) -> bool {
        let Some(times) = Times::of(row.timestamp).filter(|_| row.offset == NONE) else { return false };
        *self = times;
        true
    }

    fn read(&self, producer: &mut Producer) {
        let Times { low, high } = *self;
        let bits = i64::from(high) << 32 | i64::from(low);
        producer.last_timestamp = if bits > Self::MAX { -1 } else { bits };
        producer.window.iter_mut().for_each(|batch| batch.last_offset = NONE);
    }

    fn write(&mut self, producer: &Producer) -> bool {
        let times = Times::of(producer.last_timestamp).filter(|_| Self::holds(producer));
        times.inspect(|&times| *self = times).is_some()
    }
}

/// All data of a broker's own snapshot, and the offsets of the whole window.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(super) struct Offsets {
    last_timestamp: i64,
    coordinator_epoch: i32,
    open_from: i64,
    /// The offset of the newest batch; -1 if no batch has one.
    last_offset: i64,
    /// The distance of each batch's last offset from that of the batch before it, the newest in the lowest bits.
    steps: u128,
}

impl SideData for Offsets {
    const NOTHING: Offsets =
        Offsets { last_timestamp: -1, coordinator_epoch: -1, open_from: NONE, last_offset: NONE, steps: 0 };

    #[inline(always)]
    fn push(&mut self, row: &Row) -> bool {
        let (before, last) = (self.last_offset, row.last_offset());
        let Ok(step) = u32::try_from(last.wrapping_sub(before)) else { return false };
        if (before == NONE) != (last == NONE) {
            return false;
        }
        self.steps = self.steps << 32 | u128::from(step);
        self.last_offset = last;
        self.last_timestamp = row.timestamp;
        true
    }

    fn read(&self, producer: &mut Producer) {
        let Offsets { last_timestamp, coordinator_epoch, open_from, mut last_offset, mut steps } = *self;
        (producer.last_timestamp, producer.coordinator_epoch) = (last_timestamp, coordinator_epoch);
        producer.open_from = open_from;
        for batch in producer.window.iter_mut().rev() {
            batch.last_offset = last_offset;
            last_offset -= i64::from(steps as u32);
            steps >>= 32;
        }
    }

    fn write(&mut self, producer: &Producer) -> bool {
        let mut steps = 0;
        for pair in producer.window.windows(2) {
            let [before, after] = [pair[0].last_offset, pair[1].last_offset];
            let Ok(step) = u32::try_from(after - before) else { return false };
            if (before == NONE) != (after == NONE) {
                return false;
            }
            steps = steps << 32 | u128::from(step);
        }
        *self = Offsets {
            last_timestamp: producer.last_timestamp,
            coordinator_epoch: producer.coordinator_epoch,
            open_from: producer.open_from,
            last_offset: producer.window.last().map_or(NONE, |batch| batch.last_offset),
            steps,
        };
        true
    }
}

impl<B: SideData> BatchLine<B> {
    /// Number of batches of the window, if it is in the line.
    #[inline]
    fn batches(&self) -> usize {
        usize::from(self.marks & BATCHES)
    }

    /// The number of the entry, if it is in the overflow.
    pub(super) fn in_overflow(&self) -> Option<u32> {
        (self.marks & OVERFLOW != 0).then_some(self.last_seq as u32)
    }

    /// Marks the entry as in the overflow.
    pub(super) fn put_in_overflow(&mut self, number: u32) {
        (self.marks, self.last_seq) = (TAKEN | OVERFLOW, number as i32);
    }

    /// Applies a batch that simply continues the window, as nearly all do: in sequence, in the producer's epoch,
    /// without a begin or end of a transaction. Returns false and changes nothing for all others.
    #[inline(always)]
    pub(super) fn try_append(&mut self, row: &Row, window: usize) -> bool {
        let Self { last_seq, epoch, marks, .. } = *self;
        let is_open = marks & OPEN != 0;
        let is_plain = marks & (TAKEN | OVERFLOW) == TAKEN
            && marks & BATCHES != 0
            && row.control == Control::Data
            && row.origin != Origin::Coordinator
            && row.epoch == epoch
            && row.is_transactional == is_open
            && row.base_seq == add(last_seq, 1)
            && row.delta <= i32::from(u16::MAX)
            && window <= INLINE;
        let mut beside = self.beside;
        if !(is_plain && beside.push(row)) {
            return false;
        }
        self.beside = beside;
        self.older_deltas = self.older_deltas << 16 | u64::from(self.newest_delta);
        (self.newest_delta, self.last_seq) = (row.delta as u16, row.last_seq);
        self.marks = marks + u16::from(self.batches() < window);
        true
    }

    /// Reads the data in the line itself.
    pub(super) fn read_to(&self, producer: &mut Producer) {
        let Self { epoch, marks, last_seq, newest_delta, older_deltas, beside, .. } = *self;
        *producer = Producer { window: std::mem::take(&mut producer.window), ..Producer::unknown(epoch) };
        producer.is_open = marks & OPEN != 0;
        producer.window.clear();
        let mut deltas = u128::from(older_deltas) << 16 | u128::from(newest_delta);
        let mut last_seq = last_seq;
        for _ in 0..self.batches() {
            let offset_delta = i32::from(deltas as u16);
            producer.window.push(WindowBatch { last_seq, offset_delta, last_offset: NONE });
            last_seq = subtract(subtract(last_seq, offset_delta), 1);
            deltas >>= 16;
        }
        producer.window.reverse();
        beside.read(producer);
    }

    /// Stores a producer. Returns false and changes nothing if it does not fit.
    pub(super) fn write_from(&mut self, producer: &Producer) -> bool {
        let window = &producer.window[..];
        let follow = |pair: &[WindowBatch]| pair[1].first_seq() == add(pair[0].last_seq, 1) && pair[0].last_seq >= 0;
        let fits = window.len() <= INLINE
            && window.iter().all(|batch| batch.last_seq >= 0 && batch.offset_delta <= i32::from(u16::MAX))
            && window.windows(2).all(follow);
        let mut beside = B::NOTHING;
        if !(fits && beside.write(producer)) {
            return false;
        }
        let deltas = window.iter().fold(0, |deltas: u128, batch| deltas << 16 | batch.offset_delta as u128);
        (self.older_deltas, self.newest_delta) = ((deltas >> 16) as u64, deltas as u16);
        self.last_seq = window.last().map_or(0, |batch| batch.last_seq);
        self.epoch = producer.epoch;
        self.marks = TAKEN | window.len() as u16 | if producer.is_open { OPEN } else { 0 };
        self.beside = beside;
        true
    }
}

impl<B: SideData> Line for BatchLine<B> {
    const SLOTS: usize = 1;
    type Slot = Self;
    type OtherLayout = Self;
    const DOUBLES: bool = false;

    fn empty(key: LineKey) -> Self {
        let EntryKey { pid, partition, .. } = EntryKey::of_lone(key);
        BatchLine {
            pid,
            group: partition as u32,
            last_seq: 0,
            older_deltas: 0,
            newest_delta: 0,
            epoch: 0,
            marks: 0,
            beside: B::NOTHING,
        }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.epoch
    }

    #[inline]
    fn is_empty_at(&self, _slot: usize) -> bool {
        self.marks & TAKEN == 0
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.is_empty_at(0)
    }

    fn read(&self, _slot: usize) -> Self {
        *self
    }

    fn write(&mut self, _slot: usize, held: &Self) -> bool {
        *self = *held;
        true
    }

    fn clear(&mut self, _slot: usize) {
        self.marks = 0;
    }
}

const _: () = assert!(size_of::<BatchLine<()>>() == 30 && size_of::<BatchLine<Times>>() == 36);
const _: () = assert!(size_of::<BatchLine<Offsets>>() == 74);

#[cfg(test)]
mod tests {
    use super::super::BrokerOptions;
    use super::super::judge::{Judgement, Rules};
    use super::*;

    /// Pseudo-random numbers: xorshift.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }

        fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
            values[self.below(values.len() as u64) as usize]
        }

        fn row(&mut self, producer: Option<&Producer>, offset: i64) -> Row {
            let next = producer.and_then(|it| it.window.last()).map_or(0, |batch| add(batch.last_seq.max(0), 1));
            let (mut base_seq, mut delta) = (next, self.one_of(&[0, 1, 4, 9, i32::from(u16::MAX)]));
            let is_odd = self.below(8) == 0;
            if is_odd {
                base_seq = self.one_of(&[next, 0, i32::MAX - 3, 70]);
                delta = self.one_of(&[0, i32::from(u16::MAX) + 1]);
            }
            let rare = |numbers: &mut Numbers| is_odd && numbers.below(3) == 0;
            Row {
                pid: 7,
                partition: 3,
                epoch: rare(self).into(),
                control: if rare(self) { Control::Commit } else { Control::Data },
                origin: self.one_of(&[Origin::Client, Origin::Replica, Origin::Replica]),
                is_transactional: rare(self),
                transaction_version: -1,
                base_seq,
                last_seq: add(base_seq, delta),
                delta,
                coordinator_epoch: if rare(self) { 2 } else { -1 },
                offset: if rare(self) { self.one_of(&[NONE, offset + (1 << 33)]) } else { offset },
                timestamp: if rare(self) { self.one_of(&[1_700_000_000_000, i64::MAX, 0]) } else { -1 },
            }
        }
    }

    /// A line returns what it stored, and its simple judgements equal those of the rules.
    fn check<B: SideData>(with_offsets: bool) -> [usize; 2] {
        let rules = Rules::new(&BrokerOptions::default());
        let (mut numbers, mut went_on, mut refused) = (Numbers(11), 0, 0);
        for _ in 0..300 {
            let mut line = BatchLine::<B>::empty(LineKey::default());
            let (mut producer, mut read) = (Producer::unknown(0), Producer::default());
            for step in 0..60 {
                let mut row = numbers.row(Some(&producer).filter(|_| step > 0), i64::from(step) * 1000);
                if !with_offsets {
                    (row.offset, row.coordinator_epoch) = (NONE, -1);
                }
                let judgement = rules.judge(Some(&producer).filter(|_| step > 0), &row, false);
                let appended = line.try_append(&row, 5);
                assert!(!appended || judgement == Judgement::Accepted);
                went_on += usize::from(appended);
                if judgement != Judgement::Accepted {
                    continue;
                }
                if step == 0 {
                    producer = Producer::unknown(row.epoch);
                }
                producer.take(&row, 5);
                if !appended && !line.write_from(&producer) {
                    refused += 1;
                    line.put_in_overflow(17);
                    assert_eq!(line.in_overflow(), Some(17));
                    continue;
                }
                line.read_to(&mut read);
                assert_eq!(read, producer);
            }
        }
        [went_on, refused]
    }

    #[test]
    fn a_line_returns_the_stored_entries() {
        let counts = [check::<()>(false), check::<Times>(false), check::<Offsets>(true)];
        assert!(counts.iter().flatten().all(|&count| count > 100), "{counts:?}");
    }

    #[test]
    fn times_store_48_bits() {
        let read = |timestamp| {
            let mut times = Times::NOTHING;
            let mut producer = Producer { last_timestamp: timestamp, ..Producer::unknown(0) };
            times.write(&producer).then(|| {
                times.read(&mut producer);
                producer.last_timestamp
            })
        };
        for timestamp in [-1, 0, 1, (1 << 32) - 1, 1 << 32, Times::MAX] {
            assert_eq!(read(timestamp), Some(timestamp));
        }
        assert_eq!([read(-2), read(Times::MAX + 1), read(i64::MAX), read(i64::MIN)], [None; 4]);
    }
}
