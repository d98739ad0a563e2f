use crate::disk::{Disk, Lock, LogFile};
use crate::error::{Error, Result};
use crate::producers::to_kafka;
use crate::recovery::{self, Recovered};
use crate::segment::{Active, Extent, INDEX, LOG, Prefix, SNAPSHOT, STATE, name_of, offset_of, position_of, refused};
use crate::sync::{Commit, Policy, Synced, Turn};
use crate::transactions::Transactions;
use fencepost_core::{BrokerJudged, BrokerOptions, BrokerTable, Control, Origin, Origins, ProduceBatches, Verdict};
use fencepost_kafka::aborted::{self, AbortedTxn};
use fencepost_kafka::{
    AbortedRange, BatchHeader, HEADER_BYTES, PartitionScan, ReadAt, Segment, View, index, place, reason, snapshot,
};
use std::io;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Maximum size of a segment: a broker's `log.segment.bytes`, and the maximum of positions in an index.
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// Number of bytes that are collected before they are written. They stay in the second-level cache.
const WRITE_BYTES: usize = 1 << 18;

/// The options of a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rules by which batches are judged; offsets are always assigned.
    pub broker: BrokerOptions,
    /// When an append returns.
    pub policy: Policy,
    /// A segment of this size takes no more batches.
    pub segment_bytes: u64,
    /// Whether every segment is read, and the log is cut at the first damage instead of refused.
    pub cuts_damage: bool,
}

impl Default for Options {
    fn default() -> Options {
        let broker = BrokerOptions { assigns_offsets: true, ..BrokerOptions::default() };
        Options { broker, policy: Policy::Group, segment_bytes: 1 << 30, cuts_damage: false }
    }
}

/// A batch or marker to append: the fields that are judged, and its bytes in the log, without the offset.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Producer id; -1: not idempotent, not judged.
    pub pid: i64,
    /// Producer epoch.
    pub epoch: i16,
    /// First sequence number, -1 for markers.
    pub base_seq: i32,
    /// Number of records.
    pub count: i32,
    /// The newest timestamp, in milliseconds.
    pub timestamp: i64,
    /// Whether it is part of a transaction.
    pub is_transactional: bool,
    /// Commit or abort, for markers.
    pub control: Control,
    /// Of markers, else -1.
    pub coordinator_epoch: i32,
    /// Of markers, else -1.
    pub transaction_version: i8,
    /// The whole record batch.
    pub bytes: Vec<u8>,
}

impl Batch {
    fn last_offset_delta(&self) -> i64 {
        i64::from(self.count) - 1
    }
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The verdict, by the broker's rules.
    pub verdict: Verdict,
    /// The offset of its first record, or of the original of a duplicate. `None` if the batch was refused.
    pub offset: Option<i64>,
}

/// The input of a reader: the segments from some offset on, as of the call, and the visible part of them.
pub struct Reading {
    /// The segments.
    pub partition: PartitionScan,
    /// The visible records.
    pub view: View,
}

/// The log of a partition, open for its only writer. Several threads can call it.
pub struct PartitionLog {
    shared: Arc<Shared>,
    recovered: Recovered,
    /// The thread that syncs every interval, if this is the policy.
    syncer: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    options: Options,
    inner: Mutex<Inner>,
    commit: Commit,
    /// The id of the process that opened the log. A forked process also has the files, but would overwrite its parent's
    /// data.
    process: u32,
}

struct Inner {
    table: BrokerTable,
    transactions: Transactions,
    /// Aborted transactions, in the order of their markers.
    aborted: Vec<AbortedTxn>,
    /// First offsets of the segments, with that of the active one last.
    bases: Vec<i64>,
    active: Active,
    end: i64,
    /// The last leader epoch that a broker wrote, if any. It must not decrease.
    leader_epoch: i32,
    is_closed: bool,
    /// Released when the log is closed.
    lock: Option<Lock>,
    /// Some batches of a call, contiguous.
    buffer: Vec<u8>,
}

impl PartitionLog {
    /// Opens an existing log, or creates one. `lock` is held until the log is closed or dropped.
    pub fn open(disk: Arc<dyn Disk>, lock: Option<Lock>, options: Options) -> Result<PartitionLog> {
        if !(1..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
            let bytes = options.segment_bytes;
            return Err(Error::Value(format!("segment_bytes={bytes} is outside 1..={SEGMENT_BYTES_MAX}")));
        }
        let opened = recovery::open(&*disk, &options)?;
        let commit = Commit::default();
        let (end, base, bytes) = (opened.end, opened.active.base, opened.active.bytes);
        commit.advance(Synced { end, base, bytes });
        let inner = Inner {
            table: opened.table,
            transactions: opened.transactions,
            aborted: opened.aborted,
            bases: opened.bases,
            active: opened.active,
            end,
            leader_epoch: opened.leader_epoch,
            is_closed: false,
            lock,
            buffer: Vec::new(),
        };
        let shared = Arc::new(Shared { disk, options, inner: Mutex::new(inner), commit, process: process::id() });
        let syncer = match shared.options.policy {
            Policy::Interval(_) => Some(Shared::spawn_syncer(&shared)?),
            Policy::Each | Policy::Group => None,
        };
        Ok(PartitionLog { shared, recovered: opened.recovered, syncer: Mutex::new(syncer) })
    }

    /// The result of opening the log.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The offset of the next batch.
    pub fn log_end(&self) -> Result<i64> {
        Ok(self.shared.lock()?.end)
    }

    /// The offset from which on transactions are undecided or not on disk yet.
    pub fn last_stable_offset(&self) -> Result<i64> {
        let inner = self.shared.lock()?;
        Ok(inner.transactions.last_stable_offset(self.shared.visible(&inner).end))
    }

    /// Judges batches in order and writes all accepted ones, or none if there is an error. The policy decides when it
    /// returns.
    pub fn append(&self, batches: &mut [Batch]) -> Result<Vec<Appended>> {
        let (appended, end) = {
            let mut inner = self.shared.lock()?;
            let appended = self.shared.append(&mut inner, batches)?;
            if self.shared.options.policy == Policy::Each && appended.iter().any(|it| it.offset.is_some()) {
                self.shared.sync_active(&mut inner)?;
            }
            (appended, inner.end)
        };
        // A duplicate waits too, because its original may not be on disk yet.
        if self.shared.options.policy == Policy::Group && appended.iter().any(|it| it.offset.is_some()) {
            self.shared.wait(end)?;
        }
        Ok(appended)
    }

    /// The visible part of the log from an offset on, as of now. With `is_committed`, nothing of aborted transactions
    /// and nothing after the last stable offset. Batches that are not on disk are invisible, unless the policy does not
    /// require it.
    pub fn read(&self, from: i64, is_committed: bool) -> Result<Reading> {
        let inner = self.shared.lock()?;
        let visible = self.shared.visible(&inner);
        if !(0..=visible.end).contains(&from) {
            return Err(Error::Value(format!("from_offset={from} is outside 0..={}, the log's end", visible.end)));
        }
        let start = inner.bases[0];
        if 0 < from && from < start {
            return Err(Error::Value(format!(
                "from_offset={from}: the log begins at offset {start}, because its earlier segments were removed. To \
                 read without these, pass 0 or {start}"
            )));
        }
        let view = if is_committed {
            let end = inner.transactions.last_stable_offset(visible.end);
            let begun = inner.aborted.partition_point(|it| it.last_offset < from);
            let range = |it: &AbortedTxn| AbortedRange {
                pid: it.pid,
                first_offset: it.first_offset,
                last_offset: it.last_offset,
            };
            View::new(&inner.aborted[begun..].iter().map(range).collect::<Vec<_>>(), end)
        } else {
            View::uncommitted()
        };
        Ok(Reading { partition: self.shared.segments(&inner, from, visible), view: view.starting_at(from) })
    }

    /// Waits until everything that was appended before is on disk.
    pub fn sync(&self) -> Result<()> {
        let end = self.shared.lock()?.end;
        self.shared.wait(end)
    }

    /// Drops producers that were idle, as [`BrokerTable::evict`] does. Returns their number.
    pub fn evict(&self, now_ms: i64) -> Result<usize> {
        let mut inner = self.shared.lock()?;
        if inner.table.is_empty() {
            return Ok(0);
        }
        Ok(inner.table.evict(now_ms)?)
    }

    /// Syncs, writes indexes and states, and releases the lock. The log is closed even after an error. A poisoned log is
    /// an error again if appends have returned whose batches may be lost.
    pub fn close(&self) -> Result<()> {
        let done = {
            let mut inner = match self.shared.lock() {
                Err(Error::Closed) => return Ok(()),
                Err(Error::Poisoned(reason)) => {
                    let is_lost = self.shared.has_unsynced();
                    self.shared.abandon();
                    return if is_lost { Err(Error::Poisoned(reason)) } else { Ok(()) };
                }
                inner => inner?,
            };
            let synced = self.shared.sync_active(&mut inner);
            let done = synced.and_then(|()| self.shared.write_side_files(&mut inner));
            inner.is_closed = true;
            done
        };
        self.shared.abandon();
        self.join();
        done
    }

    fn join(&self) {
        if self.shared.process != process::id() {
            // A forked process does not have the thread.
            self.syncer.lock().into_iter().for_each(|mut syncer| std::mem::forget(syncer.take()));
            return;
        }
        self.shared.commit.close();
        let syncer = self.syncer.lock().ok().and_then(|mut syncer| syncer.take());
        // The thread has no data that a panic could have corrupted.
        let _ = syncer.map(JoinHandle::join);
    }
}

/// Leaves the log as a crash does. Appended batches are found by reading the log.
impl Drop for PartitionLog {
    fn drop(&mut self) {
        self.join();
    }
}

impl Shared {
    fn lock(&self) -> Result<MutexGuard<'_, Inner>> {
        if self.process != process::id() {
            let opener = self.process;
            return Err(Error::Poisoned(format!(
                "the log was opened by process {opener}, of which this is a fork: open it after the fork"
            )));
        }
        let panicked = |_| Error::Poisoned("an earlier call failed midway; open the log again".into());
        let inner = self.inner.lock().map_err(panicked)?;
        if inner.is_closed {
            return Err(Error::Closed);
        }
        self.commit.failure().map_or(Ok(inner), |reason| Err(Error::Poisoned(reason)))
    }

    /// Releases the lock in all cases.
    fn abandon(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.lock = None;
        inner.is_closed = true;
    }

    /// Whether appends of this process have returned whose batches are not known to be on disk.
    fn has_unsynced(&self) -> bool {
        if self.process != process::id() || !matches!(self.options.policy, Policy::Interval(_)) {
            return false;
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        !inner.is_closed && self.commit.synced().end < inner.end
    }

    /// The end of the visible part of the log.
    fn visible(&self, inner: &Inner) -> Synced {
        match self.options.policy {
            Policy::Interval(_) => inner.written(),
            Policy::Each | Policy::Group => self.commit.synced(),
        }
    }

    fn append(&self, inner: &mut Inner, batches: &mut [Batch]) -> Result<Vec<Appended>> {
        let columns = Columns::of(batches);
        let judged = inner.table.check(&[columns.batches()])?;
        let appended = appended_of(&judged);
        let kept: Vec<usize> = (0..batches.len()).filter(|&row| appended[row].verdict.is_kept()).collect();
        let Some(&last) = kept.last() else { return Ok(appended) };
        for &row in &kept {
            place(&mut batches[row].bytes, judged.offsets[row], inner.leader_epoch);
        }
        let end = judged.offsets[last] + batches[last].last_offset_delta() + 1;
        self.make_room(inner, kept.iter().map(|&row| batches[row].bytes.len() as u64).sum(), end)?;
        let has_transactions = kept.iter().any(|&row| batches[row].is_transactional);
        let mut transactions = has_transactions.then(|| inner.transactions.clone());
        let mut aborted = Vec::new();
        if let Some(transactions) = &mut transactions {
            for &row in &kept {
                let Batch { pid, control, is_transactional, .. } = batches[row];
                aborted.extend(transactions.note(pid, control, is_transactional, judged.offsets[row]));
            }
        }
        let before = inner.active.extent();
        self.write(inner, batches, &kept, &aborted, before)?;
        self.apply(inner, &columns, &judged, before)?;
        for &row in &kept {
            let (batch, last_offset) = (&batches[row], judged.offsets[row] + batches[row].last_offset_delta());
            inner.active.note(batch.bytes.len() as u64, last_offset, batch.timestamp);
        }
        inner.transactions = transactions.unwrap_or_else(|| std::mem::take(&mut inner.transactions));
        inner.transactions.forget_before(self.visible(inner).end);
        inner.aborted.extend(aborted);
        inner.end = end;
        Ok(appended)
    }

    /// Begins a new segment if the batches of a call do not fit into the current one.
    fn make_room(&self, inner: &mut Inner, bytes: u64, end: i64) -> Result<()> {
        let most = self.options.segment_bytes;
        if bytes > most {
            return Err(Error::Value(format!(
                "{bytes} bytes in one call, a segment has {most} (segment_bytes): append them in several calls. Nothing \
                 was appended"
            )));
        }
        let is_in_range = |base: i64| end - base <= i64::from(i32::MAX);
        if inner.active.bytes > 0 && (inner.active.bytes + bytes > most || !is_in_range(inner.active.base)) {
            self.roll(inner)?;
        }
        if is_in_range(inner.active.base) {
            Ok(())
        } else {
            let problem = "one call has more offsets than a segment can have: append its rows in several calls. \
                           Nothing was appended";
            Err(Error::Value(problem.into()))
        }
    }

    /// Begins the next segment, after everything before it is on disk.
    fn roll(&self, inner: &mut Inner) -> Result<()> {
        self.sync_active(inner)?;
        self.write_side_files(inner)?;
        let name = name_of(inner.end, LOG);
        let active = Active::create(&*self.disk, inner.end).map_err(|error| {
            // The segment is empty, but the next batches go into the previous one and pass its offset. If a power loss
            // brought its name back, the log would not open.
            match self.disk.remove(&name).and_then(|()| self.disk.sync()) {
                Ok(()) => refused(&*self.disk, &name, error, &self.unchanged(inner)),
                Err(_) => self.commit.fail(&format!("{}: {}", self.disk.path(&name), reason(&error))),
            }
        })?;
        inner.bases.push(active.base);
        inner.active = active;
        self.commit.advance(inner.written());
        Ok(())
    }

    /// Writes the files beside a finished segment, and the states of its end. States of other offsets are removed,
    /// except the snapshots of segments' first offsets. A broker does the same.
    fn write_side_files(&self, inner: &mut Inner) -> Result<()> {
        let (disk, end) = (&*self.disk, inner.end);
        let state = self.unchanged(inner);
        let fail = |name: &str| {
            let (name, state) = (name.to_string(), state.clone());
            move |error| refused(disk, &name, error, &state)
        };
        inner.active.write_indexes(disk).map_err(fail(&name_of(inner.active.base, INDEX)))?;
        if end > 0 {
            let [table, snapshot] = [STATE, SNAPSHOT].map(|ending| name_of(end, ending));
            let entries: Vec<_> = inner.table.entries().filter_map(|entry| to_kafka(&entry)).collect();
            disk.put(&table, &inner.table.snapshot()).map_err(fail(&table))?;
            disk.put(&snapshot, &snapshot::write(&entries)).map_err(fail(&snapshot))?;
            // Synced before older states are removed, because those may be the only ones on disk.
            disk.sync().map_err(fail(""))?;
        }
        for name in &disk.names().map_err(fail(""))? {
            let is_of_segment = |offset: i64| inner.bases.binary_search(&offset).is_ok();
            let is_stray = offset_of(name, SNAPSHOT).is_some_and(|it| it != end && !is_of_segment(it))
                || offset_of(name, STATE).is_some_and(|it| it != end && it != inner.active.base);
            if is_stray {
                disk.remove(name).map_err(fail(name))?;
            }
        }
        disk.sync().map_err(fail(""))
    }

    /// Writes the kept batches at the end of the segment, or none of their bytes.
    fn write(
        &self,
        inner: &mut Inner,
        batches: &[Batch],
        kept: &[usize],
        aborted: &[AbortedTxn],
        before: Extent,
    ) -> Result<()> {
        let entries: Vec<u8> = aborted.iter().flat_map(aborted::write).collect();
        let wrote = write_batches(inner, kept.iter().map(|&row| &batches[row].bytes[..]))
            .and_then(|()| inner.active.add_aborted(&*self.disk, &entries));
        let Err(error) = wrote else { return Ok(()) };
        let path = self.disk.path(&name_of(inner.active.base, LOG));
        self.roll_back(inner, before, &format!("{path}: {}", reason(&error)))?;
        Err(Error::io(error, path, self.unchanged(inner)))
    }

    /// Updates the table by the written batches.
    fn apply(&self, inner: &mut Inner, columns: &Columns, judged: &BrokerJudged, before: Extent) -> Result<()> {
        match inner.table.apply(&[columns.batches()]) {
            Ok(again) => assert_eq!(again, *judged, "check and apply agree"),
            Err(error) => {
                self.roll_back(inner, before, &error.to_string())?;
                return Err(if inner.table.is_half_done() {
                    self.commit.fail(&error.to_string())
                } else {
                    error.into()
                });
            }
        }
        Ok(())
    }

    /// Removes the bytes of a failed call. This also syncs the bytes of other calls.
    fn roll_back(&self, inner: &mut Inner, before: Extent, what: &str) -> Result<()> {
        let describe = |error: &io::Error| format!("{what}, and what was written cannot be cut off: {}", reason(error));
        self.commit.take_turn(|| inner.active.cut(before), describe)
    }

    /// Syncs the written bytes while the log is locked.
    fn sync_active(&self, inner: &mut Inner) -> Result<()> {
        if self.commit.synced() == inner.written() {
            return Ok(());
        }
        self.sync_files(&inner.active.files(), inner.written()).inspect_err(|_| self.cut_unsynced(inner))
    }

    /// Waits for a sync that covers an offset, or does it for all waiting threads.
    fn wait(&self, end: i64) -> Result<()> {
        loop {
            match self.commit.wait(end) {
                Turn::Done => return Ok(()),
                Turn::Failed(reason) => return Err(Error::Poisoned(reason)),
                Turn::Lead => {
                    let led = self.lead();
                    self.commit.stop_leading();
                    // The log may have been closed in the meantime, which also syncs.
                    if self.commit.synced().end < end {
                        led?;
                    }
                }
            }
        }
    }

    fn lead(&self) -> Result<()> {
        // The log is not locked while the disk works: new batches are part of the next sync.
        let (files, written) = {
            let inner = self.lock()?;
            (inner.active.files(), inner.written())
        };
        self.sync_files(&files, written).inspect_err(|_| {
            self.cut_unsynced(&self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        })
    }

    /// Waits until files of a segment are on disk, and records how much of the log is then on disk.
    fn sync_files(&self, files: &[Arc<dyn LogFile>], written: Synced) -> Result<()> {
        let describe = |error: &io::Error| {
            let path = self.disk.path(&name_of(written.base, LOG));
            let end = self.commit.synced().end;
            format!("{path}: {}: only what is below offset {end} is known to be on disk", reason(error))
        };
        // Recorded within the turn: if the next sync fails, everything that is not recorded is cut.
        let sync = || {
            files.iter().try_for_each(|file| file.sync())?;
            self.commit.advance(written);
            Ok(())
        };
        self.commit.take_turn(sync, describe)
    }

    /// Cuts the log after a failed sync: the system may have dropped bytes that it could not write, and still returns
    /// them to readers. Bytes that cannot be cut are written again when the log is opened.
    fn cut_unsynced(&self, inner: &Inner) {
        let synced = self.commit.synced();
        // After it is closed, another writer may have opened it.
        if !inner.is_closed && synced.base == inner.active.base {
            let _ = inner.active.file.cut(synced.bytes);
        }
    }

    fn unchanged(&self, inner: &Inner) -> String {
        format!("nothing was appended, the log ends at offset {} as before", inner.end)
    }

    /// The segments with offsets from a start on, as far as they are visible.
    fn segments(&self, inner: &Inner, from: i64, visible: Synced) -> PartitionScan {
        let first = inner.bases.partition_point(|&base| base <= from).saturating_sub(1);
        let bases = &inner.bases[first..];
        // Finished segments are completely visible.
        let bytes = if visible.base == inner.active.base { visible.bytes } else { 0 };
        let start = match bases {
            [_] => inner.active.position_of(from).min(bytes),
            [closed, ..] => self.position_in(*closed, from),
            [] => 0,
        };
        let segment = |&base: &i64| {
            let name = name_of(base, LOG);
            let path = self.disk.path(&name);
            if base == inner.active.base {
                let file = inner.active.file.clone();
                let open = move || Ok(Box::new(Prefix { file: file.clone(), bytes }) as Box<dyn ReadAt>);
                return Segment { path, base_offset: Some(base), open: Box::new(open) };
            }
            let disk = self.disk.clone();
            let open = move || Ok(Box::new(disk.open(&name)? as Arc<dyn ReadAt>) as Box<dyn ReadAt>);
            Segment { path, base_offset: Some(base), open: Box::new(open) }
        };
        PartitionScan::new(bases.iter().map(segment)).without_gaps().starting_at(start)
    }

    /// The position of an offset by the index of a finished segment, or the beginning if there is no valid index. An
    /// index has no checksum, and a wrong entry would hide records. So a batch that is not above the offset must begin
    /// at the position.
    fn position_in(&self, base: i64, from: i64) -> u64 {
        let bytes = crate::disk::read_whole(&*self.disk, &name_of(base, INDEX));
        let entries = bytes.ok().and_then(|bytes| index::read(&bytes, base).ok());
        let position = entries.map_or(0, |entries| position_of(&entries, from));
        let mut header = [0; HEADER_BYTES];
        let read = self.disk.open(&name_of(base, LOG)).and_then(|file| file.read_exact_at(position, &mut header));
        let header = BatchHeader::decode(&header);
        let is_right = read.is_ok() && header.magic == 2 && (base..=from).contains(&header.base_offset);
        if is_right { position } else { 0 }
    }

    fn spawn_syncer(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
        let Policy::Interval(interval) = shared.options.policy else { unreachable!("only then") };
        let shared_too = shared.clone();
        let work = move || {
            while shared_too.commit.sleep(interval) {
                let Ok(end) = shared_too.lock().map(|inner| inner.end) else { return };
                // A failure poisons the log, and the next append reports it.
                if shared_too.wait(end).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("fencepost-log".into()).spawn(work);
        thread.map_err(|error| Error::io(error, shared.disk.path(""), "the log was not opened"))
    }
}

/// Writes batches at the end of the segment. Several small ones are written in one system call.
fn write_batches<'a>(inner: &mut Inner, batches: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let (file, mut position) = (&inner.active.file, inner.active.bytes);
    let mut write = |bytes: &[u8]| -> io::Result<()> {
        file.write_all_at(position, bytes)?;
        position += bytes.len() as u64;
        Ok(())
    };
    inner.buffer.clear();
    let mut batches = batches.peekable();
    while let Some(batch) = batches.next() {
        let has_more = batches.peek().is_some_and(|next| inner.buffer.len() + batch.len() + next.len() <= WRITE_BYTES);
        if inner.buffer.is_empty() && !has_more {
            write(batch)?;
            continue;
        }
        inner.buffer.extend_from_slice(batch);
        if !has_more {
            write(&inner.buffer)?;
            inner.buffer.clear();
        }
    }
    Ok(())
}

impl Inner {
    fn written(&self) -> Synced {
        Synced { end: self.end, base: self.active.base, bytes: self.active.bytes }
    }
}

fn appended_of(judged: &BrokerJudged) -> Vec<Appended> {
    let verdict = |code: u8| Verdict::ALL[usize::from(code)];
    let offset = |row: usize| judged.offsets.get(row).copied().filter(|&offset| offset >= 0);
    (0..judged.verdicts.len())
        .map(|row| Appended { verdict: verdict(judged.verdicts[row]), offset: offset(row) })
        .collect()
}

/// Batches as columns for a table.
struct Columns {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    base_seq: Vec<i32>,
    count: Vec<i32>,
    timestamp: Vec<i64>,
    transactional: Vec<u8>,
    control: Vec<u8>,
    coordinator_epoch: Vec<i32>,
    transaction_version: Vec<i8>,
}

impl Columns {
    fn of(batches: &[Batch]) -> Columns {
        fn column<T>(batches: &[Batch], of: impl Fn(&Batch) -> T) -> Vec<T> {
            batches.iter().map(of).collect()
        }
        Columns {
            pid: column(batches, |it| it.pid),
            partition: vec![0; batches.len()],
            epoch: column(batches, |it| it.epoch),
            base_seq: column(batches, |it| it.base_seq),
            count: column(batches, |it| it.count),
            timestamp: column(batches, |it| it.timestamp),
            transactional: column(batches, |it| u8::from(it.is_transactional)),
            control: column(batches, |it| it.control as u8),
            coordinator_epoch: column(batches, |it| it.coordinator_epoch),
            transaction_version: column(batches, |it| it.transaction_version),
        }
    }

    fn batches(&self) -> ProduceBatches<'_> {
        ProduceBatches {
            pid: &self.pid,
            partition: &self.partition,
            epoch: &self.epoch,
            base_seq: &self.base_seq,
            last_seq: None,
            count: Some(&self.count),
            offset: None,
            last_offset: None,
            timestamp: Some(&self.timestamp),
            transactional: Some(&self.transactional),
            control: Some(&self.control),
            coordinator_epoch: Some(&self.coordinator_epoch),
            transaction_version: Some(&self.transaction_version),
            // Markers then have the origin of the coordinator.
            origin: Origins::All(Origin::Client),
        }
    }
}
