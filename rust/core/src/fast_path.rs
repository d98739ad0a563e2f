//! The fast path: judges spans by the slot of their key alone. Most spans are judged here.
//!
//! Its result is that of [`Rules::judge`](crate::judge::Rules::judge), or none:
//!
//! | the slot holds | the span | verdict | in `spec` |
//! |---|---|---|---|
//! | an entry of the span's epoch | continues after its last position | accepted | `any_order.md`, `in_order.md`, `kafka.md` |
//! | the same | is within it, on the first lap | duplicate | the same |
//! | no entry, and a key may begin anywhere | any | accepted | `first.md` |
//! | the number of an entry with holes | continues it, or jumps at most as far as the policy allows | accepted | `any_order.md`, `in_order.md` |
//! | the same | one row within it and in no hole, on the first lap | duplicate | the same |
//! | the same | one row in a hole, and the policy accepts late rows | accepted | `any_order.md` |
//! | an entry of another epoch; rows below the horizon | any | left to the full rules | |
//!
//! An entry in a slot has no holes, so all positions within it were accepted. An entry with holes is in the overflow.
//! It changes in place if its holes are bits and no words must be added.

use crate::holes::Holes;
use crate::judge::{FullEntry, PlainEntry, PlainRules, Span};

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry.
    Empty,
    /// An entry without holes.
    Inline(PlainEntry),
    /// The number of an entry that is in the overflow.
    Overflow(u32),
}

/// The result of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastOutcome {
    /// Every row is accepted and continues an entry.
    Continued,
    /// Every row is a duplicate.
    Repeated,
    /// Every row is accepted and begins an entry.
    Begun,
    /// The row is accepted and fills a position of a hole.
    Filled,
    /// The slot alone cannot decide.
    Unclear,
}

/// Judges a span. Returns the outcome, and the new entry if rows are accepted.
#[inline(always)]
pub(crate) fn judge(rules: &PlainRules, held: Slot, span: Span) -> (FastOutcome, PlainEntry) {
    let last = span.last_seq();
    let (outcome, first, last_timestamp) = match held {
        Slot::Inline(entry) if entry.epoch == span.epoch && !span.is_old => {
            let outcome = if entry.last.checked_add(1) == Some(span.seq) {
                FastOutcome::Continued
            } else if span.seq >= entry.first && last <= entry.last && entry.last < rules.plain_below {
                FastOutcome::Repeated
            } else {
                FastOutcome::Unclear
            };
            (outcome, entry.first, entry.last_timestamp.max(span.newest))
        }
        Slot::Empty if rules.begins_anywhere && !span.is_old => (FastOutcome::Begun, span.seq, span.newest),
        _ => (FastOutcome::Unclear, 0, 0),
    };
    (outcome, PlainEntry { epoch: span.epoch, first: rules.first_of(first, last), last, last_timestamp })
}

/// What the fast path has done with an entry in the overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace {
    pub(crate) outcome: FastOutcome,
    /// The first position that the span skipped, or the span's own first position if it skipped none.
    pub(crate) skipped_from: i64,
    /// By how much the number of holes has changed.
    pub(crate) holes: isize,
}

/// Like [`judge`], for an entry in the overflow, which changes in place. `is_timed`: whether rows have timestamps.
#[inline(always)]
pub(crate) fn judge_in_overflow(rules: &PlainRules, entry: &mut FullEntry, span: Span, is_timed: bool) -> InPlace {
    let (from, last) = (entry.last, span.last_seq());
    let skipping_none = |outcome, holes| InPlace { outcome, skipped_from: span.seq, holes };
    let is_plain = entry.final_range.is_none() && rules.is_plain(entry.epoch, from, span);
    if !is_plain || rules.jump_max == 0 {
        return skipping_none(FastOutcome::Unclear, 0);
    }
    if span.seq <= from {
        if span.rows > 1 || span.seq < entry.first {
            return skipping_none(FastOutcome::Unclear, 0);
        }
        if entry.holes.is_apart_from_bits(span.seq) {
            return skipping_none(FastOutcome::Repeated, 0);
        }
        let change = if rules.fills_holes { entry.holes.close_in_few_bits(span.seq) } else { None };
        let Some(holes) = change else { return skipping_none(FastOutcome::Unclear, 0) };
        entry.last_timestamp = entry.last_timestamp.max(span.newest);
        return skipping_none(FastOutcome::Filled, holes);
    }
    if span.seq - from > 1 {
        let opens = opens_hole(rules, from, span, is_timed);
        if !opens || !entry.holes.append_in_bits(from + 1, span.seq - 1, span.newest) {
            return skipping_none(FastOutcome::Unclear, 0);
        }
    }
    entry.last = last;
    entry.last_timestamp = entry.last_timestamp.max(span.newest);
    let holes = isize::from(span.seq - from > 1);
    InPlace { outcome: FastOutcome::Continued, skipped_from: from + 1, holes }
}

/// Whether a span above an entry opens a hole and is accepted. A hole gets the timestamp of the row that opens it, and
/// the newest row of a span is not always its first.
#[inline(always)]
fn opens_hole(rules: &PlainRules, from: i64, span: Span, is_timed: bool) -> bool {
    span.seq - from <= rules.jump_max && (span.rows == 1 || !is_timed)
}

/// Judges a span that opens the first hole of an entry, if that is clear at once. Returns the entry with its hole.
#[inline(always)]
pub(crate) fn open_first_hole(rules: &PlainRules, entry: PlainEntry, span: Span, is_timed: bool) -> Option<FullEntry> {
    let (from, last) = (entry.last, span.last_seq());
    let is_opened =
        rules.is_plain(entry.epoch, from, span) && span.seq - from > 1 && opens_hole(rules, from, span, is_timed);
    if !is_opened {
        return None;
    }
    let holes = Holes::of_few_bits(from + 1, span.seq - 1, span.newest)?;
    let last_timestamp = entry.last_timestamp.max(span.newest);
    Some(FullEntry { epoch: entry.epoch, first: entry.first, last, holes, final_range: None, last_timestamp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Rules, Sink};
    use crate::{PRESETS, Policy, Verdict};

    /// The result of the full rules for a span whose rows have one timestamp.
    #[derive(Default)]
    struct Reported {
        timestamp: i64,
        refused: Vec<Verdict>,
        opened: Vec<(i64, i64)>,
        closed: Vec<(i64, i64)>,
        others: u32,
    }

    impl Reported {
        fn at(timestamp: i64) -> Reported {
            Reported { timestamp, ..Reported::default() }
        }
    }

    impl Sink for Reported {
        fn refuse(&mut self, from: i64, to: i64, verdict: Verdict) {
            self.refused.extend((from..to).map(|_| verdict));
        }

        fn out_of_order(&mut self, from: i64, to: i64, _: Option<i64>) {
            self.refuse(from, to, Verdict::OutOfOrder);
        }

        fn opened(&mut self, first: i64, last: i64) {
            self.opened.push((first, last));
        }

        fn closed(&mut self, first: i64, last: i64) {
            self.closed.push((first, last));
        }

        fn stale(&mut self, _: i64) {
            self.others += 1;
        }

        fn border(&mut self, _: i64) {
            self.others += 1;
        }

        fn timestamp(&self, _: i64) -> i64 {
            self.timestamp
        }

        fn newest_accepted(&self) -> Option<i64> {
            self.refused.is_empty().then_some(self.timestamp)
        }
    }

    /// Entries and spans of up to four rows: around an entry's ends, and around the border of the wrap.
    fn cases(policy: Policy) -> impl Iterator<Item = (Slot, Span)> {
        let positions: Vec<i64> = (0..8).chain(policy.seq_max() - 5..=policy.seq_max()).collect();
        let mut spans = Vec::new();
        for (&seq, rows) in positions.iter().flat_map(|seq| (1..5).map(move |rows| (seq, rows))) {
            if rows - 1 <= policy.seq_max() - seq {
                let of = |epoch, is_old| Span { epoch, seq, rows, newest: 7, is_old };
                spans.extend([of(1, false), of(0, false), of(1, true)]);
            }
        }
        let held = positions.into_iter().flat_map(move |first| {
            let reaches = 0..=3.min(policy.seq_max() - first);
            let inline = move |reach| PlainEntry { epoch: 1, first, last: first + reach, last_timestamp: 3 };
            reaches.map(move |reach| Slot::Inline(inline(reach))).chain([Slot::Empty])
        });
        held.flat_map(move |held| spans.clone().into_iter().map(move |span| (held, span)))
    }

    #[test]
    fn the_fast_path_agrees_with_the_full_rules() {
        let mut judged = [0; 3];
        for preset in &PRESETS {
            let rules = Rules::new(preset.policy);
            for (held, span) in cases(preset.policy) {
                let entry = match held {
                    Slot::Inline(entry) => Some(FullEntry::from(entry)),
                    Slot::Empty | Slot::Overflow(_) => None,
                };
                let (outcome, after) = judge(&rules.plain, held, span);
                let mut reported = Reported::at(7);
                let full = rules.judge(entry.clone(), span, &mut reported);
                match outcome {
                    FastOutcome::Unclear => continue,
                    FastOutcome::Repeated => {
                        assert_eq!(reported.refused, vec![Verdict::Duplicate; span.rows as usize], "{held:?} {span:?}");
                        assert_eq!(full, entry, "{held:?} {span:?}");
                    }
                    FastOutcome::Continued | FastOutcome::Begun => {
                        assert!(reported.refused.is_empty(), "{held:?} {span:?}");
                        assert_eq!(full, Some(FullEntry::from(after)), "{held:?} {span:?}");
                    }
                    FastOutcome::Filled => unreachable!("entries in slots have no holes"),
                }
                assert_eq!((reported.others, reported.opened), (0, vec![]), "{held:?} {span:?}");
                assert_eq!(reported.closed, [], "{held:?} {span:?}");
                judged[outcome as usize] += 1;
            }
        }
        assert!(judged.iter().all(|&count| count > 500), "{judged:?}");
    }

    /// Entries of six positions, `apart` from each other, with some holes: as bits within the block, as bits in
    /// separate memory, and as arrays.
    fn with_holes(base: i64, apart: i64, timestamp: i64) -> impl Iterator<Item = FullEntry> {
        (1..31u32).map(move |holes| {
            let last = base + 5 * apart;
            let mut entry =
                FullEntry { epoch: 1, first: base, last, last_timestamp: timestamp, ..FullEntry::default() };
            let is_hole = |number: &i64| holes >> (number - 1) & 1 == 1;
            (1..5).filter(is_hole).for_each(|number| {
                let first = base + number * apart;
                entry.holes.open(first, first + (apart - 1) / 2, timestamp);
            });
            entry.final_range = (holes & 16 != 0).then_some((base, base));
            entry
        })
    }

    #[test]
    fn the_fast_path_agrees_with_the_full_rules_for_entries_with_holes() {
        let mut judged = [0; 4];
        let jumping = |policy: Policy| Policy { max_jump: Some(3), ..policy };
        let policies = PRESETS.iter().flat_map(|preset| [preset.policy, jumping(preset.policy)]);
        // One entry reaches both zones beside the border of the wrap.
        let small = Policy { wrap: Some(16), ..Policy::preset("any_order").expect("a preset") };
        for policy in policies.chain([small]).filter(|policy| policy.keeps_holes()) {
            let (rules, seq_max) = (Rules::new(policy), policy.seq_max());
            let large = [(0, 1), (0, 60), (9, 70), (0, 5000), (seq_max - 5, 1), (seq_max - 900, 60)];
            let bases = if policy == small { &[(-2, 1), (2, 2), (7, 1)][..] } else { &large };
            let entries = bases
                .iter()
                .flat_map(|&(base, apart)| [0, 7].into_iter().flat_map(move |at| with_holes(base, apart, at)));
            for entry in entries {
                let near = (entry.first - 2..entry.first.saturating_add(9))
                    .chain(entry.last - 9..entry.last.saturating_add(70));
                for seq in near.filter(|seq| (0..=seq_max).contains(seq)) {
                    for (epoch, rows, newest, is_old) in [
                        (1, 1, 0, false),
                        (1, 1, 7, false),
                        (1, 3, 0, false),
                        (1, 3, 7, false),
                        (0, 1, 7, false),
                        (1, 1, 7, true),
                    ] {
                        if rows - 1 > seq_max - seq {
                            continue;
                        }
                        let span = Span { epoch, seq, rows, newest, is_old };
                        let (mut after, mut reported) = (entry.clone(), Reported::at(newest));
                        let InPlace { outcome, skipped_from, holes } =
                            judge_in_overflow(&rules.plain, &mut after, span, newest != 0);
                        assert_eq!(holes, after.holes.len() as isize - entry.holes.len() as isize, "{span:?}");
                        let full = rules.judge(Some(entry.clone()), span, &mut reported);
                        let expected = match outcome {
                            FastOutcome::Unclear => {
                                assert_eq!(after, entry, "{span:?}");
                                judged[2] += 1;
                                continue;
                            }
                            FastOutcome::Repeated => (vec![Verdict::Duplicate], vec![], vec![]),
                            FastOutcome::Filled => (vec![], vec![], vec![(seq, seq)]),
                            FastOutcome::Continued if skipped_from == seq => (vec![], vec![], vec![]),
                            FastOutcome::Continued => (vec![], vec![(skipped_from, seq - 1)], vec![]),
                            FastOutcome::Begun => unreachable!("the entry is known"),
                        };
                        assert_eq!((reported.refused, reported.opened, reported.closed), expected, "{span:?}");
                        assert_eq!(reported.others, 0, "{span:?}");
                        assert_eq!(full, Some(after), "{span:?}");
                        judged[if outcome == FastOutcome::Filled { 3 } else { usize::from(skipped_from == seq) }] += 1;
                    }
                }
            }
        }
        assert!(judged.iter().all(|&count| count > 1000), "{judged:?}");
    }
}
