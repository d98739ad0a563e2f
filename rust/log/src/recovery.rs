//! Opens a log: reads the newest valid state, and replays the segments from there on.
//!
//! A write that a crash interrupted leaves a torn batch at the end of the last segment, with nothing after it. Such a
//! batch is cut. All other damage is an error and changes nothing:
//!
//! - damage before a whole batch
//! - damage below the offset of a state, which was written after everything before it was on disk
//! - damage in segments before the last, which were synced before the next one began

use crate::disk::{Disk, LogFile, read_whole};
use crate::error::{Error, Result};
use crate::log::Options;
use crate::producers::of_kafka;
use crate::repair::{self, Cut};
use crate::segment::{
    Active, INDEX, LOG, SNAPSHOT, STATE, TIME_INDEX, TXN_INDEX, name_of, offset_of, offsets_of, unopened,
};
use crate::transactions::Transactions;
use fencepost_core::{self as core, BrokerTable, KeyKind, Origin, Origins, ProduceBatches, ProducerEntry};
use fencepost_kafka::aborted::{self, AbortedTxn};
use fencepost_kafka::{BatchColumns, Control, Error as Damage, Kind, RecoveryScan, snapshot};
use std::io;
use std::sync::Arc;

/// Number of batches that are replayed at a time.
const CALL_ROWS: usize = 1 << 16;

/// Number of bytes that are rewritten at a time.
const WRITE_AGAIN_BYTES: u64 = 1 << 20;

/// The result of opening a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The file of the initial state.
    pub state: Option<String>,
    /// Files of states that were skipped because they are damaged.
    pub skipped_states: Vec<String>,
    /// Number of batches and markers that were replayed.
    pub batches: u64,
    /// Number of bytes that were cut: of a torn write, or from the first damage on.
    pub cut_bytes: u64,
}

/// An opened log.
pub(crate) struct Opened {
    pub(crate) table: BrokerTable,
    pub(crate) transactions: Transactions,
    pub(crate) aborted: Vec<AbortedTxn>,
    /// First offsets of the segments.
    pub(crate) bases: Vec<i64>,
    pub(crate) active: Active,
    pub(crate) end: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) recovered: Recovered,
}

/// The producer state at an offset.
struct State {
    name: Option<String>,
    offset: i64,
    entries: Vec<ProducerEntry>,
}

pub(crate) fn open(disk: &dyn Disk, options: &Options) -> Result<Opened> {
    let cut = if options.cuts_damage { repair::cut(disk)? } else { Cut::default() };
    let names = unopened(disk, "", disk.names())?;
    let [bases, states, snapshots] = [LOG, STATE, SNAPSHOT].map(|ending| offsets_of(&names, ending));
    let Some(&log_start) = bases.first() else { return begin(disk, options, states.iter().chain(&snapshots)) };
    // All tables come before snapshots, which have less data: a crash can leave a snapshot without its table.
    let mut files: Vec<(bool, i64)> = snapshots.into_iter().map(|offset| (false, offset)).collect();
    files.extend(states.into_iter().map(|offset| (true, offset)));
    files.retain(|&(_, offset)| offset >= log_start);
    files.sort_unstable();
    // The offsets in file names are valid even for damaged files.
    let promised = files.iter().map(|&(_, offset)| offset).max().unwrap_or(log_start);
    let mut skipped_states = cut.states;
    loop {
        let state = newest_state(disk, &mut files, &mut skipped_states)?;
        let state = state.unwrap_or(State { name: None, offset: log_start, entries: Vec::new() });
        let offset = state.offset;
        let mut replay = Replay::new(disk, options, state)?;
        replay.run(&bases)?;
        if replay.end < promised {
            return Err(replay.lost(promised));
        }
        if replay.end >= offset {
            replay.recovered.skipped_states = skipped_states;
            replay.recovered.cut_bytes += cut.bytes;
            return replay.finish(bases, &names);
        }
        skipped_states.extend(replay.recovered.state);
    }
}

/// Creates a new log.
fn begin<'a>(disk: &dyn Disk, options: &Options, mut states: impl Iterator<Item = &'a i64>) -> Result<Opened> {
    if let Some(offset) = states.find(|&&offset| offset > 0) {
        let reason = format!(
            "no segments (*.log), but a state file of offset {offset}: the segments were removed. Restore them, or use \
             another folder"
        );
        return Err(damage(Kind::Gap, None, reason).in_file(&disk.path("")).into());
    }
    let state = State { name: None, offset: 0, entries: Vec::new() };
    let active = unopened(disk, &name_of(0, LOG), Active::create(disk, 0))?;
    let Replay { table, transactions, aborted, end, leader_epoch, recovered, .. } = Replay::new(disk, options, state)?;
    Ok(Opened { table, transactions, aborted, bases: vec![0], active, end, leader_epoch, recovered })
}

/// Reads the newest valid table, or else the newest valid snapshot, and skips damaged ones.
fn newest_state(
    disk: &dyn Disk,
    files: &mut Vec<(bool, i64)>,
    skipped_states: &mut Vec<String>,
) -> Result<Option<State>> {
    while let Some((is_table, offset)) = files.pop() {
        let name = name_of(offset, if is_table { STATE } else { SNAPSHOT });
        let bytes = unopened(disk, &name, read_whole(disk, &name))?;
        let entries = if is_table { entries_of_table(&bytes, offset) } else { entries_of_snapshot(&bytes) };
        match entries {
            Some(entries) => return Ok(Some(State { name: Some(name), offset, entries })),
            None => skipped_states.push(name),
        }
    }
    Ok(None)
}

fn entries_of_table(bytes: &[u8], offset: i64) -> Option<Vec<ProducerEntry>> {
    let table = BrokerTable::restore(bytes).ok()?;
    let is_ours = table.log_end(0) == offset && table.entries().all(|entry| entry.partition == 0);
    is_ours.then(|| table.entries().collect())
}

fn entries_of_snapshot(bytes: &[u8]) -> Option<Vec<ProducerEntry>> {
    snapshot::read(bytes).ok()?.iter().map(|entry| of_kafka(entry, 0)).collect()
}

fn damage(kind: Kind, position: Option<u64>, reason: String) -> Damage {
    Damage { path: String::new(), position, kind, reason }
}

/// Adds a remedy to the damage.
fn give_up(damage: Damage, offset: i64) -> Damage {
    let what = format!("Nothing was changed. on_damage=\"cut\" removes everything from offset {offset} on");
    Damage { reason: format!("{}. {what}", damage.reason), ..damage }
}

/// Replays segments from a state on.
struct Replay<'a> {
    disk: &'a dyn Disk,
    from: i64,
    table: BrokerTable,
    transactions: Transactions,
    /// Transactions whose marker is at or after `from`.
    aborted: Vec<AbortedTxn>,
    active: Option<Active>,
    end: i64,
    /// The highest epoch so far.
    leader_epoch: i32,
    recovered: Recovered,
}

impl<'a> Replay<'a> {
    fn new(disk: &'a dyn Disk, options: &Options, state: State) -> Result<Replay<'a>> {
        let mut table = BrokerTable::new(options.broker.clone())?;
        table.keys_mut().fix(KeyKind::Plain, KeyKind::Plain)?;
        let mut transactions = Transactions::default();
        for mut entry in state.entries {
            // The log was written with a longer window.
            let more = entry.batches.len().saturating_sub(options.broker.window.into());
            entry.batches.drain(..more);
            table.add(&entry)?;
            if entry.open_from >= 0 {
                transactions.begin(entry.pid, entry.open_from);
            }
        }
        let recovered = Recovered { state: state.name, ..Recovered::default() };
        let (from, end) = (state.offset, state.offset);
        Ok(Replay {
            disk,
            from,
            table,
            transactions,
            aborted: Vec::new(),
            active: None,
            end,
            leader_epoch: 0,
            recovered,
        })
    }

    /// Replays the segments, beginning with the one that has the state's offset. Nothing is changed.
    fn run(&mut self, bases: &[i64]) -> Result<()> {
        let first = bases.partition_point(|&base| base <= self.from).saturating_sub(1);
        let mut last_offset = None;
        for (at, &base) in bases.iter().enumerate().skip(first) {
            let name = name_of(base, LOG);
            if let Some(last) = last_offset.filter(|last| base != last + 1) {
                let reason = format!("the segment begins at offset {base}, the one before it ends at {last}");
                let kind = if base <= last { Kind::Overlap } else { Kind::Gap };
                let damage = give_up(damage(kind, Some(0), reason), last + 1);
                return Err(damage.in_file(&self.disk.path(&name)).into());
            }
            let followed = self.follow(base, &name, at + 1 == bases.len());
            last_offset = Some(followed.map_err(|error| match error {
                Error::Damaged(damage) => Error::Damaged(damage.in_file(&self.disk.path(&name))),
                other => other,
            })?);
        }
        Ok(())
    }

    fn follow(&mut self, base: i64, name: &str, is_last: bool) -> Result<i64> {
        let file = unopened(self.disk, name, self.disk.open(name))?;
        let reader: Arc<dyn fencepost_kafka::ReadAt> = file.clone();
        let mut scan = RecoveryScan::new(reader, base)?;
        let mut active = Active::new(base, file);
        let mut columns = BatchColumns::default();
        loop {
            let read = scan.read(&mut columns, CALL_ROWS);
            self.take(&columns)?;
            self.leader_epoch = columns.leader_epoch.iter().copied().fold(self.leader_epoch, i32::max);
            for row in 0..columns.len() {
                active.note(columns.bytes[row] as u64, columns.last_offset[row], columns.max_timestamp[row]);
            }
            columns.clear();
            match read {
                Ok(true) => {}
                Ok(false) => break,
                Err(damage) if is_last => {
                    self.check_is_torn(&scan, damage)?;
                    self.recovered.cut_bytes = scan.bytes() - scan.position();
                    break;
                }
                Err(damage) if damage.is_unread() => return Err(damage.into()),
                Err(damage) => return Err(give_up(damage, scan.last_offset() + 1).into()),
            }
        }
        self.end = scan.last_offset() + 1;
        self.active = Some(active);
        Ok(scan.last_offset())
    }

    /// Checks that damage can be the result of a crash during the last write.
    fn check_is_torn(&self, scan: &RecoveryScan, damage: Damage) -> Result<()> {
        if damage.is_unread() {
            return Err(damage.into());
        }
        if damage.kind == Kind::Zeros {
            return Ok(());
        }
        let Some((position, offset)) = scan.next_whole_batch()? else { return Ok(()) };
        let reason = format!(
            "{}. Not the torn end of a write, because a whole batch follows at byte {position}, offset {offset}",
            damage.reason
        );
        Err(give_up(Damage { reason, ..damage }, scan.last_offset() + 1).into())
    }

    /// The error for a state that is ahead of the log.
    fn lost(&self, offset: i64) -> Error {
        let reason = format!(
            "the log ends at offset {}, but a state file proves that it reached offset {offset}: its end was lost. \
             Nothing was changed. Restore the segments; or on_damage=\"cut\" continues without the lost end",
            self.end
        );
        damage(Kind::Gap, None, reason).in_file(&self.disk.path("")).into()
    }

    /// Replays the batches after the state.
    fn take(&mut self, columns: &BatchColumns) -> Result<()> {
        let rows = columns.len();
        let from = columns.base_offset.partition_point(|&offset| offset < self.from);
        if from == rows {
            return Ok(());
        }
        let mut controls = vec![core::Control::Data; rows];
        let mut coordinator_epoch = vec![-1; rows];
        for marker in &columns.markers {
            controls[marker.row as usize] = control_of(marker.control);
            coordinator_epoch[marker.row as usize] = marker.coordinator_epoch.unwrap_or(-1);
        }
        let control: Vec<u8> = controls.iter().map(|&control| control as u8).collect();
        let transactional: Vec<u8> = (0..rows).map(|row| columns.is_transactional(row).into()).collect();
        let batches = ProduceBatches {
            pid: &columns.pid[from..],
            partition: &vec![0; rows - from],
            epoch: &columns.epoch[from..],
            base_seq: &columns.base_seq[from..],
            last_seq: Some(&columns.last_seq[from..]),
            count: Some(&columns.count[from..]),
            offset: Some(&columns.base_offset[from..]),
            last_offset: Some(&columns.last_offset[from..]),
            timestamp: Some(&columns.max_timestamp[from..]),
            transactional: Some(&transactional[from..]),
            control: Some(&control[from..]),
            coordinator_epoch: Some(&coordinator_epoch[from..]),
            transaction_version: None,
            origin: Origins::All(Origin::Replica),
        };
        let position = columns.position[from] as u64;
        let impossible = |error| damage(Kind::Field, Some(position), format!("no broker writes such a batch: {error}"));
        self.table.apply(&[batches]).map_err(impossible)?;
        for row in from..rows {
            // If compaction removed all records of a header, its transaction was decided long ago.
            let is_transactional = transactional[row] != 0 && columns.count[row] > 0;
            let (pid, offset) = (columns.pid[row], columns.base_offset[row]);
            self.aborted.extend(self.transactions.note(pid, controls[row], is_transactional, offset));
        }
        self.recovered.batches += (rows - from) as u64;
        Ok(())
    }

    /// Cuts the torn end, and updates the files of the last segment.
    fn finish(mut self, bases: Vec<i64>, names: &[String]) -> Result<Opened> {
        let disk = self.disk;
        let mut active = self.active.take().expect("the last segment was followed");
        let name = name_of(active.base, LOG);
        if self.recovered.cut_bytes > 0 {
            unopened(disk, &name, active.file.cut(active.bytes))?;
        }
        if self.is_after_state() {
            unopened(disk, &name, write_again(&*active.file, active.position_of(self.from), active.bytes))?;
        }
        // Bytes of a killed process can be in the memory of the system and not on disk.
        unopened(disk, &name, active.file.sync())?;
        let aborted = self.join_aborted(names, &mut active)?;
        for ending in [INDEX, TIME_INDEX] {
            let name = name_of(active.base, ending);
            unopened(disk, &name, disk.remove(&name))?;
        }
        for (ending, name) in [STATE, SNAPSHOT].into_iter().flat_map(|ending| names.iter().map(move |it| (ending, it)))
        {
            if offset_of(name, ending).is_some_and(|offset| offset > self.end) {
                unopened(disk, name, disk.remove(name))?;
            }
        }
        unopened(disk, "", disk.sync())?;
        self.table.set_log_end(0, self.end)?;
        self.transactions.forget_before(self.end);
        let Replay { table, transactions, end, leader_epoch, recovered, .. } = self;
        Ok(Opened { table, transactions, aborted, bases, active, end, leader_epoch, recovered })
    }

    /// Whether bytes were written that no state proves to be on disk.
    fn is_after_state(&self) -> bool {
        self.end > self.from
    }

    /// All aborted transactions: those before the state from the indexes, later ones from the log. The index of the
    /// last segment is rewritten if it differs, or if it may not be on disk.
    fn join_aborted(&self, names: &[String], active: &mut Active) -> Result<Vec<AbortedTxn>> {
        let mut all = Vec::new();
        let mut found = None;
        for base in offsets_of(names, TXN_INDEX).into_iter().filter(|&base| base <= active.base) {
            let name = name_of(base, TXN_INDEX);
            let mut bytes = unopened(self.disk, &name, read_whole(self.disk, &name))?;
            if base == active.base {
                found = Some(bytes.clone());
                // Entries after the state may be torn by a crash, so the log itself is used instead.
                bytes.truncate(whole_entries_before(&bytes, self.from));
            }
            let entries = aborted::read(&bytes).map_err(|error| error.in_file(&self.disk.path(&name)))?;
            all.extend(entries.into_iter().filter(|entry| entry.last_offset < self.from));
        }
        all.extend(&self.aborted);
        let own = all.iter().filter(|entry| entry.last_offset >= active.base);
        let bytes: Vec<u8> = own.flat_map(aborted::write).collect();
        let name = name_of(active.base, TXN_INDEX);
        let is_right = found.as_ref().map_or(bytes.is_empty(), |found| *found == bytes && !self.is_after_state());
        if !is_right {
            unopened(self.disk, &name, self.disk.put(&name, &bytes))?;
        }
        if found.is_some() || !bytes.is_empty() {
            active.set_aborted(unopened(self.disk, &name, self.disk.open(&name))?, bytes.len() as u64);
        }
        Ok(all)
    }
}

/// Overwrites bytes of a file with themselves. After a failed sync, the system treats bytes as written that are not on
/// disk, and the next sync succeeds without them. Therefore these bytes are written again before that sync.
fn write_again(file: &dyn LogFile, from: u64, upto: u64) -> io::Result<()> {
    let mut buffer = vec![0; upto.saturating_sub(from).min(WRITE_AGAIN_BYTES) as usize];
    let mut position = from;
    while position < upto {
        let bytes = &mut buffer[..(upto - position).min(WRITE_AGAIN_BYTES) as usize];
        file.read_exact_at(position, bytes)?;
        file.write_all_at(position, bytes)?;
        position += bytes.len() as u64;
    }
    Ok(())
}

/// Number of bytes of an index of aborted transactions up to the last whole entry whose marker is before an offset.
fn whole_entries_before(bytes: &[u8], offset: i64) -> usize {
    let is_before = |entry: &[u8]| aborted::read(entry).is_ok_and(|it| it.iter().all(|it| it.last_offset < offset));
    bytes.chunks_exact(aborted::ENTRY_BYTES).rposition(is_before).map_or(0, |at| (at + 1) * aborted::ENTRY_BYTES)
}

fn control_of(control: Control) -> core::Control {
    match control {
        Control::Commit => core::Control::Commit,
        Control::Abort => core::Control::Abort,
        Control::Empty => core::Control::Empty,
        Control::Other => core::Control::Other,
    }
}
