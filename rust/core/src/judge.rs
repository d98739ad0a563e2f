//! How a run is judged: one function per policy family, each from an entry and a run to verdicts and
//! the entry afterwards.
//!
//! A run is a row, or several whose sequence numbers follow each other. Each of its rows is judged as
//! if it came alone; a run only lets whole stretches be decided at once.

use crate::holes::Holes;
use crate::position::{Border, Wrap};
use crate::{Admit, Epochs, First, Gaps, Late, Policy, Verdict};

/// What is remembered of one key (of one of its epochs, where epochs are part of the key).
///
/// Under `Any` and `Forward`: every position from `first` to `last` was accepted, but for the holes.
/// Under `Next`: the rows still in the window, `first` counted back from `last` and so perhaps negative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) epoch: i16,
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) holes: Holes,
    /// What can no longer be told: the hull of the holes that became final.
    pub(crate) final_range: Option<(i64, i64)>,
    /// The highest of its accepted rows; means nothing where timestamps are not kept.
    pub(crate) last_timestamp: i64,
}

impl Span {
    /// Whether first, last and epoch say it all.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.holes.is_empty() && self.final_range.is_none()
    }

    /// Positions became final: they join the range of those that are, and holes between them go too.
    pub(crate) fn finalise(&mut self, (first, last): (i64, i64)) {
        let (first, last) = self.final_range.map_or((first, last), |(low, high)| (first.min(low), last.max(high)));
        self.holes.remove(first, last);
        self.final_range = Some((first, last));
    }
}

impl PlainRules {
    /// The first position that an entry covers whose rows go from `first` to `last`.
    #[inline]
    pub(crate) fn first_of(&self, first: i64, last: i64) -> i64 {
        first.max(last - (self.remembered_max - 1))
    }
}

/// Rows of one key and epoch whose sequence numbers follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) epoch: i16,
    pub(crate) seq: i64,
    pub(crate) rows: i64,
}

impl Run {
    #[inline]
    pub(crate) fn last_seq(self) -> i64 {
        self.seq + (self.rows - 1)
    }
}

/// What a judge has to say of a run. Rows that are not refused are accepted.
pub(crate) trait Sink {
    /// Rows `from..to` of the run are not accepted.
    fn refuse(&mut self, from: i64, to: i64, verdict: Verdict);
    /// Rows `from..to` of the run are out of order. `expected` would have been accepted; nothing would
    /// after the last 64-bit sequence number.
    fn out_of_order(&mut self, from: i64, to: i64, expected: Option<i64>);
    /// Positions were jumped over.
    fn opened(&mut self, first: i64, last: i64);
    /// Positions that had been jumped over were accepted.
    fn closed(&mut self, first: i64, last: i64);
    /// Rows that only the border of the wrap could place.
    fn border(&mut self, rows: i64);
}

/// A policy, made ready for judging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) plain: PlainRules,
    wrap: Option<Wrap>,
    keeps_holes: bool,
}

/// As much of the rules as the plainest runs need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRules {
    /// Whether an unknown key may begin with any sequence number, and nothing is missing before it.
    pub(crate) begins_anywhere: bool,
    /// An entry whose highest position lies below this, on the first lap and outside the border zone,
    /// has its sequence numbers for positions.
    pub(crate) plain_below: i64,
    /// How many of its last positions an entry covers at the most.
    pub(crate) remembered_max: i64,
}

impl Rules {
    pub(crate) fn new(policy: Policy) -> Rules {
        let wrap = policy.wrap.map(Wrap::new);
        let plain = PlainRules {
            begins_anywhere: policy.first == First::Any,
            plain_below: wrap.map_or(i64::MAX, Wrap::upper_zone),
            remembered_max: if policy.admit == Admit::Next { policy.window as i64 } else { i64::MAX },
        };
        Rules { policy, plain, wrap, keeps_holes: policy.keeps_holes() }
    }

    /// The sequence number that stands at a position.
    pub(crate) fn seq(&self, position: i64) -> i64 {
        self.wrap.map_or(position, |wrap| wrap.seq(position))
    }

    /// Whether an entry can come to cover this position.
    pub(crate) fn has_position(&self, position: i64) -> bool {
        self.wrap.map_or(position >= 0, |wrap| wrap.has(position))
    }

    /// Whether holes of this policy are missing rows.
    pub(crate) fn reports_missing(&self) -> bool {
        self.policy.gaps == Gaps::Report && self.policy.admit != Admit::Next
    }

    /// The sequence number that follows an entry's highest.
    fn expected(&self, entry: &Span) -> Option<i64> {
        entry.last.checked_add(1).map(|position| self.seq(position))
    }

    /// Judges a run against the entry of its key (of its key and epoch where epochs are part of it)
    /// and gives the entry afterwards: `None` where nothing was accepted of an unknown key.
    pub(crate) fn judge(&self, entry: Option<Span>, run: Run, sink: &mut impl Sink) -> Option<Span> {
        if let Some(known) = &entry
            && self.policy.epochs == Epochs::Fence
            && run.epoch != known.epoch
        {
            if run.epoch < known.epoch {
                sink.refuse(0, run.rows, Verdict::Fenced);
                return entry;
            }
            if self.policy.admit == Admit::Next && run.seq != 0 {
                sink.out_of_order(0, run.rows, Some(0));
                return entry;
            }
            return self.begin(run, sink).or(entry);
        }
        match entry {
            None => self.begin(run, sink),
            Some(known) => Some(self.go_on(known, run, 0, sink)),
        }
    }

    /// Judges a run of an unknown key, or of an epoch that replaces the one known.
    fn begin(&self, run: Run, sink: &mut impl Sink) -> Option<Span> {
        let from_zero = self.policy.first == First::Zero;
        if from_zero && self.policy.admit != Admit::Any && run.seq != 0 {
            sink.out_of_order(0, run.rows, Some(0));
            return None;
        }
        let mut begun = Span { epoch: run.epoch, first: run.seq, last: run.seq, ..Span::default() };
        if from_zero && run.seq > 0 {
            begun.first = 0;
            begun.holes.open(0, run.seq - 1, 0);
            sink.opened(0, run.seq - 1);
        }
        if run.rows == 1 {
            return Some(begun);
        }
        let rest = Run { seq: run.seq + 1, rows: run.rows - 1, ..run };
        Some(self.go_on(begun, rest, 1, sink))
    }

    /// Judges a run of a known entry. `offset`: where it begins in the run that the sink knows.
    fn go_on(&self, mut entry: Span, run: Run, offset: i64, sink: &mut impl Sink) -> Span {
        if self.policy.admit == Admit::Next {
            self.next(&mut entry, run, offset, sink);
            return entry;
        }
        let mut rest = run;
        let mut offset = offset;
        while rest.rows > 0 {
            let (position, rows) = self.place(&entry, rest, sink);
            match self.policy.admit {
                Admit::Any => self.any(&mut entry, position, rows, offset, sink),
                _ => self.forward(&mut entry, position, rows, offset, sink),
            }
            rest.rows -= rows;
            rest.seq = rest.seq.wrapping_add(rows);
            offset += rows;
        }
        entry
    }

    /// The position of the run's first row, and how many rows follow it without meeting a border.
    fn place(&self, entry: &Span, run: Run, sink: &mut impl Sink) -> (i64, i64) {
        let Some(wrap) = self.wrap else {
            return (run.seq, run.rows);
        };
        let rows = wrap.zone_rows(run.seq, run.rows);
        let place = wrap.place(run.seq, entry.last, self.policy.first == First::Any);
        match place.border {
            Border::None => {}
            Border::LapBefore => sink.border(rows),
            // Once its first row is accepted the highest has crossed the border too.
            Border::NextLap if self.is_too_far(entry, place.position) => sink.border(rows),
            Border::NextLap => sink.border(1),
        }
        (place.position, rows)
    }

    fn is_too_far(&self, entry: &Span, position: i64) -> bool {
        self.policy.max_jump.is_some_and(|jump| position > entry.last && (position - entry.last) as u64 > jump)
    }

    /// `Any`: what was never accepted is accepted.
    fn any(&self, entry: &mut Span, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        let end = position + (rows - 1);
        if position > entry.last {
            if self.is_too_far(entry, position) {
                return sink.out_of_order(offset, offset + rows, self.expected(entry));
            }
            self.jump(entry, position, sink);
            entry.last = end;
            return;
        }
        // What lies within the entry: duplicates, but for what fills a hole.
        let inside = position.max(entry.first);
        let inside_end = end.min(entry.last);
        if inside <= inside_end {
            let mut unfilled = inside;
            entry.holes.close(inside, inside_end, |first, last| {
                sink.closed(first, last);
                if first > unfilled {
                    sink.refuse(offset + (unfilled - position), offset + (first - position), Verdict::Duplicate);
                }
                unfilled = last + 1;
            });
            if unfilled <= inside_end {
                let to = offset + (inside_end - position) + 1;
                sink.refuse(offset + (unfilled - position), to, Verdict::Duplicate);
            }
        }
        if position < entry.first {
            if end < entry.first - 1 {
                entry.holes.open(end + 1, entry.first - 1, 0);
                sink.opened(end + 1, entry.first - 1);
            }
            entry.first = position;
        }
        entry.last = entry.last.max(end);
    }

    /// `Forward`: what lies above the highest is accepted.
    fn forward(&self, entry: &mut Span, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        let end = position + (rows - 1);
        if position <= entry.last {
            self.late(entry, position, end.min(entry.last), offset, sink);
        } else if self.is_too_far(entry, position) {
            return sink.out_of_order(offset, offset + rows, self.expected(entry));
        } else {
            self.jump(entry, position, sink);
        }
        entry.last = entry.last.max(end);
    }

    /// Positions at or below the highest: repeats of what was accepted, or late.
    fn late(&self, entry: &Span, first: i64, last: i64, offset: i64, sink: &mut impl Sink) {
        let expected = self.expected(entry);
        let mut tell = |from: i64, to: i64, is_late: bool| {
            let (from_row, to_row) = (offset + (from - first), offset + (to - first) + 1);
            if is_late && self.policy.late == Late::OutOfOrder {
                sink.out_of_order(from_row, to_row, expected);
            } else {
                sink.refuse(from_row, to_row, Verdict::Duplicate);
            }
        };
        let mut from = first;
        if from < entry.first {
            let to = last.min(entry.first - 1);
            tell(from, to, true);
            from = to + 1;
        }
        for (hole_first, hole_last) in entry.holes.within(from, last) {
            if from < hole_first {
                tell(from, hole_first - 1, false);
            }
            tell(hole_first, hole_last, true);
            from = hole_last + 1;
        }
        if from <= last {
            tell(from, last, false);
        }
    }

    /// Notes what lies between the highest and a position above it.
    fn jump(&self, entry: &mut Span, position: i64, sink: &mut impl Sink) {
        if position - 1 > entry.last && self.keeps_holes {
            entry.holes.open(entry.last + 1, position - 1, 0);
            sink.opened(entry.last + 1, position - 1);
        }
    }

    /// `Next`: only highest + 1 is accepted, the last rows are known by the window.
    fn next(&self, entry: &mut Span, run: Run, offset: i64, sink: &mut impl Sink) {
        let expected = self.expected(entry);
        let accepted_from = match expected {
            Some(expected) if (run.seq..=run.last_seq()).contains(&expected) => expected - run.seq,
            _ => run.rows,
        };
        for row in 0..accepted_from {
            if self.rows_back(entry.last, run.seq + row) <= (entry.last - entry.first) as u64 {
                sink.refuse(offset + row, offset + row + 1, Verdict::Duplicate);
            } else {
                sink.out_of_order(offset + row, offset + row + 1, expected);
            }
        }
        let accepted = run.rows - accepted_from;
        if accepted > 0 {
            let remembered = (entry.last - entry.first + 1).saturating_add(accepted).min(self.policy.window as i64);
            entry.last = run.last_seq();
            entry.first = entry.last - (remembered - 1);
        }
    }

    /// How many rows before `last` the sequence number `seq` stands.
    fn rows_back(&self, last: i64, seq: i64) -> u64 {
        self.wrap.map_or_else(|| last.wrapping_sub(seq) as u64, |wrap| wrap.seq(last - seq) as u64)
    }
}
