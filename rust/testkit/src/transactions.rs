//! A naive reader of transactions. It keeps whole logs and answers every question by reading them from the first row.

use crate::workload::Random;

/// A row of a log: a batch of records, or a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRow {
    /// The producer, -1 if there is none.
    pub pid: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The partition of the log.
    pub partition: i32,
    /// The first offset.
    pub offset: i64,
    /// The last offset.
    pub last_offset: i64,
    /// Whether data is part of a transaction.
    pub is_transactional: bool,
    /// The kind of the row.
    pub kind: Kind,
    /// Its timestamp.
    pub timestamp: i64,
}

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Records.
    Data,
    /// The marker that commits.
    Commit,
    /// The marker that aborts.
    Abort,
    /// Any other row that is not data.
    Other,
}

/// The outcome of a row's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOutcome {
    /// It has no transaction.
    None,
    /// Committed.
    Committed,
    /// Aborted.
    Aborted,
    /// Not decided yet.
    Open,
}

/// A transaction of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The partition.
    pub partition: i32,
    /// The producer.
    pub pid: i64,
    /// The epoch of its last data.
    pub epoch: i16,
    /// The offset of its first data.
    pub first_offset: i64,
    /// The last offset of its data.
    pub data_end: i64,
    /// The timestamp of its last data.
    pub last_timestamp: i64,
    /// The offset of its marker.
    pub marker: Option<i64>,
    /// Its outcome.
    pub row_outcome: RowOutcome,
    /// The row of its marker.
    pub decided_at: Option<usize>,
    /// The row of its first data.
    pub begun_at: usize,
}

/// An entry of the list of aborted transactions: pid, first offset, last offset, last stable offset.
pub type AbortedEntry = (i64, i64, i64, i64);

/// Every row so far, of all partitions.
#[derive(Clone, Debug, Default)]
pub struct Log {
    rows: Vec<LogRow>,
}

impl Log {
    /// Adds rows at the end.
    pub fn extend(&mut self, rows: &[LogRow]) {
        self.rows.extend_from_slice(rows);
    }

    /// The outcome of each row's transaction.
    pub fn row_outcomes(&self) -> Vec<RowOutcome> {
        (0..self.rows.len()).map(|row| self.row_outcome(row)).collect()
    }

    /// The outcome of a row: the first later marker of the same producer and partition decides.
    fn row_outcome(&self, row: usize) -> RowOutcome {
        let it = &self.rows[row];
        if it.kind != Kind::Data || !it.is_transactional {
            return RowOutcome::None;
        }
        match self.rows[row..].iter().find(|other| is_marker(other) && is_same(it, other)) {
            Some(marker) if marker.kind == Kind::Commit => RowOutcome::Committed,
            Some(_) => RowOutcome::Aborted,
            None => RowOutcome::Open,
        }
    }

    /// Every transaction, in the order in which they begin.
    pub fn transactions(&self) -> Vec<Transaction> {
        let is_data = |row: &LogRow| row.kind == Kind::Data && row.is_transactional;
        let mut found = Vec::new();
        for (begun_at, first) in self.rows.iter().enumerate().filter(|(_, row)| is_data(row)) {
            let before =
                self.rows[..begun_at].iter().rfind(|row| is_same(first, row) && (is_marker(row) || is_data(row)));
            if before.is_some_and(is_data) {
                continue;
            }
            let decided_at = self
                .rows
                .iter()
                .enumerate()
                .position(|(at, row)| at > begun_at && is_same(first, row) && is_marker(row));
            let end = decided_at.unwrap_or(self.rows.len());
            let own = |row: &&LogRow| is_same(first, row) && is_data(row);
            let last = self.rows[begun_at..end].iter().rfind(own).unwrap_or(first);
            found.push(Transaction {
                partition: first.partition,
                pid: first.pid,
                epoch: last.epoch,
                first_offset: first.offset,
                data_end: last.last_offset,
                last_timestamp: last.timestamp,
                marker: decided_at.map(|at| self.rows[at].offset),
                row_outcome: self.row_outcome(begun_at),
                decided_at,
                begun_at,
            });
        }
        found
    }

    /// The first offset that is not decided.
    pub fn first_unstable_offset(&self, partition: i32) -> Option<i64> {
        let open = self
            .transactions()
            .into_iter()
            .filter(|it| it.partition == partition && it.row_outcome == RowOutcome::Open);
        open.map(|it| it.first_offset).min()
    }

    /// The end of the log, or the first offset that is not decided.
    pub fn last_stable_offset(&self, partition: i32) -> Option<i64> {
        let end = self.rows.iter().filter(|row| row.partition == partition).map(|row| row.last_offset + 1).max()?;
        Some(self.first_unstable_offset(partition).map_or(end, |first| first.min(end)))
    }

    /// The aborted transactions as the broker lists them, in the order of their markers.
    pub fn aborted(&self, partition: i32) -> Vec<AbortedEntry> {
        let all: Vec<_> = self.transactions().into_iter().filter(|it| it.partition == partition).collect();
        let mut aborted: Vec<_> = all.iter().filter(|it| it.row_outcome == RowOutcome::Aborted).collect();
        aborted.sort_by_key(|it| it.marker);
        let entry = |it: &&Transaction| {
            let marker = it.marker.unwrap_or(-1);
            let is_open_then = |other: &&Transaction| {
                other.first_offset < marker && other.pid != it.pid && other.marker.is_none_or(|end| end > marker)
            };
            let others = all.iter().filter(is_open_then).map(|other| other.first_offset);
            (it.pid, it.first_offset, marker, others.min().unwrap_or(marker + 1))
        };
        aborted.iter().map(entry).collect()
    }
}

fn is_same(one: &LogRow, other: &LogRow) -> bool {
    one.partition == other.partition && one.pid == other.pid
}

fn is_marker(row: &LogRow) -> bool {
    row.kind == Kind::Commit || row.kind == Kind::Abort
}

/// A random log with few producers and partitions, so that all combinations occur.
pub fn random_log(random: &mut Random, rows: usize) -> Vec<LogRow> {
    let partitions = 1 + random.below(3);
    let pids = 1 + random.below(5);
    let mut ends = vec![0; partitions as usize];
    let mut log: Vec<LogRow> = Vec::with_capacity(rows);
    for at in 0..rows {
        let partition = random.below(partitions) as i32;
        let end: &mut i64 = &mut ends[partition as usize];
        *end += if random.chance(15) { random.below(4) as i64 } else { 0 };
        let continued = log.last().filter(|before| before.partition == partition && random.chance(40));
        let pid = continued.map_or_else(|| random.below(pids + 1) as i64 - 1, |before| before.pid);
        let kind = match random.below(100) {
            0..20 if pid != -1 => Kind::Commit,
            20..40 if pid != -1 => Kind::Abort,
            40..44 => Kind::Other,
            _ => Kind::Data,
        };
        let length = if kind == Kind::Data { random.below(5) as i64 } else { 0 };
        log.push(LogRow {
            pid,
            epoch: random.below(3) as i16,
            partition,
            offset: *end,
            last_offset: *end + length,
            is_transactional: kind != Kind::Data || pid != -1 && random.chance(85),
            kind,
            timestamp: at as i64 * 10,
        });
        *end += length + 1;
    }
    log
}
