//! The functions of a table that snapshots and deltas use.

use super::merge::Change;
use super::{Cuts, Judged, StateTable};
use crate::batch::Batch;
use crate::changes::{Changes, Forgotten};
use crate::judge::{FullEntry, PlainEntry};
use crate::keys::{KeySpace, Keys};
use crate::order::Renumbering;
use crate::ordered::Appended;
use crate::store::with_shelf;
use crate::{Admit, Epochs, Error, Result, Verdict};
use std::collections::HashSet;

impl StateTable {
    /// Starts or stops to track changes for [`StateTable::delta`]. Without tracking there is no cost. With it, the cost
    /// is 2 to 4 bits per entry, and one bit set at random per accepted span.
    pub fn track_changes(&mut self, on: bool) {
        self.changes.track(on);
    }

    /// Records that the current table was stored as the snapshot or delta with this checksum. Changes count from here.
    /// Call it only after the bytes are safe.
    pub fn begin_changes(&mut self, checksum: u32) {
        self.changes.begin(checksum);
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// `judged`: its counts tell whether any row was not accepted.
    pub(super) fn note_changes(&mut self, batches: &[Batch<'_>], cuts: &Cuts, judged: &Judged) {
        let (verdicts, is_kept) = (&judged.verdicts, |verdict: &u8| *verdict == Verdict::Accepted as u8);
        if judged.counts.iter().sum::<u64>() == verdicts.len() as u64 {
            return;
        }
        let entries = self.len();
        let Some(marks) = self.changes.note(entries) else { return };
        let mut rows_before = 0;
        for (batch, cut) in batches.iter().zip(cuts) {
            let batch = cut.batch(batch);
            for (line, start, end) in cut.spans() {
                if batch.pid[line] != -1 && verdicts[rows_before + start..rows_before + end].iter().any(is_kept) {
                    marks.add(batch.pid[line], batch.partition[line]);
                }
            }
            rows_before += cut.rows as usize;
        }
    }

    /// Visits the key of every entry, in arbitrary order.
    pub(crate) fn for_each_key(&self, mut visit: impl FnMut(i64, i32)) {
        with_shelf!(&self.store, shelf => shelf.for_each(|pid, partition, _| visit(pid, partition)));
    }

    /// See [`Shelf::in_order`].
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        is_included: impl Fn(i64, i32) -> bool,
        visit: impl FnMut(i64, i32, PlainEntry, Option<&FullEntry>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        with_shelf!(&self.store, shelf => shelf.in_order(numbers, is_included, visit))
    }

    /// Adds the entries of a frame. They follow all others in the order of snapshots.
    pub(crate) fn append(&mut self, entries: Vec<Appended>) -> Result<()> {
        let usual = self.usual();
        entries.iter().filter(|entry| !usual.has(entry)).try_for_each(|entry| self.check_appended(entry))?;
        with_shelf!(&mut self.store, shelf => shelf.append(entries))
    }

    /// See [`Shelf::reserve_for`].
    pub(crate) fn reserve_for(&mut self, entries: u64) -> Result<bool> {
        with_shelf!(&mut self.store, shelf => shelf.reserve_for(entries))
    }

    fn usual(&self) -> Usual {
        let policy = self.policy();
        Usual {
            epoch_max: if policy.epochs == Epochs::Ignore { 0 } else { i16::MAX },
            seq_max: policy.seq_max(),
            reach_max: if policy.admit == Admit::Next { policy.window as i64 - 1 } else { i64::MAX },
            keeps_timestamp: self.keeps_timestamp,
        }
    }

    /// Refuses an entry that this policy cannot produce.
    #[cold]
    pub(crate) fn check_appended(
        &self,
        Appended { pid, partition, plain, whole, is_older, .. }: &Appended,
    ) -> Result<()> {
        let policy = self.policy();
        let full = FullEntry::from(*plain);
        let state = whole.as_deref().unwrap_or(&full);
        if *is_older && policy.epochs != Epochs::Key {
            return Err(Error::Snapshot("two entries have the same key".into()));
        }
        let reach = state.last.wrapping_sub(state.first);
        let is_timed = self.keeps_timestamp || state.last_timestamp == 0;
        let has_hole_time = state.holes.iter_timed().any(|(_, _, timestamp)| timestamp != 0);
        if !is_timed || (has_hole_time && !self.keeps_timestamp) {
            return Err(Error::Snapshot("an entry has a timestamp, but the table keeps none".into()));
        }
        if policy.admit == Admit::Next && (state.last < 0 || reach < 0 || reach as u64 >= policy.window) {
            return Err(Error::Snapshot("an entry's window is reversed or wider than the policy's".into()));
        }
        self.check_entry(&self.entry(*pid, *partition, state))
    }

    /// Checks that the keys of a delta have the types of this table's keys.
    pub(crate) fn check_kinds(&self, theirs: &Keys) -> Result<()> {
        let differ = |mine: &KeySpace, theirs: &KeySpace| {
            mine.kind.is_some() && theirs.kind.is_some() && mine.kind != theirs.kind
        };
        if differ(&self.keys.pid, &theirs.pid) || differ(&self.keys.partition, &theirs.partition) {
            return Err(Error::Snapshot("the delta has keys of other types".into()));
        }
        Ok(())
    }

    /// Applies a checked delta: removes what its table forgot, then stores its entries. `theirs` has the numbers of its
    /// keys.
    pub(crate) fn take_over(&mut self, theirs: &Keys, forgotten: &Forgotten, entries: Vec<Appended>) -> Result<()> {
        self.make_room(entries.len())?;
        if forgotten.everything {
            self.retain(|_, _, _| false);
            self.drop_unused_keys();
        }
        let before = self.keys.mark();
        let translation = self.number(theirs).map_err(|error| {
            self.is_half_done = forgotten.everything;
            self.keys.go_back(before);
            match error {
                Error::Batch { .. } => Error::Snapshot(error.to_string()),
                other => other,
            }
        })?;
        let gone: HashSet<_> = forgotten.gone.iter().map(|&(pid, partition)| translation.of(pid, partition)).collect();
        self.horizon_ms = forgotten.horizon_ms;
        if !gone.is_empty() || forgotten.eviction.is_some() {
            let rules = self.rules;
            self.retain(|pid, partition, entry| {
                let is_kept = forgotten.eviction.is_none_or(|eviction| eviction.keeps(&rules, entry));
                is_kept && !gone.contains(&(pid, partition))
            });
        }
        let change = |Appended { pid, partition, plain, whole, .. }| {
            let (pid, partition) = translation.of(pid, partition);
            let entry = whole.map_or_else(|| plain.into(), |whole| *whole);
            let known = self.rival(pid, partition, entry.epoch).map(|rival| rival.epoch);
            Change { pid, partition, known, entry }
        };
        let changes = entries.into_iter().map(change).collect();
        self.put_all(changes)
    }
}

/// The properties of nearly every entry of a snapshot: plain, on the first lap, the only one of its key.
struct Usual {
    epoch_max: i16,
    seq_max: i64,
    reach_max: i64,
    keeps_timestamp: bool,
}

impl Usual {
    /// Whether an entry has these properties. The policy can then have produced it.
    #[inline]
    fn has(&self, entry: &Appended) -> bool {
        let PlainEntry { epoch, first, last, last_timestamp } = entry.plain;
        (0..=self.epoch_max).contains(&epoch)
            && 0 <= first
            && first <= last
            && last <= self.seq_max
            && last - first <= self.reach_max
            && (self.keeps_timestamp || last_timestamp == 0)
            && !entry.is_older
            && entry.whole.is_none()
    }
}
