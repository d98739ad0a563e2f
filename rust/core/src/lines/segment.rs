//! A part of the hash table: the entries of the blocks whose hash begins with the same bits.

use super::groups::Groups;
use super::{EntryKey, Line, LineKey, Slot};
use crate::Result;

/// A segment of this many bytes splits; up to twice as many, differing from segment to segment, so that
/// not all of them grow and split at the same time.
pub(super) const SPLIT_BYTES: usize = 4 << 20;

/// The entries of all blocks whose hash begins with `prefix`, in the layout `L` or in its twin.
pub(super) struct Segment<L: Line> {
    pub(super) held: Held<L>,
    /// The first `depth` bits of the hash of every block that lies here.
    pub(super) prefix: u64,
    pub(super) depth: u32,
}

/// Lines of one of the two layouts.
pub(super) enum Held<L: Line> {
    Dense(Groups<L>),
    Lone(Groups<L::Twin>),
}

/// Does one thing to a segment's groups, whatever the layout of their lines.
macro_rules! with_groups {
    ($held:expr, $groups:ident => $do:expr) => {
        match $held {
            $crate::lines::segment::Held::Dense($groups) => $do,
            $crate::lines::segment::Held::Lone($groups) => $do,
        }
    };
}
pub(super) use with_groups;

impl<L: Line> Segment<L> {
    /// The only segment of a table.
    pub(super) fn new(lines: usize) -> Result<Segment<L>> {
        Ok(Segment { held: Held::Dense(Groups::new(Groups::<L>::count_for(lines))?), prefix: 0, depth: 0 })
    }

    /// How many lines may be added before it must grow.
    pub(super) fn room(&self) -> usize {
        with_groups!(&self.held, groups => groups.room())
    }

    pub(super) fn bytes(&self) -> usize {
        with_groups!(&self.held, groups => groups.bytes())
    }

    pub(super) fn bytes_a_line(&self) -> usize {
        match self.held {
            Held::Dense(_) => 1 + size_of::<L>(),
            Held::Lone(_) => 1 + size_of::<L::Twin>(),
        }
    }

    pub(super) fn for_each(&self, tell: &mut impl FnMut(EntryKey, Slot)) {
        with_groups!(&self.held, groups => groups.iter().for_each(|line| for_each_in(line, tell)))
    }

    /// Whether it is large enough to be divided. Blocks with many epochs can fill a segment that no bit
    /// divides: it is not tried for ever.
    pub(super) fn is_to_split(&self, segments: usize) -> bool {
        let bytes = SPLIT_BYTES + (((SPLIT_BYTES as u128) * u128::from(self.prefix)) >> self.depth) as usize;
        self.bytes() >= bytes && self.depth < (8 + segments.ilog2()).min(32)
    }

    /// Its entries with room for `more` lines and some to spare.
    pub(super) fn grown(&self, more: usize, is_alone: bool) -> Result<Segment<L>> {
        // Doubling builds a million entries in 16 % less time; later it is the memory that counts.
        let spare = |lines: usize| if is_alone { lines } else { lines * 3 / 16 };
        let held = self.rebuilt(&|_| true, &|lines| lines + more.max(spare(lines)))?;
        Ok(Segment { held, ..*self })
    }

    /// Its entries, divided by the next bit of their blocks' hashes.
    pub(super) fn halves(&self, more: usize) -> Result<[Segment<L>; 2]> {
        let depth = self.depth + 1;
        let half = |bit: u64| {
            let is_wanted = |block_hash: u64| block_hash >> (64 - depth) & 1 == bit;
            let held = self.rebuilt(&is_wanted, &|lines| lines + more.max(lines * 3 / 16))?;
            Ok(Segment { held, prefix: self.prefix << 1 | bit, depth })
        };
        Ok([half(0)?, half(1)?])
    }

    /// Its entries without the lines that hold none; `None` where there are no such lines.
    pub(super) fn without_empty_lines(&self) -> Result<Option<Segment<L>>> {
        if !with_groups!(&self.held, groups => groups.iter().any(Line::is_empty)) {
            return Ok(None);
        }
        let held = self.rebuilt(&|_| true, &|lines| lines + lines * 3 / 16)?;
        Ok(Some(Segment { held, ..*self }))
    }

    /// The entries of the blocks that are wanted, in the layout that takes less memory.
    fn rebuilt(&self, wants: &Wants<'_>, with_room: &dyn Fn(usize) -> usize) -> Result<Held<L>> {
        let is_better_lone = self.is_better_lone();
        match &self.held {
            Held::Dense(groups) if is_better_lone => match converted(groups, wants, with_room)? {
                Some(lone) => Ok(Held::Lone(lone)),
                None => copied(groups, wants, with_room).map(Held::Dense),
            },
            Held::Lone(groups) if !is_better_lone => match converted(groups, wants, with_room)? {
                Some(dense) => Ok(Held::Dense(dense)),
                None => copied(groups, wants, with_room).map(Held::Lone),
            },
            Held::Dense(groups) => copied(groups, wants, with_room).map(Held::Dense),
            Held::Lone(groups) => copied(groups, wants, with_room).map(Held::Lone),
        }
    }

    /// Whether its entries take less memory one by one. To change over they must take a fifth less.
    fn is_better_lone(&self) -> bool {
        let (dense, lone) = with_groups!(&self.held, groups => sampled::<L, _>(groups));
        let (dense, lone) = (dense * (1 + size_of::<L>()), lone * (1 + size_of::<L::Twin>()));
        match self.held {
            Held::Dense(_) => lone * 5 < dense * 4,
            // Or as much: an empty one stays as it is.
            Held::Lone(_) => lone * 4 <= dense * 5,
        }
    }
}

/// Whether the entries of a block go where others are going, by its hash.
type Wants<'a> = dyn Fn(u64) -> bool + 'a;

/// How many lines a sample of the entries takes in the layout `L`, and how many in its twin. The sample
/// is of whole blocks and follows from what the table holds.
fn sampled<L: Line, X: Line>(groups: &Groups<X>) -> (usize, usize) {
    let mask = if groups.taken() < 1 << 12 { 0 } else { 31 };
    let mut hashes = Vec::new();
    for line in groups.iter().filter(|&line| block_hash_of(line) & mask == 0) {
        let block_hash = block_hash_of(line);
        for_each_in(line, &mut |key, _| hashes.push(key.line::<L>().hash(block_hash)));
    }
    let lone = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    (hashes.len(), lone)
}

/// The wanted lines that hold anything.
fn wanted<'a, X: Line>(groups: &'a Groups<X>, wants: &'a Wants<'_>) -> impl Iterator<Item = &'a X> {
    groups.iter().filter(|&line| wants(block_hash_of(line)) && !line.is_empty())
}

/// The wanted entries in the same layout.
fn copied<X: Line>(groups: &Groups<X>, wants: &Wants<'_>, with_room: &dyn Fn(usize) -> usize) -> Result<Groups<X>> {
    let lines = wanted(groups, wants).count();
    let mut copy = Groups::new(Groups::<X>::count_for(with_room(lines)))?;
    for line in wanted(groups, wants) {
        copy.insert(LineKey::of(line).hash(block_hash_of(line)), *line);
    }
    Ok(copy)
}

/// The wanted entries in the other layout; `None` where they do not fit: epochs of a
/// line may differ only a little, and how many lines it takes is an estimate.
fn converted<X: Line, Y: Line>(
    groups: &Groups<X>,
    wants: &Wants<'_>,
    with_room: &dyn Fn(usize) -> usize,
) -> Result<Option<Groups<Y>>> {
    let entries: usize =
        wanted(groups, wants).map(|line| (0..X::SLOTS).filter(|&slot| !line.is_empty_at(slot)).count()).sum();
    let lines = if Y::SLOTS == 1 {
        entries
    } else {
        let (dense, lone) = sampled::<Y, X>(groups);
        entries * dense / lone.max(1)
    };
    let mut into = Groups::new(Groups::<Y>::count_for(with_room(lines)))?;
    let mut all_fit = true;
    for line in wanted(groups, wants) {
        for_each_in(line, &mut |key, slot| all_fit = all_fit && into.take_in(key, &slot));
    }
    Ok(all_fit.then_some(into))
}

fn for_each_in<X: Line>(line: &X, tell: &mut impl FnMut(EntryKey, Slot)) {
    for number in 0..X::SLOTS {
        match line.read(number) {
            Slot::Empty => {}
            held => tell(EntryKey::at(line, number), held),
        }
    }
}

fn block_hash_of<X: Line>(line: &X) -> u64 {
    LineKey::of(line).block_hash::<X>()
}
