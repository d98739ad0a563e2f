//! Blocks of keys: 24 neighbouring partitions of a producer, which are in the same segment.

/// Number of partitions of a block. It is a multiple of the slots of every kind of line, and part of the snapshot
/// format.
pub(crate) const BLOCK_PARTITIONS: u32 = 24;

/// The hash of a block. Its high bits choose the segment, whatever the layout of lines. It is part of the snapshot
/// format, whose entries are in its order. Multiplications stay within 64 bits, so a processor can do several at once.
#[inline]
pub(crate) fn block_hash(pid: i64, partition: i32) -> u64 {
    let block = u64::from(partition as u32 / BLOCK_PARTITIONS).wrapping_mul(0xe703_7ed1_a0b4_28db);
    let mixed = folded((pid as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(block));
    folded(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

/// Combines the high half with the low half.
#[inline]
pub(crate) fn folded(value: u64) -> u64 {
    value ^ value >> 32
}
