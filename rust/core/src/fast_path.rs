//! The fast path: runs that are judged by what a slot holds of their key, which most are.
//!
//! It says of a run what [`Rules::judge`](crate::judge::Rules::judge) would say, or nothing:
//!
//! | what the slot holds | the run | verdict | in `spec` |
//! |---|---|---|---|
//! | an entry of the run's epoch | goes on behind its last position | accepted | `any_order.md`, `in_order.md`, `kafka.md` |
//! | the same | lies within it, on the first lap | duplicate | the same |
//! | no entry, and a key may begin anywhere | any | accepted | `first.md` |
//! | an entry kept aside, or of another epoch; rows below the horizon | any | left to the full rules | |
//!
//! An entry in a slot has no holes, so whatever lies within it was accepted.

use crate::judge::{PlainRules, PlainSpan, Run};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry.
    Empty,
    /// An entry without holes.
    Inline(PlainSpan),
    /// The number of an entry that is kept aside.
    Aside(u32),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Rules, Sink, Span};
    use crate::{PRESETS, Policy, Verdict};

    /// What the full rules say of a run.
    #[derive(Default)]
    struct Said {
        refused: Vec<Verdict>,
        others: u32,
    }

    impl Sink for Said {
        fn refuse(&mut self, from: i64, to: i64, verdict: Verdict) {
            self.refused.extend((from..to).map(|_| verdict));
        }

        fn out_of_order(&mut self, from: i64, to: i64, _: Option<i64>) {
            self.refuse(from, to, Verdict::OutOfOrder);
        }

        fn opened(&mut self, _: i64, _: i64) {
            self.others += 1;
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
            7
        }

        fn newest_accepted(&self) -> Option<i64> {
            self.refused.is_empty().then_some(7)
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
                    Slot::Empty | Slot::Aside(_) => None,
                };
                let (plainly, after) = judge(&rules.plain, held, run);
                let mut said = Said::default();
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
                assert_eq!(said.others, 0, "{held:?} {run:?}");
                judged[plainly as usize] += 1;
            }
        }
        assert!(judged.iter().all(|&count| count > 500), "{judged:?}");
    }
}
