//! A part of the hash table: the entries of the blocks whose hash begins with the same bits.

use super::groups::Groups;
use super::{EntryKey, Line, LineKey, Partitions};
use crate::Result;

/// A segment of this many bytes splits; up to twice as many. When and by how much a segment grows differs
/// from segment to segment, so that not all of them do so in the same call.
pub(super) const SPLIT_BYTES: usize = 4 << 20;

/// The entries of all blocks whose hash begins with `prefix`, in the layout `L` or in its twin.
pub(super) struct Segment<L: Line> {
    pub(super) held: Held<L>,
    /// The first `depth` bits of the hash of every block that lies here.
    pub(super) prefix: u64,
    pub(super) depth: u32,
    /// How many lines there were when the layout was last thought over.
    thought_over_at: usize,
}

/// How a table's segments grow.
pub(super) struct Growth {
    /// Of a segment that is only to lose them: how many lines hold nothing.
    pub(super) empty: usize,
    /// Lines that there must be room for at the least.
    pub(super) more: usize,
    /// Lines that will be added soon, as far as one can tell. Room for as many as there are is made at the most.
    pub(super) expected: usize,
    /// Where keys come in random order their entries seem to be alone until a third of them is there: the
    /// segments of a small table do not change over to lines of one entry.
    pub(super) is_small: bool,
    /// Doubling builds a million entries in 16 % less time; later it is the memory that counts.
    pub(super) is_alone: bool,
    /// If the caller declared them, the layout changes only when empty lines are dropped.
    pub(super) partitions: Option<Partitions>,
}

/// Lines of one of the two layouts.
pub(super) enum Held<L: Line> {
    Dense(Groups<L>),
    Single(Groups<L::OtherLayout>),
}

/// Does one thing to a segment's groups, whatever the layout of their lines.
macro_rules! with_groups {
    ($held:expr, $groups:ident => $do:expr) => {
        match $held {
            $crate::lines::segment::Held::Dense($groups) => $do,
            $crate::lines::segment::Held::Single($groups) => $do,
        }
    };
}
pub(super) use with_groups;

impl<L: Line> Segment<L> {
    /// The only segment of a table.
    pub(super) fn new(lines: usize, partitions: Option<Partitions>) -> Result<Segment<L>> {
        let held = match partitions {
            Some(Partitions::One) => Held::Single(Groups::new(Groups::<L::OtherLayout>::count_for(lines))?),
            Some(Partitions::Many) | None => Held::Dense(Groups::new(Groups::<L>::count_for(lines))?),
        };
        Ok(Segment { held, prefix: 0, depth: 0, thought_over_at: 0 })
    }

    /// How many lines may be added before it must grow.
    pub(super) fn room(&self) -> usize {
        with_groups!(&self.held, groups => groups.room())
    }

    pub(super) fn bytes(&self) -> usize {
        with_groups!(&self.held, groups => groups.bytes())
    }

    pub(super) fn is_single(&self) -> bool {
        matches!(self.held, Held::Single(_))
    }

    pub(super) fn bytes_a_line(&self) -> usize {
        match self.held {
            Held::Dense(_) => 1 + size_of::<L>(),
            Held::Single(_) => 1 + size_of::<L::OtherLayout>(),
        }
    }

    pub(super) fn for_each(&self, visit: &mut impl FnMut(EntryKey, L::Slot)) {
        with_groups!(&self.held, groups => groups.for_each(|line| for_each_in(line, visit)))
    }

    /// Whether it is large enough to be divided. Blocks with many epochs can fill a segment that no bit
    /// divides: it is not tried for ever.
    pub(super) fn is_to_split(&self, segments: usize) -> bool {
        self.bytes() >= SPLIT_BYTES + self.share(SPLIT_BYTES) && self.depth < (8 + segments.ilog2()).min(32)
    }

    /// A part of `most` that differs from segment to segment.
    fn share(&self, most: usize) -> usize {
        ((most as u128 * u128::from(self.prefix)) >> self.depth) as usize
    }

    /// The number of lines to reserve beyond the existing ones: 3/32 to 6/32 of them. If the layout cannot change, 6/32
    /// to 12/32 take no more memory, and each line is copied half as often.
    fn spare(&self, lines: usize, growth: &Growth) -> usize {
        let least = lines * if growth.partitions.is_some() { 6 } else { 3 } / 32;
        if growth.is_alone { lines } else { least + self.share(least) }
    }

    /// Its entries with more room.
    pub(super) fn grown(&self, growth: &Growth) -> Result<Segment<L>> {
        let [held] = self.rebuilt(|_| 0, growth)?;
        Ok(self.with(held, self.prefix, self.depth, growth))
    }

    /// Its entries, divided by the next bit of their blocks' hashes.
    pub(super) fn halves(&self, growth: &Growth) -> Result<[Segment<L>; 2]> {
        let depth = self.depth + 1;
        let half = |block_hash: u64| (block_hash >> (64 - depth)) as usize & 1;
        let [low, high] = self.rebuilt(half, growth)?;
        let prefix = self.prefix << 1;
        Ok([self.with(low, prefix, depth, growth), self.with(high, prefix | 1, depth, growth)])
    }

    /// What was made of it.
    fn with(&self, held: Held<L>, prefix: u64, depth: u32, growth: &Growth) -> Segment<L> {
        let lines = with_groups!(&held, groups => groups.taken());
        let was_thought_over = self.is_to_think_over(growth);
        let thought_over_at = if was_thought_over { lines } else { self.thought_over_at >> (depth - self.depth) };
        Segment { held, prefix, depth, thought_over_at }
    }

    /// Its entries without the lines that hold none; `None` where there are no such lines.
    pub(super) fn without_empty_lines(&self, growth: &Growth) -> Result<Option<Segment<L>>> {
        let mut empty = 0;
        with_groups!(&self.held, groups => groups.for_each(|line| empty += usize::from(line.is_empty())));
        if empty > 0 { self.grown(&Growth { empty, ..*growth }).map(Some) } else { Ok(None) }
    }

    /// The entries in `N` parts, which `part` tells by a block's hash, in the layout that takes less memory.
    fn rebuilt<const N: usize>(&self, part: impl Fn(u64) -> usize, growth: &Growth) -> Result<[Held<L>; N]> {
        let expected = growth.expected / N;
        let with_room = |lines: usize| lines + growth.more.max(self.spare(lines, growth)).max(expected.min(lines));
        let changes_over = self.is_to_think_over(growth) && self.is_better_changed();
        match &self.held {
            Held::Dense(groups) => {
                let single = if changes_over { converted(groups, &part, with_room)? } else { None };
                match single {
                    Some(single) => Ok(single.map(Held::Single)),
                    None => Ok(copied(groups, part, with_room, growth.empty)?.map(Held::Dense)),
                }
            }
            Held::Single(groups) => {
                let dense = if changes_over { converted(groups, &part, with_room)? } else { None };
                match dense {
                    Some(dense) => Ok(dense.map(Held::Dense)),
                    None => Ok(copied(groups, part, with_room, growth.empty)?.map(Held::Single)),
                }
            }
        }
    }

    /// Whether to find out if the other layout takes less memory, for that costs half of a growth. Not seldom
    /// enough to be in the wrong one for long: lines of four entries were, at 28 bytes an entry for 24.
    fn is_to_think_over(&self, growth: &Growth) -> bool {
        let lines = with_groups!(&self.held, groups => groups.taken());
        let is_for_sure = growth.is_small && matches!(self.held, Held::Dense(_));
        let has_grown = growth.partitions.is_none() && lines * 4 >= self.thought_over_at * 5;
        !is_for_sure && (growth.empty > 0 || has_grown)
    }

    /// Whether its entries take less memory in the other layout, by an eighth at least.
    fn is_better_changed(&self) -> bool {
        let (dense, single) = with_groups!(&self.held, groups => sampled::<L, _>(groups));
        let (dense, single) = (dense * (1 + size_of::<L>()), single * (1 + size_of::<L::OtherLayout>()));
        match self.held {
            Held::Dense(_) => single * 8 < dense * 7,
            Held::Single(_) => dense * 8 < single * 7,
        }
    }
}

/// How many lines a sample of the entries takes in the layout `L`, and how many in its twin. The sample
/// is of whole blocks and follows from what the table holds.
fn sampled<L: Line, X: Line>(groups: &Groups<X>) -> (usize, usize) {
    let mask = if groups.taken() < 1 << 12 { 0 } else { 31 };
    let mut hashes = Vec::new();
    for_each_hashed(groups, |line, block_hash| {
        if block_hash & mask == 0 {
            for_each_in(line, &mut |key, _| hashes.push(key.line::<L>().hash(block_hash)));
        }
    });
    let single = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    (hashes.len(), single)
}

/// Tells the lines that hold anything, each with the hash of its block.
#[inline]
fn for_each_hashed<X: Line>(groups: &Groups<X>, mut visit: impl FnMut(&X, u64)) {
    groups.for_each(|line| {
        if !line.is_empty() {
            visit(line, block_hash_of(line));
        }
    });
}

/// The entries in the same layout. `empty`: how many lines hold none.
fn copied<X: Line, const N: usize>(
    groups: &Groups<X>,
    part: impl Fn(u64) -> usize,
    with_room: impl Fn(usize) -> usize,
    empty: usize,
) -> Result<[Groups<X>; N]> {
    let mut lines = [groups.taken() - empty; N];
    if N > 1 {
        lines = [0; N];
        for_each_hashed(groups, |_, block_hash| lines[part(block_hash)] += 1);
    }
    let mut copies = each_with_room(lines.map(with_room))?;
    let mut filled: [Vec<u8>; N] = std::array::from_fn(|number| vec![0; copies[number].count()]);
    for_each_hashed(groups, |line, block_hash| {
        let (copy, filled) = (&mut copies[part(block_hash)], &mut filled[part(block_hash)]);
        copy.fill(LineKey::of(line).hash(block_hash), *line, filled);
    });
    Ok(copies)
}

/// Entries that change their layout together: while one is stored, the lines of the others are fetched.
const TOGETHER: usize = 64;

/// The entries in the other layout; `None` where they do not fit: epochs of a
/// line may differ only a little, and how many lines it takes is an estimate.
fn converted<X: Line, Y: Line<Slot = X::Slot>, const N: usize>(
    groups: &Groups<X>,
    part: impl Fn(u64) -> usize,
    with_room: impl Fn(usize) -> usize,
) -> Result<Option<[Groups<Y>; N]>> {
    let mut entries = [0; N];
    for_each_hashed(groups, |line, block_hash| {
        entries[part(block_hash)] += (0..X::SLOTS).filter(|&slot| !line.is_empty_at(slot)).count();
    });
    let (dense, single) = if Y::SLOTS == 1 { (1, 1) } else { sampled::<Y, X>(groups) };
    let mut into = each_with_room(entries.map(|entries| with_room(entries * dense / single.max(1))))?;
    let mut waiting: [Vec<_>; N] = std::array::from_fn(|_| Vec::with_capacity(TOGETHER + X::SLOTS));
    let mut all_fit = true;
    for_each_hashed(groups, |line, block_hash| {
        let (into, waiting): (&mut Groups<Y>, _) = (&mut into[part(block_hash)], &mut waiting[part(block_hash)]);
        for_each_in(line, &mut |key, slot| waiting.push((key, block_hash, slot)));
        if waiting.len() >= TOGETHER {
            all_fit = all_fit && into.take_in(waiting);
            waiting.clear();
        }
    });
    let rest_fits = into.iter_mut().zip(&waiting).all(|(into, waiting)| into.take_in(waiting));
    Ok((all_fit && rest_fits).then_some(into))
}

/// Empty groups for so many lines each.
fn each_with_room<X: Line, const N: usize>(lines: [usize; N]) -> Result<[Groups<X>; N]> {
    let groups: Vec<_> =
        lines.into_iter().map(|lines| Groups::new(Groups::<X>::count_for(lines))).collect::<Result<_>>()?;
    Ok(groups.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for")))
}

fn for_each_in<X: Line>(line: &X, visit: &mut impl FnMut(EntryKey, X::Slot)) {
    for number in (0..X::SLOTS).filter(|&number| !line.is_empty_at(number)) {
        visit(EntryKey::at(line, number), line.read(number));
    }
}

fn block_hash_of<X: Line>(line: &X) -> u64 {
    LineKey::of(line).block_hash::<X>()
}
