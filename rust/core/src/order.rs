//! The order of the entries of a snapshot. It depends only on their keys, and it is the order of the table's segments.
//!
//! A block has 24 neighbouring partitions of one producer. Blocks are ordered by the hash that chooses their segment,
//! then by pid and partition. The entries of one key are ordered by epoch, the newest first.
//!
//! Sorting by pid would not compress better, because the entries of a producer are together in both orders. But it
//! would require sorting the whole table, while a segment is a range of hashes that fits into the cache.

use crate::dictionary::Dictionary;
use crate::keys::Keys;

/// The used keys of a dictionary, renumbered.
///
/// A table numbers keys as they come. A snapshot numbers only the used ones, in the order of their bytes.
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

/// The numbers of keys in a snapshot. `None` for plain integers, which are not renumbered.
#[derive(Default)]
pub(crate) struct Renumbering {
    pub(crate) pid: Option<Numbering>,
    pub(crate) partition: Option<Numbering>,
}

impl Renumbering {
    /// `visit_used` receives a function, which it calls with every used key.
    pub(crate) fn new(keys: &Keys, visit_used: impl FnOnce(&mut dyn FnMut(i64, i32))) -> Renumbering {
        let (pids, partitions) = (&keys.pid.dictionary, &keys.partition.dictionary);
        if pids.is_empty() && partitions.is_empty() {
            return Renumbering::default();
        }
        let (mut pid_used, mut partition_used) = (vec![false; pids.len()], vec![false; partitions.len()]);
        visit_used(&mut |pid, partition| {
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

    /// Whether keys, and so the order, are the same as in the table.
    pub(crate) fn is_none(&self) -> bool {
        self.pid.is_none() && self.partition.is_none()
    }

    /// Whether neighbouring partitions of the table are neighbours in the snapshot.
    #[inline]
    pub(crate) fn keeps_partitions(&self) -> bool {
        self.partition.is_none()
    }

    /// Whether the table still knows the pid of a line. If all its entries are gone, the number may be unused.
    #[inline]
    pub(crate) fn has_pid(&self, pid: i64) -> bool {
        self.pid.as_ref().is_none_or(|pids| (pid as usize) < pids.ranks.len())
    }

    /// The numbers in the snapshot of a key of the table.
    #[inline]
    pub(crate) fn key(&self, pid: i64, partition: i32) -> (i64, i32) {
        (
            self.pid.as_ref().map_or(pid, |pids| i64::from(pids.ranks[pid as usize])),
            self.partition.as_ref().map_or(partition, |partitions| partitions.ranks[partition as usize] as i32),
        )
    }

    /// The key of the table with these numbers in the snapshot.
    pub(crate) fn key_before(&self, pid: i64, partition: i32) -> (i64, i32) {
        (
            self.pid.as_ref().map_or(pid, |pids| i64::from(pids.sorted[pid as usize])),
            self.partition.as_ref().map_or(partition, |partitions| partitions.sorted[partition as usize] as i32),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::key_block::{BLOCK_PARTITIONS, block_hash};

    /// The values in docs/snapshot-format.md. Another hash would be another format.
    #[test]
    fn the_hash_is_the_documented_one() {
        let keys = [(0, 0), (0, 23), (1, 0), (0, 24), (i64::MAX, i32::MAX)];
        let hashes = keys.map(|(pid, partition)| block_hash(pid, partition));
        assert_eq!(hashes, [0, 0, 12258477386215270768, 6021364756257714285, 11722009143857118349]);
        assert_eq!(BLOCK_PARTITIONS, 24);
    }
}
