//! Finds repeats among the rows of one call by hash, on several threads, without keeping a state.
//!
//! ```text
//! columns ── hash, count, scatter ──┐   each thread takes the next block of rows
//!                                   │
//!            a small hash table ────┤   each thread takes the next partition and finds rows with equal hashes
//!                                   │
//! kept ───── compare exactly ───────┘   each thread takes the next block again
//! ```
//!
//! A state table stores ranges of positions, which is cheap if sequence numbers increase by one. In other orders, each
//! row splits a range (50 to 180 ns). If every position is accepted once and the state is not needed, a repeat is a row
//! whose identity appeared before. A partition of hashes in the cache finds it in a fifth of that time, in any order.
//!
//! The lap of a row depends on earlier rows only if its key has rows in both zones beside the border of the wrap. All
//! rows of such keys are left to a state table ([`Repeats::others`]).

use crate::batch::{Batch, Seqs};
use crate::dictionary::fold_hash;
use crate::error::make_room;
use crate::parallel::{in_parallel, threads};
use crate::position::Wrap;
use crate::prefetch::prefetch;
use crate::spans::{Cut, Domain};
use crate::{Admit, Epochs, First, Policy, Result};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The keys of some rows, in any form.
pub trait KeyColumns: Sync {
    /// Writes a hash of the key of each row from `from` on. It is 0 if and only if the row has no producer.
    fn hash_keys(&self, from: usize, hashes: &mut [u64]);

    /// Whether two rows with a producer have the same key.
    fn is_same_key(&self, row: usize, other: &Self, other_row: usize) -> bool;

    /// Prefetches the key of a row.
    fn prefetch_key(&self, row: usize);

    /// Prefetches the bytes of the key. The memory that [`KeyColumns::prefetch_key`] requested has arrived.
    fn prefetch_bytes(&self, row: usize);

    /// Pid and partition of rows, for validation. Keys that are not plain numbers are 0. The pid of rows without a
    /// producer is -1.
    fn numbers(&self, rows: Range<usize>) -> (Cow<'_, [i64]>, Cow<'_, [i32]>);
}

/// Rows with keys of any form; the other columns are as in [`Batch`].
#[derive(Debug)]
pub struct KeyedRows<'a, K> {
    /// The keys.
    pub keys: &'a K,
    /// `None` if the policy ignores epochs.
    pub epoch: Option<&'a [i16]>,
    /// One per row.
    pub seq: Seqs<'a>,
}

impl<K> Clone for KeyedRows<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for KeyedRows<'_, K> {}

/// The result for the rows of a call. Row numbers count from the first row of the first chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// One bit per row, lowest first: 0 if the row repeats an earlier one.
    pub kept: Vec<u64>,
    /// All rows of keys that are not judged here, in order.
    pub others: Vec<u32>,
}

impl Repeats {
    /// Marks a row as not kept.
    pub fn drop_row(&mut self, row: u32) {
        clear_bit(&mut self.kept, row as usize);
    }
}

fn clear_bit(words: &mut [u64], bit: usize) {
    words[bit / 64] &= !(1 << (bit % 64));
}

/// With fewer rows, a table judges: starting threads would take as long.
const ROWS_MIN: usize = 1 << 17;
/// Minimum average number of rows per chunk. Below it, work per chunk would take longer than work per row.
const CHUNK_MIN: usize = 1 << 6;
const BLOCK_BITS: u32 = 16;
const BLOCK: usize = 1 << BLOCK_BITS;
/// Approximate number of rows of a partition. Its hash table fits into the second-level cache.
const PARTITION: usize = 4096;
const PARTITION_BITS_MAX: u32 = 12;
/// Maximum share of rows, or of keys, that are left to the table: one in OTHERS_SHARE.
const OTHERS_SHARE: usize = 8;

/// Finds the rows that repeat an earlier one, if this is faster than judging them with an empty table; otherwise
/// `None`. Rows are validated as by a table.
///
/// # Panics
/// If the columns of a chunk differ in length.
pub(crate) fn find_repeats<K: KeyColumns>(
    policy: &Policy,
    domain: &Domain,
    chunks: &[KeyedRows<'_, K>],
    has_plain_keys: bool,
) -> Result<Option<Repeats>> {
    let rows: usize = chunks.iter().map(|chunk| chunk.seq.len()).sum();
    let is_large = (ROWS_MIN..u32::MAX as usize).contains(&rows) && chunks.len() * CHUNK_MIN <= rows;
    if is_large && accepts_each_once(policy, chunks) && is_sooner(policy, chunks, rows, has_plain_keys) {
        Search::new(policy, domain, chunks).run()
    } else {
        Ok(None)
    }
}

/// Whether an empty table accepts each position once, and nothing else affects verdicts.
fn accepts_each_once<K>(policy: &Policy, chunks: &[KeyedRows<'_, K>]) -> bool {
    let has_bounds = policy.max_jump.is_some() || policy.reach.is_some() || policy.intervals_max.is_some();
    let needs_epochs = match policy.epochs {
        Epochs::Key => true,
        Epochs::Ignore => false,
        Epochs::Fence => return false,
    };
    policy.admit == Admit::Any && !has_bounds && chunks.iter().all(|chunk| chunk.epoch.is_some() == needs_epochs)
}

impl<K: KeyColumns> KeyedRows<'_, K> {
    /// Writes a hash of key and epoch of each row from `from` on. It is 0 if and only if the row has no producer.
    fn hash_keys(&self, from: usize, hashes: &mut [u64]) {
        self.keys.hash_keys(from, hashes);
        if let Some(epoch) = self.epoch {
            for (hash, &epoch) in hashes.iter_mut().zip(&epoch[from..]) {
                *hash = if *hash == 0 { 0 } else { fold_hash(*hash, epoch as u64).max(1) };
            }
        }
    }

    /// Prefetches the data that [`KeyedRows::is_same`] reads of a row.
    #[inline]
    fn prefetch(&self, row: usize) {
        match self.seq {
            Seqs::I32(seq) => prefetch(&raw const seq[row]),
            Seqs::I64(seq) => prefetch(&raw const seq[row]),
        }
        if let Some(epoch) = self.epoch {
            prefetch(&raw const epoch[row]);
        }
        self.keys.prefetch_key(row);
    }

    #[inline]
    fn is_same(&self, row: usize, other: &Self, other_row: usize) -> bool {
        self.seq.get(row) == other.seq.get(other_row)
            && self.epoch.map(|epoch| epoch[row]) == other.epoch.map(|epoch| epoch[other_row])
            && self.keys.is_same_key(row, other.keys, other_row)
    }
}

/// A simulation of how a table would judge the first rows. It counts spans by their cost.
#[derive(Default)]
struct Sample {
    rows: usize,
    /// Number of spans that begin a key, that continue after the last position of their key, that open a hole, and that
    /// do something else.
    begun: usize,
    next: usize,
    jumps: usize,
    within: usize,
}

/// Measured costs in nanoseconds: a span of a new key, a span that the fast path judges, and a span of an entry with
/// holes; a key that is not a plain number; and a row in this module, on one thread and on several.
const BEGUN_NS: usize = 40;
const PLAIN_NS: usize = 10;
const HOLES_NS: usize = 50;
const NAMED_NS: usize = 50;
const ROW_ALONE_NS: usize = 22;
const ROW_NS: usize = 14;

/// The state that a table would have of a key.
#[derive(Clone, Copy, Default)]
struct Known {
    hash: u64,
    first: i64,
    last: i64,
}

impl Sample {
    /// Spans are first counted in this many rows, then in one row in so many of the call, of one key in so many.
    const FIRST_ROWS: usize = 1 << 12;
    const ROWS_SHARE: usize = 16;
    const KEYS_SHARE: u64 = 16;
    /// Approximate number of spans for which a hole stays open.
    const HOLE_SPANS: usize = 10;
    /// Number of places. Keys with the same place replace each other.
    const PLACES: usize = 1 << 15;

    fn of<K: KeyColumns>(policy: &Policy, chunks: &[KeyedRows<'_, K>], rows_max: usize, keys_share: u64) -> Sample {
        let begins_anywhere = policy.first == First::Any;
        let (mut sample, mut known) = (Sample::default(), vec![Known::default(); Self::PLACES]);
        let (mut hashes, mut before) = (vec![0; Self::FIRST_ROWS], (0, 0));
        for chunk in chunks {
            let rows = chunk.seq.len().min(rows_max - sample.rows);
            for first in (0..rows).step_by(Self::FIRST_ROWS) {
                let hashes = &mut hashes[..Self::FIRST_ROWS.min(rows - first)];
                chunk.hash_keys(first, hashes);
                for (row, &hash) in (first..).zip(&*hashes) {
                    if hash % keys_share == 0 && hash != 0 {
                        let row = (hash, chunk.seq.get(row));
                        let entry = &mut known[(hash >> 32) as usize % Self::PLACES];
                        sample.count(entry, row, before == (hash, row.1.wrapping_sub(1)), begins_anywhere);
                        before = row;
                    }
                }
            }
            sample.rows += rows;
        }
        sample
    }

    /// `is_behind`: the previous row has the same key and the previous sequence number.
    fn count(&mut self, entry: &mut Known, (hash, seq): (u64, i64), is_behind: bool, begins_anywhere: bool) {
        if entry.hash != hash {
            *entry = Known { hash, first: seq, last: seq };
            self.begun += 1;
            self.jumps += usize::from(!begins_anywhere && seq > 0);
        } else if entry.last.wrapping_add(1) == seq {
            self.next += usize::from(!is_behind);
        } else if (entry.first..=entry.last).contains(&seq) {
            self.within += 1;
        } else {
            self.jumps += 1;
        }
        (entry.first, entry.last) = (entry.first.min(seq), entry.last.max(seq));
    }

    fn spans(&self) -> usize {
        self.begun + self.next + self.jumps + self.within
    }

    /// Average cost of a span in a table. Keys repeat less often among the first rows than among all.
    fn span_ns(&self) -> usize {
        let again = self.next + self.jumps;
        if again * 100 < self.spans() {
            (self.begun * BEGUN_NS + self.within * PLAIN_NS) / self.spans().max(1)
        } else {
            let with_holes = (self.jumps * Self::HOLE_SPANS).min(again);
            PLAIN_NS + (HOLES_NS - PLAIN_NS) * with_holes / again
        }
    }
}

/// Whether this module is faster than a table.
fn is_sooner<K: KeyColumns>(policy: &Policy, chunks: &[KeyedRows<'_, K>], rows: usize, has_plain_keys: bool) -> bool {
    let named_ns = if has_plain_keys { 0 } else { NAMED_NS };
    // Long spans are cheap in all cases.
    let first = Sample::of(policy, chunks, Sample::FIRST_ROWS, 1);
    let spans_share = (first.spans(), first.rows);
    let row_ns = if threads() > 1 { ROW_NS } else { ROW_ALONE_NS };
    let is_dear = |span_ns: usize| spans_share.0 * (span_ns + named_ns) > spans_share.1 * row_ns;
    if !is_dear(HOLES_NS) {
        return false;
    }
    let sample = Sample::of(policy, chunks, rows / Sample::ROWS_SHARE, Sample::KEYS_SHARE);
    // Of few keys, none may be in the sample. The first rows then decide.
    let sample = if sample.spans() == 0 { first } else { sample };
    is_dear(sample.span_ns())
}

/// Rows of one block and one chunk.
#[derive(Clone, Copy)]
struct Piece {
    chunk: usize,
    /// Their first row in the chunk, and in the block.
    first: usize,
    from: usize,
    rows: usize,
}

impl Piece {
    fn rows(&self) -> Range<usize> {
        self.first..self.first + self.rows
    }
}

/// Rows of a block by partition.
#[derive(Default)]
struct Scattered {
    /// Hashes, with the row in the block as low bits. After the search: the number, from 1 on, of the first row with
    /// the same hash, or 0 for that row itself, with the row in the block as low bits.
    items: Vec<AtomicU64>,
    /// For each partition, the end of its items.
    ends: Vec<u32>,
    others: Vec<u32>,
}

/// Buffers that a thread reuses between blocks.
#[derive(Default)]
struct Compared {
    /// For each row of the block, the number from 1 on of the first row with the same hash.
    firsts: Vec<u32>,
    /// A row of the call, and the place of the first row with the same hash.
    pairs: Vec<(usize, Place)>,
}

/// A chunk and a row in it.
type Place = (usize, usize);

/// Number of pairs of rows that are compared together. While some are compared, the memory of others is loaded.
const TOGETHER: usize = 64;

struct Search<'a, K> {
    domain: &'a Domain,
    chunks: &'a [KeyedRows<'a, K>],
    rows: usize,
    /// Each has [`BLOCK`] rows, except the last.
    blocks: Vec<Vec<Piece>>,
    partition_bits: u32,
    wrap: Option<Wrap>,
    threads: usize,
    /// If there are more [`Repeats::others`], the table judges all rows.
    others_max: usize,
}

impl<'a, K: KeyColumns> Search<'a, K> {
    fn new(policy: &Policy, domain: &'a Domain, chunks: &'a [KeyedRows<'a, K>]) -> Self {
        let (mut blocks, mut rows): (Vec<Vec<Piece>>, _) = (Vec::new(), 0);
        for (chunk, columns) in chunks.iter().enumerate() {
            let (mut first, length) = (0, columns.seq.len());
            while first < length {
                let from = rows % BLOCK;
                if from == 0 {
                    blocks.push(Vec::new());
                }
                let piece = Piece { chunk, first, from, rows: (BLOCK - from).min(length - first) };
                blocks.last_mut().expect("the first piece begins a block").push(piece);
                (first, rows) = (first + piece.rows, rows + piece.rows);
            }
        }
        let partition_bits = (rows / PARTITION).next_power_of_two().ilog2().clamp(1, PARTITION_BITS_MAX);
        let (wrap, others_max) = (policy.wrap.map(Wrap::new), rows / OTHERS_SHARE);
        Search { domain, chunks, rows, blocks, partition_bits, wrap, threads: threads(), others_max }
    }

    fn run(&self) -> Result<Option<Repeats>> {
        let others = self.wrap.map(|wrap| self.keys_beside_border(wrap)).transpose()?.flatten();
        let is_rare = |keys: &KeySet| keys.len() * OTHERS_SHARE <= KeySet::BITS;
        if !others.as_ref().is_none_or(is_rare) {
            return Ok(None);
        }
        let scatter = |hashes: &mut Vec<u64>, block: usize| self.scatter(block, others.as_ref(), hashes);
        let scattered: Vec<Result<Scattered>> = in_parallel(self.threads, self.blocks.len(), Vec::new, scatter);
        let scattered = scattered.into_iter().collect::<Result<Vec<_>>>()?;
        let others: Vec<u32> = scattered.iter().flat_map(|block| block.others.iter().copied()).collect();
        if others.len() > self.others_max {
            return Ok(None);
        }
        let search = |slots: &mut Vec<u64>, partition: usize| self.search(&scattered, partition, slots);
        let found: Vec<Result<()>> = in_parallel(self.threads, 1 << self.partition_bits, Vec::new, search);
        found.into_iter().collect::<Result<()>>()?;
        Ok(Some(Repeats { kept: self.compare_all(&scattered)?, others }))
    }

    /// One bit per row: 0 if it repeats an earlier one.
    ///
    /// Rows are compared in their order, so most values are adjacent: 4 cache misses per repeat instead of 8.
    fn compare_all(&self, scattered: &[Scattered]) -> Result<Vec<u64>> {
        let compare = |state: &mut Compared, block: usize| self.compare(&scattered[block], block, state);
        let (mut kept, mut first_of_others) = (Vec::new(), FxHashMap::<Place, Vec<Place>>::default());
        make_room(&mut kept, self.rows.div_ceil(64))?;
        let mut others = Vec::new();
        for of_block in in_parallel(self.threads, self.blocks.len(), Compared::default, compare) {
            let (words, of_block) = of_block?;
            kept.extend(words);
            others.extend(of_block);
        }
        for (row, first) in others {
            // The hashes of all rows of this identity pointed to the same row.
            let (known, place) = (first_of_others.entry(first).or_default(), self.place(row));
            if known.iter().any(|&known| self.is_same(place, known)) {
                clear_bit(&mut kept, row);
            } else {
                known.push(place);
            }
        }
        Ok(kept)
    }

    /// Like `compare_all`, for the rows of a block. Also returns the rows that only have the hash of an earlier row,
    /// with that row.
    #[expect(clippy::type_complexity, reason = "taken apart at once")]
    fn compare(
        &self,
        scattered: &Scattered,
        block: usize,
        state: &mut Compared,
    ) -> Result<(Vec<u64>, Vec<(usize, Place)>)> {
        let (rows, Compared { firsts, pairs }) = (self.rows_of(block), state);
        firsts.clear();
        make_room(firsts, rows)?;
        firsts.resize(rows, 0);
        for item in &scattered.items {
            let item = item.load(Ordering::Relaxed);
            firsts[item as usize % BLOCK] = (item >> BLOCK_BITS) as u32;
        }
        let (mut kept, mut others) = (vec![u64::MAX; rows.div_ceil(64)], Vec::new());
        let mut compare = |pairs: &mut Vec<(usize, Place)>| {
            pairs.iter().for_each(|&(_, (chunk, row))| self.chunks[chunk].prefetch(row));
            pairs.iter().for_each(|&(_, (chunk, row))| self.chunks[chunk].keys.prefetch_bytes(row));
            for (row, first) in pairs.drain(..) {
                if self.is_same(self.place(row), first) {
                    clear_bit(&mut kept, row % BLOCK);
                } else {
                    others.push((row, first));
                }
            }
        };
        for (row, &first) in (block * BLOCK..).zip(&*firsts) {
            if first != 0 {
                pairs.push((row, self.place(first as usize - 1)));
                if pairs.len() == TOGETHER {
                    compare(pairs);
                }
            }
        }
        compare(pairs);
        Ok((kept, others))
    }

    /// Keys with rows in both zones beside the border of the wrap, and possibly others.
    fn keys_beside_border(&self, wrap: Wrap) -> Result<Option<KeySet>> {
        let upper = self.keys_where(|seq| seq >= wrap.upper_zone(), &KeySet::all());
        if upper.len() == 0 {
            return Ok(None);
        }
        let both = self.keys_where(|seq| seq < wrap.border(), &upper);
        Ok((both.len() > 0).then_some(both))
    }

    /// The keys of a set that have a row with such a sequence number.
    fn keys_where(&self, is_such: impl Fn(i64) -> bool + Sync, among: &KeySet) -> KeySet {
        let find = |(): &mut (), block: usize| {
            let mut keys = KeySet::none();
            for piece in &self.blocks[block] {
                let chunk = &self.chunks[piece.chunk];
                let mut note = |at: usize| {
                    let mut hash = [0];
                    chunk.hash_keys(piece.first + at, &mut hash);
                    if hash[0] != 0 && among.has(hash[0]) {
                        keys.add(hash[0]);
                    }
                };
                match chunk.seq {
                    Seqs::I32(seq) => each_where(&seq[piece.rows()], |&seq| is_such(i64::from(seq)), &mut note),
                    Seqs::I64(seq) => each_where(&seq[piece.rows()], |&seq| is_such(seq), &mut note),
                }
            }
            keys
        };
        let mut keys = KeySet::none();
        in_parallel(self.threads, self.blocks.len(), || (), find).iter().for_each(|found| keys.unite(found));
        keys
    }

    /// Validates the rows of a block and sorts them by partition.
    fn scatter(&self, block: usize, others: Option<&KeySet>, hashes: &mut Vec<u64>) -> Result<Scattered> {
        make_room(hashes, BLOCK.saturating_sub(hashes.len()))?;
        hashes.resize(BLOCK, 0);
        let hashes = &mut hashes[..self.rows_of(block)];
        let mut scattered = Scattered::default();
        for piece in &self.blocks[block] {
            let (chunk, number) = (&self.chunks[piece.chunk], block * BLOCK + piece.from);
            self.validate(chunk, &piece.rows()).map_err(|error| error.after(number))?;
            let hashes = &mut hashes[piece.from..][..piece.rows];
            chunk.hash_keys(piece.first, hashes);
            if let Some(others) = others {
                for (hash, row) in hashes.iter_mut().zip(number as u32..) {
                    if *hash != 0 && others.has(*hash) {
                        scattered.others.push(row);
                        *hash = 0;
                    }
                }
            }
            match chunk.seq {
                Seqs::I32(seq) => fold_seqs(hashes, &seq[piece.rows()], i64::from),
                Seqs::I64(seq) => fold_seqs(hashes, &seq[piece.rows()], |seq| seq),
            }
        }
        let shift = u64::BITS - self.partition_bits;
        let mut counts = vec![0u32; 1 << self.partition_bits];
        hashes.iter().for_each(|&hash| counts[(hash >> shift) as usize] += u32::from(hash != 0));
        let mut sum = 0;
        for count in &mut counts {
            (*count, sum) = (sum, sum + *count);
        }
        make_room(&mut scattered.items, sum as usize)?;
        scattered.items.resize_with(sum as usize, AtomicU64::default);
        for (row, &hash) in (0..).zip(&*hashes) {
            let at = &mut counts[(hash >> shift) as usize];
            if hash != 0 {
                *scattered.items[*at as usize].get_mut() = hash & !(BLOCK as u64 - 1) | row;
                *at += 1;
            }
        }
        scattered.ends = counts;
        Ok(scattered)
    }

    fn validate(&self, chunk: &KeyedRows<'_, K>, rows: &Range<usize>) -> Result<()> {
        let (pid, partition) = chunk.keys.numbers(rows.clone());
        let (epoch, seq) = (chunk.epoch.map(|epoch| &epoch[rows.clone()]), chunk.seq.slice(rows.clone()));
        let batch = Batch { pid: &pid, partition: &partition, epoch, seq, timestamp: None };
        Cut::default().find(&batch, self.domain)
    }

    /// Stores with each row of a partition the first row whose hash has the same bits.
    fn search(&self, scattered: &[Scattered], partition: usize, slots: &mut Vec<u64>) -> Result<()> {
        let items_of = |block: &'_ Scattered| {
            let from = partition.checked_sub(1).map_or(0, |before| block.ends[before]);
            from as usize..block.ends[partition] as usize
        };
        let count: usize = scattered.iter().map(|block| items_of(block).len()).sum();
        let slot_bits = (count * 2).next_power_of_two().ilog2().max(1);
        slots.clear();
        make_room(slots, 1 << slot_bits)?;
        slots.resize(1 << slot_bits, 0);
        let last_slot = slots.len() - 1;
        for (from, block) in (0..).step_by(BLOCK).zip(scattered) {
            for noted in &block.items[items_of(block)] {
                // No other thread accesses the items of this partition.
                let item = noted.load(Ordering::Relaxed);
                let row_of_block = item % BLOCK as u64;
                // The bits of the hash without the row, and the number of the row, from 1 on.
                let named = item >> BLOCK_BITS << u32::BITS | (from + row_of_block + 1);
                let mut slot = (item << self.partition_bits >> (u64::BITS - slot_bits)) as usize;
                let first = loop {
                    let found = slots[slot];
                    if found == 0 {
                        slots[slot] = named;
                        break 0;
                    }
                    if (found ^ named) >> u32::BITS == 0 {
                        break found as u32;
                    }
                    slot = (slot + 1) & last_slot;
                };
                noted.store(u64::from(first) << BLOCK_BITS | row_of_block, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Number of rows of a block.
    fn rows_of(&self, block: usize) -> usize {
        BLOCK.min(self.rows - block * BLOCK)
    }

    /// The place of a row of the call.
    #[inline]
    fn place(&self, row: usize) -> Place {
        let (pieces, row) = (&self.blocks[row / BLOCK][..], row % BLOCK);
        let piece = pieces[pieces.partition_point(|piece| piece.from <= row) - 1];
        (piece.chunk, piece.first + row - piece.from)
    }

    /// Whether two rows have the same identity.
    #[inline]
    fn is_same(&self, (chunk, row): Place, (other_chunk, other_row): Place) -> bool {
        self.chunks[chunk].is_same(row, &self.chunks[other_chunk], other_row)
    }
}

/// Folds sequence numbers into the hashes of keys, except those that are 0.
#[inline(always)]
fn fold_seqs<S: Copy>(hashes: &mut [u64], seqs: &[S], wide: impl Fn(S) -> i64) {
    for (hash, &seq) in hashes.iter_mut().zip(seqs) {
        *hash = if *hash == 0 { 0 } else { fold_hash(*hash, wide(seq) as u64).max(1) };
    }
}

/// Visits the places of matching values, which are rare.
#[inline(always)]
fn each_where<T>(values: &[T], is_such: impl Fn(&T) -> bool, mut visit: impl FnMut(usize)) {
    for (number, some) in values.chunks(64).enumerate() {
        if some.iter().fold(false, |is_any, value| is_any | is_such(value)) {
            (0..some.len()).filter(|&at| is_such(&some[at])).for_each(|at| visit(number * 64 + at));
        }
    }
}

/// A set of keys by some bits of their hashes. It contains all added keys and possibly others.
struct KeySet(Box<[u64]>);

impl KeySet {
    const BITS: usize = 1 << 16;

    fn none() -> KeySet {
        KeySet(vec![0; Self::BITS / 64].into())
    }

    fn all() -> KeySet {
        KeySet(vec![u64::MAX; Self::BITS / 64].into())
    }

    fn add(&mut self, hash: u64) {
        let bit = Self::bit(hash);
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    #[inline(always)]
    fn has(&self, hash: u64) -> bool {
        let bit = Self::bit(hash);
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    fn unite(&mut self, other: &KeySet) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[inline(always)]
    fn bit(hash: u64) -> usize {
        (hash >> (u64::BITS - Self::BITS.ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PRESETS, StateTable, Untracked};

    /// Plain columns. `has_one_hash`: all keys have the same hash.
    #[derive(Clone, Default)]
    struct Columns {
        pid: Vec<i64>,
        partition: Vec<i32>,
        epoch: Vec<i16>,
        seq: Vec<i32>,
        has_one_hash: bool,
    }

    impl Columns {
        fn push(&mut self, (pid, partition, epoch, seq): (i64, i32, i16, i32)) {
            self.pid.push(pid);
            self.partition.push(partition);
            self.epoch.push(epoch);
            self.seq.push(seq);
        }

        fn of(rows: &[(i64, i32, i16, i32)]) -> Columns {
            let mut columns = Columns::default();
            rows.iter().for_each(|&row| columns.push(row));
            columns
        }

        fn epoch(&self, policy: &Policy) -> Option<&[i16]> {
            (policy.epochs != Epochs::Ignore).then_some(&self.epoch)
        }

        fn batch(&self, policy: &Policy) -> Batch<'_> {
            let (epoch, seq) = (self.epoch(policy), Seqs::I32(&self.seq));
            Batch { pid: &self.pid, partition: &self.partition, epoch, seq, timestamp: None }
        }
    }

    impl KeyColumns for Columns {
        fn hash_keys(&self, from: usize, hashes: &mut [u64]) {
            for (row, hash) in (from..).zip(hashes) {
                let key =
                    if self.has_one_hash { 7 } else { fold_hash(self.pid[row] as u64, self.partition[row] as u64) };
                *hash = if self.pid[row] == -1 { 0 } else { fold_hash(1, key).max(1) };
            }
        }

        fn is_same_key(&self, row: usize, other: &Columns, other_row: usize) -> bool {
            self.pid[row] == other.pid[other_row] && self.partition[row] == other.partition[other_row]
        }

        fn prefetch_key(&self, _: usize) {}

        fn prefetch_bytes(&self, _: usize) {}

        fn numbers(&self, rows: Range<usize>) -> (Cow<'_, [i64]>, Cow<'_, [i32]>) {
            (Cow::Borrowed(&self.pid[rows.clone()]), Cow::Borrowed(&self.partition[rows]))
        }
    }

    fn domain(policy: &Policy) -> Domain {
        Domain { seq_max: policy.seq_max(), untracked: Untracked::Keep }
    }

    /// The refused rows, and the number of rows left to a table.
    fn refused(policy: Policy, chunks: &[Columns]) -> Result<(Vec<u32>, usize)> {
        let domain = domain(&policy);
        let keyed = |keys| KeyedRows { keys, epoch: Columns::epoch(keys, &policy), seq: Seqs::I32(&keys.seq) };
        let keyed: Vec<_> = chunks.iter().map(keyed).collect();
        assert!(accepts_each_once(&policy, &keyed));
        let search = Search { others_max: usize::MAX, threads: 2, ..Search::new(&policy, &domain, &keyed) };
        let Repeats { kept, others } = search.run()?.expect("few keys");
        let count: usize = chunks.iter().map(|chunk| chunk.pid.len()).sum();
        assert_eq!(kept.len(), count.div_ceil(64));
        let mut refused: Vec<_> =
            (0..count as u32).filter(|&row| kept[row as usize / 64] >> (row % 64) & 1 == 0).collect();
        let mut rows = Columns::default();
        let all = chunks.iter().flat_map(|it| (0..it.pid.len()).map(move |row| (it, row)));
        let mut others_left = others.iter().copied().peekable();
        for (number, (chunk, row)) in (0..).zip(all) {
            if others_left.next_if_eq(&number).is_some() {
                rows.push((chunk.pid[row], chunk.partition[row], chunk.epoch[row], chunk.seq[row]));
            }
        }
        let judged = StateTable::new(policy)?.apply(&[rows.batch(&policy)])?;
        let is_refused = |&(_, &verdict): &(&u32, &u8)| verdict != 0 && verdict != 6;
        refused.extend(others.iter().zip(&judged.verdicts).filter(is_refused).map(|(&row, _)| row));
        refused.sort_unstable();
        Ok((refused, others.len()))
    }

    fn refused_by_table(policy: Policy, chunks: &[Columns]) -> Result<Vec<u32>> {
        let batches: Vec<_> = chunks.iter().map(|chunk| chunk.batch(&policy)).collect();
        let judged = StateTable::new(policy)?.apply(&batches)?;
        Ok((0..).zip(&judged.verdicts).filter(|&(_, &it)| it != 0 && it != 6).map(|(row, _)| row).collect())
    }

    fn policies() -> Vec<Policy> {
        let any_order = Policy::preset("any_order").expect("a preset");
        vec![
            Policy { wrap: Some(4), ..any_order },
            Policy { wrap: Some(4), first: First::Zero, ..any_order },
            Policy { wrap: None, ..any_order },
            Policy { wrap: Some(4), epochs: Epochs::Ignore, ..any_order },
        ]
    }

    #[test]
    fn every_short_stream_is_judged_as_by_a_table() {
        let rows =
            [(1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 0, 3), (1, 0, 1, 3), (2, 0, 0, 3), (1, 1, 0, 0), (-1, -7, -7, -7)];
        let (mut left, mut found) = (0, 0);
        for number in 0..rows.len().pow(5) {
            let stream: Vec<_> = (0..5).map(|at| rows[number / rows.len().pow(at) % rows.len()]).collect();
            let (first, last) = stream.split_at(number % 5);
            let chunks = [Columns::of(first), Columns::of(last)];
            let policy = policies()[number % 4];
            let (refused, others) = refused(policy, &chunks).expect("valid rows");
            assert_eq!(Ok(&refused), refused_by_table(policy, &chunks).as_ref(), "{stream:?} {policy:?}");
            left += usize::from(others > 0);
            found += refused.len();
        }
        assert!(left > 1000 && found > 5000, "{left} {found}");
    }

    /// Many rows, around both borders of the wrap, in chunks of several sizes: some chunks have several blocks, and
    /// some blocks have several chunks.
    #[test]
    fn long_streams_are_judged_as_by_a_table() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        for (keys, seqs, has_one_hash) in [(3, 40_000, false), (5_000, 40, false), (40, 20, true)] {
            let lengths = [BLOCK * 3 / 2, 1, BLOCK, 0, 9_000, 100, 70];
            let mut chunks = vec![Columns { has_one_hash, ..Columns::default() }; lengths.len()];
            for (chunk, rows) in chunks.iter_mut().zip(lengths) {
                for _ in 0..if has_one_hash { rows / 64 } else { rows } {
                    let pid = random(keys) as i64;
                    let seq = random(seqs) as i32;
                    let seq = if pid % 50 == 1 && seq % 2 == 0 { i32::MAX - seq } else { seq };
                    chunk.push((pid - 1, random(2) as i32, random(2) as i16, seq));
                }
            }
            for policy in [policies()[2], Policy { wrap: Some(1 << 31), ..policies()[0] }] {
                let (found, others) = refused(policy, &chunks).expect("valid rows");
                assert!(found == refused_by_table(policy, &chunks).expect("valid rows"), "{keys} {policy:?}");
                assert!(found.len() > 100 && (others > 0) == policy.wrap.is_some(), "{} {others}", found.len());
            }
        }
    }

    #[test]
    fn the_first_bad_row_is_named_as_a_table_names_it() {
        let policy = policies()[2];
        for (chunk, row, bad) in
            [(0, BLOCK + 3, (5, 0, 0, -1)), (1, 3, (5, 0, -1, 0)), (1, 0, (5, -1, 0, 0)), (1, 1, (-2, 0, 0, 0))]
        {
            let good = Columns::of(&vec![(1, 0, 0, 5); BLOCK * 2]);
            let mut chunks = [good.clone(), good];
            for (chunk, row) in [(chunk, row), (1, BLOCK + 9)] {
                let to = &mut chunks[chunk];
                (to.pid[row], to.partition[row], to.epoch[row], to.seq[row]) = bad;
            }
            let error = refused(policy, &chunks).expect_err("a bad row");
            assert_eq!(Some(error), refused_by_table(policy, &chunks).err());
        }
    }

    #[test]
    fn only_policies_that_accept_each_position_once_are_judged_here() {
        let columns = Columns::of(&[(1, 0, 0, 0)]);
        let accepts = |policy: Policy| {
            let rows = KeyedRows { keys: &columns, epoch: columns.epoch(&policy), seq: Seqs::I32(&columns.seq) };
            accepts_each_once(&policy, &[rows])
        };
        let accepted: Vec<_> = PRESETS.iter().filter(|it| accepts(it.policy)).map(|it| it.name).collect();
        assert_eq!(accepted, ["any_order", "kafka_offsets"]);
        let any_order = policies()[2];
        for policy in [
            Policy { max_jump: Some(9), ..any_order },
            Policy { reach: Some(9), ..any_order },
            Policy { intervals_max: Some(9), ..any_order },
            Policy { epochs: Epochs::Fence, ..any_order },
        ] {
            assert!(!accepts(policy), "{policy:?}");
        }
    }

    #[test]
    fn rows_that_a_table_judges_sooner_are_left_to_it() {
        let policy = policies()[2];
        let is_left = |row: &dyn Fn(i64) -> (i64, i32, i16, i32)| {
            let columns = Columns::of(&(0..ROWS_MIN as i64).map(row).collect::<Vec<_>>());
            let rows = KeyedRows { keys: &columns, epoch: columns.epoch(&policy), seq: Seqs::I32(&columns.seq) };
            find_repeats(&policy, &domain(&policy), &[rows], true).expect("valid rows").is_none()
        };
        assert!(is_left(&|row| (row % 5000, 0, 0, (row / 5000) as i32)));
        assert!(is_left(&|row| (row / 20 % 5000, 0, 0, (row / 100_000 * 40 + row % 20) as i32)));
        assert!(!is_left(&|row| (row % 5000, 0, 0, (row / 5000 * 3) as i32)));
        assert!(!is_left(&|row| (row, 0, 0, 0)));
        assert!(!is_left(&|row| (row % 5000, 0, 0, 1000 - (row / 5000) as i32)));
    }

    /// Of few keys, none may be in the sample of keys.
    #[test]
    fn rows_of_any_single_key_can_be_judged() {
        let policy = policies()[2];
        for pid in 0..40 {
            let rows: Vec<_> = (0..ROWS_MIN as i32).map(|row| (pid, 0, 0, row ^ 1)).collect();
            let columns = Columns::of(&rows);
            let rows = KeyedRows { keys: &columns, epoch: columns.epoch(&policy), seq: Seqs::I32(&columns.seq) };
            let found = find_repeats(&policy, &domain(&policy), &[rows], true).expect("valid rows");
            let found = found.expect("most rows are spans that open or fill a hole");
            assert!(found.others.is_empty() && found.kept.iter().all(|&word| word == u64::MAX));
        }
    }
}
