//! How a run is judged: one function per policy family, each from an entry and a run to verdicts and
//! the entry afterwards.
//!
//! A run is a row, or several whose sequence numbers follow each other. Each of its rows is judged as
//! if it came alone; a run only lets whole stretches be decided at once.

use crate::holes::Holes;
use crate::position::{Border, Place, Wrap};
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
    /// The highest timestamp of its accepted rows; where a higher epoch replaces a lower one, of the rows of all
    /// epochs. Not used where timestamps are not kept.
    pub(crate) last_timestamp: i64,
}

/// An entry of which first, last and epoch say it all: what a slot of a line holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlainSpan {
    pub(crate) epoch: i16,
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// As in [`Span`].
    pub(crate) last_timestamp: i64,
}

impl From<PlainSpan> for Span {
    #[inline]
    fn from(plain: PlainSpan) -> Span {
        let PlainSpan { epoch, first, last, last_timestamp } = plain;
        Span { epoch, first, last, last_timestamp, ..Span::default() }
    }
}

impl Span {
    /// Itself, if it is plain.
    #[inline]
    pub(crate) fn plain(&self) -> Option<PlainSpan> {
        self.is_plain().then(|| self.without_holes())
    }

    /// Itself, but for what is neither first, last nor epoch.
    #[inline]
    pub(crate) fn without_holes(&self) -> PlainSpan {
        let &Span { epoch, first, last, last_timestamp, .. } = self;
        PlainSpan { epoch, first, last, last_timestamp }
    }

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
    /// Their highest timestamp, where timestamps are kept.
    pub(crate) newest: i64,
    /// All of them lie at or below the horizon; if not, none does.
    pub(crate) is_old: bool,
}

impl Run {
    /// A run whose rows have no timestamps.
    #[inline(always)]
    pub(crate) fn plain(epoch: i16, seq: i64, rows: i64) -> Run {
        Run { epoch, seq, rows, newest: 0, is_old: false }
    }

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
    /// Rows of the run stand below their key's highest epoch.
    fn stale(&mut self, rows: i64);
    /// Rows that only the border of the wrap could place.
    fn border(&mut self, rows: i64);
    /// The timestamp of a row of the run; 0 where timestamps are not kept.
    fn timestamp(&self, row: i64) -> i64;
    /// The highest timestamp of the run's rows that were not refused, if there is one.
    fn newest_accepted(&self) -> Option<i64>;
}

/// A policy, made ready for judging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) plain: PlainRules,
    wrap: Option<Wrap>,
    keeps_holes: bool,
    /// Whether rows change nothing of an entry but its ends, its holes and its time.
    changes_in_place: bool,
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
    /// How far above its highest position an entry in the overflow accepts a row, opens a hole for what lies between and
    /// changes in nothing else. 0: the full rules judge all rows of such entries.
    pub(crate) jump_max: i64,
}

impl Rules {
    pub(crate) fn new(policy: Policy) -> Rules {
        let wrap = policy.wrap.map(Wrap::new);
        let plain = PlainRules {
            begins_anywhere: policy.first == First::Any,
            plain_below: wrap.map_or(i64::MAX, Wrap::upper_zone),
            remembered_max: if policy.admit == Admit::Next { policy.window as i64 } else { i64::MAX },
            jump_max: match policy.max_jump {
                _ if policy.admit == Admit::Next || policy.reach.is_some() || !policy.keeps_holes() => 0,
                Some(jump) => i64::try_from(jump).unwrap_or(i64::MAX),
                None => i64::MAX,
            },
        };
        let changes_in_place = policy.reach.is_none();
        Rules { policy, plain, wrap, keeps_holes: policy.keeps_holes(), changes_in_place }
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

    /// Whether two entries of one key cannot be united: they hold positions in both zones beside the border
    /// of the wrap, where the lap of a row depends on what came before it.
    pub(crate) fn is_ambiguous(&self, one: &Span, other: &Span) -> bool {
        let Some(wrap) = self.wrap else { return false };
        let (mut lower, mut upper) = (false, false);
        for span in [one, other] {
            let mut from = span.first;
            for (hole_first, hole_last) in span.holes.iter().chain([(span.last + 1, span.last + 1)]) {
                if from < hole_first {
                    let zones = wrap.zones_of(from, hole_first - 1);
                    (lower, upper) = (lower | zones.0, upper | zones.1);
                }
                from = hole_last + 1;
            }
        }
        lower && upper
    }

    /// The first position that is not out of reach, where reach is bounded.
    fn reach_from(&self, entry: &Span) -> Option<i64> {
        self.policy.reach.map(|reach| entry.last.saturating_sub(reach as i64))
    }

    /// Makes final what is missing beyond the reach.
    pub(crate) fn settle(&self, entry: &mut Span) {
        if let Some(reach_from) = self.reach_from(entry)
            && let Some(hull) = entry.holes.finalise_below(reach_from)
        {
            entry.finalise(hull);
        }
    }

    /// Judges a run of a known entry in place, if its rows' sequence numbers are their positions and nothing is old,
    /// final or of another epoch; if not, nothing has changed. Most runs that a slot alone cannot judge are such.
    #[inline]
    pub(crate) fn judge_in_place(&self, entry: &mut Span, run: Run, sink: &mut impl Sink) -> bool {
        let is_plain = self.changes_in_place
            && !run.is_old
            && run.epoch == entry.epoch
            && entry.final_range.is_none()
            && (0..self.plain.plain_below).contains(&entry.last)
            && run.last_seq() < self.plain.plain_below;
        if !is_plain {
            return false;
        }
        if run.rows == 1 && (entry.first..=entry.last).contains(&run.seq) && !entry.holes.has(run.seq) {
            sink.refuse(0, 1, Verdict::Duplicate);
            return true;
        }
        if self.policy.admit == Admit::Next {
            self.next(entry, run, 0, sink);
        } else {
            self.admit(entry, run.seq, run.rows, 0, sink);
        }
        if let Some(newest) = sink.newest_accepted() {
            entry.last_timestamp = entry.last_timestamp.max(newest);
        }
        true
    }

    /// Judges a run against the entry of its key (of its key and epoch where epochs are part of it)
    /// and gives the entry afterwards: `None` where nothing was accepted of an unknown key.
    pub(crate) fn judge(&self, entry: Option<Span>, run: Run, sink: &mut impl Sink) -> Option<Span> {
        let mut entry = self.judge_epoch(entry, run, sink)?;
        if let Some(newest) = sink.newest_accepted() {
            entry.last_timestamp = entry.last_timestamp.max(newest);
        }
        Some(entry)
    }

    fn judge_epoch(&self, entry: Option<Span>, run: Run, sink: &mut impl Sink) -> Option<Span> {
        if let Some(known) = &entry
            && self.policy.epochs == Epochs::Fence
            && run.epoch != known.epoch
        {
            if run.epoch < known.epoch {
                sink.refuse(0, run.rows, Verdict::Fenced);
                return entry;
            }
            if run.is_old {
                sink.refuse(0, run.rows, Verdict::Forgotten);
                return entry;
            }
            if self.policy.admit == Admit::Next && run.seq != 0 {
                sink.out_of_order(0, run.rows, Some(0));
                return entry;
            }
            // A key is as old as its newest accepted row of any epoch. With the age of the present epoch alone, an
            // eviction could forget rows above the horizon, and they would be accepted again.
            let last_timestamp = known.last_timestamp;
            return match self.begin(run, sink) {
                Some(begun) => Some(Span { last_timestamp: begun.last_timestamp.max(last_timestamp), ..begun }),
                None => entry,
            };
        }
        match entry {
            None if run.is_old => {
                sink.refuse(0, run.rows, Verdict::Forgotten);
                None
            }
            None => self.begin(run, sink),
            Some(known) if self.is_settled(&known) => Some(self.go_on(known, run, 0, sink)),
            Some(known) => Some(self.settle_and_go_on(known, run, sink)),
        }
    }

    /// Whether nothing is missing beyond the reach; after a merge, something may be.
    fn is_settled(&self, entry: &Span) -> bool {
        let lowest = || entry.holes.iter().next().map(|(first, _)| first);
        self.reach_from(entry).is_none_or(|reach_from| lowest().is_none_or(|first| first >= reach_from))
    }

    /// Judges a run of an entry that was merged: what is missing beyond the reach is final before. A run of
    /// which no row is accepted leaves no trace, not even this.
    fn settle_and_go_on(&self, merged: Span, run: Run, sink: &mut impl Sink) -> Span {
        let mut settled = merged.clone();
        self.settle(&mut settled);
        let after = self.go_on(settled.clone(), run, 0, sink);
        if after == settled { merged } else { after }
    }

    /// Judges a run of an unknown key, or of an epoch that replaces the one known.
    fn begin(&self, run: Run, sink: &mut impl Sink) -> Option<Span> {
        let from_zero = self.policy.first == First::Zero;
        if from_zero && self.policy.admit != Admit::Any && run.seq != 0 {
            sink.out_of_order(0, run.rows, Some(0));
            return None;
        }
        let timestamp = sink.timestamp(0);
        let mut begun =
            Span { epoch: run.epoch, first: run.seq, last: run.seq, last_timestamp: timestamp, ..Span::default() };
        if from_zero && run.seq > 0 {
            begun.first = 0;
            begun.holes.open(0, run.seq - 1, timestamp);
            sink.opened(0, run.seq - 1);
            self.settle(&mut begun);
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
            let place = self.place(&entry, rest);
            let (position, rows) = (place.position, self.stretch(&entry, place.position, rest));
            self.count_border(&entry, place, Run { rows, ..rest }, sink);
            if entry.final_range.is_some_and(|(first, last)| (first..=last).contains(&position)) {
                sink.refuse(offset, offset + rows, Verdict::Forgotten);
            } else if run.is_old {
                self.old(&entry, position, rows, offset, sink);
            } else {
                self.admit(&mut entry, position, rows, offset, sink);
            }
            self.settle(&mut entry);
            rest.rows -= rows;
            rest.seq = rest.seq.wrapping_add(rows);
            offset += rows;
        }
        entry
    }

    /// Where the run's first row stands.
    fn place(&self, entry: &Span, run: Run) -> Place {
        match self.wrap {
            Some(wrap) => wrap.place(run.seq, entry.last, self.policy.first == First::Any),
            None => Place { position: run.seq, border: Border::None },
        }
    }

    /// How many rows of a run that begins at a position are judged as one: up to a border of the wrap or of
    /// the final range. A row below the first opens a hole, and what of it is out of reach is final before
    /// the next row comes: such a row is judged by itself.
    fn stretch(&self, entry: &Span, position: i64, run: Run) -> i64 {
        let rows = self.wrap.map_or(run.rows, |wrap| wrap.zone_rows(run.seq, run.rows));
        if position < entry.first
            && self.policy.admit == Admit::Any
            && self.reach_from(entry).is_some_and(|reach_from| position + 1 < reach_from.min(entry.first))
        {
            return 1;
        }
        match entry.final_range {
            Some((first, _)) if position < first => rows.min(first - position),
            Some((_, last)) if position <= last => rows.min(last - position + 1),
            _ => rows,
        }
    }

    /// Counts the rows of a stretch that only a border rule could place.
    fn count_border(&self, entry: &Span, place: Place, stretch: Run, sink: &mut impl Sink) {
        match place.border {
            Border::None => {}
            // Once its first row is accepted the highest has crossed the border too.
            Border::NextLap if !stretch.is_old && !self.is_too_far(entry, place.position) => sink.border(1),
            Border::NextLap | Border::LapBefore => sink.border(stretch.rows),
        }
    }

    fn is_too_far(&self, entry: &Span, position: i64) -> bool {
        self.policy.max_jump.is_some_and(|jump| position > entry.last && (position - entry.last) as u64 > jump)
    }

    /// Judges rows at positions that are neither old nor final.
    #[inline]
    fn admit(&self, entry: &mut Span, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        if self.policy.admit == Admit::Any {
            self.any(entry, position, rows, offset, sink);
        } else {
            self.forward(entry, position, rows, offset, sink);
        }
    }

    /// `Any`: what was never accepted is accepted.
    fn any(&self, entry: &mut Span, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        let end = position + (rows - 1);
        if position > entry.last {
            if self.is_too_far(entry, position) {
                return sink.out_of_order(offset, offset + rows, self.expected(entry));
            }
            self.jump(entry, position, sink.timestamp(offset), sink);
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
                entry.holes.open(end + 1, entry.first - 1, sink.timestamp(offset));
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
            self.jump(entry, position, sink.timestamp(offset), sink);
        }
        entry.last = entry.last.max(end);
    }

    /// Positions at or below the highest: repeats of what was accepted, or late.
    fn late(&self, entry: &Span, first: i64, last: i64, offset: i64, sink: &mut impl Sink) {
        let expected = self.expected(entry);
        each_stretch(entry, first, last, |from, to, is_held| {
            let (from_row, to_row) = (offset + (from - first), offset + (to - first) + 1);
            if !is_held && self.policy.late == Late::OutOfOrder {
                sink.out_of_order(from_row, to_row, expected);
            } else {
                sink.refuse(from_row, to_row, Verdict::Duplicate);
            }
        });
    }

    /// Rows that are too old to be taken for new: repeats, or nobody can tell.
    fn old(&self, entry: &Span, first: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        each_stretch(entry, first, first + (rows - 1), |from, to, is_held| {
            let verdict = if is_held { Verdict::Duplicate } else { Verdict::Forgotten };
            sink.refuse(offset + (from - first), offset + (to - first) + 1, verdict);
        });
    }

    /// Notes what lies between the highest and a position above it.
    fn jump(&self, entry: &mut Span, position: i64, timestamp: i64, sink: &mut impl Sink) {
        if position - 1 > entry.last && self.keeps_holes {
            entry.holes.open(entry.last + 1, position - 1, timestamp);
            sink.opened(entry.last + 1, position - 1);
        }
    }

    /// `Next`: only highest + 1 is accepted, the last rows are known by the window.
    fn next(&self, entry: &mut Span, run: Run, offset: i64, sink: &mut impl Sink) {
        let expected = self.expected(entry);
        let accepted_from = match expected {
            Some(expected) if !run.is_old && (run.seq..=run.last_seq()).contains(&expected) => expected - run.seq,
            _ => run.rows,
        };
        for row in 0..accepted_from {
            if self.rows_back(entry.last, run.seq + row) <= (entry.last - entry.first) as u64 {
                sink.refuse(offset + row, offset + row + 1, Verdict::Duplicate);
            } else if run.is_old {
                sink.refuse(offset + row, offset + row + 1, Verdict::Forgotten);
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

/// Tells each stretch of `first..=last`, lowest first, and whether the entry holds it: whether it lies
/// between its first and its last and in no hole. None of it is final.
fn each_stretch(entry: &Span, first: i64, last: i64, mut tell: impl FnMut(i64, i64, bool)) {
    let inside = (first.max(entry.first), last.min(entry.last));
    if first < entry.first {
        tell(first, last.min(entry.first - 1), false);
    }
    if inside.0 <= inside.1 {
        let mut from = inside.0;
        for (hole_first, hole_last) in entry.holes.within(inside.0, inside.1) {
            if from < hole_first {
                tell(from, hole_first - 1, true);
            }
            tell(hole_first, hole_last, false);
            from = hole_last + 1;
        }
        if from <= inside.1 {
            tell(from, inside.1, true);
        }
    }
    if last > entry.last {
        tell(first.max(entry.last + 1), last, false);
    }
}
