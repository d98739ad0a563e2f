//! What a call gathers and says.

use super::{Cuts, Judged, Key, Stale, StateTable, rows_of};
use crate::error::make_room;
use crate::judge::Sink;
use crate::{Result, Verdict};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;

/// What a call has gathered so far.
pub(crate) struct Call<'a> {
    pub(super) judged: Judged,
    reports_missing: bool,
    /// What was jumped over, by key and first position, up to its last; shorter as it is filled from its front.
    /// No tree and no list to sort: most of it is filled soon, and a row would pay more for that than for
    /// being judged.
    opened: FxHashMap<(Key, i64), i64>,
    /// What else was filled, of that or of older holes: taken out at the end.
    closed: Vec<Range>,
    /// Rows below their key's highest epoch, by key and epoch.
    stale: FxHashMap<Key, u64>,
    /// The first row of the batch at hand.
    pub(super) batch_from: usize,
    pub(super) horizon_ms: Option<i64>,
    /// The run at hand: its first row in the batch, its key and epoch, and its rows' timestamps where they
    /// are kept.
    row: usize,
    key: Key,
    pub(super) times: Times<'a>,
}

/// The timestamps of a run's rows, where they are kept.
#[derive(Clone, Copy)]
pub(super) enum Times<'a> {
    /// One a row.
    Each(&'a [i64]),
    /// The same for so many rows.
    Shared(i64, usize),
}

impl<'a> Call<'a> {
    fn new(cuts: &Cuts, reports_missing: bool, horizon_ms: Option<i64>) -> Result<Call<'a>> {
        let rows = rows_of(cuts);
        let mut verdicts = Vec::new();
        make_room(&mut verdicts, rows)?;
        verdicts.resize(rows, Verdict::Accepted as u8);
        let judged = Judged { verdicts, ..Judged::default() };
        Ok(Call {
            judged,
            reports_missing,
            opened: FxHashMap::default(),
            closed: Vec::new(),
            stale: FxHashMap::default(),
            batch_from: 0,
            horizon_ms,
            row: 0,
            key: (0, 0, 0),
            times: Times::Each(&[]),
        })
    }

    /// The verdict of rows of the batch at hand that needs no judge.
    pub(super) fn fill(&mut self, row: usize, end: usize, verdict: Verdict) {
        let rows = self.batch_from + row..self.batch_from + end;
        self.judged.counts[verdict as usize] += rows.len() as u64;
        if rows.len() == 1 {
            self.judged.verdicts[rows.start] = verdict as u8;
        } else {
            self.judged.verdicts[rows].fill(verdict as u8);
        }
    }

    pub(super) fn begin_run(&mut self, row: usize, key: Key) {
        (self.row, self.key) = (row, key);
    }

    /// Rows of the run at hand stand below their key's highest epoch.
    pub(crate) fn stale(&mut self, rows: i64) {
        *self.stale.entry(self.key).or_default() += rows as u64;
    }
}

impl Sink for Call<'_> {
    fn refuse(&mut self, from: i64, to: i64, verdict: Verdict) {
        self.fill(self.row + from as usize, self.row + to as usize, verdict);
    }

    fn out_of_order(&mut self, from: i64, to: i64, expected: Option<i64>) {
        self.refuse(from, to, Verdict::OutOfOrder);
        if let Some(expected) = expected {
            self.judged
                .expected
                .extend((from..to).map(|row| ((self.batch_from + self.row + row as usize) as u64, expected)));
        }
    }

    fn opened(&mut self, first: i64, last: i64) {
        if self.reports_missing {
            self.opened.insert((self.key, first), last);
        }
    }

    fn closed(&mut self, first: i64, last: i64) {
        if self.opened.is_empty() {
            return;
        }
        match self.opened.remove(&(self.key, first)) {
            None => self.closed.push((self.key, (first, last))),
            Some(end) if end > last => drop(self.opened.insert((self.key, last + 1), end)),
            Some(_) => {}
        }
    }

    fn border(&mut self, rows: i64) {
        self.judged.border += rows as u64;
    }

    fn timestamp(&self, row: i64) -> i64 {
        match self.times {
            Times::Each(times) => times.get(row as usize).copied().unwrap_or(0),
            Times::Shared(time, _) => time,
        }
    }

    fn newest_accepted(&self) -> Option<i64> {
        let verdicts = &self.judged.verdicts[self.batch_from + self.row..];
        let is_accepted = |verdict: u8| verdict == Verdict::Accepted as u8;
        match self.times {
            Times::Each(times) => {
                let accepted = times.iter().zip(verdicts).filter(|&(_, &verdict)| is_accepted(verdict));
                accepted.map(|(&time, _)| time).max()
            }
            Times::Shared(time, rows) => verdicts[..rows].iter().any(|&verdict| is_accepted(verdict)).then_some(time),
        }
    }
}

impl StateTable {
    pub(super) fn call<'a>(&self, cuts: &Cuts) -> Result<Call<'a>> {
        Call::new(cuts, self.rules.reports_missing(), self.horizon_ms)
    }

    pub(super) fn finish(&self, mut call: Call<'_>) -> Judged {
        let order = |one: &Range, other: &Range| self.order(one.0, other.0).then(one.1.cmp(&other.1));
        let mut opened: Vec<_> = call.opened.into_iter().map(|((key, first), last)| (key, (first, last))).collect();
        opened.sort_unstable_by(order);
        call.closed.sort_unstable_by(order);
        let missing = without(&opened, &call.closed, order);
        let mut stale: Vec<_> = call.stale.into_iter().collect();
        stale.sort_unstable_by(|one, other| self.order(one.0, other.0));
        let stale = stale.into_iter().map(|((pid, partition, epoch), rows)| Stale { pid, partition, epoch, rows });
        let missing = missing.into_iter().map(|(key, range)| self.missing_of(key, range));
        let mut judged = Judged { missing: missing.collect(), stale: stale.collect(), ..call.judged };
        judged.stale_epoch = judged.stale.iter().map(|stale| stale.rows).sum();
        let others: u64 = judged.counts.iter().sum();
        judged.counts[Verdict::Accepted as usize] = judged.verdicts.len() as u64 - others;
        judged
    }
}

/// Positions of a key and epoch, both ends included.
pub(super) type Range = (Key, (i64, i64));

/// What is left of ranges without others, both in one order. A position is skipped once and filled once, so
/// those of either do not overlap, and each of the others lies in one of the first or outside all.
fn without(ranges: &[Range], others: &[Range], order: impl Fn(&Range, &Range) -> Ordering) -> Vec<Range> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for &(key, (mut first, last)) in ranges {
        while let Some(other) = others.next_if(|other| order(other, &(key, (last, last))).is_le()) {
            if other.0 == key && other.1.0 >= first {
                left.extend((other.1.0 > first).then(|| (key, (first, other.1.0 - 1))));
                first = other.1.1 + 1;
            }
        }
        left.extend((first <= last).then_some((key, (first, last))));
    }
    left
}
