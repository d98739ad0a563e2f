use crate::batch::{Batch, Seqs};
use crate::changes::{Changes, Eviction, Forgotten};
use crate::dispatch::{Work, dispatch};
use crate::entries::Entries;
use crate::error::make_room;
use crate::holes::Holes;
use crate::judge::{PlainSpan, Rules, Run, Sink, Span};
use crate::keys::{KeySpace, Keys};
use crate::lines::{CHUNK, Line, Plainly, Search};
use crate::ordered::Appended;
use crate::runs::{self, Domain, Seq};
use crate::shelf::Shelf;
use crate::snapshot::KeyBounds;
use crate::snapshot::order::Renumbering;
use crate::snapshot::rows::{Before, Rows};
use crate::store::{Store, with_shelf};
use crate::union::{overlap, union};
use crate::{Admit, Column, Dictionary, Epochs, Error, Policy, Result, Verdict};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::collections::HashSet;

/// What becomes of rows that carry no producer identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Untracked {
    /// They are kept, with a verdict of their own.
    Keep,
    /// They are an error: here they would mean a wrong mapping of columns.
    Fail,
}

/// What is remembered of one key, or of one of its epochs where every epoch counts by itself.
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
    /// The positions between them of which nothing is known any more, both ends included.
    pub final_range: Option<(i64, i64)>,
    /// The highest timestamp of its accepted rows, in milliseconds; `None` where they are not kept.
    pub last_timestamp: Option<i64>,
}

/// A range of positions that were skipped, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The lowest.
    pub first: i64,
    /// The highest.
    pub last: i64,
    /// Of the row that opened it, in milliseconds; `None` where timestamps are not kept.
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
    /// The first of them.
    pub first_seq: i64,
    /// The last of them; below the first where the range crosses the wrap.
    pub last_seq: i64,
    /// How many they are.
    pub count: u64,
}

/// Rows that came after a higher epoch of their key had been accepted: a zombie's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The producer, or its number in [`StateTable::keys`].
    pub pid: i64,
    /// The partition, or its number in [`StateTable::keys`].
    pub partition: i32,
    /// The epoch below the highest.
    pub epoch: i16,
    /// How many rows of it there were.
    pub rows: u64,
}

/// What a call says of its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The code of each row's [`Verdict`].
    pub verdicts: Vec<u8>,
    /// Rows by verdict code.
    pub counts: [u64; Verdict::COUNT],
    /// Rows below the highest epoch accepted of their key, kept or not.
    pub stale_epoch: u64,
    /// The same by key and epoch, in the order of pid, partition and epoch (by value).
    pub stale: Vec<Stale>,
    /// Rows that only the border of the wrap could place on a lap.
    pub border: u64,
    /// What rows of this call jumped over and none of them filled, in the order of pid, partition and
    /// epoch (by value, see [`Keys`]).
    pub missing: Vec<Missing>,
    /// For each row that is out of order, in row order: the row, and the sequence number that would
    /// have been accepted.
    pub expected: Vec<(u64, i64)>,
}

/// What is remembered of producers, and the rules by which their rows are judged.
pub struct StateTable {
    rules: Rules,
    untracked: Untracked,
    entries_max: Option<u64>,
    keeps_timestamp: bool,
    horizon_ms: Option<i64>,
    label: String,
    keys: Keys,
    store: Store,
    changes: Changes,
    is_half_done: bool,
    /// Kept from call to call to save the allocation.
    starts: Starts,
}

/// For each batch of a call, the first rows of its runs.
type Starts = Vec<Vec<u32>>;

/// The key and epoch of a row.
pub(crate) type Key = (i64, i32, i16);

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
            store: Store::new(&policy, false),
            changes: Changes::default(),
            is_half_done: false,
            starts: Vec::new(),
        })
    }

    /// With another answer to rows that carry no producer.
    pub fn with_untracked(self, untracked: Untracked) -> StateTable {
        StateTable { untracked, ..self }
    }

    /// With a bound on the number of entries.
    pub fn with_entries_max(self, entries_max: Option<u64>) -> StateTable {
        StateTable { entries_max, ..self }
    }

    /// An empty table that keeps timestamps, or does not: see [`Entry::last_timestamp`] and
    /// [`Hole::timestamp`]. They take 8 bytes a slot and let the table forget by age.
    ///
    /// # Panics
    /// Where the table has entries.
    pub fn with_keep_timestamp(self, keeps_timestamp: bool) -> StateTable {
        assert!(self.is_empty(), "what a table keeps is said before its first row");
        StateTable { keeps_timestamp, store: Store::new(&self.rules.policy, keeps_timestamp), ..self }
    }

    /// With a horizon, where timestamps are kept; for tables that are rebuilt.
    pub fn with_horizon_ms(self, horizon_ms: Option<i64>) -> StateTable {
        StateTable { horizon_ms: horizon_ms.filter(|_| self.keeps_timestamp), ..self }
    }

    /// With a text that the table carries along and snapshots keep.
    pub fn with_label(self, label: String) -> StateTable {
        StateTable { label, ..self }
    }

    /// The text that it carries along.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The rules.
    pub fn policy(&self) -> Policy {
        self.rules.policy
    }

    /// What becomes of rows that carry no producer identity.
    pub fn untracked(&self) -> Untracked {
        self.untracked
    }

    /// The bound on the number of entries.
    pub fn entries_max(&self) -> Option<u64> {
        self.entries_max
    }

    /// Whether entries and holes have timestamps.
    pub fn keeps_timestamp(&self) -> bool {
        self.keeps_timestamp
    }

    /// Rows at or below this timestamp are too old for what is still remembered, in milliseconds; `None`
    /// before the first eviction. It never falls.
    pub fn horizon_ms(&self) -> Option<i64> {
        self.horizon_ms
    }

    /// The types and numbers of its keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The types and numbers of its keys, to add to them.
    pub fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        with_shelf!(&self.store, shelf => shelf.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let keys = self.keys.pid.dictionary.memory_bytes() + self.keys.partition.dictionary.memory_bytes();
        let shelf = with_shelf!(&self.store, shelf => shelf.memory_bytes());
        shelf
            + keys
            + self.changes.memory_bytes()
            + self.starts.iter().map(|starts| starts.capacity() * size_of::<u32>()).sum::<usize>()
            + size_of::<StateTable>()
    }

    /// The entry of a key: of the given epoch, or of its highest.
    pub fn get(&self, pid: i64, partition: i32, epoch: Option<i16>) -> Option<Entry> {
        let span = with_shelf!(&self.store, shelf => shelf.get(pid, partition, epoch))?;
        Some(self.entry(pid, partition, &span))
    }

    /// Every entry, in the order of pid, partition and epoch (by value, see [`Keys`]).
    pub fn entries(&self) -> Entries<'_> {
        self.entries_where(Vec::with_capacity(self.len()), |_| true)
    }

    /// Every range that is missing, in the order of pid, partition, epoch (by value) and position.
    pub fn missing(&self) -> impl Iterator<Item = Missing> + '_ {
        let reports_missing = self.rules.reports_missing();
        let entries = self.entries_where(Vec::new(), |span| reports_missing && !span.holes.is_empty());
        entries.flat_map(move |Entry { pid, partition, epoch, holes, .. }| {
            holes.into_iter().map(move |hole| self.missing_of((pid, partition, epoch), (hole.first, hole.last)))
        })
    }

    fn entries_where(&self, mut keys: Vec<Key>, wanted: impl Fn(&Span) -> bool) -> Entries<'_> {
        with_shelf!(&self.store, shelf => shelf.for_each(|pid, partition, span| {
            keys.extend(wanted(span).then_some((pid, partition, span.epoch)));
        }));
        Entries::new(self, keys)
    }

    /// The entries of up to [`CHUNK`] keys that are known to have one.
    pub(crate) fn get_known(&self, keys: &[Key]) -> Vec<Entry> {
        with_shelf!(&self.store, shelf => shelf.prefetch(keys));
        let entry = |&(pid, partition, epoch): &Key| self.get(pid, partition, Some(epoch)).expect("a known key");
        keys.iter().map(entry).collect()
    }

    /// Judges every row in order and advances the table. The batches are one input, cut anywhere; rows
    /// are counted from the first batch's first. An error leaves the table as it was, but for one: see
    /// [`StateTable::is_half_done`].
    pub fn apply(&mut self, batches: &[Batch<'_>]) -> Result<Judged> {
        let mut starts = std::mem::take(&mut self.starts);
        let judged = self.find_runs(batches, &mut starts).and_then(|()| self.make_room(rows_of(batches))).and_then(|()| {
            let mut call = self.call(batches)?;
            let judged =
                with_shelf!(&mut self.store, shelf => judge_batches(shelf, &self.rules, batches, &starts, &mut call));
            self.is_half_done = judged.is_err();
            judged?;
            self.note_changes(batches, &starts, &call.judged.verdicts);
            Ok(self.finish(call))
        });
        self.starts = starts;
        judged
    }

    /// The same verdicts, the table untouched: judges on a copy of the entries that the rows touch.
    pub fn check(&self, batches: &[Batch<'_>]) -> Result<Judged> {
        let mut starts = Vec::new();
        self.find_runs(batches, &mut starts)?;
        let mut call = self.call(batches)?;
        with_shelf!(&self.store, shelf => {
            let mut copy = Shelf::new();
            copy.reserve(shelf.lines().len().min(starts.iter().map(Vec::len).sum()))?;
            chunks_of(batches, &starts).try_for_each(|keys| shelf.copy_to(&mut copy, &keys))?;
            judge_batches(&mut copy, &self.rules, batches, &starts, &mut call)?;
        });
        Ok(self.finish(call))
    }

    /// Drops the entries whose last timestamp lies `max_idle_ms` or more before `now_ms`, raises the
    /// horizon to that age, and makes the holes that were opened at or below the horizon final. Gives how
    /// many entries went. [`Error::Policy`] where timestamps are not kept.
    pub fn evict(&mut self, now_ms: i64, max_idle_ms: i64) -> Result<usize> {
        if !self.keeps_timestamp {
            return Err(Error::Policy("evict needs timestamps, and this table does not keep them".into()));
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
        let dropped = self.retain(|pid, partition, span| {
            let is_kept = eviction.keeps(&rules, span);
            if !is_kept {
                changes.note_evicted(pid, partition);
            }
            is_kept
        });
        changes.note_dropped(dropped, self.len());
        self.changes = changes;
        Ok(dropped)
    }

    /// Drops what is remembered of a producer, or of one of its partitions, in all epochs: the remedy where
    /// its sequence began anew. Gives how many entries went.
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

    fn retain(&mut self, keep: impl FnMut(i64, i32, &mut Span) -> bool) -> usize {
        with_shelf!(&mut self.store, shelf => shelf.retain(keep))
    }

    /// Renumbers the keys where most of the numbered ones name no entry any more, so that what was forgotten
    /// does not live on in the dictionaries. Not part of [`StateTable::evict`]: numbers of keys that the
    /// caller still holds mean nothing afterwards.
    ///
    /// Nothing happens while a delta is due, for it names what was forgotten; nor without memory for it.
    pub fn drop_unused_keys(&mut self) {
        if self.is_empty() {
            // Equal to a table that never knew a key: the next may be of any type.
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
        let (pids, pid) = self.keys.pid.dictionary.kept(&used.0);
        let (partitions, partition) = self.keys.partition.dictionary.kept(&used.1);
        let translation = Translation { pid, partition };
        let is_renumbered = with_shelf!(&mut self.store, shelf => {
            let renumbered = shelf.renumbered(|pid, partition| translation.of(pid, partition));
            renumbered.map(|renumbered| *shelf = renumbered).is_ok()
        });
        if is_renumbered {
            (self.keys.pid.dictionary, self.keys.partition.dictionary) = (pids, partitions);
        }
    }

    /// Takes in the other table: what either had accepted is accepted, horizons and last timestamps become
    /// the later ones, final ranges their hull. Gives what both had accepted and neither holds final, in the
    /// order of pid, partition, epoch and position: of verdicts given before, one too many.
    ///
    /// On positions it is commutative, associative and idempotent. Under [`Epochs::Fence`] a key keeps its
    /// higher epoch. What a policy's `reach` makes final becomes so when a row of its entry is judged or
    /// entries are evicted, so that the order of several merges does not show.
    ///
    /// [`Error::Policy`] and no change where the tables are of different rules or do not keep the same, where
    /// rows are not admitted in any order, and where a key that both know holds positions on both sides of
    /// the border of the wrap; [`Error::Capacity`] where `entries_max` would be passed; [`Error::Memory`], as
    /// [`StateTable::apply`] gives it.
    pub fn merge(&mut self, other: &StateTable) -> Result<Vec<Missing>> {
        self.check_mergeable(other)?;
        let before = self.keys.mark();
        let merged = self.translate(other).and_then(|translation| self.unite(other, &translation));
        let merged = merged.and_then(|merged| self.make_room(merged.0.len()).map(|()| merged));
        let (changes, overlaps) = merged.inspect_err(|_| self.keys.go_back(before))?;
        if let Some(marks) = self.changes.note(self.len() + changes.len()) {
            changes.iter().for_each(|change| marks.add(change.pid, change.partition));
        }
        self.put_all(changes)?;
        self.horizon_ms = self.horizon_ms.max(other.horizon_ms);
        let mut overlaps = overlaps;
        overlaps.sort_unstable_by(|one, other| self.order(one.0, other.0).then(one.1.cmp(&other.1)));
        Ok(overlaps.into_iter().map(|(key, range)| self.missing_of(key, range)).collect())
    }

    fn check_mergeable(&self, other: &StateTable) -> Result<()> {
        let refuse = |problem: String| Err(Error::Policy(problem));
        if self.policy() != other.policy() {
            return refuse(format!("a table of [{}] cannot take in one of [{}]", self.policy(), other.policy()));
        }
        if self.policy().admit != Admit::Any {
            return refuse("only tables of admit='any' merge: elsewhere verdicts depend on the order of rows".into());
        }
        if self.keeps_timestamp != other.keeps_timestamp {
            return refuse("a table that keeps timestamps and one that does not cannot merge".into());
        }
        self.check_intervals()
    }

    /// The numbers that the other table's keys have here.
    fn translate(&mut self, other: &StateTable) -> Result<Translation> {
        let theirs = &other.keys;
        if theirs.pid.kind.is_none() && (other.is_empty() || self.keys.pid.kind.is_none()) {
            return Ok(Translation::default());
        }
        self.number(theirs)
            .map_err(|error| Error::Policy(format!("tables with keys of different types cannot merge: {error}")))
    }

    /// Gives the keys of another table numbers here.
    fn number(&mut self, theirs: &Keys) -> Result<Translation> {
        if theirs.pid.kind.is_some() {
            self.keys.fix(theirs.pid.kind().clone(), theirs.partition.kind().clone())?;
        }
        let numbers = |mine: &mut Dictionary, theirs: &Dictionary| {
            (0..theirs.len() as u32).map(|number| mine.intern(theirs.bytes(number))).collect()
        };
        Ok(Translation {
            pid: numbers(&mut self.keys.pid.dictionary, &theirs.pid.dictionary),
            partition: numbers(&mut self.keys.partition.dictionary, &theirs.partition.dictionary),
        })
    }

    /// What a merge changes, and the positions that both tables had accepted.
    fn unite(&self, other: &StateTable, translation: &Translation) -> Result<(Vec<Change>, Vec<Range>)> {
        let (mut changes, mut overlaps, mut ambiguous) = (Vec::new(), Vec::new(), None);
        with_shelf!(&other.store, shelf => shelf.for_each(|pid, partition, theirs| {
            let (pid, partition) = translation.of(pid, partition);
            let Some(mine) = self.rival(pid, partition, theirs.epoch) else {
                return changes.push(Change { pid, partition, known: None, span: theirs.clone() });
            };
            let key = (pid, partition, mine.epoch);
            if mine.epoch == theirs.epoch {
                if self.rules.is_ambiguous(&mine, theirs) {
                    ambiguous = Some(ambiguous.map_or(key, |known: Key| known.min(key)));
                }
                overlaps.extend(overlap(&mine, theirs).into_iter().map(|range| (key, range)));
                changes.push(Change { pid, partition, known: Some(mine.epoch), span: union(&mine, theirs) });
            } else if mine.epoch < theirs.epoch {
                changes.push(Change { pid, partition, known: Some(mine.epoch), span: theirs.clone() });
            }
        }));
        if let Some((pid, partition, epoch)) = ambiguous {
            let (pid, partition) = (self.keys.pid.name(pid), self.keys.partition.name(partition.into()));
            return Err(Error::Policy(format!(
                "pid {pid}, partition {partition}, epoch {epoch} has positions in both zones beside the border of \
                 the wrap: there the lap depends on the order of rows"
            )));
        }
        let needed = self.len() as u64 + changes.iter().filter(|change| change.known.is_none()).count() as u64;
        match self.entries_max {
            Some(limit) if needed > limit => Err(Error::Capacity { limit, needed, what: "entries" }),
            _ => Ok((changes, overlaps)),
        }
    }

    /// The entry that one of this key and epoch would meet.
    fn rival(&self, pid: i64, partition: i32, epoch: i16) -> Option<Span> {
        let is_key = self.policy().epochs == Epochs::Key;
        let span = with_shelf!(&self.store, shelf => shelf.get(pid, partition, is_key.then_some(epoch)))?;
        (!is_key || span.epoch == epoch).then_some(span)
    }

    /// Puts an entry where its key has none yet; for tables that are rebuilt.
    pub fn insert(&mut self, entry: &Entry) -> Result<()> {
        self.check_entry(entry)?;
        let mut span = Span {
            epoch: entry.epoch,
            first: entry.first,
            last: entry.last,
            holes: Holes::default(),
            final_range: entry.final_range,
            last_timestamp: entry.last_timestamp.unwrap_or(0),
        };
        if self.policy().admit == Admit::Next && entry.first > entry.last {
            span.first -= self.policy().wrap.unwrap_or(0) as i64;
        }
        entry.holes.iter().for_each(|hole| span.holes.open(hole.first, hole.last, hole.timestamp.unwrap_or(0)));
        self.make_room(1)?;
        let is_new = with_shelf!(&mut self.store, shelf => shelf.insert(entry.pid, entry.partition, span));
        if let Some(marks) = self.changes.note(self.len()) {
            marks.add(entry.pid, entry.partition);
        }
        if is_new { Ok(()) } else { Err(Error::Snapshot("two entries have the same key".into())) }
    }

    /// Whether a call was refused memory when it had judged some of its rows or put some of its entries, which
    /// takes one that adds a sixth to the table. The table holds what is neither before nor after it, and must not be used.
    pub fn is_half_done(&self) -> bool {
        self.is_half_done
    }

    /// Before the first change of a call: memory for what it begins with.
    fn make_room(&mut self, rows: usize) -> Result<()> {
        with_shelf!(&mut self.store, shelf => shelf.reserve(room_for(rows)))
    }

    /// Puts entries. Memory for the first of them was asked for before.
    fn put_all(&mut self, changes: Vec<Change>) -> Result<()> {
        let put = with_shelf!(&mut self.store, shelf => put_changes(shelf, changes));
        self.is_half_done = put.is_err();
        put
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
                return refuse("an entry's holes overlap, touch, or lie outside it");
            }
            free_from = hole.last.saturating_add(2);
        }
        if !entry.holes.is_empty() && !policy.keeps_holes() {
            return refuse("an entry has holes, which this policy does not keep");
        }
        self.check_final(entry)
    }

    /// Checks what an entry says of forgotten positions and of time.
    fn check_final(&self, entry: &Entry) -> Result<()> {
        let refuse = |problem: &str| Err(Error::Snapshot(format!("{problem}: {entry:?}")));
        if let Some((first, last)) = entry.final_range {
            let is_outside = first > last || first < entry.first || last >= entry.last;
            if is_outside || entry.holes.iter().any(|hole| hole.first <= last && hole.last >= first) {
                return refuse("an entry's final range is reversed, outside it or overlaps a hole");
            }
            if !self.policy().keeps_holes() {
                return refuse("an entry has a final range, but this policy keeps no holes");
            }
        }
        let is_timed = |timestamp: Option<i64>| timestamp.is_some() == self.keeps_timestamp;
        if !is_timed(entry.last_timestamp) || !entry.holes.iter().all(|hole| is_timed(hole.timestamp)) {
            return refuse("an entry and its holes have timestamps exactly where the table keeps them");
        }
        Ok(())
    }

    /// Validates the batches, finds their runs, and makes sure that the table may grow by them.
    fn find_runs(&self, batches: &[Batch<'_>], starts: &mut Starts) -> Result<()> {
        let domain = Domain { seq_max: self.policy().seq_max(), untracked: self.untracked };
        starts.resize_with(batches.len(), Vec::new);
        let mut rows = 0;
        for (batch, starts) in batches.iter().zip(starts.iter_mut()) {
            self.check_epoch(batch)?;
            self.check_timestamp(batch)?;
            runs::find_runs(batch, &domain, starts).map_err(|error| error.after(rows))?;
            rows += batch.len();
        }
        self.check_intervals()?;
        self.check_capacity(batches, starts)
    }

    fn check_epoch(&self, batch: &Batch<'_>) -> Result<()> {
        let problem = match (batch.epoch, self.policy().epochs) {
            (Some(_), Epochs::Ignore) => "is given, but this policy ignores epochs",
            (None, Epochs::Key | Epochs::Fence) => "is missing, but this policy needs epochs",
            _ => return Ok(()),
        };
        Err(Error::Batch { column: Column::Epoch, row: None, problem: problem.into() })
    }

    fn check_timestamp(&self, batch: &Batch<'_>) -> Result<()> {
        if !self.keeps_timestamp || batch.timestamp.is_some() {
            return Ok(());
        }
        let problem = "is missing, but this table keeps timestamps".into();
        Err(Error::Batch { column: Column::Timestamp, row: None, problem })
    }

    /// Refuses a call on a table that holds as many holes as it may.
    fn check_intervals(&self) -> Result<()> {
        let Some(limit) = self.policy().intervals_max else { return Ok(()) };
        let holes = with_shelf!(&self.store, shelf => shelf.holes());
        if holes < limit { Ok(()) } else { Err(Error::Capacity { limit, needed: holes + 1, what: "holes" }) }
    }

    fn check_capacity(&self, batches: &[Batch<'_>], starts: &Starts) -> Result<()> {
        let Some(limit) = self.entries_max else { return Ok(()) };
        let have = self.len() as u64;
        if have + starts.iter().map(|starts| starts.len() as u64).sum::<u64>() <= limit {
            return Ok(());
        }
        let counts_epochs = self.policy().epochs == Epochs::Key;
        let new: HashSet<_> = with_shelf!(&self.store, shelf => chunks_of(batches, starts).flatten()
            .map(|(pid, partition, epoch)| (pid, partition, counts_epochs.then_some(epoch)))
            .filter(|&(pid, partition, epoch)| pid != -1 && shelf.get(pid, partition, epoch).is_none())
            .collect());
        let needed = have + new.len() as u64;
        if needed <= limit { Ok(()) } else { Err(Error::Capacity { limit, needed, what: "entries" }) }
    }

    fn entry(&self, pid: i64, partition: i32, span: &Span) -> Entry {
        let as_told = |position| {
            if self.policy().admit == Admit::Next { self.rules.seq(position) } else { position }
        };
        let timed = |timestamp| self.keeps_timestamp.then_some(timestamp);
        let hole = |(first, last, timestamp)| Hole { first, last, timestamp: timed(timestamp) };
        Entry {
            pid,
            partition,
            epoch: span.epoch,
            first: as_told(span.first),
            last: as_told(span.last),
            holes: span.holes.iter_timed().map(hole).collect(),
            final_range: span.final_range,
            last_timestamp: timed(span.last_timestamp),
        }
    }

    fn missing_of(&self, (pid, partition, epoch): Key, (first, last): (i64, i64)) -> Missing {
        let count = (last - first) as u64 + 1;
        Missing { pid, partition, epoch, first_seq: self.rules.seq(first), last_seq: self.rules.seq(last), count }
    }

    fn call<'a>(&self, batches: &[Batch<'a>]) -> Result<Call<'a>> {
        Call::new(batches, self.rules.reports_missing(), self.horizon_ms)
    }

    fn finish(&self, mut call: Call<'_>) -> Judged {
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

    /// The order of keys by value: the numbers of a dictionary say nothing but who came first.
    fn order(&self, one: Key, other: Key) -> Ordering {
        let by_pid = self.keys.pid.order(one.0, other.0);
        by_pid.then_with(|| self.keys.partition.order(one.1.into(), other.1.into())).then(one.2.cmp(&other.2))
    }
}

/// Lines that a chunk of so many runs can need: a run needs one for its key, and one for an epoch that
/// is no longer the highest.
fn room_for(runs: usize) -> usize {
    2 * runs.min(CHUNK)
}

fn rows_of(batches: &[Batch<'_>]) -> usize {
    batches.iter().map(Batch::len).sum()
}

/// What snapshots need.
impl StateTable {
    /// Begins, or ends, to note what changes, so that [`StateTable::delta`] can tell. Costs nothing where
    /// it is off, else 2 to 4 bits an entry, and a random bit set for every run that is accepted.
    pub fn track_changes(&mut self, on: bool) {
        self.changes.track(on);
    }

    /// Says that the table as it is now was stored as the snapshot or delta of this checksum: changes
    /// count from here. To be called when the bytes are safe, and not before.
    pub fn begin_changes(&mut self, checksum: u32) {
        self.changes.begin(checksum);
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    fn note_changes(&mut self, batches: &[Batch<'_>], starts: &Starts, verdicts: &[u8]) {
        let is_kept = |verdict: &u8| *verdict == Verdict::Accepted as u8;
        if !verdicts.iter().any(is_kept) {
            return;
        }
        let entries = self.len();
        let Some(marks) = self.changes.note(entries) else { return };
        let mut rows_before = 0;
        for (batch, starts) in batches.iter().zip(starts) {
            let ends = starts.iter().skip(1).map(|&start| start as usize).chain([batch.len()]);
            for (&start, end) in starts.iter().zip(ends) {
                let start = start as usize;
                if batch.pid[start] != -1 && verdicts[rows_before + start..rows_before + end].iter().any(is_kept) {
                    marks.add(batch.pid[start], batch.partition[start]);
                }
            }
            rows_before += batch.len();
        }
    }

    /// The key of every entry, in no meaningful order.
    pub(crate) fn for_each_key(&self, mut tell: impl FnMut(i64, i32)) {
        with_shelf!(&self.store, shelf => shelf.for_each(|pid, partition, _| tell(pid, partition)));
    }

    /// See [`Shelf::in_order`].
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        wanted: impl Fn(i64, i32) -> bool,
        tell: impl FnMut(i64, i32, PlainSpan, Option<&Span>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        with_shelf!(&self.store, shelf => shelf.in_order(numbers, wanted, tell))
    }

    /// Adds the entries of a frame, which follow all others in the order of snapshots.
    pub(crate) fn append(&mut self, rows: &Rows, before: &mut Before, bounds: &KeyBounds) -> Result<()> {
        let nothing = Store::new(&self.policy(), self.keeps_timestamp);
        let mut store = std::mem::replace(&mut self.store, nothing);
        let usual = self.usual();
        let appended = with_shelf!(&mut store, shelf => {
            let mut line = None;
            rows.try_for_each(before, |entry| {
                bounds.check(entry.pid, entry.partition)?;
                if !usual.has(&entry) {
                    self.check_appended(&entry)?;
                }
                shelf.append(entry, &mut line)
            })
        });
        self.store = store;
        appended
    }

    /// See [`Shelf::reserve_for`].
    pub(crate) fn reserve_for(&mut self, entries: u64) -> Result<()> {
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

    /// Refuses an entry that this policy cannot have made.
    #[cold]
    pub(crate) fn check_appended(
        &self,
        Appended { pid, partition, span, whole, is_older, .. }: &Appended,
    ) -> Result<()> {
        let policy = self.policy();
        let plain = Span::from(*span);
        let span = whole.as_deref().unwrap_or(&plain);
        if *is_older && policy.epochs != Epochs::Key {
            return Err(Error::Snapshot("two entries have the same key".into()));
        }
        let reach = span.last.wrapping_sub(span.first);
        let is_timed = self.keeps_timestamp || span.last_timestamp == 0;
        let has_untold_time = span.holes.iter_timed().any(|(_, _, timestamp)| timestamp != 0);
        if !is_timed || (has_untold_time && !self.keeps_timestamp) {
            return Err(Error::Snapshot("an entry has a timestamp, but the table keeps none".into()));
        }
        if policy.admit == Admit::Next && (span.last < 0 || reach < 0 || reach as u64 >= policy.window) {
            return Err(Error::Snapshot("an entry's window is reversed or wider than the policy's".into()));
        }
        self.check_entry(&self.entry(*pid, *partition, span))
    }

    /// Whether the keys of a delta are of the types that this table's keys are of.
    pub(crate) fn check_kinds(&self, theirs: &Keys) -> Result<()> {
        let differ = |mine: &KeySpace, theirs: &KeySpace| {
            mine.kind.is_some() && theirs.kind.is_some() && mine.kind != theirs.kind
        };
        if differ(&self.keys.pid, &theirs.pid) || differ(&self.keys.partition, &theirs.partition) {
            return Err(Error::Snapshot("the delta has keys of other types".into()));
        }
        Ok(())
    }

    /// Takes over a delta that was checked: forgets what its table forgot, then stores its entries, whose
    /// keys are numbered as in `theirs`.
    pub(crate) fn take_over(&mut self, theirs: &Keys, forgotten: &Forgotten, entries: Vec<Appended>) -> Result<()> {
        self.make_room(entries.len())?;
        if forgotten.everything {
            self.retain(|_, _, _| false);
            self.drop_unused_keys();
        }
        let translation = self.number(theirs).map_err(|error| Error::Snapshot(error.to_string()))?;
        let gone: HashSet<_> = forgotten.gone.iter().map(|&(pid, partition)| translation.of(pid, partition)).collect();
        self.horizon_ms = forgotten.horizon_ms;
        if !gone.is_empty() || forgotten.eviction.is_some() {
            let rules = self.rules;
            self.retain(|pid, partition, span| {
                let is_kept = forgotten.eviction.is_none_or(|eviction| eviction.keeps(&rules, span));
                is_kept && !gone.contains(&(pid, partition))
            });
        }
        let change = |Appended { pid, partition, span, whole, .. }| {
            let (pid, partition) = translation.of(pid, partition);
            let span = whole.map_or_else(|| span.into(), |whole| *whole);
            let known = self.rival(pid, partition, span.epoch).map(|rival| rival.epoch);
            Change { pid, partition, known, span }
        };
        let changes = entries.into_iter().map(change).collect();
        self.put_all(changes)
    }
}

/// What nearly every entry of a snapshot is like: plain, on the first lap, the only one of its key.
struct Usual {
    epoch_max: i16,
    seq_max: i64,
    reach_max: i64,
    keeps_timestamp: bool,
}

impl Usual {
    /// Whether an entry is like that, and so one that the policy can have made.
    #[inline]
    fn has(&self, entry: &Appended) -> bool {
        let PlainSpan { epoch, first, last, last_timestamp } = entry.span;
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

/// The numbers here of keys that had others before, or in another table; empty where keys are plain
/// integers.
#[derive(Default)]
struct Translation {
    pid: Vec<u32>,
    partition: Vec<u32>,
}

impl Translation {
    fn of(&self, pid: i64, partition: i32) -> (i64, i32) {
        let pid = self.pid.get(pid as usize).map_or(pid, |&number| number.into());
        (pid, self.partition.get(partition as usize).map_or(partition, |&number| number as i32))
    }
}

/// An entry that a merge puts, in the place of one of the epoch `known` where there is one.
struct Change {
    pid: i64,
    partition: i32,
    known: Option<i16>,
    span: Span,
}

/// Positions of a key and epoch, both ends included.
type Range = (Key, (i64, i64));

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

fn key_at(batch: &Batch<'_>, row: usize) -> Key {
    (batch.pid[row], batch.partition[row], batch.epoch.map_or(0, |epoch| epoch[row]))
}

/// The key and epoch of every run, as many together as are judged together.
fn chunks_of(batches: &[Batch<'_>], starts: &Starts) -> impl Iterator<Item = Vec<Key>> {
    let keys = |batch, chunk: &[u32]| chunk.iter().map(|&start| key_at(batch, start as usize)).collect();
    let runs = batches.iter().zip(starts);
    runs.flat_map(move |(batch, starts)| starts.chunks(CHUNK).map(move |chunk| keys(batch, chunk)))
}

fn put_changes<L: Line>(shelf: &mut Shelf<L>, changes: Vec<Change>) -> Result<()> {
    let mut changes = changes.into_iter();
    while changes.len() > 0 {
        shelf.reserve_midway(room_for(changes.len()))?;
        for Change { pid, partition, known, span } in changes.by_ref().take(CHUNK) {
            match known {
                Some(epoch) => shelf.replace(pid, partition, epoch, span),
                None => assert!(shelf.insert(pid, partition, span), "the key was unknown"),
            }
        }
    }
    Ok(())
}

fn judge_batches<'a, L: Line>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    batches: &[Batch<'a>],
    starts: &Starts,
    call: &mut Call<'a>,
) -> Result<()> {
    for (batch, starts) in batches.iter().zip(starts) {
        match batch.seq {
            Seqs::I32(seq) => dispatch(Runs { shelf, rules, batch, seq, starts, call })?,
            Seqs::I64(seq) => dispatch(Runs { shelf, rules, batch, seq, starts, call })?,
        }
        call.batch_from += batch.len();
    }
    Ok(())
}

/// The runs of a batch, which begin at `starts`, to be judged against a shelf.
struct Runs<'a, 'b, L: Line, S> {
    shelf: &'a mut Shelf<L>,
    rules: &'a Rules,
    batch: &'a Batch<'b>,
    seq: &'a [S],
    starts: &'a [u32],
    call: &'a mut Call<'b>,
}

impl<L: Line, S: Seq> Work for Runs<'_, '_, L, S> {
    type Done = Result<()>;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn work(self) -> Result<()> {
        judge_runs(self)
    }
}

/// Three passes over each chunk of runs: hash and ask for the tags; find and ask for the line; judge.
#[inline(always)]
fn judge_runs<L: Line, S: Seq>(runs: Runs<'_, '_, L, S>) -> Result<()> {
    let Runs { shelf, rules, batch, seq, starts, call } = runs;
    let times = batch.timestamp.filter(|_| L::IS_TIMED);
    // Cut to one length: one check of a row's number is enough for all columns.
    let rows = batch.len();
    let (pids, partitions, seq) = (&batch.pid[..rows], &batch.partition[..rows], &seq[..rows]);
    let epochs = batch.epoch.map(|epoch| &epoch[..rows]);
    let mut bounds = [0; CHUNK + 1];
    let (mut pid, mut partition) = ([0; CHUNK], [0; CHUNK]);
    let mut searches = [Search::default(); CHUNK];
    for (number, chunk) in starts.chunks(CHUNK).enumerate() {
        let runs = chunk.len().min(CHUNK);
        bounds[..runs].copy_from_slice(chunk);
        bounds[runs] = starts.get((number + 1) * CHUNK).copied().unwrap_or(rows as u32);
        shelf.reserve_midway(room_for(runs))?;
        for run in 0..runs {
            let row = bounds[run] as usize;
            (pid[run], partition[run]) = (pids[row], partitions[row]);
        }
        shelf.begin_searches(&pid[..runs], &partition[..runs], &mut searches[..runs]);
        for search in &mut searches[..runs] {
            shelf.go_on_searching(search);
        }
        for run in 0..runs {
            let (row, end) = (bounds[run] as usize, bounds[run + 1] as usize);
            let key = (pid[run], partition[run]);
            if key.0 == -1 {
                call.fill(row, end, Verdict::Untracked);
                continue;
            }
            let seq = seq[row].wide();
            let epoch = epochs.map_or(0, |epochs| epochs[row]);
            let of_key = Run::plain(epoch, seq, (end - row) as i64);
            match times {
                None => judge_run(shelf, rules, &searches[run], (key, row), of_key, call),
                Some(times) => {
                    judge_timed_run(shelf, rules, &searches[run], (key, row), of_key, &times[row..end], call);
                }
            }
        }
    }
    Ok(())
}

/// Judges a run of a key that begins at `row`.
#[inline(always)]
fn judge_run<L: Line>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    search: &Search,
    (key, row): ((i64, i32), usize),
    run: Run,
    call: &mut Call<'_>,
) {
    match shelf.judge_plainly(&rules.plain, key, run, search) {
        Plainly::WentOn | Plainly::Begun => {}
        Plainly::Repeated => call.fill(row, row + run.rows as usize, Verdict::Duplicate),
        Plainly::Unclear => {
            // One by one: a run whose address is taken here would be written to memory for every row.
            let Run { epoch, seq, rows, newest, is_old } = run;
            judge_unclear(shelf, rules, (key.0, key.1, row), epoch, seq, rows, newest, is_old, call);
        }
    }
}

#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a run taken apart, see judge_run")]
fn judge_unclear<L: Line>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    (pid, partition, row): (i64, i32, usize),
    epoch: i16,
    seq: i64,
    rows: i64,
    newest: i64,
    is_old: bool,
    call: &mut Call<'_>,
) {
    call.begin_run(row, (pid, partition, epoch));
    shelf.judge_beyond(rules, (pid, partition), Run { epoch, seq, rows, newest, is_old }, call);
}

/// Judges a run whose rows have timestamps, cut where it crosses the horizon.
fn judge_timed_run<'a, L: Line>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    search: &Search,
    (key, row): ((i64, i32), usize),
    run: Run,
    times: &'a [i64],
    call: &mut Call<'a>,
) {
    let horizon = call.horizon_ms;
    let is_old = |time: i64| horizon.is_some_and(|horizon| time <= horizon);
    let mut before = 0;
    for part in times.chunk_by(|&one, &next| is_old(one) == is_old(next)) {
        let newest = part.iter().copied().max().unwrap_or(0);
        call.times = part;
        let part = Run { seq: run.seq + before, rows: part.len() as i64, newest, is_old: is_old(part[0]), ..run };
        judge_run(shelf, rules, search, (key, row + before as usize), part, call);
        before += part.rows;
    }
}

/// What a call has gathered so far.
pub(crate) struct Call<'a> {
    judged: Judged,
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
    batch_from: usize,
    horizon_ms: Option<i64>,
    /// The run at hand: its first row in the batch, its key and epoch, and its rows' timestamps where they
    /// are kept.
    row: usize,
    key: Key,
    times: &'a [i64],
}

impl<'a> Call<'a> {
    fn new(batches: &[Batch<'_>], reports_missing: bool, horizon_ms: Option<i64>) -> Result<Call<'a>> {
        let rows = rows_of(batches);
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
            times: &[],
        })
    }

    /// The verdict of rows of the batch at hand that needs no judge.
    fn fill(&mut self, row: usize, end: usize, verdict: Verdict) {
        let rows = self.batch_from + row..self.batch_from + end;
        self.judged.counts[verdict as usize] += rows.len() as u64;
        if rows.len() == 1 {
            self.judged.verdicts[rows.start] = verdict as u8;
        } else {
            self.judged.verdicts[rows].fill(verdict as u8);
        }
    }

    fn begin_run(&mut self, row: usize, key: Key) {
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
        self.times.get(row as usize).copied().unwrap_or(0)
    }

    fn newest_accepted(&self) -> Option<i64> {
        let verdicts = &self.judged.verdicts[self.batch_from + self.row..];
        let accepted = self.times.iter().zip(verdicts).filter(|&(_, &verdict)| verdict == Verdict::Accepted as u8);
        accepted.map(|(&time, _)| time).max()
    }
}
