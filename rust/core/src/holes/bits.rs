//! Positions in a bitmap. Bit 0 is the block's base, and a range is a run of ones.

use crate::prefetch::prefetch;

pub(super) const WORD_BITS: usize = u64::BITS as usize;

/// Ends of a run as offsets from the base, both included.
pub(super) type Offsets = (usize, usize);

#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Words,
    /// Number of runs of ones.
    runs: u32,
}

/// Maximum number of words that are stored in the block itself.
pub(super) const FEW: usize = 5;

#[derive(Clone, Debug)]
enum Words {
    Few([u64; FEW]),
    Many(Vec<u64>),
}

impl Words {
    #[inline]
    fn all(&self) -> &[u64] {
        match self {
            Words::Few(words) => words,
            Words::Many(words) => words,
        }
    }

    #[inline]
    fn all_mut(&mut self) -> &mut [u64] {
        match self {
            Words::Few(words) => words,
            Words::Many(words) => words,
        }
    }
}

impl Bits {
    pub(super) fn with_words(words: usize) -> Bits {
        let words = if words <= FEW { Words::Few([0; FEW]) } else { Words::Many(vec![0; words]) };
        Bits { words, runs: 0 }
    }

    /// One run, in words stored in the block itself.
    #[inline(always)]
    pub(super) fn of_few(run: Offsets) -> Bits {
        let mut bits = Bits { words: Words::Few([0; FEW]), runs: 0 };
        bits.append(run);
        bits
    }

    /// Whether the words are stored in the block itself.
    #[inline]
    pub(super) fn is_few(&self) -> bool {
        matches!(self.words, Words::Few(_))
    }

    pub(super) fn runs(&self) -> usize {
        self.runs as usize
    }

    /// Number of used words.
    #[inline]
    pub(super) fn words(&self) -> usize {
        match &self.words {
            Words::Few(words) => words.iter().rposition(|&word| word != 0).map_or(0, |highest| highest + 1),
            Words::Many(words) => words.len(),
        }
    }

    /// Offsets below this have a bit.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.words.all().len() * WORD_BITS
    }

    /// Prefetches the word of an offset.
    #[inline(always)]
    pub(super) fn prefetch(&self, offset: usize) {
        if let Words::Many(words) = &self.words {
            prefetch(words.as_ptr().wrapping_add(offset / WORD_BITS));
        }
    }

    /// Bytes of memory outside the struct.
    pub(super) fn memory_bytes(&self) -> usize {
        match &self.words {
            Words::Few(_) => 0,
            Words::Many(words) => words.capacity() * size_of::<u64>(),
        }
    }

    /// The run that contains an offset.
    pub(super) fn run_at(&self, offset: usize) -> Option<Offsets> {
        self.has(offset).then(|| (self.run_first(offset), self.run_last(offset)))
    }

    /// The first run that begins at or above an offset.
    pub(super) fn run_from(&self, offset: usize) -> Option<Offsets> {
        let first = self.next(offset, 0)?;
        Some((first, self.run_last(first)))
    }

    /// Visits every run, lowest first: in a third of the time of searching for the next one again and again.
    pub(super) fn for_each(&self, mut visit: impl FnMut(Offsets)) {
        let (mut begun, mut highest_before) = (None, 0);
        for (number, &word) in self.words.all().iter().enumerate() {
            let mut edges = word ^ (word << 1 | highest_before);
            highest_before = word >> (WORD_BITS - 1);
            while edges != 0 {
                let offset = number * WORD_BITS + edges.trailing_zeros() as usize;
                edges &= edges - 1;
                match begun.take() {
                    None => begun = Some(offset),
                    Some(first) => visit((first, offset - 1)),
                }
            }
        }
        if let Some(first) = begun {
            visit((first, self.end() - 1));
        }
    }

    /// The highest set bit.
    pub(super) fn highest(&self) -> Option<usize> {
        let (number, word) = self.words.all().iter().enumerate().rfind(|&(_, &word)| word != 0)?;
        Some(number * WORD_BITS + word.ilog2() as usize)
    }

    /// Sets bits and joins them with adjacent runs.
    pub(super) fn set(&mut self, (first, last): Offsets) {
        let touched = u32::from(first > 0 && self.has(first - 1)) + u32::from(self.has(last + 1));
        self.runs = self.runs + 1 - touched;
        self.for_each_mask((first, last), |word, mask| *word |= mask);
    }

    /// Sets bits that are above all runs and not adjacent to one.
    #[inline(always)]
    pub(super) fn append(&mut self, (first, last): Offsets) {
        debug_assert!(self.highest().is_none_or(|highest| highest + 1 < first));
        self.runs += 1;
        self.for_each_mask((first, last), |word, mask| *word |= mask);
    }

    /// Clears and returns the lowest part that is in `first..=last`.
    #[inline]
    pub(super) fn take(&mut self, (first, last): Offsets) -> Option<Offsets> {
        let piece_first = self.next_within(first, last, 0).filter(|&it| it <= last)?;
        let piece_last = self.run_last(piece_first).min(last);
        let left = u32::from(piece_first > 0 && self.has(piece_first - 1)) + u32::from(self.has(piece_last + 1));
        self.runs = self.runs + left - 1;
        self.for_each_mask((piece_first, piece_last), |word, mask| *word &= !mask);
        Some((piece_first, piece_last))
    }

    /// Clears a bit that is set. Returns by how much the number of runs has changed.
    #[inline]
    pub(super) fn clear(&mut self, offset: usize) -> isize {
        let beside = u32::from(offset > 0 && self.has(offset - 1)) + u32::from(self.has(offset + 1));
        self.runs = self.runs + beside - 1;
        self.words.all_mut()[offset / WORD_BITS] &= !(1 << (offset % WORD_BITS));
        beside as isize - 1
    }

    /// Adds words of zeros below the base and above the end, with capacity for as many again up to `words_max`.
    pub(super) fn grow(&mut self, below: usize, above: usize, words_max: usize) {
        let used = self.words();
        let count = used + below + above;
        if let Words::Few(words) = &mut self.words {
            if count <= FEW {
                return words.rotate_right(below);
            }
            self.words = Words::Many(words[..used].to_vec());
        }
        let Words::Many(words) = &mut self.words else { return };
        if count > words.capacity() {
            words.reserve_exact(count.next_power_of_two().min(words_max) - used);
        }
        if below > 0 {
            words.splice(0..0, std::iter::repeat_n(0, below));
        }
        words.resize(count, 0);
    }

    /// Removes the lowest words, which are zeros.
    pub(super) fn cut_below(&mut self, count: usize) {
        match &mut self.words {
            Words::Few(words) => words.rotate_left(count),
            Words::Many(words) => drop(words.drain(..count)),
        }
    }

    #[inline]
    pub(super) fn has(&self, offset: usize) -> bool {
        self.words.all().get(offset / WORD_BITS).is_some_and(|word| word >> (offset % WORD_BITS) & 1 == 1)
    }

    /// The first one from an offset on if `flip` is 0, or the first zero if `flip` is all ones.
    #[inline]
    fn next(&self, offset: usize, flip: u64) -> Option<usize> {
        self.next_within(offset, self.end() - 1, flip)
    }

    /// Like `next`, up to the word of an offset.
    #[inline]
    fn next_within(&self, offset: usize, last: usize, flip: u64) -> Option<usize> {
        let from = offset / WORD_BITS;
        let mut mask = u64::MAX << (offset % WORD_BITS);
        for (number, &word) in self.words.all()[..=last / WORD_BITS].iter().enumerate().skip(from) {
            let found = (word ^ flip) & mask;
            if found != 0 {
                return Some(number * WORD_BITS + found.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    fn run_last(&self, offset: usize) -> usize {
        self.next(offset, u64::MAX).unwrap_or(self.end()) - 1
    }

    fn run_first(&self, offset: usize) -> usize {
        let from = offset / WORD_BITS;
        let mut mask = u64::MAX >> (WORD_BITS - 1 - offset % WORD_BITS);
        for (number, &word) in self.words.all()[..=from].iter().enumerate().rev() {
            let zeros = !word & mask;
            if zeros != 0 {
                return number * WORD_BITS + WORD_BITS - zeros.leading_zeros() as usize;
            }
            mask = u64::MAX;
        }
        0
    }

    #[inline(always)]
    fn for_each_mask(&mut self, (first, last): Offsets, mut change: impl FnMut(&mut u64, u64)) {
        let words = self.words.all_mut();
        let (first_word, last_word) = (first / WORD_BITS, last / WORD_BITS);
        let (from, to) = (u64::MAX << (first % WORD_BITS), u64::MAX >> (WORD_BITS - 1 - last % WORD_BITS));
        if first_word == last_word {
            return change(&mut words[first_word], from & to);
        }
        change(&mut words[first_word], from);
        words[first_word + 1..last_word].iter_mut().for_each(|word| change(word, u64::MAX));
        change(&mut words[last_word], to);
    }
}
