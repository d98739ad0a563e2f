//! The results that a call collects.

use super::skipped::Skipped;
use super::{Cuts, Judged, Stale, StateTable, rows_of};
use crate::error::make_room;
use crate::judge::Sink;
use crate::keys::Key;
use crate::{Result, Verdict};
use rustc_hash::FxHashMap;

/// The results of a call so far.
pub(crate) struct Call<'a> {
    pub(super) judged: Judged,
    /// Rows below their key's highest epoch, by key and epoch.
    stale: FxHashMap<Key, u64>,
    /// The first row of the current batch.
    pub(super) batch_from: usize,
    pub(super) horizon_ms: Option<i64>,
    /// The current span: its first row in the batch, its key and epoch, and the timestamps of its rows if they are
    /// kept.
    row: usize,
    key: Key,
    pub(super) times: Times<'a>,
}

/// The timestamps of a span's rows, if they are kept.
#[derive(Clone, Copy)]
pub(super) enum Times<'a> {
    /// One per row.
    Each(&'a [i64]),
    /// The same timestamp for a number of rows.
    Shared(i64, usize),
}

impl<'a> Call<'a> {
    fn new(cuts: &Cuts, skipped: Skipped, horizon_ms: Option<i64>) -> Result<Call<'a>> {
        let rows = rows_of(cuts);
        let mut verdicts = Vec::new();
        make_room(&mut verdicts, rows)?;
        verdicts.resize(rows, Verdict::Accepted as u8);
        let judged = Judged {
            verdicts,
            counts: [0; Verdict::COUNT],
            stale_epoch: 0,
            stale: Vec::new(),
            border: 0,
            expected: Vec::new(),
            skipped,
        };
        Ok(Call {
            judged,
            stale: FxHashMap::default(),
            batch_from: 0,
            horizon_ms,
            row: 0,
            key: (0, 0, 0),
            times: Times::Each(&[]),
        })
    }

    /// Sets the verdict of rows of the current batch that the rules need not judge.
    #[inline]
    pub(super) fn fill(&mut self, row: usize, end: usize, verdict: Verdict) {
        let rows = self.batch_from + row..self.batch_from + end;
        self.judged.counts[verdict as usize] += rows.len() as u64;
        if rows.len() == 1 {
            self.judged.verdicts[rows.start] = verdict as u8;
        } else {
            self.judged.verdicts[rows].fill(verdict as u8);
        }
    }

    /// Records positions of a key that a row skipped.
    #[inline(always)]
    pub(super) fn skip(&mut self, key: Key, first: i64, last: i64) {
        self.judged.skipped.open(key, first, last);
    }

    /// Records that a row filled a position of a key that was skipped.
    #[inline(always)]
    pub(super) fn fill_skipped(&mut self, key: Key, position: i64) {
        self.judged.skipped.close(key, position, position);
    }

    #[inline]
    pub(super) fn begin_span(&mut self, row: usize, key: Key) {
        (self.row, self.key) = (row, key);
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

    #[inline]
    fn opened(&mut self, first: i64, last: i64) {
        self.judged.skipped.open(self.key, first, last);
    }

    #[inline]
    fn closed(&mut self, first: i64, last: i64) {
        self.judged.skipped.close(self.key, first, last);
    }

    fn stale(&mut self, rows: i64) {
        *self.stale.entry(self.key).or_default() += rows as u64;
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

    #[inline]
    fn newest_accepted(&self) -> Option<i64> {
        if matches!(self.times, Times::Each([])) {
            return None; // timestamps are not kept
        }
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
    pub(super) fn call<'a>(&self, cuts: &Cuts, lists_missing: bool) -> Result<Call<'a>> {
        Call::new(cuts, Skipped::new(self.rules, lists_missing), self.horizon_ms)
    }

    pub(super) fn finish(&self, call: Call<'_>) -> Judged {
        let mut judged = call.judged;
        let mut stale: Vec<_> = call.stale.into_iter().collect();
        stale.sort_unstable_by(|one, other| self.keys.order(one.0, other.0));
        let stale = stale.into_iter().map(|((pid, partition, epoch), rows)| Stale { pid, partition, epoch, rows });
        judged.stale = stale.collect();
        judged.stale_epoch = judged.stale.iter().map(|stale| stale.rows).sum();
        let others: u64 = judged.counts.iter().sum();
        judged.counts[Verdict::Accepted as usize] = judged.verdicts.len() as u64 - others;
        judged
    }
}
