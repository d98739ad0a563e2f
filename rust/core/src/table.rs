//! The state table: its calls and their results.

pub(crate) mod call;
mod entries;
mod merge;
mod passes;
mod skipped;
mod stored;

use crate::batch::Batch;
use crate::changes::{Changes, Eviction};
use crate::holes::Holes;
use crate::judge::{FullEntry, Rules};
use crate::keys::{Key, Keys};
use crate::lines::Partitions;
use crate::order::Renumbering;
use crate::parallel::{in_parallel, threads};
use crate::prefetch::CHUNK;
use crate::repeats::{KeyColumns, KeyedRows, Repeats, find_repeats};
use crate::shelf::Shelf;
use crate::spans::{Cut, Domain, check_lengths};
use crate::store::{Store, with_shelf};
use crate::{Admit, Column, Epochs, Error, Policy, Result, Untracked, Verdict};
pub use entries::Entries;
use merge::Translation;
use passes::judge_batches;
use skipped::Skipped;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Mutex;

/// The state of one key, or of a key and epoch if each epoch has its own state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The producer, or its number in [`StateTable::keys`].
    pub pid: i64,
    /// The partition, or its number in [`StateTable::keys`].
    pub partition: i32,
    /// 0 where there are no epochs.
    pub epoch: i16,
    /// Lowest position accepted (0 where heads count as missing); under `Next` the oldest row in the
    /// window, as a sequence number.
    pub first: i64,
    /// Highest position accepted; under `Next` the newest row, as a sequence number.
    pub last: i64,
    /// Positions between them that were not accepted and still may be, lowest first.
    pub holes: Vec<Hole>,
    /// Positions between them that can no longer be judged, both ends included.
    pub final_range: Option<(i64, i64)>,
    /// The highest timestamp of its accepted rows, in milliseconds. `None` if timestamps are not kept.
    pub last_timestamp: Option<i64>,
}

/// A range of positions that were skipped, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The lowest.
    pub first: i64,
    /// The highest.
    pub last: i64,
    /// The timestamp of the row that opened it, in milliseconds. `None` if timestamps are not kept.
    pub timestamp: Option<i64>,
}

/// A range of sequence numbers that have not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The producer, or its number in [`StateTable::keys`].
    pub pid: i64,
    /// The partition, or its number in [`StateTable::keys`].
    pub partition: i32,
    /// 0 where there are no epochs.
    pub epoch: i16,
    /// The first sequence number.
    pub first_seq: i64,
    /// The last sequence number. Less than the first if the range crosses the wrap.
    pub last_seq: i64,
    /// Number of sequence numbers.
    pub count: u64,
}

/// Rows that came after a higher epoch of their key was accepted. They indicate a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The producer, or its number in [`StateTable::keys`].
    pub pid: i64,
    /// The partition, or its number in [`StateTable::keys`].
    pub partition: i32,
    /// The epoch below the highest.
    pub epoch: i16,
    /// Number of rows.
    pub rows: u64,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The code of each row's [`Verdict`].
    pub verdicts: Vec<u8>,
    /// Number of rows by verdict code.
    pub counts: [u64; Verdict::COUNT],
    /// Number of rows below the highest accepted epoch of their key, kept or not.
    pub stale_epoch: u64,
    /// These rows by key and epoch, in the order of pid, partition and epoch (by value).
    pub stale: Vec<Stale>,
    /// Number of rows whose lap only the border of the wrap decided.
    pub border: u64,
    /// For each row that is out of order, in row order: the row, and the sequence number that would have been accepted.
    pub expected: Vec<(u64, i64)>,
    /// Positions that rows of this call skipped and filled.
    skipped: Skipped,
}

impl Judged {
    /// Positions that rows of this call skipped and that no row filled, in the order of pid, partition and epoch (by
    /// value, see [`Keys`]). The list is built here, so that it costs nothing if it is not used. `keys`: the keys of
    /// the table, before it forgets or renumbers any.
    pub fn missing(&self, keys: &Keys) -> impl Iterator<Item = Missing> + use<'_> {
        self.skipped.missing(keys)
    }

    /// Number of ranges that rows of this call skipped.
    pub fn opened(&self) -> usize {
        self.skipped.opened()
    }
}

/// Judges rows by the rules of a policy, and stores the state of producers.
pub struct StateTable {
    rules: Rules,
    untracked: Untracked,
    entries_max: Option<u64>,
    keeps_timestamp: bool,
    partitions: Option<Partitions>,
    horizon_ms: Option<i64>,
    label: String,
    keys: Keys,
    store: Store,
    changes: Changes,
    is_half_done: bool,
    /// Reused between calls to save the allocation.
    cuts: Cuts,
}

/// The spans of each batch of a call.
type Cuts = Vec<Cut>;

impl StateTable {
    /// An empty table.
    pub fn new(policy: Policy) -> Result<StateTable> {
        policy.validate()?;
        Ok(StateTable {
            rules: Rules::new(policy),
            untracked: Untracked::Keep,
            entries_max: None,
            keeps_timestamp: false,
            horizon_ms: None,
            label: String::new(),
            keys: Keys::default(),
            partitions: None,
            store: Store::new(&policy, false, None),
            changes: Changes::default(),
            is_half_done: false,
            cuts: Vec::new(),
        })
    }

    /// Sets how rows without a producer identity are treated.
    pub fn with_untracked(self, untracked: Untracked) -> StateTable {
        StateTable { untracked, ..self }
    }

    /// Sets the maximum number of entries.
    pub fn with_entries_max(self, entries_max: Option<u64>) -> StateTable {
        StateTable { entries_max, ..self }
    }

    /// Sets whether the table keeps timestamps: see [`Entry::last_timestamp`] and [`Hole::timestamp`]. They take 8
    /// bytes per slot and make eviction by age possible.
    ///
    /// # Panics
    /// If the table has entries.
    pub fn with_keep_timestamp(self, keeps_timestamp: bool) -> StateTable {
        assert!(self.is_empty(), "what a table keeps is set before its first row");
        StateTable { keeps_timestamp, ..self }.emptied()
    }

    /// An empty table for producers that write to one partition each, or to many. By default, the table finds the layout
    /// of its lines while it grows. To build it then takes 1.5 to 3 times as long. Snapshots do not contain the number.
    ///
    /// # Panics
    /// If the table has entries.
    pub fn with_partitions(self, partitions: Option<Partitions>) -> StateTable {
        assert!(self.is_empty(), "the layout of a table is chosen before its first row");
        StateTable { partitions, ..self }.emptied()
    }

    fn emptied(self) -> StateTable {
        let store = Store::new(&self.rules.policy, self.keeps_timestamp, self.partitions);
        StateTable { store, ..self }
    }

    /// Sets the horizon, if timestamps are kept. For tables that are rebuilt.
    pub fn with_horizon_ms(self, horizon_ms: Option<i64>) -> StateTable {
        StateTable { horizon_ms: horizon_ms.filter(|_| self.keeps_timestamp), ..self }
    }

    /// Sets a text that the table and its snapshots store.
    pub fn with_label(self, label: String) -> StateTable {
        StateTable { label, ..self }
    }

    /// The stored text.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The rules.
    pub fn policy(&self) -> Policy {
        self.rules.policy
    }

    /// How rows without a producer identity are treated.
    pub fn untracked(&self) -> Untracked {
        self.untracked
    }

    /// The maximum number of entries.
    pub fn entries_max(&self) -> Option<u64> {
        self.entries_max
    }

    /// Whether entries and holes have timestamps.
    pub fn keeps_timestamp(&self) -> bool {
        self.keeps_timestamp
    }

    /// The table can no longer judge unknown rows at or below this timestamp (milliseconds). `None` before the first
    /// eviction. It never decreases.
    pub fn horizon_ms(&self) -> Option<i64> {
        self.horizon_ms
    }

    /// The types and numbers of its keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The types and numbers of its keys, mutable.
    pub fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        with_shelf!(&self.store, shelf => shelf.len())
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of positions in all entries, under policies that keep positions: from first to last, without the holes.
    /// Without eviction, a call adds one per accepted row.
    pub fn positions(&self) -> u128 {
        let mut sum = 0;
        with_shelf!(&self.store, shelf => shelf.for_each(|_, _, entry| {
            sum += entry.first.abs_diff(entry.last) as u128 + 1;
            entry.holes.for_each(|first, last, _| sum -= first.abs_diff(last) as u128 + 1);
        }));
        sum
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let keys = self.keys.pid.dictionary.memory_bytes() + self.keys.partition.dictionary.memory_bytes();
        let shelf = with_shelf!(&self.store, shelf => shelf.memory_bytes());
        shelf
            + keys
            + self.changes.memory_bytes()
            + self.cuts.iter().map(Cut::memory_bytes).sum::<usize>()
            + size_of::<StateTable>()
    }

    /// The entry of a key and epoch, or of the key's highest epoch.
    pub fn get(&self, pid: i64, partition: i32, epoch: Option<i16>) -> Option<Entry> {
        let state = with_shelf!(&self.store, shelf => shelf.get(pid, partition, epoch))?;
        Some(self.entry(pid, partition, &state))
    }

    /// Every entry, in the order of pid, partition and epoch (by value, see [`Keys`]).
    pub fn entries(&self) -> Entries<'_> {
        let mut keys = Vec::with_capacity(self.len());
        with_shelf!(&self.store, shelf => {
            shelf.for_each(|pid, partition, entry| keys.push((pid, partition, entry.epoch)));
        });
        Entries::new(self, keys)
    }

    /// Visits every range that is missing, in the order of pid, partition, epoch (by value) and position.
    pub fn for_each_missing(&self, mut visit: impl FnMut(Missing)) {
        if !self.rules.reports_missing() {
            return;
        }
        let mut found = with_shelf!(&self.store, shelf => shelf.all_holes());
        let numbers = Renumbering::new(&self.keys, |visit| found.iter().for_each(|(key, _)| visit(key.0, key.1)));
        found.sort_unstable_by_key(|((pid, partition, epoch), _)| (numbers.key(*pid, *partition), *epoch));
        for (key, holes) in found {
            holes.for_each(|first, last, _| visit(missing_of(&self.rules, key, (first, last))));
        }
    }

    /// The ranges of [`StateTable::for_each_missing`].
    pub fn missing(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        self.for_each_missing(|range| missing.push(range));
        missing
    }

    /// Number of holes of all entries. If the policy reports holes, this is the number of missing ranges.
    pub fn holes(&self) -> usize {
        with_shelf!(&self.store, shelf => shelf.holes()) as usize
    }

    /// The entries of up to [`CHUNK`] keys that exist.
    pub(crate) fn get_known(&self, keys: &[Key]) -> Vec<Entry> {
        with_shelf!(&self.store, shelf => shelf.prefetch(keys));
        let entry = |&(pid, partition, epoch): &Key| self.get(pid, partition, Some(epoch)).expect("a known key");
        keys.iter().map(entry).collect()
    }

    /// Judges every row in order, and updates the table. The batches are one input, divided in any way. Rows are
    /// counted from the first row of the first batch. After an error the table is unchanged, with one exception: see
    /// [`StateTable::is_half_done`].
    pub fn apply(&mut self, batches: &[Batch<'_>]) -> Result<Judged> {
        self.advance(batches, None, true)
    }

    /// Like `apply`, for callers that do not use [`Judged::missing`]. It is empty, and no data is collected for it.
    pub fn apply_without_missing(&mut self, batches: &[Batch<'_>]) -> Result<Judged> {
        self.advance(batches, None, false)
    }

    /// Like [`StateTable::apply`], for rows grouped into spans: each line of a batch stands for as many rows as its value
    /// in `lengths`. Their sequence numbers continue from `seq`, and they share the line's timestamp. There is one verdict
    /// per row; row numbers in errors are line numbers.
    ///
    /// # Panics
    /// If `lengths` does not have one slice per batch.
    pub fn apply_spans(&mut self, batches: &[Batch<'_>], lengths: &[&[u32]]) -> Result<Judged> {
        assert_eq!(batches.len(), lengths.len(), "each batch has lengths");
        self.advance(batches, Some(lengths), true)
    }

    fn advance(&mut self, batches: &[Batch<'_>], lengths: Option<&[&[u32]]>, lists_missing: bool) -> Result<Judged> {
        let mut cuts = std::mem::take(&mut self.cuts);
        let parts = if lengths.is_none() { parts_of(batches) } else { Cow::Borrowed(batches) };
        let batches = &parts[..];
        let is_found = self.find_spans(batches, lengths, &mut cuts);
        let judged = is_found.and_then(|()| self.make_room(rows_of(&cuts))).and_then(|()| {
            let mut call = self.call(&cuts, lists_missing)?;
            let judged =
                with_shelf!(&mut self.store, shelf => judge_batches(shelf, &self.rules, batches, &cuts, &mut call));
            self.is_half_done = judged.is_err();
            judged?;
            self.note_changes(batches, &cuts, &call.judged);
            Ok(self.finish(call))
        });
        cuts.truncate(CUTS_KEPT);
        cuts.iter_mut().for_each(Cut::shrink);
        self.cuts = cuts;
        judged
    }

    /// Returns the same verdicts as `apply` without changing the table. It judges on a copy of the affected entries.
    pub fn check(&self, batches: &[Batch<'_>]) -> Result<Judged> {
        let (batches, mut cuts) = (&parts_of(batches)[..], Vec::new());
        self.find_spans(batches, None, &mut cuts)?;
        let mut call = self.call(&cuts, true)?;
        with_shelf!(&self.store, shelf => {
            let mut copy = Shelf::new(None);
            copy.reserve(shelf.lines().len().min(cuts.iter().map(Cut::len).sum()))?;
            chunks_of(batches, &cuts).try_for_each(|keys| shelf.copy_to(&mut copy, &keys))?;
            judge_batches(&mut copy, &self.rules, batches, &cuts, &mut call)?;
        });
        Ok(self.finish(call))
    }

    /// Drops the entries whose last timestamp is at least `max_idle_ms` before `now_ms`, raises the horizon to that
    /// time, and makes holes that opened at or below the horizon final. Returns the number of dropped entries. Returns
    /// [`Error::Policy`] if timestamps are not kept.
    pub fn evict(&mut self, now_ms: i64, max_idle_ms: i64) -> Result<usize> {
        if !self.keeps_timestamp {
            return Err(Error::Policy("evict needs timestamps: create the table with keep=('timestamp',)".into()));
        }
        if max_idle_ms < 0 {
            return Err(Error::Policy(format!("max_idle_ms={max_idle_ms} is below 0")));
        }
        let idle_until = now_ms.saturating_sub(max_idle_ms);
        let horizon = self.horizon_ms.map_or(idle_until, |horizon| horizon.max(idle_until));
        self.horizon_ms = Some(horizon);
        let (rules, eviction) = (self.rules, Eviction { idle_until, horizon });
        let mut changes = std::mem::take(&mut self.changes);
        changes.note_eviction(self.len(), eviction);
        let dropped = self.retain(|pid, partition, entry| {
            let is_kept = eviction.keeps(&rules, entry);
            if !is_kept {
                changes.note_evicted(pid, partition);
            }
            is_kept
        });
        changes.note_dropped(dropped, self.len());
        self.changes = changes;
        Ok(dropped)
    }

    /// Drops the entries of a producer, or of one of its partitions, in all epochs. Use it if sequence numbers were
    /// restarted. Returns the number of dropped entries.
    pub fn forget(&mut self, pid: i64, partition: Option<i32>) -> usize {
        let mut changes = std::mem::take(&mut self.changes);
        let dropped = self.retain(|of_pid, of_partition, _| {
            let is_kept = of_pid != pid || partition.is_some_and(|it| it != of_partition);
            if !is_kept {
                changes.note_gone(of_pid, of_partition);
            }
            is_kept
        });
        changes.note_dropped(dropped, self.len());
        self.changes = changes;
        dropped
    }

    fn retain(&mut self, keep: impl FnMut(i64, i32, &mut FullEntry) -> bool) -> usize {
        with_shelf!(&mut self.store, shelf => shelf.retain(keep))
    }

    /// Renumbers the keys if most numbered keys have no entry any more, so that the dictionaries do not keep what was
    /// forgotten. This is not part of [`StateTable::evict`], because it invalidates key numbers that the caller holds.
    ///
    /// Nothing happens while a delta is pending, because it names what was forgotten, or if there is no memory.
    pub fn drop_unused_keys(&mut self) {
        if self.is_empty() {
            // The table now equals a new one, so the next key may have any type.
            self.keys = Keys::default();
            return;
        }
        if self.changes.marks().is_some() && !self.changes.is_none() {
            return;
        }
        let [pids, partitions] = [&self.keys.pid, &self.keys.partition].map(|space| space.dictionary.len());
        if pids + partitions == 0 {
            return;
        }
        let mut used = (vec![false; pids], vec![false; partitions]);
        with_shelf!(&self.store, shelf => shelf.for_each(|pid, partition, _| {
            used.0.get_mut(pid as usize).into_iter().chain(used.1.get_mut(partition as usize)).for_each(|it| *it = true);
        }));
        let count = used.0.iter().chain(&used.1).filter(|&&it| it).count();
        if count * 2 >= pids + partitions {
            return;
        }
        let kept = self.keys.pid.dictionary.kept(&used.0);
        let Some((pids, pid)) = kept.ok() else { return };
        let kept = self.keys.partition.dictionary.kept(&used.1);
        let Some((partitions, partition)) = kept.ok() else { return };
        let translation = Translation { pid, partition };
        let is_renumbered = with_shelf!(&mut self.store, shelf => {
            let renumbered = shelf.renumbered(|pid, partition| translation.of(pid, partition));
            renumbered.map(|renumbered| *shelf = renumbered).is_ok()
        });
        if is_renumbered {
            (self.keys.pid.dictionary, self.keys.partition.dictionary) = (pids, partitions);
        }
    }

    /// Inserts an entry for a key without one. For tables that are rebuilt.
    pub fn insert(&mut self, entry: &Entry) -> Result<()> {
        self.check_entry(entry)?;
        let mut state = FullEntry {
            epoch: entry.epoch,
            first: entry.first,
            last: entry.last,
            holes: Holes::default(),
            final_range: entry.final_range,
            last_timestamp: entry.last_timestamp.unwrap_or(0),
        };
        if self.policy().admit == Admit::Next && entry.first > entry.last {
            state.first -= self.policy().wrap.unwrap_or(0) as i64;
        }
        entry.holes.iter().for_each(|hole| state.holes.open(hole.first, hole.last, hole.timestamp.unwrap_or(0)));
        self.make_room(1)?;
        let is_new = with_shelf!(&mut self.store, shelf => shelf.insert(entry.pid, entry.partition, state));
        if let Some(marks) = self.changes.note(self.len()) {
            marks.add(entry.pid, entry.partition);
        }
        if is_new { Ok(()) } else { Err(Error::Snapshot("two entries have the same key".into())) }
    }

    /// Whether a call ran out of memory after it had judged some rows or inserted some entries. This needs a call that
    /// adds a sixth to the table. The table is then in an intermediate state and must not be used.
    pub fn is_half_done(&self) -> bool {
        self.is_half_done
    }

    /// Reserves the memory with which a call begins, before its first change.
    fn make_room(&mut self, rows: usize) -> Result<()> {
        with_shelf!(&mut self.store, shelf => shelf.reserve(room_for(rows)))
    }

    fn check_entry(&self, entry: &Entry) -> Result<()> {
        let policy = self.policy();
        let refuse = |problem: &str| Err(Error::Snapshot(format!("{problem}: {entry:?}")));
        if entry.pid < 0 || entry.partition < 0 || entry.epoch < 0 {
            return refuse("an entry has a negative pid, partition or epoch");
        }
        if policy.epochs == Epochs::Ignore && entry.epoch != 0 {
            return refuse("an entry has an epoch, which this policy ignores");
        }
        if policy.admit == Admit::Next {
            let seqs = 0..=policy.seq_max();
            let remembered = self.rules.seq(entry.last.wrapping_sub(entry.first)) as u64;
            if !seqs.contains(&entry.first) || !seqs.contains(&entry.last) || remembered >= policy.window {
                return refuse("an entry's window is outside the sequence space or wider than the policy's");
            }
        } else {
            let is_in_range = self.rules.has_position(entry.first) && self.rules.has_position(entry.last);
            if entry.first > entry.last || !is_in_range {
                return refuse("an entry's positions are reversed or out of range");
            }
        }
        let mut free_from = entry.first;
        for hole in &entry.holes {
            if hole.first < free_from || hole.last < hole.first || hole.last >= entry.last {
                return refuse("an entry's holes overlap, touch each other, or are outside the entry");
            }
            free_from = hole.last.saturating_add(2);
        }
        if !entry.holes.is_empty() && !policy.keeps_holes() {
            return refuse("an entry has holes, which this policy does not keep");
        }
        self.check_final(entry)
    }

    /// Checks the final range and the timestamps of an entry.
    fn check_final(&self, entry: &Entry) -> Result<()> {
        let refuse = |problem: &str| Err(Error::Snapshot(format!("{problem}: {entry:?}")));
        if let Some((first, last)) = entry.final_range {
            let is_outside = first > last || first < entry.first || last >= entry.last;
            if is_outside || entry.holes.iter().any(|hole| hole.first <= last && hole.last >= first) {
                return refuse("an entry's final range is reversed, is outside the entry, or overlaps a hole");
            }
            if !self.policy().keeps_holes() {
                return refuse("an entry has a final range, but this policy keeps no holes");
            }
        }
        let is_timed = |timestamp: Option<i64>| timestamp.is_some() == self.keeps_timestamp;
        if !is_timed(entry.last_timestamp) || !entry.holes.iter().all(|hole| is_timed(hole.timestamp)) {
            return refuse("an entry and its holes must have timestamps if the table keeps them, and none otherwise");
        }
        Ok(())
    }

    /// Finds the rows that an empty table would refuse, without judging each one, if this is faster; otherwise `None`.
    /// Errors are those of [`StateTable::apply`]. The table stays empty.
    pub fn find_repeats<K: KeyColumns>(
        &self,
        chunks: &[KeyedRows<'_, K>],
        has_plain_keys: bool,
    ) -> Result<Option<Repeats>> {
        if !self.is_empty() || self.keeps_timestamp || self.entries_max.is_some() {
            return Ok(None);
        }
        find_repeats(&self.policy(), &self.domain(), chunks, has_plain_keys)
    }

    fn domain(&self) -> Domain {
        Domain { seq_max: self.policy().seq_max(), untracked: self.untracked }
    }

    /// Validates the batches, finds their spans (or takes the given ones), and checks that the table may grow by them.
    fn find_spans(&self, batches: &[Batch<'_>], lengths: Option<&[&[u32]]>, cuts: &mut Cuts) -> Result<()> {
        let domain = self.domain();
        cuts.resize_with(batches.len(), Cut::default);
        let find = |number: usize, cut: &mut Cut| {
            let batch = &batches[number];
            self.check_epoch(batch)?;
            self.check_timestamp(batch)?;
            match lengths {
                // Each row has a timestamp, and a span is cut where its rows cross the horizon.
                None if self.keeps_timestamp => cut.find(batch, &domain),
                None => cut.gather(batch, &domain),
                Some(lengths) => cut.take(batch, lengths[number], &domain),
            }
        };
        let rows: usize = batches.iter().map(Batch::len).sum();
        let found = if rows < ROWS_TOGETHER {
            cuts.iter_mut().enumerate().map(|(number, cut)| find(number, cut)).collect()
        } else {
            let held: Vec<_> = cuts.iter_mut().map(Mutex::new).collect();
            let find =
                |(): &mut (), number: usize| find(number, &mut held[number].lock().expect("each is locked once"));
            in_parallel(threads(), held.len(), || (), find)
        };
        let mut lines = 0;
        for (found, batch) in Vec::into_iter(found).zip(batches) {
            found.map_err(|error: Error| error.after(lines))?;
            lines += batch.len();
        }
        self.check_intervals()?;
        self.check_capacity(batches, cuts)
    }

    fn check_epoch(&self, batch: &Batch<'_>) -> Result<()> {
        match (batch.epoch, self.policy().epochs) {
            (Some(_), Epochs::Ignore) => Err(Error::Batch {
                column: Column::Epoch,
                row: None,
                problem: "is given, but this policy ignores epochs".into(),
            }),
            (None, Epochs::Key | Epochs::Fence) => Err(Error::Batch {
                column: Column::Epoch,
                row: None,
                problem: "is missing, but this policy needs epochs".into(),
            }),
            _ => Ok(()),
        }
    }

    fn check_timestamp(&self, batch: &Batch<'_>) -> Result<()> {
        if !self.keeps_timestamp || batch.timestamp.is_some() {
            return Ok(());
        }
        Err(Error::Batch {
            column: Column::Timestamp,
            row: None,
            problem: "is missing, but this table keeps timestamps".into(),
        })
    }

    /// Refuses a call if the table already has the maximum number of holes.
    fn check_intervals(&self) -> Result<()> {
        let Some(limit) = self.policy().intervals_max else { return Ok(()) };
        let holes = with_shelf!(&self.store, shelf => shelf.holes());
        if holes < limit { Ok(()) } else { Err(Error::Capacity { limit, needed: holes + 1, what: "holes" }) }
    }

    fn check_capacity(&self, batches: &[Batch<'_>], cuts: &Cuts) -> Result<()> {
        let Some(limit) = self.entries_max else { return Ok(()) };
        let have = self.len() as u64;
        if have + cuts.iter().map(|cut| cut.len() as u64).sum::<u64>() <= limit {
            return Ok(());
        }
        let counts_epochs = self.policy().epochs == Epochs::Key;
        let new: HashSet<_> = with_shelf!(&self.store, shelf => chunks_of(batches, cuts).flatten()
            .map(|(pid, partition, epoch)| (pid, partition, counts_epochs.then_some(epoch)))
            .filter(|&(pid, partition, epoch)| pid != -1 && shelf.get(pid, partition, epoch).is_none())
            .collect());
        let needed = have + new.len() as u64;
        if needed <= limit { Ok(()) } else { Err(Error::Capacity { limit, needed, what: "entries" }) }
    }

    fn entry(&self, pid: i64, partition: i32, state: &FullEntry) -> Entry {
        let as_reported = |position| {
            if self.policy().admit == Admit::Next { self.rules.seq(position) } else { position }
        };
        let timed = |timestamp| self.keeps_timestamp.then_some(timestamp);
        let mut holes = Vec::with_capacity(state.holes.len());
        state.holes.for_each(|first, last, timestamp| holes.push(Hole { first, last, timestamp: timed(timestamp) }));
        Entry {
            pid,
            partition,
            epoch: state.epoch,
            first: as_reported(state.first),
            last: as_reported(state.last),
            holes,
            final_range: state.final_range,
            last_timestamp: timed(state.last_timestamp),
        }
    }
}

#[inline]
fn missing_of(rules: &Rules, (pid, partition, epoch): Key, (first, last): (i64, i64)) -> Missing {
    let count = (last - first) as u64 + 1;
    Missing { pid, partition, epoch, first_seq: rules.seq(first), last_seq: rules.seq(last), count }
}

/// Minimum number of rows of a call for which several threads find spans. Starting them takes as long as reading a
/// tenth of this number.
const ROWS_TOGETHER: usize = 1 << 19;
/// Number of rows that a thread takes at once.
const PART: usize = 1 << 17;
/// Number of cuts that are reused between calls.
const CUTS_KEPT: usize = 8;

/// Batches divided into parts that threads can share. Invalid batches stay whole; validation reports them.
fn parts_of<'a, 'b>(batches: &'a [Batch<'b>]) -> Cow<'a, [Batch<'b>]> {
    let is_large = |batch: &Batch<'_>| batch.len() >= 2 * PART && check_lengths(batch).is_ok();
    if batches.iter().map(Batch::len).sum::<usize>() < ROWS_TOGETHER || !batches.iter().any(is_large) {
        return Cow::Borrowed(batches);
    }
    let parts = batches.iter().flat_map(|batch| {
        let (rows, part) = (batch.len(), if is_large(batch) { PART } else { batch.len().max(1) });
        (0..rows.max(1))
            .step_by(part)
            .map(move |from| if part < rows { batch.slice(from..rows.min(from + part)) } else { *batch })
    });
    parts.collect()
}

/// Maximum number of lines for this many spans. No more spans are in progress at once. A span needs one line for its
/// key, and one for an epoch that is no longer the highest.
fn room_for(spans: usize) -> usize {
    2 * spans.min(CHUNK)
}

fn rows_of(cuts: &Cuts) -> usize {
    cuts.iter().map(|cut| cut.rows as usize).sum()
}

fn key_at(batch: &Batch<'_>, line: usize) -> Key {
    (batch.pid[line], batch.partition[line], batch.epoch.map_or(0, |epoch| epoch[line]))
}

/// The key and epoch of every span, in groups that are judged together.
fn chunks_of<'a>(batches: &'a [Batch<'a>], cuts: &'a Cuts) -> impl Iterator<Item = Vec<Key>> + 'a {
    batches.iter().zip(cuts).flat_map(|(batch, cut)| {
        let batch = cut.batch(batch);
        let mut keys = cut.spans().map(move |(line, ..)| key_at(&batch, line)).peekable();
        std::iter::from_fn(move || {
            keys.peek()?;
            Some(keys.by_ref().take(CHUNK).collect())
        })
    })
}
