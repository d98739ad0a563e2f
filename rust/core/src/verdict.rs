use crate::dispatch::{Work, dispatch};
use crate::spans::{BLOCK, pack};

/// The outcome for one row. Its codes are the same in all APIs and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Verdict {
    /// New: kept.
    Accepted = 0,
    /// Already accepted: not kept.
    Duplicate = 1,
    /// Neither new nor known under this policy: not kept.
    OutOfOrder = 2,
    /// Of an epoch that a higher one has fenced: not kept.
    Fenced = 3,
    /// A transaction in a state that does not allow it (produce batches only).
    InvalidTxnState = 4,
    /// A marker of a former coordinator (produce batches only).
    CoordinatorFenced = 5,
    /// Has no producer identity: not judged, kept.
    Untracked = 6,
    /// Older than the state: not kept, written to `_rejects`.
    Forgotten = 7,
}

impl Verdict {
    /// Number of verdicts.
    pub const COUNT: usize = 8;

    /// Every verdict, in the order of its code.
    pub const ALL: [Verdict; Self::COUNT] = [
        Verdict::Accepted,
        Verdict::Duplicate,
        Verdict::OutOfOrder,
        Verdict::Fenced,
        Verdict::InvalidTxnState,
        Verdict::CoordinatorFenced,
        Verdict::Untracked,
        Verdict::Forgotten,
    ];

    /// The name in all APIs.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Accepted => "ACCEPTED",
            Verdict::Duplicate => "DUPLICATE",
            Verdict::OutOfOrder => "OUT_OF_ORDER",
            Verdict::Fenced => "FENCED",
            Verdict::InvalidTxnState => "INVALID_TXN_STATE",
            Verdict::CoordinatorFenced => "COORDINATOR_FENCED",
            Verdict::Untracked => "UNTRACKED",
            Verdict::Forgotten => "FORGOTTEN",
        }
    }

    /// Whether rows with this verdict are part of the output.
    pub fn is_kept(self) -> bool {
        matches!(self, Verdict::Accepted | Verdict::Untracked)
    }
}

/// Returns which rows are kept, by the codes of their verdicts: one bit per row, lowest first.
pub fn kept_bits(verdicts: &[u8]) -> Vec<u64> {
    dispatch(Kept(verdicts))
}

struct Kept<'a>(&'a [u8]);

impl Work for Kept<'_> {
    type Done = Vec<u64>;
    const IS_WIDE: bool = true;

    #[inline(always)]
    fn work(self) -> Vec<u64> {
        let word = |codes: &[u8; BLOCK]| pack(&codes.map(|code| u8::from(is_kept(code))));
        let (blocks, rest) = self.0.as_chunks();
        let mut words = Vec::with_capacity(self.0.len().div_ceil(BLOCK));
        words.extend(blocks.iter().map(word));
        if !rest.is_empty() {
            let mut block = [Verdict::Duplicate as u8; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            words.push(word(&block));
        }
        words
    }
}

#[inline(always)]
fn is_kept(code: u8) -> bool {
    code == Verdict::Accepted as u8 || code == Verdict::Untracked as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_bits_match_the_verdicts() {
        let codes: Vec<u8> = (0..200u32).map(|row| (row * row % 11 % 8) as u8).collect();
        for rows in [0, 1, 63, 64, 65, 128, 200] {
            let words = kept_bits(&codes[..rows]);
            assert_eq!(words.len(), rows.div_ceil(64));
            assert_eq!(words, Kept(&codes[..rows]).work());
            for row in 0..words.len() * 64 {
                let is_kept = row < rows && Verdict::ALL[usize::from(codes[row])].is_kept();
                assert_eq!(words[row / 64] >> (row % 64) & 1 == 1, is_kept, "row {row} of {rows}");
            }
        }
    }
}
