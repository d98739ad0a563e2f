//! The fast path: runs that are judged by what a slot holds of their key, which most are.
//!
//! It says of a run what [`Rules::judge`](crate::judge::Rules::judge) would say, or nothing:
//!
//! | what the slot holds | the run | verdict | in `spec` |
//! |---|---|---|---|
//! | an entry of the run's epoch | goes on behind its last position | accepted | `any_order.md`, `in_order.md`, `kafka.md` |
//! | the same | lies within it, on the first lap | duplicate | the same |
//! | no entry, and a key may begin anywhere | any | accepted | `first.md` |
//! | the number of an entry with holes | goes on, or jumps by no more than the policy allows | accepted | `any_order.md`, `in_order.md` |
//! | the same | one row that lies within it and in no hole, on the first lap | duplicate | the same |
//! | an entry of another epoch; rows below the horizon | any | left to the full rules | |
//!
//! An entry in a slot has no holes, so all positions within it were accepted. One with holes is in the overflow and
//! changes in place, if its holes are bits and no bits must be added.

use crate::judge::{PlainRules, PlainSpan, Run, Span};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry.
    Empty,
    /// An entry without holes.
    Inline(PlainSpan),
    /// The number of an entry that is in the overflow.
    Overflow(u32),
}

/// What a slot alone says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plainly {
    /// Every row is accepted, the entry was there.
    WentOn,
    /// Every row is a duplicate.
    Repeated,
    /// Every row is accepted, the entry is new.
    Begun,
    /// Nothing.
    Unclear,
}

/// What becomes of a run, and the entry afterwards where rows are accepted.
#[inline(always)]
pub(crate) fn judge(rules: &PlainRules, held: Slot, run: Run) -> (Plainly, PlainSpan) {
    let last = run.last_seq();
    let (plainly, first, last_timestamp) = match held {
        Slot::Inline(entry) if entry.epoch == run.epoch && !run.is_old => {
            let plainly = if entry.last.checked_add(1) == Some(run.seq) {
                Plainly::WentOn
            } else if run.seq >= entry.first && last <= entry.last && entry.last < rules.plain_below {
                Plainly::Repeated
            } else {
                Plainly::Unclear
            };
            (plainly, entry.first, entry.last_timestamp.max(run.newest))
        }
        Slot::Empty if rules.begins_anywhere && !run.is_old => (Plainly::Begun, run.seq, run.newest),
        _ => (Plainly::Unclear, 0, 0),
    };
    (plainly, PlainSpan { epoch: run.epoch, first: rules.first_of(first, last), last, last_timestamp })
}

/// The same as [`judge`] of an entry in the overflow, which changes in place. Gives the first of the positions that the
/// run jumped over too; where it jumped over none, its own. `is_timed`: whether rows have timestamps.
#[inline(always)]
pub(crate) fn judge_in_overflow(rules: &PlainRules, entry: &mut Span, run: Run, is_timed: bool) -> (Plainly, i64) {
    let (from, last) = (entry.last, run.last_seq());
    let is_plain = entry.epoch == run.epoch
        && !run.is_old
        && entry.final_range.is_none()
        && from >= 0
        && from < rules.plain_below
        && last < rules.plain_below;
    if !is_plain || rules.jump_max == 0 {
        return (Plainly::Unclear, run.seq);
    }
    if run.seq <= from {
        let is_held = run.rows == 1 && run.seq >= entry.first && entry.holes.is_apart_from_bits(run.seq);
        return (if is_held { Plainly::Repeated } else { Plainly::Unclear }, run.seq);
    }
    // The timestamp of a hole is that of the row that opens it: the newest of a run is not always its first.
    if run.seq - from > 1 {
        let opens = run.seq - from <= rules.jump_max && (run.rows == 1 || !is_timed);
        if !opens || !entry.holes.append_in_bits(from + 1, run.seq - 1, run.newest) {
            return (Plainly::Unclear, run.seq);
        }
    }
    entry.last = last;
    entry.last_timestamp = entry.last_timestamp.max(run.newest);
    (Plainly::WentOn, from + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Rules, Sink};
    use crate::{PRESETS, Policy, Verdict};

    /// What the full rules say of a run whose rows have one timestamp.
    #[derive(Default)]
    struct Said {
        timestamp: i64,
        refused: Vec<Verdict>,
        opened: Vec<(i64, i64)>,
        others: u32,
    }

    impl Said {
        fn at(timestamp: i64) -> Said {
            Said { timestamp, ..Said::default() }
        }
    }

    impl Sink for Said {
        fn refuse(&mut self, from: i64, to: i64, verdict: Verdict) {
            self.refused.extend((from..to).map(|_| verdict));
        }

        fn out_of_order(&mut self, from: i64, to: i64, _: Option<i64>) {
            self.refuse(from, to, Verdict::OutOfOrder);
        }

        fn opened(&mut self, first: i64, last: i64) {
            self.opened.push((first, last));
        }

        fn closed(&mut self, _: i64, _: i64) {
            self.others += 1;
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

    /// Entries and runs of up to four rows: around an entry's ends, and around the border of the wrap.
    fn cases(policy: Policy) -> impl Iterator<Item = (Slot, Run)> {
        let positions: Vec<i64> = (0..8).chain(policy.seq_max() - 5..=policy.seq_max()).collect();
        let mut runs = Vec::new();
        for (&seq, rows) in positions.iter().flat_map(|seq| (1..5).map(move |rows| (seq, rows))) {
            if rows - 1 <= policy.seq_max() - seq {
                let of = |epoch, is_old| Run { epoch, seq, rows, newest: 7, is_old };
                runs.extend([of(1, false), of(0, false), of(1, true)]);
            }
        }
        let held = positions.into_iter().flat_map(move |first| {
            let reaches = 0..=3.min(policy.seq_max() - first);
            let inline = move |reach| PlainSpan { epoch: 1, first, last: first + reach, last_timestamp: 3 };
            reaches.map(move |reach| Slot::Inline(inline(reach))).chain([Slot::Empty])
        });
        held.flat_map(move |held| runs.clone().into_iter().map(move |run| (held, run)))
    }

    #[test]
    fn it_says_nothing_but_what_the_full_rules_say() {
        let mut judged = [0; 3];
        for preset in &PRESETS {
            let rules = Rules::new(preset.policy);
            for (held, run) in cases(preset.policy) {
                let entry = match held {
                    Slot::Inline(entry) => Some(Span::from(entry)),
                    Slot::Empty | Slot::Overflow(_) => None,
                };
                let (plainly, after) = judge(&rules.plain, held, run);
                let mut said = Said::at(7);
                let full = rules.judge(entry.clone(), run, &mut said);
                match plainly {
                    Plainly::Unclear => continue,
                    Plainly::Repeated => {
                        assert_eq!(said.refused, vec![Verdict::Duplicate; run.rows as usize], "{held:?} {run:?}");
                        assert_eq!(full, entry, "{held:?} {run:?}");
                    }
                    Plainly::WentOn | Plainly::Begun => {
                        assert!(said.refused.is_empty(), "{held:?} {run:?}");
                        assert_eq!(full, Some(Span::from(after)), "{held:?} {run:?}");
                    }
                }
                assert_eq!((said.others, said.opened), (0, vec![]), "{held:?} {run:?}");
                judged[plainly as usize] += 1;
            }
        }
        assert!(judged.iter().all(|&count| count > 500), "{judged:?}");
    }

    /// Entries of six positions, `apart` from each other, of which some are holes: with bits within the block, in memory
    /// of their own, and as arrays.
    fn with_holes(base: i64, apart: i64, timestamp: i64) -> impl Iterator<Item = Span> {
        (1..31u32).map(move |holes| {
            let last = base + 5 * apart;
            let mut entry = Span { epoch: 1, first: base, last, last_timestamp: timestamp, ..Span::default() };
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
    fn of_entries_with_holes_it_says_nothing_but_what_the_full_rules_say() {
        let mut judged = [0; 3];
        let jumping = |policy: Policy| Policy { max_jump: Some(3), ..policy };
        let policies = PRESETS.iter().flat_map(|preset| [preset.policy, jumping(preset.policy)]);
        // Both zones beside the border of the wrap are within reach of one entry.
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
                        let run = Run { epoch, seq, rows, newest, is_old };
                        let (mut after, mut said) = (entry.clone(), Said::at(newest));
                        let (plainly, jumped_from) = judge_in_overflow(&rules.plain, &mut after, run, newest != 0);
                        let full = rules.judge(Some(entry.clone()), run, &mut said);
                        let expected = match plainly {
                            Plainly::Unclear => {
                                assert_eq!(after, entry, "{run:?}");
                                judged[2] += 1;
                                continue;
                            }
                            Plainly::Repeated => (vec![Verdict::Duplicate], vec![]),
                            Plainly::WentOn if jumped_from == seq => (vec![], vec![]),
                            Plainly::WentOn => (vec![], vec![(jumped_from, seq - 1)]),
                            Plainly::Begun => unreachable!("the entry is known"),
                        };
                        assert_eq!(
                            (&said.refused, &said.opened, said.others),
                            (&expected.0, &expected.1, 0),
                            "{run:?}"
                        );
                        assert_eq!(full, Some(after), "{run:?}");
                        judged[usize::from(expected.1.is_empty())] += 1;
                    }
                }
            }
        }
        assert!(judged.iter().all(|&count| count > 1000), "{judged:?}");
    }
}
