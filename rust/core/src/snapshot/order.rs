//! The order of a snapshot's entries. It follows from their keys alone, whatever the table's layout
//! and history, and producers lie scattered in it as they do in the table's memory.
//!
//! A block is [`BLOCK`] neighbouring partitions of one producer. Blocks are ordered by a hash, then by
//! pid and number; in a block by partition, and the entries of one key by epoch, the newest first.
//!
//! Sorted by pid they would compress no better, for a producer's entries lie together either way. But
//! a table would have to be sorted whole, where a range of hashes is known without looking at the rest.

use crate::keys::{Dictionary, Keys};

/// Partitions of a block: a multiple of 1 to 8, 10, 12, 14, 15 and 16, so that no line of as many
/// partitions lies in two.
pub(crate) const BLOCK: u32 = 1680;

/// Bits of a place that say where in its block a partition lies.
const OFFSET_BITS: u32 = 11;

const _: () = assert!(BLOCK <= 1 << OFFSET_BITS);

/// The hash by which blocks are ordered: 53 bits. Fixed with the format.
///
/// Not the one by which lines are found: a table that is filled in the order of its own hash is full at
/// its beginning and empty behind.
#[inline]
pub(crate) fn block_hash(pid: i64, block: u32) -> u64 {
    fold(pid as u64 ^ 0x2d35_8dcc_aa6c_78a5, fold(u64::from(block) ^ 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3))
        >> OFFSET_BITS
}

/// The two halves of a 128-bit product, one laid over the other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Where a key lies among all keys: the hash of its block, then the offset in it. Different keys may
/// share a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

impl Place {
    #[inline]
    pub(crate) fn of(pid: i64, partition: i32) -> Place {
        let partition = partition as u32;
        Place(block_hash(pid, partition / BLOCK) << OFFSET_BITS | u64::from(partition % BLOCK))
    }

    /// The hash of the block. Blocks may share it.
    #[inline]
    pub(crate) fn block(self) -> u64 {
        self.0 >> OFFSET_BITS
    }

    /// Which of so many equal parts of the whole it lies in.
    #[inline]
    pub(crate) fn part(self, parts: u64) -> u64 {
        ((u128::from(self.0) * u128::from(parts)) >> 64) as u64
    }
}

/// The keys of one dictionary that are in use, numbered anew.
///
/// A table numbers keys as they came; a snapshot those in use, in the order of their bytes.
pub(crate) struct Numbering {
    /// The table's numbers, in the order of their keys.
    pub(crate) sorted: Vec<u32>,
    /// The snapshot's number for each of the table's.
    ranks: Vec<u32>,
}

impl Numbering {
    fn new(dictionary: &Dictionary, used: &[bool]) -> Numbering {
        let mut sorted: Vec<u32> = (0..dictionary.len() as u32).filter(|&number| used[number as usize]).collect();
        sorted.sort_unstable_by_key(|&number| dictionary.bytes(number));
        let mut ranks = vec![0; dictionary.len()];
        sorted.iter().enumerate().for_each(|(rank, &number)| ranks[number as usize] = rank as u32);
        Numbering { sorted, ranks }
    }
}

/// How keys are numbered in a snapshot; `None` for plain integers, which are themselves.
#[derive(Default)]
pub(crate) struct Renumbering {
    pub(crate) pid: Option<Numbering>,
    pub(crate) partition: Option<Numbering>,
}

impl Renumbering {
    /// `tell_used` is given a function to call with every key in use.
    pub(crate) fn new(keys: &Keys, tell_used: impl FnOnce(&mut dyn FnMut(i64, i32))) -> Renumbering {
        let (pids, partitions) = (&keys.pid.dictionary, &keys.partition.dictionary);
        if pids.is_empty() && partitions.is_empty() {
            return Renumbering::default();
        }
        let (mut pid_used, mut partition_used) = (vec![false; pids.len()], vec![false; partitions.len()]);
        tell_used(&mut |pid, partition| {
            if let Some(used) = pid_used.get_mut(pid as usize) {
                *used = true;
            }
            if let Some(used) = partition_used.get_mut(partition as usize) {
                *used = true;
            }
        });
        let of =
            |dictionary: &Dictionary, used: &[bool]| (!dictionary.is_empty()).then(|| Numbering::new(dictionary, used));
        Renumbering { pid: of(pids, &pid_used), partition: of(partitions, &partition_used) }
    }

    /// Whether neighbouring partitions of the table are neighbours in the snapshot.
    #[inline]
    pub(crate) fn keeps_partitions(&self) -> bool {
        self.partition.is_none()
    }

    /// A key of the table in the snapshot's numbers.
    #[inline]
    pub(crate) fn key(&self, pid: i64, partition: i32) -> (i64, i32) {
        (
            self.pid.as_ref().map_or(pid, |pids| i64::from(pids.ranks[pid as usize])),
            self.partition.as_ref().map_or(partition, |partitions| partitions.ranks[partition as usize] as i32),
        )
    }

    /// The key of the table that has these numbers in the snapshot.
    pub(crate) fn key_before(&self, pid: i64, partition: i32) -> (i64, i32) {
        (
            self.pid.as_ref().map_or(pid, |pids| i64::from(pids.sorted[pid as usize])),
            self.partition.as_ref().map_or(partition, |partitions| partitions.sorted[partition as usize] as i32),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that docs/snapshot-format.md gives: another hash would be another format.
    #[test]
    fn the_hash_is_the_documented_one() {
        let hashes = [(0, 0), (1, 0), (0, 1), (i64::MAX, (1 << 31) / BLOCK)].map(|(pid, block)| block_hash(pid, block));
        assert_eq!(hashes, [7350478819269733, 5161298321157725, 426151648868292, 8484614083581216]);
    }

    #[test]
    fn places_have_the_order_of_blocks() {
        let places = [(1, 0), (1, 1), (1, 1679)].map(|(pid, partition)| Place::of(pid, partition));
        assert!(places.is_sorted_by(|a, b| a < b) && places.iter().all(|place| place.block() == places[0].block()));
        assert!(Place::of(1, 1680).block() != places[0].block());
        assert!((0..1000).all(|pid| Place::of(pid, 0).part(7) < 7));
    }
}
