//! Searches for the newest entries of several keys at once. While one is judged, the memory of the others is loaded.

use super::groups::{GROUP, Group, equal_tags, tag_of};
use super::segment::{Held, Segment};
use super::{EntryKey, Line, LineKey, Lines, Place};
use crate::key_block::block_hash;
use crate::prefetch::{HAS_PREFETCH, STEP, prefetch};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The data of a segment that a search needs: a record of the directory, found with one read.
#[derive(Clone, Copy)]
pub(super) struct Root {
    tags: NonNull<Group>,
    lines: NonNull<u8>,
    groups: u32,
    /// The number of the segment.
    pub(super) segment: u32,
    line_bytes: u8,
    /// Whether its lines have one entry each.
    is_single: bool,
}

// SAFETY: a root points into memory of a segment of the same table, and is used only while that table is borrowed.
unsafe impl Send for Root {}
// SAFETY: as above; the memory is written only while the table is borrowed mutably.
unsafe impl Sync for Root {}

impl Root {
    pub(super) fn new<L: Line>(number: usize, segment: &Segment<L>) -> Root {
        let (is_single, (tags, lines, groups)) = match &segment.held {
            Held::Dense(groups) => (false, groups.parts()),
            Held::Single(groups) => (true, groups.parts()),
        };
        let line_bytes = if is_single { size_of::<L::OtherLayout>() } else { size_of::<L>() } as u8;
        Root { tags, lines, groups: groups as u32, segment: number as u32, line_bytes, is_single }
    }

    /// The root of a table without segments: one group without lines.
    pub(super) fn of_nothing() -> Root {
        static NOTHING: Group = [0; GROUP];
        // Lines of one byte, none of which is read. A search computes their addresses, so they must exist.
        let tags = NonNull::from(&NOTHING);
        Root { tags, lines: tags.cast(), groups: 1, segment: 0, line_bytes: 1, is_single: false }
    }

    /// The tags of a group and its lines.
    ///
    /// # Safety
    /// The group is one of the segment's.
    #[inline(always)]
    unsafe fn group(&self, number: usize) -> (NonNull<Group>, NonNull<u8>) {
        // SAFETY: a segment has as many tags and lines as groups, and the caller guarantees that this is one of them.
        unsafe { (self.tags.add(number), self.lines.add(number * GROUP * self.line_bytes as usize)) }
    }
}

/// A number that no segments of any table had before: see [`Searches::version`].
pub(super) fn next_version() -> u64 {
    static VERSION: AtomicU64 = AtomicU64::new(1);
    VERSION.fetch_add(1, Ordering::Relaxed)
}

/// A search in progress: where it begins, then where it most likely ends.
#[derive(Clone, Copy)]
struct Search {
    tag_at: NonNull<u8>,
    /// The line of that tag. It may be read only if the tag is set.
    line: NonNull<u8>,
    root: u32,
    tag: u8,
    line_bytes: u8,
    is_single: bool,
}

/// Searches that do each step together.
#[derive(Clone, Copy)]
pub(crate) struct Searches {
    /// The version of the segments at the start. If segments have changed since, the addresses are not used.
    version: u64,
    each: [Search; STEP],
}

impl Searches {
    /// Empty searches, to be filled.
    pub(crate) fn none() -> Searches {
        let (tag_at, line) = (NonNull::dangling(), NonNull::dangling());
        Searches { version: 0, each: [Search { tag_at, line, root: 0, tag: 0, line_bytes: 0, is_single: false }; STEP] }
    }
}

/// A line of either layout.
pub(crate) enum Near<'a, L: Line> {
    Dense(&'a mut L),
    Single(&'a mut L::OtherLayout),
}

impl<L: Line> Lines<L> {
    /// First step: prefetches the tags. Searched keys need not exist; unused places have zeros.
    #[inline(always)]
    pub(crate) fn begin(&self, pids: &[i64; STEP], partitions: &[i32; STEP], searches: &mut Searches) {
        let mut hashes = [0; STEP];
        for ((hash, &pid), &partition) in hashes.iter_mut().zip(pids).zip(partitions) {
            *hash = block_hash(pid, partition);
        }
        self.begin_hashed(&hashes, partitions, searches);
    }

    /// Like `begin`, with known hashes of the blocks.
    #[inline(always)]
    pub(crate) fn begin_hashed(&self, hashes: &[u64; STEP], partitions: &[i32; STEP], searches: &mut Searches) {
        let dense = line_hashes::<L>(hashes, partitions);
        let single = if self.has_single { line_hashes::<L::OtherLayout>(hashes, partitions) } else { dense };
        let shift = 64 - self.depth;
        for (index, search) in searches.each.iter_mut().enumerate() {
            let number = (hashes[index] >> shift) as usize;
            let root = &self.directory[number];
            // Both hashes are computed, because a table with both layouts would cause unpredictable branches.
            let hash = [dense[index], single[index]][usize::from(root.is_single)];
            let group = ((hash >> 32) * u64::from(root.groups)) >> 32;
            // SAFETY: the group is within the segment, because the high half of the product is below the number of
            // groups. Checked numbers instead of addresses take 12 of some 150 instructions per row.
            let (tags, line) = unsafe { root.group(group as usize) };
            prefetch(tags.as_ptr());
            if !HAS_PREFETCH {
                // SAFETY: as above.
                std::hint::black_box(unsafe { tags.read() }[0]);
            }
            let (tag_at, tag, Root { line_bytes, is_single, .. }) = (tags.cast(), tag_of(hash), *root);
            *search = Search { tag_at, line, root: number as u32, tag, line_bytes, is_single };
        }
        searches.version = self.version;
    }

    /// Second step: compares the tags and prefetches the lines, or the places where they will be added.
    ///
    /// With eight bits of hash, one search in 20 finds another key's line, so a second line is prefetched too. A line
    /// without a prefetch is a cache miss that stalls the processor.
    #[inline(always)]
    pub(crate) fn prefetch_lines(&self, searches: &mut Searches) {
        self.check(searches);
        let may_reach = self.has_single || size_of::<L>() != 64;
        for search in &mut searches.each {
            // SAFETY: the segments are those of the first step, which stored the address of a group.
            let tags = unsafe { search.tag_at.cast::<Group>().as_ref() };
            let mut matches = equal_tags(tags, search.tag);
            if matches == 0 {
                matches = equal_tags(tags, 0);
                if matches == 0 {
                    *search = self.in_next_group(*search);
                    continue;
                }
            }
            let second = matches & (matches - 1);
            if second != 0 {
                search.at(second.trailing_zeros() as usize).prefetch(may_reach);
            }
            *search = search.at(matches.trailing_zeros() as usize);
            search.prefetch(may_reach);
        }
    }

    /// Continues in the next group if a group is full, because its lines can be there.
    #[cold]
    #[inline(never)]
    fn in_next_group(&self, search: Search) -> Search {
        let root = &self.directory[search.root as usize];
        let group = (search.tag_at.addr().get() - root.tags.addr().get()) / GROUP + 1;
        let group = if group == root.groups as usize { 0 } else { group };
        // SAFETY: the number was just checked to be a group of the segment.
        let (tags, line) = unsafe { root.group(group) };
        // SAFETY: as above.
        let matches = equal_tags(unsafe { tags.as_ref() }, search.tag);
        let index = matches.trailing_zeros() as usize & (GROUP - 1);
        let found = Search { tag_at: tags.cast(), line, ..search }.at(index);
        found.prefetch(true);
        found
    }

    #[inline(always)]
    fn check(&self, searches: &Searches) {
        assert!(searches.version == self.version, "segments stay as they are while searches are under way");
    }

    /// Third step: the line of a key, if it is where the second step expected it, which is nearly always so.
    #[inline(always)]
    pub(crate) fn near(
        &mut self,
        searches: &Searches,
        index: usize,
        (pid, partition): (i64, i32),
    ) -> Option<Near<'_, L>> {
        let search = self.checked(searches, index)?;
        let key = EntryKey::newest(pid, partition);
        // SAFETY: the tag is set, so `Groups::insert` wrote the line. It is in a segment of this table, which has not
        // changed since, in the layout that the search knows; and the table is borrowed mutably. Looking up the segment
        // again takes 20 of some 150 instructions per row.
        unsafe {
            if search.is_single {
                let line = search.line.cast::<L::OtherLayout>().as_mut();
                line.is_newest(pid, key.line::<L::OtherLayout>().group).then_some(Near::Single(line))
            } else {
                let line = search.line.cast::<L>().as_mut();
                line.is_newest(pid, key.line::<L>().group).then_some(Near::Dense(line))
            }
        }
    }

    /// The content of the slot of a key, if its line is where the second step expected it.
    #[inline(always)]
    pub(crate) fn read_near(&self, searches: &Searches, index: usize, (pid, partition): (i64, i32)) -> Option<L::Slot> {
        let search = self.checked(searches, index)?;
        let key = EntryKey::newest(pid, partition);
        // SAFETY: as in `near`, and nothing is written.
        unsafe {
            if search.is_single {
                let line = search.line.cast::<L::OtherLayout>().as_ref();
                line.is_newest(pid, key.line::<L::OtherLayout>().group).then(|| line.read(key.slot::<L::OtherLayout>()))
            } else {
                let line = search.line.cast::<L>().as_ref();
                line.is_newest(pid, key.line::<L>().group).then(|| line.read(key.slot::<L>()))
            }
        }
    }

    /// The place of that slot.
    pub(crate) fn place_near(&self, searches: &Searches, index: usize, partition: i32) -> Place {
        let (search, key) = (&searches.each[index], EntryKey::newest(0, partition));
        let Root { lines, segment, line_bytes, .. } = self.directory[search.root as usize];
        let line = (search.line.addr().get() - lines.addr().get()) / line_bytes as usize;
        let slot = if search.is_single { key.slot::<L::OtherLayout>() } else { key.slot::<L>() };
        Place { segment, line: line as u32, slot: slot as u32 }
    }

    /// A search whose line can be read.
    #[inline(always)]
    fn checked<'a>(&self, searches: &'a Searches, index: usize) -> Option<&'a Search> {
        self.check(searches);
        let search = &searches.each[index];
        // SAFETY: the segments are those of the first step, and the second step stored the address of a tag.
        (unsafe { search.tag_at.read() } == search.tag).then_some(search)
    }
}

impl Search {
    /// The search at another line of its group.
    #[inline(always)]
    fn at(self, index: usize) -> Search {
        assert!(index < GROUP);
        // SAFETY: a group has as many tags and lines, and the search is at its first.
        let (tag_at, line) = unsafe { (self.tag_at.add(index), self.line.add(index * self.line_bytes as usize)) };
        Search { tag_at, line, ..self }
    }

    /// Prefetches the line. `may_reach`: it can extend into the next cache line.
    #[inline(always)]
    fn prefetch(&self, may_reach: bool) {
        prefetch(self.line.as_ptr());
        if may_reach {
            prefetch(self.line.as_ptr().wrapping_add(self.line_bytes as usize - 1));
        }
        if !HAS_PREFETCH {
            // SAFETY: as in `Lines::checked`; lines begin with a number, so their first byte was written.
            unsafe {
                if self.tag_at.read() != 0 {
                    std::hint::black_box(self.line.read());
                }
            }
        }
    }
}

/// The hashes of the lines of keys in one layout, from those of their blocks.
#[inline(always)]
fn line_hashes<L: Line>(hashes: &[u64; STEP], partitions: &[i32; STEP]) -> [u64; STEP] {
    let mut of_lines = [0; STEP];
    for ((of_line, &hash), &partition) in of_lines.iter_mut().zip(hashes).zip(partitions) {
        let LineKey { group, .. } = EntryKey::newest(0, partition).line::<L>();
        *of_line = LineKey { pid: 0, group, epoch: 0 }.hash(hash);
    }
    of_lines
}

#[cfg(test)]
mod tests {
    use super::super::RangeLine;
    use super::*;
    use crate::fast_path::Slot;
    use crate::judge::PlainEntry;

    const PIDS: [i64; STEP] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1 << 40];

    fn searched(lines: &Lines<RangeLine>) -> Searches {
        let mut searches = Searches::none();
        lines.begin(&PIDS, &[3; STEP], &mut searches);
        lines.prefetch_lines(&mut searches);
        searches
    }

    fn with_lines(count: i64) -> Lines<RangeLine> {
        let mut lines = Lines::new(None);
        for pid in 0..count {
            lines.reserve(1).expect("memory");
            let place = lines.find_or_insert(EntryKey::newest(pid, 3));
            assert!(lines.write(place, &Slot::Inline(PlainEntry::default())));
        }
        lines
    }

    /// Lines of several entries, and from some hundred thousand on lines of one.
    #[test]
    fn a_search_finds_its_line() {
        for (count, has_single) in [(15, false), (1000, false), (600_000, true)] {
            let mut lines = with_lines(count);
            assert_eq!(lines.has_single, has_single);
            let searches = searched(&lines);
            for (index, pid) in PIDS.into_iter().enumerate().take(15) {
                let place = lines.find(EntryKey::newest(pid, 3)).expect("it was added");
                if lines.near(&searches, index, (pid, 3)).is_some() {
                    assert_eq!(lines.place_near(&searches, index, 3), place);
                }
                assert!(lines.near(&searches, index, (pid + 1, 3)).is_none(), "the line of another");
            }
            let found = (0..15).filter(|&index| lines.read_near(&searches, index, (PIDS[index], 3)).is_some());
            assert!(found.count() >= 12, "one tag in 20 is that of another line too");
            assert!(lines.near(&searches, 15, (PIDS[15], 3)).is_none(), "nobody");
        }
    }

    #[test]
    fn a_line_added_during_a_search_is_found() {
        let mut lines = with_lines(5);
        let searches = searched(&lines);
        assert!(lines.near(&searches, 9, (9, 3)).is_none());
        lines.find_or_insert(EntryKey::newest(9, 3));
        assert!(lines.near(&searches, 9, (9, 3)).is_some());
    }

    #[test]
    fn a_table_without_a_line_finds_nothing() {
        let (lines, mut searches) = (Lines::<RangeLine>::new(None), Searches::none());
        lines.begin(&PIDS, &[3; STEP], &mut searches);
        lines.prefetch_lines(&mut searches);
        assert!((0..STEP).all(|index| lines.read_near(&searches, index, (PIDS[index], 3)).is_none()));
    }

    #[test]
    #[should_panic(expected = "segments stay as they are")]
    fn a_search_is_not_used_after_the_table_has_grown() {
        let mut lines = with_lines(15);
        let searches = searched(&lines);
        lines.reserve(1000).expect("memory");
        lines.near(&searches, 0, (0, 3));
    }

    #[test]
    #[should_panic(expected = "segments stay as they are")]
    fn a_search_is_not_followed_in_another_table() {
        let searches = searched(&with_lines(15));
        let _ = with_lines(15).read_near(&searches, 0, (0, 3));
    }
}
