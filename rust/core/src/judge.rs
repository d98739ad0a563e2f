//! Judges spans, with one function per policy family. Each takes an entry and a span, and returns the verdicts and the
//! new entry.
//!
//! A span is one row, or several rows with consecutive sequence numbers. Each row is judged as if it came alone; with
//! spans, several rows can be decided at once.

use crate::holes::Holes;
use crate::position::{Border, Place, Wrap};
use crate::{Admit, Epochs, First, Gaps, Late, Policy, Verdict};

/// The state of a key, or of a key and epoch if epochs are part of the key.
///
/// Under `Any` and `Forward`, every position from `first` to `last` except the holes was accepted. Under `Next`, these
/// are the rows in the window; `first` is computed from `last` and can be negative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FullEntry {
    pub(crate) epoch: i16,
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) holes: Holes,
    /// Positions that can no longer be judged: the convex hull of the holes that became final.
    pub(crate) final_range: Option<(i64, i64)>,
    /// The highest timestamp of the accepted rows. If higher epochs replace lower ones, of the rows of all epochs.
    /// Unused if timestamps are not kept.
    pub(crate) last_timestamp: i64,
}

/// An entry without holes and final range. A slot of a line can hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlainEntry {
    pub(crate) epoch: i16,
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// As in [`FullEntry`].
    pub(crate) last_timestamp: i64,
}

impl From<PlainEntry> for FullEntry {
    #[inline]
    fn from(plain: PlainEntry) -> FullEntry {
        let PlainEntry { epoch, first, last, last_timestamp } = plain;
        FullEntry { epoch, first, last, last_timestamp, ..FullEntry::default() }
    }
}

impl FullEntry {
    /// The plain form of the entry, if it has no holes and no final range.
    #[inline]
    pub(crate) fn plain(&self) -> Option<PlainEntry> {
        self.is_plain().then(|| self.without_holes())
    }

    /// The plain form of the entry, without its holes and its final range.
    #[inline]
    pub(crate) fn without_holes(&self) -> PlainEntry {
        let &FullEntry { epoch, first, last, last_timestamp, .. } = self;
        PlainEntry { epoch, first, last, last_timestamp }
    }

    /// Whether the entry has no holes and no final range.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.holes.is_empty() && self.final_range.is_none()
    }

    /// Makes positions final. The final range becomes the convex hull of itself and these, and holes in it are removed.
    pub(crate) fn finalise(&mut self, (first, last): (i64, i64)) {
        let (first, last) = self.final_range.map_or((first, last), |(low, high)| (first.min(low), last.max(high)));
        self.holes.remove(first, last);
        self.final_range = Some((first, last));
    }
}

impl PlainRules {
    /// The first position that an entry covers, for rows from `first` to `last`.
    #[inline]
    pub(crate) fn first_of(&self, first: i64, last: i64) -> i64 {
        first.max(last - (self.remembered_max - 1))
    }

    /// Whether positions of an entry, whose highest is `last`, and of a span equal sequence numbers, and the span is
    /// neither old nor of another epoch.
    #[inline(always)]
    pub(crate) fn is_plain(&self, epoch: i16, last: i64, span: Span) -> bool {
        epoch == span.epoch
            && !span.is_old
            && (0..self.plain_below).contains(&last)
            && span.last_seq() < self.plain_below
    }
}

/// Rows of one key and epoch with consecutive sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) epoch: i16,
    pub(crate) seq: i64,
    pub(crate) rows: i64,
    /// Their highest timestamp, if timestamps are kept.
    pub(crate) newest: i64,
    /// Whether all rows are at or below the horizon. Otherwise, none is.
    pub(crate) is_old: bool,
}

impl Span {
    /// A span whose rows have no timestamps.
    #[inline(always)]
    pub(crate) fn plain(epoch: i16, seq: i64, rows: i64) -> Span {
        Span { epoch, seq, rows, newest: 0, is_old: false }
    }

    #[inline]
    pub(crate) fn last_seq(self) -> i64 {
        self.seq + (self.rows - 1)
    }
}

/// Receives the verdicts of a span. Rows that are not refused are accepted.
pub(crate) trait Sink {
    /// Rows `from..to` of the span are not accepted.
    fn refuse(&mut self, from: i64, to: i64, verdict: Verdict);
    /// Rows `from..to` of the span are out of order. `expected` would have been accepted; `None` after the last 64-bit
    /// sequence number.
    fn out_of_order(&mut self, from: i64, to: i64, expected: Option<i64>);
    /// Positions were skipped.
    fn opened(&mut self, first: i64, last: i64);
    /// Positions that had been skipped were accepted.
    fn closed(&mut self, first: i64, last: i64);
    /// Rows of the span are below their key's highest epoch.
    fn stale(&mut self, rows: i64);
    /// Rows whose lap only the border of the wrap decided.
    fn border(&mut self, rows: i64);
    /// The timestamp of a row of the span. 0 if timestamps are not kept.
    fn timestamp(&self, row: i64) -> i64;
    /// The highest timestamp of the rows of the span that were not refused, if any.
    fn newest_accepted(&self) -> Option<i64>;
}

/// A policy with precomputed values for judging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) plain: PlainRules,
    wrap: Option<Wrap>,
    keeps_holes: bool,
    /// Whether rows change only the ends, the holes and the timestamp of an entry.
    changes_in_place: bool,
}

/// The part of the rules that the fast path needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRules {
    /// Whether an unknown key may begin with any sequence number, without missing rows before it.
    pub(crate) begins_anywhere: bool,
    /// If the highest position of an entry is below this value, it is on the first lap and outside the border zone. Its
    /// positions are then equal to its sequence numbers.
    pub(crate) plain_below: i64,
    /// Maximum number of positions that an entry covers.
    pub(crate) remembered_max: i64,
    /// How far above the highest position of an entry in the overflow a row can be accepted by opening a hole and
    /// changing nothing else. 0: the full rules judge all rows of such entries.
    pub(crate) jump_max: i64,
    /// Whether a late row that fills a hole is accepted.
    pub(crate) fills_holes: bool,
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
            fills_holes: policy.admit == Admit::Any,
        };
        let changes_in_place = policy.reach.is_none();
        Rules { policy, plain, wrap, keeps_holes: policy.keeps_holes(), changes_in_place }
    }

    /// The sequence number of a position.
    pub(crate) fn seq(&self, position: i64) -> i64 {
        self.wrap.map_or(position, |wrap| wrap.seq(position))
    }

    /// Whether an entry can cover this position.
    pub(crate) fn has_position(&self, position: i64) -> bool {
        self.wrap.map_or(position >= 0, |wrap| wrap.has(position))
    }

    /// Whether this policy reports holes as missing rows.
    pub(crate) fn reports_missing(&self) -> bool {
        self.policy.gaps == Gaps::Report && self.policy.admit != Admit::Next
    }

    /// The sequence number that follows an entry's highest.
    fn expected(&self, entry: &FullEntry) -> Option<i64> {
        entry.last.checked_add(1).map(|position| self.seq(position))
    }

    /// Whether two entries of one key cannot be merged. They have positions in both zones beside the border of the
    /// wrap, where the lap of a row depends on earlier rows.
    pub(crate) fn is_ambiguous(&self, one: &FullEntry, other: &FullEntry) -> bool {
        let Some(wrap) = self.wrap else { return false };
        let (mut lower, mut upper) = (false, false);
        for entry in [one, other] {
            let mut from = entry.first;
            for (hole_first, hole_last) in entry.holes.iter().chain([(entry.last + 1, entry.last + 1)]) {
                if from < hole_first {
                    let zones = wrap.zones_of(from, hole_first - 1);
                    (lower, upper) = (lower | zones.0, upper | zones.1);
                }
                from = hole_last + 1;
            }
        }
        lower && upper
    }

    /// The first position within reach, if the policy has a reach.
    fn reach_from(&self, entry: &FullEntry) -> Option<i64> {
        self.policy.reach.map(|reach| entry.last.saturating_sub(reach as i64))
    }

    /// Makes missing positions beyond the reach final.
    pub(crate) fn settle(&self, entry: &mut FullEntry) {
        if let Some(reach_from) = self.reach_from(entry)
            && let Some(hull) = entry.holes.finalise_below(reach_from)
        {
            entry.finalise(hull);
        }
    }

    /// Judges a span of a known entry in place. This is possible if positions equal sequence numbers and nothing is
    /// old, final or of another epoch; otherwise nothing changes. Most spans that the fast path cannot judge are judged
    /// here.
    #[inline]
    pub(crate) fn judge_in_place(&self, entry: &mut FullEntry, span: Span, sink: &mut impl Sink) -> bool {
        let is_plain =
            self.changes_in_place && entry.final_range.is_none() && self.plain.is_plain(entry.epoch, entry.last, span);
        if !is_plain {
            return false;
        }
        if span.rows == 1 && (entry.first..=entry.last).contains(&span.seq) && !entry.holes.has(span.seq) {
            sink.refuse(0, 1, Verdict::Duplicate);
            return true;
        }
        if self.policy.admit == Admit::Next {
            self.next(entry, span, 0, sink);
        } else {
            self.admit(entry, span.seq, span.rows, 0, sink);
        }
        if let Some(newest) = sink.newest_accepted() {
            entry.last_timestamp = entry.last_timestamp.max(newest);
        }
        true
    }

    /// Judges a span against the entry of its key (of its key and epoch if epochs are part of the key), and returns the
    /// new entry. `None`: the key is unknown and no row was accepted.
    pub(crate) fn judge(&self, entry: Option<FullEntry>, span: Span, sink: &mut impl Sink) -> Option<FullEntry> {
        let mut entry = self.judge_epoch(entry, span, sink)?;
        if let Some(newest) = sink.newest_accepted() {
            entry.last_timestamp = entry.last_timestamp.max(newest);
        }
        Some(entry)
    }

    fn judge_epoch(&self, entry: Option<FullEntry>, span: Span, sink: &mut impl Sink) -> Option<FullEntry> {
        if let Some(known) = &entry
            && self.policy.epochs == Epochs::Fence
            && span.epoch != known.epoch
        {
            if span.epoch < known.epoch {
                sink.refuse(0, span.rows, Verdict::Fenced);
                return entry;
            }
            if span.is_old {
                sink.refuse(0, span.rows, Verdict::Forgotten);
                return entry;
            }
            if self.policy.admit == Admit::Next && span.seq != 0 {
                sink.out_of_order(0, span.rows, Some(0));
                return entry;
            }
            // The age of a key is that of its newest accepted row of any epoch. With the age of the current epoch
            // alone, an eviction could forget rows above the horizon, and they would be accepted again.
            let last_timestamp = known.last_timestamp;
            return match self.begin(span, sink) {
                Some(begun) => Some(FullEntry { last_timestamp: begun.last_timestamp.max(last_timestamp), ..begun }),
                None => entry,
            };
        }
        match entry {
            None if span.is_old => {
                sink.refuse(0, span.rows, Verdict::Forgotten);
                None
            }
            None => self.begin(span, sink),
            Some(known) if self.is_settled(&known) => Some(self.go_on(known, span, 0, sink)),
            Some(known) => Some(self.settle_and_go_on(known, span, sink)),
        }
    }

    /// Whether nothing is missing beyond the reach. After a merge, this can be false.
    fn is_settled(&self, entry: &FullEntry) -> bool {
        let lowest = || entry.holes.iter().next().map(|(first, _)| first);
        self.reach_from(entry).is_none_or(|reach_from| lowest().is_none_or(|first| first >= reach_from))
    }

    /// Judges a span of a merged entry. Missing positions beyond the reach become final first, but only if at least one
    /// row is accepted: a refused span changes nothing.
    fn settle_and_go_on(&self, merged: FullEntry, span: Span, sink: &mut impl Sink) -> FullEntry {
        let mut settled = merged.clone();
        self.settle(&mut settled);
        let after = self.go_on(settled.clone(), span, 0, sink);
        if after == settled { merged } else { after }
    }

    /// Judges a span of an unknown key, or of an epoch that replaces the known one.
    fn begin(&self, span: Span, sink: &mut impl Sink) -> Option<FullEntry> {
        let from_zero = self.policy.first == First::Zero;
        if from_zero && self.policy.admit != Admit::Any && span.seq != 0 {
            sink.out_of_order(0, span.rows, Some(0));
            return None;
        }
        let timestamp = sink.timestamp(0);
        let mut begun = FullEntry {
            epoch: span.epoch,
            first: span.seq,
            last: span.seq,
            last_timestamp: timestamp,
            ..FullEntry::default()
        };
        if from_zero && span.seq > 0 {
            begun.first = 0;
            begun.holes.open(0, span.seq - 1, timestamp);
            sink.opened(0, span.seq - 1);
            self.settle(&mut begun);
        }
        if span.rows == 1 {
            return Some(begun);
        }
        let rest = Span { seq: span.seq + 1, rows: span.rows - 1, ..span };
        Some(self.go_on(begun, rest, 1, sink))
    }

    /// Judges a span of a known entry. `offset`: where it begins in the span that the sink has.
    fn go_on(&self, mut entry: FullEntry, span: Span, offset: i64, sink: &mut impl Sink) -> FullEntry {
        if self.policy.admit == Admit::Next {
            self.next(&mut entry, span, offset, sink);
            return entry;
        }
        let mut rest = span;
        let mut offset = offset;
        while rest.rows > 0 {
            let place = self.place(&entry, rest);
            let (position, rows) = (place.position, self.stretch(&entry, place.position, rest));
            self.count_border(&entry, place, Span { rows, ..rest }, sink);
            if entry.final_range.is_some_and(|(first, last)| (first..=last).contains(&position)) {
                sink.refuse(offset, offset + rows, Verdict::Forgotten);
            } else if span.is_old {
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

    /// The position of the first row of the span.
    fn place(&self, entry: &FullEntry, span: Span) -> Place {
        match self.wrap {
            Some(wrap) => wrap.place(span.seq, entry.last, self.policy.first == First::Any),
            None => Place { position: span.seq, border: Border::None },
        }
    }

    /// How many rows of a span from a position on can be judged together: up to a border of the wrap or of the final
    /// range. A row below the first position is judged alone. It opens a hole, and the part of this hole beyond the
    /// reach is final before the next row is judged.
    fn stretch(&self, entry: &FullEntry, position: i64, span: Span) -> i64 {
        let rows = self.wrap.map_or(span.rows, |wrap| wrap.zone_rows(span.seq, span.rows));
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

    /// Counts the rows of a stretch whose lap only a border rule decided.
    fn count_border(&self, entry: &FullEntry, place: Place, stretch: Span, sink: &mut impl Sink) {
        match place.border {
            Border::None => {}
            // After its first row is accepted, the highest position is beyond the border too.
            Border::NextLap if !stretch.is_old && !self.is_too_far(entry, place.position) => sink.border(1),
            Border::NextLap | Border::LapBefore => sink.border(stretch.rows),
        }
    }

    fn is_too_far(&self, entry: &FullEntry, position: i64) -> bool {
        self.policy.max_jump.is_some_and(|jump| position > entry.last && (position - entry.last) as u64 > jump)
    }

    /// Judges rows at positions that are neither old nor final.
    #[inline]
    fn admit(&self, entry: &mut FullEntry, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        if self.policy.admit == Admit::Any {
            self.any(entry, position, rows, offset, sink);
        } else {
            self.forward(entry, position, rows, offset, sink);
        }
    }

    /// `Any`: accepts positions that were never accepted.
    fn any(&self, entry: &mut FullEntry, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        let end = position + (rows - 1);
        if position > entry.last {
            if self.is_too_far(entry, position) {
                return sink.out_of_order(offset, offset + rows, self.expected(entry));
            }
            self.jump(entry, position, sink.timestamp(offset), sink);
            entry.last = end;
            return;
        }
        // Within the entry, rows are duplicates unless they fill a hole.
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

    /// `Forward`: accepts positions above the highest.
    fn forward(&self, entry: &mut FullEntry, position: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
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

    /// Judges positions at or below the highest: repeats of accepted rows, or late rows.
    fn late(&self, entry: &FullEntry, first: i64, last: i64, offset: i64, sink: &mut impl Sink) {
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

    /// Judges rows below the horizon: duplicates if the entry covers them, forgotten otherwise.
    fn old(&self, entry: &FullEntry, first: i64, rows: i64, offset: i64, sink: &mut impl Sink) {
        each_stretch(entry, first, first + (rows - 1), |from, to, is_held| {
            let verdict = if is_held { Verdict::Duplicate } else { Verdict::Forgotten };
            sink.refuse(offset + (from - first), offset + (to - first) + 1, verdict);
        });
    }

    /// Reports the positions between the highest and a position above it.
    fn jump(&self, entry: &mut FullEntry, position: i64, timestamp: i64, sink: &mut impl Sink) {
        if position - 1 > entry.last && self.keeps_holes {
            entry.holes.open(entry.last + 1, position - 1, timestamp);
            sink.opened(entry.last + 1, position - 1);
        }
    }

    /// `Next`: accepts only highest + 1. The window recognizes recent rows as duplicates.
    fn next(&self, entry: &mut FullEntry, span: Span, offset: i64, sink: &mut impl Sink) {
        let expected = self.expected(entry);
        let accepted_from = match expected {
            Some(expected) if !span.is_old && (span.seq..=span.last_seq()).contains(&expected) => expected - span.seq,
            _ => span.rows,
        };
        for row in 0..accepted_from {
            if self.rows_back(entry.last, span.seq + row) <= (entry.last - entry.first) as u64 {
                sink.refuse(offset + row, offset + row + 1, Verdict::Duplicate);
            } else if span.is_old {
                sink.refuse(offset + row, offset + row + 1, Verdict::Forgotten);
            } else {
                sink.out_of_order(offset + row, offset + row + 1, expected);
            }
        }
        let accepted = span.rows - accepted_from;
        if accepted > 0 {
            let remembered = (entry.last - entry.first + 1).saturating_add(accepted).min(self.policy.window as i64);
            entry.last = span.last_seq();
            entry.first = entry.last - (remembered - 1);
        }
    }

    /// How many rows the sequence number `seq` is before `last`.
    fn rows_back(&self, last: i64, seq: i64) -> u64 {
        self.wrap.map_or_else(|| last.wrapping_sub(seq) as u64, |wrap| wrap.seq(last - seq) as u64)
    }
}

/// Visits each stretch of `first..=last`, lowest first, with whether the entry covers it: whether it is between first
/// and last and in no hole. No position is final.
fn each_stretch(entry: &FullEntry, first: i64, last: i64, mut visit: impl FnMut(i64, i64, bool)) {
    let inside = (first.max(entry.first), last.min(entry.last));
    if first < entry.first {
        visit(first, last.min(entry.first - 1), false);
    }
    if inside.0 <= inside.1 {
        let mut from = inside.0;
        for (hole_first, hole_last) in entry.holes.within(inside.0, inside.1) {
            if from < hole_first {
                visit(from, hole_first - 1, true);
            }
            visit(hole_first, hole_last, false);
            from = hole_last + 1;
        }
        if from <= inside.1 {
            visit(from, inside.1, true);
        }
    }
    if last > entry.last {
        visit(first.max(entry.last + 1), last, false);
    }
}
