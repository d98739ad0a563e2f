use super::*;
use std::collections::{BTreeSet, HashSet};

/// Ranges in a plain list. Every change goes through all of them.
#[derive(Clone, Default)]
struct Model(Vec<(i128, i128, i64)>);

impl Model {
    fn open(&mut self, first: i64, last: i64, timestamp: i64) {
        self.0.push((first.into(), last.into(), timestamp));
        self.0.sort_unstable();
        self.0.dedup_by(|above, below| {
            let joins = below.1 + 1 == above.0 && below.2 == above.2;
            if joins {
                below.1 = above.1;
            }
            joins
        });
    }

    fn close(&mut self, first: i64, last: i64) -> Vec<(i64, i64)> {
        let pieces = self.within(first, last);
        let (first, last) = (i128::from(first), i128::from(last));
        if first <= last {
            let outside = |&(start, end, timestamp): &(i128, i128, i64)| {
                let below = (start, end.min(first - 1), timestamp);
                let above = (start.max(last + 1), end, timestamp);
                [below, above].into_iter().filter(|rest| rest.0 <= rest.1)
            };
            self.0 = self.0.iter().flat_map(outside).collect();
        }
        pieces
    }

    fn finalise_until(&mut self, horizon: i64) -> Option<(i64, i64)> {
        let taken: Vec<_> = self.0.iter().copied().filter(|range| range.2 <= horizon).collect();
        self.0.retain(|range| range.2 > horizon);
        Some((taken.first()?.0 as i64, taken.last()?.1 as i64))
    }

    fn within(&self, first: i64, last: i64) -> Vec<(i64, i64)> {
        let clip = |range: &(i128, i128, i64)| (range.0.max(first.into()) as i64, range.1.min(last.into()) as i64);
        let meets = |range: &&(i128, i128, i64)| range.0 <= last.into() && range.1 >= first.into() && first <= last;
        self.0.iter().filter(meets).map(clip).collect()
    }

    fn ranges(&self) -> Vec<(i64, i64, i64)> {
        self.0.iter().map(|&(first, last, timestamp)| (first as i64, last as i64, timestamp)).collect()
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The parameters of a random history.
#[derive(Clone, Copy, Debug)]
struct World {
    from: i64,
    positions: u64,
    longest: u64,
    timestamps: u64,
    /// Number of changes in ten that open a hole.
    opens: u64,
}

/// One history, with the model.
struct History {
    world: World,
    random: Random,
    holes: Holes,
    model: Model,
}

impl History {
    fn range(&mut self, longest: u64) -> (i64, i64) {
        let offset = self.random.below(self.world.positions);
        let rows = (1 + self.random.below(longest)).min(self.world.positions - offset);
        let first = self.world.from.wrapping_add(offset as i64);
        (first, first.wrapping_add((rows - 1) as i64))
    }

    fn step(&mut self) {
        match self.random.below(200) {
            0 => {
                let position = self.range(1).0;
                let below = position.checked_sub(1).map_or(vec![], |last| self.model.close(i64::MIN, last));
                let hull = below.first().map(|first| (first.0, below[below.len() - 1].1));
                assert_eq!(self.holes.finalise_below(position), hull);
            }
            1 if self.world.timestamps > 1 => {
                let horizon = self.random.below(self.world.timestamps) as i64 / 4;
                assert_eq!(self.holes.finalise_until(horizon), self.model.finalise_until(horizon));
            }
            2 => {
                let (first, last) = self.range(self.world.positions);
                self.close(first, first.midpoint(first.midpoint(last)));
            }
            it if it % 10 < self.world.opens => self.open(),
            _ => {
                let (first, last) = self.range(self.world.longest);
                self.close(first, last);
            }
        }
    }

    fn open(&mut self) {
        let (first, last) = self.range(self.world.longest);
        let timestamp = self.random.below(self.world.timestamps) as i64;
        let last = match self.model.within(first, last).first() {
            Some(hole) if hole.0 == first => return,
            Some(hole) => hole.0 - 1,
            None => last,
        };
        let is_above = self.model.0.last().is_none_or(|range| range.1 + 1 < first.into());
        let is_appended = is_above && self.random.below(2) == 0 && self.holes.append_in_bits(first, last, timestamp);
        if !is_appended {
            self.holes.open(first, last, timestamp);
        }
        self.model.open(first, last, timestamp);
    }

    fn close(&mut self, first: i64, last: i64) {
        let mut pieces = Vec::new();
        self.holes.close(first, last, |first, last| pieces.push((first, last)));
        assert_eq!(pieces, self.model.close(first, last));
    }

    fn compare(&mut self) {
        let expected = self.model.ranges();
        assert_eq!(self.holes.iter_timed().collect::<Vec<_>>(), expected);
        assert!(self.holes.iter().eq(expected.iter().map(|range| (range.0, range.1))));
        let mut visited = Vec::new();
        self.holes.for_each(|first, last, timestamp| visited.push((first, last, timestamp)));
        assert_eq!(visited, expected);
        assert_eq!((self.holes.len(), self.holes.is_empty()), (expected.len(), expected.is_empty()));
        let (first, last) = self.range(self.world.positions);
        assert!(self.holes.within(first, last).eq(self.model.within(first, last)));
        for _ in 0..20 {
            let position = self.range(1).0;
            let has = !self.model.within(position, position).is_empty();
            assert_eq!(self.holes.has(position), has);
            let is_in_bits = matches!(&self.holes.0, Directory::One(block) if block.form() == "bits");
            assert_eq!(self.holes.is_apart_from_bits(position), is_in_bits && !has);
        }
        let mut rebuilt = Holes::default();
        expected.iter().rev().for_each(|&(first, last, timestamp)| rebuilt.open(first, last, timestamp));
        assert_eq!(self.holes, rebuilt);
        if let Some(&(first, last, timestamp)) = expected.last() {
            rebuilt.remove(last, last);
            assert_ne!(self.holes, rebuilt);
            rebuilt.remove(first, last);
            rebuilt.open(first, last, timestamp + 1);
            assert_ne!(self.holes, rebuilt);
        }
        check_blocks(&self.holes);
    }
}

fn blocks(holes: &Holes) -> impl Iterator<Item = &block::Block> {
    (0..).map_while(|index| holes.0.get(index))
}

fn forms(holes: &Holes) -> Vec<&'static str> {
    blocks(holes).map(block::Block::form).collect()
}

/// The invariants of blocks after every change.
fn check_blocks(holes: &Holes) {
    let mut free_from = i128::from(i64::MIN);
    for block in blocks(holes) {
        assert!(block.len() > 0 && !block.is_overfull());
        assert!(i128::from(block.key()) >= free_from, "a key is in the block below");
        let mut cursor = 0;
        let mut ranges = 0;
        while let Some((range, next)) = block.at(cursor) {
            assert!(range.first >= block.key() && range.first <= range.last);
            free_from = i128::from(range.last) + 1;
            (cursor, ranges) = (next, ranges + 1);
        }
        assert_eq!(block.len(), ranges);
    }
}

#[test]
fn random_histories_equal_a_plain_list() {
    let mut seen = BTreeSet::new();
    let mut most = 0;
    for (number, (positions, longest)) in
        [(40, 4), (600, 1), (600, 40), (20_000, 1), (20_000, 3), (20_000, 900), (3_000_000, 2000), (u64::MAX, 1 << 60)]
            .into_iter()
            .enumerate()
    {
        for from in [i64::MIN, -300, 0, i64::MAX - (positions - 1).min(i64::MAX as u64) as i64] {
            if positions == u64::MAX && from != i64::MIN {
                continue;
            }
            for (timestamps, opens) in [(1, 5), (1, 8), (7, 5), (7, 8), (3, 2)] {
                let world = World { from, positions, longest, timestamps, opens };
                if from > i64::MIN && from.checked_add_unsigned(positions - 1).is_none() {
                    panic!("a world ends within 64 bits: {world:?}");
                }
                let random = Random(number as u64 * 1000 + timestamps * 10 + opens);
                let mut history = History { world, random, holes: Holes::default(), model: Model::default() };
                for step in 0..4000 {
                    history.step();
                    if step % 97 == 0 {
                        history.compare();
                        seen.extend(forms(&history.holes));
                        most = most.max(blocks(&history.holes).count());
                    }
                }
            }
        }
    }
    assert_eq!(seen, BTreeSet::from(["bits", "plain", "timed"]));
    assert!(most > 10, "no history grew beyond {most} blocks");
}

/// Like a stream with late rows: holes open at the end and close at random within reach of it.
#[test]
fn a_moving_front_equals_a_plain_list() {
    for (reach, timestamps) in [(100, 1), (10_000, 1), (10_000, 9), (300_000, 1)] {
        let world = World { from: 0, positions: 1, longest: 1, timestamps, opens: 0 };
        let mut history = History { world, random: Random(reach), holes: Holes::default(), model: Model::default() };
        let mut last = 0i64;
        for step in 0..20_000 {
            let first = last + 2 + history.random.below(20) as i64;
            let timestamp = history.random.below(timestamps) as i64;
            history.holes.open(first, first, timestamp);
            history.model.open(first, first, timestamp);
            last = first;
            let from = last - history.random.below(reach) as i64;
            if let Some(&(hole, _)) = history.model.within(from, last).first() {
                history.close(hole, hole);
            }
            if step % 501 == 0 {
                history.compare();
            }
        }
    }
}

#[test]
fn closing_splits_and_reports_each_part() {
    let mut holes = Holes::default();
    holes.open(10, 19, 0);
    holes.open(30, 39, 0);
    let mut pieces = Vec::new();
    holes.close(15, 32, |first, last| pieces.push((first, last)));
    assert_eq!(pieces, [(15, 19), (30, 32)]);
    assert_eq!(holes.iter().collect::<Vec<_>>(), [(10, 14), (33, 39)]);
    holes.remove(0, 100);
    assert!(holes.is_empty());
    assert_eq!(holes.memory_bytes(), 0);
}

#[test]
fn neighbours_of_one_timestamp_join() {
    let mut holes = Holes::default();
    holes.open(0, 1, 5);
    holes.open(4, 5, 5);
    holes.open(2, 3, 5);
    holes.open(6, 7, 6);
    assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(0, 5, 5), (6, 7, 6)]);
    assert_eq!(holes.finalise_until(5), Some((0, 5)));
    assert_eq!(holes.finalise_until(5), None);
    assert_eq!(holes.finalise_below(7), Some((6, 6)));
    assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(7, 7, 6)]);
}

#[test]
fn the_whole_number_line_is_one_range() {
    let mut holes = Holes::default();
    holes.open(i64::MIN, i64::MAX, 0);
    holes.remove(0, 0);
    holes.remove(i64::MIN, i64::MIN);
    holes.remove(i64::MAX, i64::MAX);
    assert_eq!(holes.iter().collect::<Vec<_>>(), [(i64::MIN + 1, -1), (1, i64::MAX - 1)]);
    holes.open(0, 0, 0);
    assert_eq!(holes.finalise_below(i64::MIN), None);
    assert_eq!(holes.finalise_below(i64::MAX), Some((i64::MIN + 1, i64::MAX - 1)));
}

#[test]
fn every_small_close_equals_a_set_of_numbers() {
    for bits in 0u32..1 << 8 {
        for first in 0..8 {
            for last in first..8 {
                let mut holes = Holes::default();
                (0..8).filter(|i| bits >> i & 1 == 1).for_each(|i| holes.open(i, i, 0));
                let mut taken = 0u32;
                let seen = holes.within(first, last).flat_map(|(a, b)| a..=b).fold(0u32, |set, i| set | 1 << i);
                holes.close(first, last, |a, b| (a..=b).for_each(|i| taken |= 1 << i));
                let asked = (first..=last).fold(0u32, |set, i| set | 1 << i);
                let left = holes.iter().flat_map(|(a, b)| a..=b).fold(0u32, |set, i| set | 1 << i);
                assert_eq!((seen, taken, left), (bits & asked, bits & asked, bits & !asked));
            }
        }
    }
}

#[test]
fn forms_come_and_go() {
    let mut holes = Holes::default();
    holes.open(0, 9_999, 0);
    assert_eq!(forms(&holes), ["plain"]);
    (0..5000).for_each(|it| holes.remove(2 * it, 2 * it));
    assert_eq!(forms(&holes).iter().collect::<HashSet<_>>(), HashSet::from([&"bits"]));
    (0..5000).filter(|it| it % 200 != 0).for_each(|it| holes.remove(2 * it + 1, 2 * it + 1));
    assert_eq!(forms(&holes).iter().collect::<HashSet<_>>(), HashSet::from([&"plain"]));
    assert_eq!(holes.len(), 25);
    (1..25).for_each(|it| holes.open(it * 400 - 1, it * 400 - 1, it));
    assert!(forms(&holes).contains(&"timed"));
    assert_eq!(holes.len(), 49);
}

#[test]
fn another_timestamp_among_bits_is_kept() {
    let mut holes = Holes::default();
    (0..1000).for_each(|it| holes.open(4 * it, 4 * it, 1));
    assert_eq!(forms(&holes), ["bits"]);
    holes.open(2002, 2002, 2);
    assert!(forms(&holes).contains(&"timed"));
    assert_eq!(holes.len(), 1001);
    assert_eq!(holes.finalise_until(1), Some((0, 3996)));
    assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(2002, 2002, 2)]);
}

/// Bits per position between the lowest and the highest.
fn bits_a_position(holes: &Holes) -> f64 {
    let (first, last) = holes.iter().fold((i64::MAX, 0), |hull, range| (hull.0.min(range.0), range.1));
    holes.memory_bytes() as f64 * 8.0 / (last - first + 1) as f64
}

#[test]
fn a_fragmented_region_costs_about_a_bit_a_position() {
    let mut upwards = Holes::default();
    let mut downwards = Holes::default();
    let mut closed = Holes::default();
    closed.open(1, 1_000_000, 0);
    let mut order: Vec<i64> = (0..500_000).collect();
    let mut random = Random(7);
    (1..order.len()).rev().for_each(|it| order.swap(it, random.below(it as u64 + 1) as usize));
    for (number, &by_chance) in (0..).zip(&order) {
        upwards.open(2 * number + 1, 2 * number + 1, 0);
        downwards.open(999_999 - 2 * number, 999_999 - 2 * number, 0);
        closed.remove(2 * by_chance + 2, 2 * by_chance + 2);
    }
    assert!(upwards == downwards && upwards == closed);
    for (holes, bits_max) in [(upwards, 1.1), (downwards, 1.1), (closed, 1.3)] {
        check_blocks(&holes);
        let bits = bits_a_position(&holes);
        assert!((1.0..bits_max).contains(&bits), "{bits} bits a position in {} blocks", blocks(&holes).count());
    }
}

/// The memory of a hole by the distance between holes. It is never more than that of an array, whose vectors may be
/// half empty.
#[test]
fn sparse_holes_cost_an_array_element_each() {
    for apart in [2, 10, 50, 100, 128, 150, 1000, 1_000_000] {
        let mut holes = Holes::default();
        (0..100_000).for_each(|it| holes.open(it * apart, it * apart, 0));
        let bytes = holes.memory_bytes() as f64 / holes.len() as f64;
        let bound = (apart as f64 / 8.0).min(16.0) * 1.15 + 0.2;
        assert!(bytes <= bound, "{bytes} bytes a hole, {apart} apart, above {bound}");
    }
    let mut one = Holes::default();
    one.open(5, 9, 0);
    assert_eq!(one.memory_bytes(), 0);
    one.open(5000, 9000, 0);
    assert_eq!(one.memory_bytes(), 32);
}
