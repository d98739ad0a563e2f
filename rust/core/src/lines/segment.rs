//! A part of the hash table: the entries of all blocks whose hashes begin with the same bits.

use super::groups::Groups;
use super::{EntryKey, Line, LineKey, Partitions};
use crate::Result;

/// A segment splits at this many bytes, or at up to twice as many. When and by how much a segment grows differs between
/// segments, so that not all of them grow in the same call.
pub(super) const SPLIT_BYTES: usize = 4 << 20;

/// The entries of all blocks whose hash begins with `prefix`, in the layout `L` or in its other layout.
pub(super) struct Segment<L: Line> {
    pub(super) held: Held<L>,
    /// The first `depth` bits of the hash of all its blocks.
    pub(super) prefix: u64,
    pub(super) depth: u32,
    /// Number of lines at the last choice of the layout.
    layout_checked_at: usize,
}

/// How a table's segments grow.
pub(super) struct Growth {
    /// Number of empty lines, if the segment is rebuilt only to remove them.
    pub(super) empty: usize,
    /// Minimum number of additional lines.
    pub(super) more: usize,
    /// Estimated number of lines that will be added soon. The segment at most doubles for them.
    pub(super) expected: usize,
    /// Whether the table is small. If keys come in random order, entries seem to be single until a third of them
    /// exists. The segments of a small table therefore do not change to lines of one entry.
    pub(super) is_small: bool,
    /// Whether the segment is the only one. Doubling then builds a million entries in 16 % less time. Later, memory
    /// matters more.
    pub(super) is_alone: bool,
    /// If the caller declared them, the layout changes only when empty lines are dropped.
    pub(super) partitions: Option<Partitions>,
}

/// Lines in one of the two layouts.
pub(super) enum Held<L: Line> {
    Dense(Groups<L>),
    Single(Groups<L::OtherLayout>),
}

/// Runs an expression for the groups of a segment, whatever the layout of their lines.
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
        Ok(Segment { held, prefix: 0, depth: 0, layout_checked_at: 0 })
    }

    /// How many lines can be added before the segment must grow.
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

    /// Whether the segment is large enough to split. Blocks with many epochs can fill a segment that no bit divides, so
    /// splitting is not tried without end.
    pub(super) fn is_to_split(&self, segments: usize) -> bool {
        self.bytes() >= SPLIT_BYTES + self.share(SPLIT_BYTES) && self.depth < (8 + segments.ilog2()).min(32)
    }

    /// A share of `most` that differs between segments.
    fn share(&self, most: usize) -> usize {
        ((most as u128 * u128::from(self.prefix)) >> self.depth) as usize
    }

    /// The number of lines to reserve beyond the existing ones: 3/32 to 6/32 of them. If the layout cannot change, 6/32
    /// to 12/32 take no more memory, and each line is copied half as often.
    fn spare(&self, lines: usize, growth: &Growth) -> usize {
        let least = lines * if growth.partitions.is_some() { 6 } else { 3 } / 32;
        if growth.is_alone { lines } else { least + self.share(least) }
    }

    /// A copy of the segment with more room.
    pub(super) fn grown(&self, growth: &Growth) -> Result<Segment<L>> {
        let [held] = self.rebuilt(|_| 0, growth)?;
        Ok(self.with(held, self.prefix, self.depth, growth))
    }

    /// The segment divided in two by the next bit of the hashes of blocks.
    pub(super) fn halves(&self, growth: &Growth) -> Result<[Segment<L>; 2]> {
        let depth = self.depth + 1;
        let half = |block_hash: u64| (block_hash >> (64 - depth)) as usize & 1;
        let [low, high] = self.rebuilt(half, growth)?;
        let prefix = self.prefix << 1;
        Ok([self.with(low, prefix, depth, growth), self.with(high, prefix | 1, depth, growth)])
    }

    /// A new version of this segment.
    fn with(&self, held: Held<L>, prefix: u64, depth: u32, growth: &Growth) -> Segment<L> {
        let lines = with_groups!(&held, groups => groups.taken());
        let was_checked = self.must_check_layout(growth);
        let layout_checked_at = if was_checked { lines } else { self.layout_checked_at >> (depth - self.depth) };
        Segment { held, prefix, depth, layout_checked_at }
    }

    /// A copy without empty lines. `None` if there are no empty lines.
    pub(super) fn without_empty_lines(&self, growth: &Growth) -> Result<Option<Segment<L>>> {
        let mut empty = 0;
        with_groups!(&self.held, groups => groups.for_each(|line| empty += usize::from(line.is_empty())));
        if empty > 0 { self.grown(&Growth { empty, ..*growth }).map(Some) } else { Ok(None) }
    }

    /// Divides the entries into `N` parts by the hash of their block, in the layout that takes less memory.
    fn rebuilt<const N: usize>(&self, part: impl Fn(u64) -> usize, growth: &Growth) -> Result<[Held<L>; N]> {
        let expected = growth.expected / N;
        let with_room = |lines: usize| lines + growth.more.max(self.spare(lines, growth)).max(expected.min(lines));
        let changes_over = self.must_check_layout(growth) && self.is_better_changed();
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

    /// Whether to check if the other layout takes less memory. The check costs half of a growth. Rarer checks would
    /// keep the wrong layout too long: lines of four entries took 28 bytes per entry instead of 24.
    fn must_check_layout(&self, growth: &Growth) -> bool {
        let lines = with_groups!(&self.held, groups => groups.taken());
        let is_for_sure = growth.is_small && matches!(self.held, Held::Dense(_));
        let has_grown = growth.partitions.is_none() && lines * 4 >= self.layout_checked_at * 5;
        !is_for_sure && (growth.empty > 0 || has_grown)
    }

    /// Whether the entries take at least an eighth less memory in the other layout.
    fn is_better_changed(&self) -> bool {
        let (dense, single) = with_groups!(&self.held, groups => sampled::<L, _>(groups));
        let (dense, single) = (dense * (1 + size_of::<L>()), single * (1 + size_of::<L::OtherLayout>()));
        match self.held {
            Held::Dense(_) => single * 8 < dense * 7,
            Held::Single(_) => dense * 8 < single * 7,
        }
    }
}

/// Number of lines of a sample of the entries in the layout `L`, and in its other layout. The sample has whole blocks
/// and depends only on the content of the table.
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

/// Visits the non-empty lines, each with the hash of its block.
#[inline]
fn for_each_hashed<X: Line>(groups: &Groups<X>, mut visit: impl FnMut(&X, u64)) {
    groups.for_each(|line| {
        if !line.is_empty() {
            visit(line, block_hash_of(line));
        }
    });
}

/// Copies the entries in the same layout. `empty`: number of empty lines.
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

/// Number of entries that change their layout together. While one is stored, the lines of the others are loaded.
const TOGETHER: usize = 64;

/// Converts the entries to the other layout. `None` if they do not fit: epochs in a line may differ only slightly, and
/// the number of lines is an estimate.
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

/// Empty groups with room for the given numbers of lines.
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
