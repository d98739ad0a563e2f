//! Blocks of keys: 24 neighbouring partitions of a producer, which lie in the same segment.

/// Partitions of a block: a multiple of every line's slots. Fixed with the format of snapshots.
pub(crate) const BLOCK_PARTITIONS: u32 = 24;

/// The hash of a block. Its high bits choose the segment, whatever the layout of lines. Fixed with the format of
/// snapshots, which are in its order. Multiplications keep to 64 bits, so that a processor can do several at once.
#[inline]
pub(crate) fn block_hash(pid: i64, partition: i32) -> u64 {
    let block = u64::from(partition as u32 / BLOCK_PARTITIONS).wrapping_mul(0xe703_7ed1_a0b4_28db);
    let mixed = folded((pid as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(block));
    folded(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

/// Combines the high half with the low one.
#[inline]
pub(crate) fn folded(value: u64) -> u64 {
    value ^ value >> 32
}
