//! Blocks by position.

use super::block::Block;
use crate::prefetch::prefetch;
use std::collections::VecDeque;

/// Blocks, lowest first. Each range is in one block: the last whose key is not above the range's first position.
///
/// Blocks are empty only during a change.
#[derive(Clone, Debug, Default)]
pub(super) enum Directory {
    #[default]
    Empty,
    /// Stored in the entry itself: most entries have only one block, and memory elsewhere would be another cache miss.
    One(Block),
    Many(Box<Many>),
}

/// A deque, because blocks are added at the end and removed at the front.
#[derive(Clone, Debug)]
pub(super) struct Many {
    blocks: VecDeque<Block>,
    /// Number of ranges in all blocks.
    ranges: usize,
}

impl Directory {
    /// Number of ranges.
    pub(super) fn ranges(&self) -> usize {
        match self {
            Directory::Empty => 0,
            Directory::One(block) => block.len(),
            Directory::Many(many) => many.ranges,
        }
    }

    fn count(&self) -> usize {
        match self {
            Directory::Empty => 0,
            Directory::One(_) => 1,
            Directory::Many(many) => many.blocks.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&Block> {
        match self {
            Directory::Empty => None,
            Directory::One(block) => (index == 0).then_some(block),
            Directory::Many(many) => many.blocks.get(index),
        }
    }

    /// Number of blocks whose key is not above a position. The last of them contains the position's range, if there is
    /// one.
    #[inline]
    pub(super) fn count_up_to(&self, position: i64) -> usize {
        match self {
            Directory::Empty => 0,
            Directory::One(block) => usize::from(block.key() <= position),
            Directory::Many(many) => match many.blocks.back() {
                Some(last) if last.key() <= position => many.blocks.len(),
                _ => many.blocks.partition_point(|block| block.key() <= position),
            },
        }
    }

    /// Prefetches the memory that a search for a position reads first. `last`: the approximate end of the ranges.
    #[inline(always)]
    pub(super) fn prefetch(&self, position: i64, last: i64) {
        match self {
            Directory::Empty => {}
            Directory::One(block) => block.prefetch(position, last),
            Directory::Many(many) => prefetch(&raw const **many),
        }
    }

    /// Bytes of memory outside the struct.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Directory::Empty => 0,
            Directory::One(block) => block.memory_bytes(),
            Directory::Many(many) => {
                let blocks: usize = many.blocks.iter().map(Block::memory_bytes).sum();
                size_of::<Many>() + many.blocks.capacity() * size_of::<Block>() + blocks
            }
        }
    }

    /// Changes a block that exists.
    #[inline]
    pub(super) fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut Block) -> R) -> R {
        match self {
            Directory::One(block) if index == 0 => change(block),
            Directory::Many(many) => {
                let block = &mut many.blocks[index];
                let before = block.len();
                let changed = change(block);
                many.ranges = many.ranges - before + block.len();
                changed
            }
            _ => unreachable!("only blocks that exist are changed"),
        }
    }

    /// Inserts a block before this index.
    pub(super) fn insert(&mut self, index: usize, block: Block) {
        *self = match std::mem::take(self) {
            Directory::Empty => Directory::One(block),
            Directory::One(only) => {
                let ranges = only.len() + block.len();
                let mut blocks = VecDeque::with_capacity(2);
                blocks.push_back(only);
                blocks.insert(index, block);
                Directory::Many(Box::new(Many { blocks, ranges }))
            }
            Directory::Many(mut many) => {
                many.ranges += block.len();
                many.blocks.insert(index, block);
                Directory::Many(many)
            }
        };
    }

    /// Cleans up after a change of some blocks: removes empty ones, which are adjacent, and converts the first to bits
    /// or splits it if it is full. Only cutting a range in two can have made it full.
    #[inline]
    pub(super) fn settle(&mut self, from: usize, to: usize) {
        let is_settled = |block: &Block| block.len() > 0 && !block.is_full();
        if from == to && self.get(from).is_some_and(is_settled) {
            return;
        }
        self.drop_empty(from, to + 1);
        if self.get(from).is_some_and(Block::is_full) {
            self.settle_full(from);
        }
    }

    fn settle_full(&mut self, mut index: usize) {
        while !self.pack(index) && self.get(index).is_some_and(Block::is_overfull) {
            let upper = self.change(index, Block::split);
            self.insert(index + 1, upper);
            let above = self.count() - (index + 1);
            self.pack(index);
            index = self.count() - above;
        }
    }

    /// Converts a block to bits if that saves memory, and merges it with adjacent bits.
    fn pack(&mut self, index: usize) -> bool {
        let is_packed = self.change(index, Block::pack);
        if is_packed {
            self.absorb_next(index);
            if index > 0 {
                self.absorb_next(index - 1);
            }
        }
        is_packed
    }

    /// Merges a block and the next one if both are bits and fit into one.
    fn absorb_next(&mut self, index: usize) {
        let Directory::Many(many) = self else { return };
        if !many.blocks.get(index + 1).is_some_and(|next| many.blocks[index].can_absorb(next)) {
            return;
        }
        if let Some(next) = many.blocks.remove(index + 1) {
            many.blocks[index].absorb(&next);
        }
    }

    fn drop_empty(&mut self, from: usize, to: usize) {
        let is_empty = |index: &usize| self.get(*index).is_some_and(|block| block.len() == 0);
        let Some(first) = (from..to).find(is_empty) else { return };
        let count = (first..to).take_while(is_empty).count();
        self.drop_blocks(|blocks| drop(blocks.drain(first..first + count)));
    }

    /// Removes all empty blocks.
    pub(super) fn drop_all_empty(&mut self) {
        self.drop_blocks(|blocks| blocks.retain(|block| block.len() > 0));
    }

    fn drop_blocks(&mut self, drop_from: impl FnOnce(&mut VecDeque<Block>)) {
        match self {
            Directory::One(block) if block.len() > 0 => {}
            Directory::Many(many) => {
                drop_from(&mut many.blocks);
                if many.blocks.is_empty() {
                    *self = Directory::Empty;
                } else if many.blocks.len() * 4 <= many.blocks.capacity() {
                    many.blocks.shrink_to(many.blocks.len() * 2);
                }
            }
            _ => *self = Directory::Empty,
        }
    }
}
