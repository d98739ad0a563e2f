//! Merging tables.

use super::skipped::{Skip, by_value};
use super::{Missing, StateTable, missing_of, room_for};
use crate::judge::FullEntry;
use crate::keys::{Key, Keys};
use crate::lines::RowLine;
use crate::prefetch::CHUNK;
use crate::shelf::Shelf;
use crate::store::with_shelf;
use crate::union::{overlap, union};
use crate::{Admit, Dictionary, Epochs, Error, Result};

impl StateTable {
    /// Adds the entries of another table: positions that either accepted are accepted, horizons and last timestamps
    /// become the later ones, and final ranges their convex hull. Returns the positions that both had accepted and that
    /// are final in neither, in the order of pid, partition, epoch and position. For each of them, one row too many was
    /// accepted before.
    ///
    /// On positions, merging is commutative, associative and idempotent. Under [`Epochs::Fence`], a key keeps its
    /// higher epoch, with the later last timestamp of both. Positions beyond a policy's `reach` become final when a row
    /// of the entry is judged or entries are evicted. The result therefore does not depend on the order of merges.
    ///
    /// Errors, without any change:
    ///
    /// - [`Error::Policy`]: the rules or the kept data differ, the policy does not admit rows in any order, or a key of
    ///   both has positions on both sides of the border of the wrap
    /// - [`Error::Capacity`]: the table would exceed `entries_max`
    /// - [`Error::Memory`]: as for [`StateTable::apply`]
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
        overlaps.sort_unstable_by(by_value(&self.keys));
        Ok(overlaps.into_iter().map(|(key, range)| missing_of(&self.rules, key, range)).collect())
    }

    fn check_mergeable(&self, other: &StateTable) -> Result<()> {
        let refuse = |problem: String| Err(Error::Policy(problem));
        if self.policy() != other.policy() {
            let (mine, theirs) = (self.policy().to_string(), other.policy().to_string());
            let fields = mine.split(' ').zip(theirs.split(' ')).filter(|(mine, theirs)| mine != theirs);
            let (mine, theirs): (Vec<_>, Vec<_>) = fields.unzip();
            return refuse(format!(
                "tables of different policies cannot merge: this one has {}, the other one {}",
                mine.join(" "),
                theirs.join(" ")
            ));
        }
        if self.policy().admit != Admit::Any {
            return refuse(
                "only tables of admit='any' can merge: under other policies, verdicts depend on the order of rows"
                    .into(),
            );
        }
        if self.keeps_timestamp != other.keeps_timestamp {
            return refuse("one of the tables keeps timestamps and the other does not, so they cannot merge".into());
        }
        self.check_intervals()
    }

    /// The numbers of the other table's keys in this table.
    fn translate(&mut self, other: &StateTable) -> Result<Translation> {
        let theirs = &other.keys;
        if theirs.pid.kind.is_none() && (other.is_empty() || self.keys.pid.kind.is_none()) {
            return Ok(Translation::default());
        }
        self.number(theirs).map_err(|error| match error {
            Error::Batch { .. } => Error::Policy(format!("tables with keys of different types cannot merge: {error}")),
            other => other,
        })
    }

    /// Assigns numbers of this table to the keys of another one.
    pub(super) fn number(&mut self, theirs: &Keys) -> Result<Translation> {
        if theirs.pid.kind.is_some() {
            self.keys.fix(theirs.pid.kind().clone(), theirs.partition.kind().clone())?;
        }
        let numbers = |mine: &mut Dictionary, theirs: &Dictionary| {
            (0..theirs.len() as u32).map(|number| mine.intern(theirs.bytes(number))).collect::<Result<_>>()
        };
        Ok(Translation {
            pid: numbers(&mut self.keys.pid.dictionary, &theirs.pid.dictionary)?,
            partition: numbers(&mut self.keys.partition.dictionary, &theirs.partition.dictionary)?,
        })
    }

    /// The changes of a merge, and the positions that both tables had accepted.
    fn unite(&self, other: &StateTable, translation: &Translation) -> Result<(Vec<Change>, Vec<Skip>)> {
        let (mut changes, mut overlaps, mut ambiguous) = (Vec::new(), Vec::new(), None);
        with_shelf!(&other.store, shelf => shelf.for_each(|pid, partition, theirs| {
            let (pid, partition) = translation.of(pid, partition);
            let Some(mine) = self.rival(pid, partition, theirs.epoch) else {
                return changes.push(Change { pid, partition, known: None, entry: theirs.clone() });
            };
            let key = (pid, partition, mine.epoch);
            if mine.epoch == theirs.epoch {
                if self.rules.is_ambiguous(&mine, theirs) {
                    ambiguous = Some(ambiguous.map_or(key, |known: Key| known.min(key)));
                }
                overlaps.extend(overlap(&mine, theirs).into_iter().map(|range| (key, range)));
                changes.push(Change { pid, partition, known: Some(mine.epoch), entry: union(&mine, theirs) });
            } else {
                let last_timestamp = mine.last_timestamp.max(theirs.last_timestamp);
                let newest = if mine.epoch < theirs.epoch { theirs } else { &mine };
                if *newest != mine || last_timestamp > mine.last_timestamp {
                    let entry = FullEntry { last_timestamp, ..newest.clone() };
                    changes.push(Change { pid, partition, known: Some(mine.epoch), entry });
                }
            }
        }));
        if let Some((pid, partition, epoch)) = ambiguous {
            let (pid, partition) = (self.keys.pid.name(pid), self.keys.partition.name(partition.into()));
            return Err(Error::Policy(format!(
                "pid {pid}, partition {partition}, epoch {epoch} has positions on both sides of the wrap: \
                 which of them are newer depends on the order of rows, so these tables cannot merge"
            )));
        }
        let needed = self.len() as u64 + changes.iter().filter(|change| change.known.is_none()).count() as u64;
        match self.entries_max {
            Some(limit) if needed > limit => Err(Error::Capacity { limit, needed, what: "entries" }),
            _ => Ok((changes, overlaps)),
        }
    }

    /// The existing entry for this key and epoch.
    pub(super) fn rival(&self, pid: i64, partition: i32, epoch: i16) -> Option<FullEntry> {
        let is_key = self.policy().epochs == Epochs::Key;
        let entry = with_shelf!(&self.store, shelf => shelf.get(pid, partition, is_key.then_some(epoch)))?;
        (!is_key || entry.epoch == epoch).then_some(entry)
    }

    /// Stores entries. Memory for the first of them is already reserved.
    pub(super) fn put_all(&mut self, changes: Vec<Change>) -> Result<()> {
        let put = with_shelf!(&mut self.store, shelf => put_changes(shelf, changes));
        self.is_half_done = put.is_err();
        put
    }
}

/// The new numbers of keys that were renumbered or come from another table. Empty if keys are plain integers.
#[derive(Default)]
pub(super) struct Translation {
    pub(super) pid: Vec<u32>,
    pub(super) partition: Vec<u32>,
}

impl Translation {
    pub(super) fn of(&self, pid: i64, partition: i32) -> (i64, i32) {
        let pid = self.pid.get(pid as usize).map_or(pid, |&number| number.into());
        (pid, self.partition.get(partition as usize).map_or(partition, |&number| number as i32))
    }
}

/// An entry that a merge stores. It replaces the entry of epoch `known`, if there is one.
pub(super) struct Change {
    pub(super) pid: i64,
    pub(super) partition: i32,
    pub(super) known: Option<i16>,
    pub(super) entry: FullEntry,
}

fn put_changes<L: RowLine>(shelf: &mut Shelf<L>, changes: Vec<Change>) -> Result<()> {
    let mut changes = changes.into_iter();
    while changes.len() > 0 {
        shelf.reserve_midway(room_for(changes.len()), changes.len())?;
        for Change { pid, partition, known, entry } in changes.by_ref().take(CHUNK) {
            match known {
                Some(epoch) => shelf.replace(pid, partition, epoch, entry),
                None => assert!(shelf.insert(pid, partition, entry), "the key was unknown"),
            }
        }
        shelf.release_numbers();
    }
    Ok(())
}
