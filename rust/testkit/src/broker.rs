//! The naive oracle of produce batches, and the reader of their rule book.
//!
//! The oracle keeps the whole history of a producer in a partition, and answers every question by reading it backwards.
//! It moves no window and sets no flag. It is slow, and shares neither code nor structure with what it judges.

pub mod rulebook;

pub use crate::rulebook::Refusal;
use std::collections::BTreeMap;

/// The largest sequence number, after which comes 0.
pub const MAX: i64 = (1 << 31) - 1;
const NOTHING: i64 = -1;

/// A batch or a marker: a value for each column, `None` for null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // They are the columns of `fencepost.BatchColumns`.
pub struct Row {
    pub pid: Option<i64>,
    pub epoch: Option<i64>,
    pub partition: Option<i64>,
    pub base_seq: Option<i64>,
    pub count: Option<i64>,
    pub last_seq: Option<i64>,
    pub offset: Option<i64>,
    pub last_offset: Option<i64>,
    pub timestamp: Option<i64>,
    pub transactional: Option<bool>,
    pub control: Option<&'static str>,
    pub coordinator_epoch: Option<i64>,
    pub transaction_version: Option<i64>,
    pub origin: Option<&'static str>,
}

/// The result for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the verdict in all APIs.
    pub verdict: &'static str,
    /// For an `OUT_OF_ORDER` row: the only first sequence that would have been accepted.
    pub expected: Option<i64>,
    /// The first offset of the accepted batch, or of the first copy.
    pub offset: Option<i64>,
}

/// A batch of a window. Sequences are -1 if it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The first sequence.
    pub first: i64,
    /// The last sequence, less than the first if the batch crosses the wrap.
    pub last: i64,
    /// First and last offset, if they are known.
    pub offsets: Option<(i64, i64)>,
}

/// An open transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The first offset of its first batch, if known.
    pub first_offset: Option<i64>,
}

/// The state of a producer in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The producer.
    pub pid: i64,
    /// The partition.
    pub partition: i64,
    /// Its epoch.
    pub epoch: i64,
    /// Its last batches, oldest first.
    pub window: Vec<Kept>,
    /// Its open transaction.
    pub open: Option<Open>,
    /// -1 where none is known.
    pub coordinator_epoch: i64,
    /// -1 where none is known.
    pub last_timestamp: i64,
}

/// The options of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The broker's version.
    pub version: (u32, u32),
    /// Number of batches in a window.
    pub window: usize,
    /// Whether an unknown producer always begins with 0.
    pub first_is_zero: bool,
    /// Whether the table assigns offsets.
    pub assigns: bool,
    /// How long a producer may be idle.
    pub max_idle_ms: i64,
}

impl Default for Options {
    fn default() -> Options {
        Options { version: (4, 3), window: 5, first_is_zero: false, assigns: false, max_idle_ms: 86_400_000 }
    }
}

impl Options {
    /// Options by their names in the rule book; `None` if they are invalid.
    pub fn named(pairs: &[(String, String)]) -> Option<Options> {
        let mut options = Options::default();
        for (name, value) in pairs {
            match (name.as_str(), value.as_str()) {
                ("version", version) => options.version = known_version(version)?,
                ("window", window) => options.window = window.parse().ok().filter(|&window| window > 0)?,
                ("first", "any") | ("offsets", "given") => {}
                ("first", "zero") => options.first_is_zero = true,
                ("offsets", "assign") => options.assigns = true,
                ("max_idle_ms", idle) => options.max_idle_ms = idle.parse().ok().filter(|&idle| idle >= 0)?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn known_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    let version = (major.parse().ok()?, minor.parse().ok()?);
    matches!(version, (2, 4..=8) | (3, 0..=9) | (4, 0..=5)).then_some(version)
}

/// One table behind an API.
pub trait Door {
    /// Judges the rows, or refuses the call and changes nothing.
    fn apply(&mut self, rows: &[Row]) -> Result<Vec<Answer>, Refusal>;

    /// Drops producers that are idle at this time, and returns their number; or refuses the call.
    fn evict(&mut self, now: i64) -> Result<usize, Refusal>;

    /// Restarts the broker at this time.
    fn restart(&mut self, now: i64);

    /// Sets the end of a partition's log, or refuses the call.
    fn set_log_end(&mut self, partition: i64, offset: i64) -> Result<(), Refusal>;

    /// The next offset of a partition.
    fn log_end(&self, partition: i64) -> i64;

    /// All entries, in key order.
    fn entries(&self) -> Vec<Entry>;
}

/// An event of a producer in a partition.
#[derive(Clone, Debug)]
enum Event {
    Batch {
        epoch: i64,
        kept: Kept,
        transactional: bool,
        timestamp: i64,
    },
    Marker {
        epoch: i64,
        coordinator_epoch: i64,
        timestamp: i64,
    },
    /// Only the newest of the earlier batches was kept.
    Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Batch,
    Marker,
    /// A control batch without effect on its producer.
    Void,
    Untracked,
}

/// A valid row.
#[derive(Clone, Copy, Debug)]
struct ValidRow {
    kind: Kind,
    origin: &'static str,
    pid: i64,
    partition: i64,
    epoch: i64,
    /// First and last sequence; -1 if there are none.
    seqs: (i64, i64),
    /// Number of offsets.
    length: i64,
    offset: Option<i64>,
    transactional: bool,
    timestamp: i64,
    coordinator_epoch: i64,
    transaction_version: i64,
}

/// A table of the complete history.
#[derive(Clone, Debug)]
pub struct Oracle {
    options: Options,
    histories: BTreeMap<(i64, i64), Vec<Event>>,
    log_ends: BTreeMap<i64, i64>,
    /// Whether any accepted row had a timestamp.
    has_times: bool,
}

impl Oracle {
    /// An empty table.
    pub fn new(options: Options) -> Oracle {
        Oracle { options, histories: BTreeMap::new(), log_ends: BTreeMap::new(), has_times: false }
    }

    /// Whether the rules need the ends of logs.
    fn follows_logs(&self) -> bool {
        self.options.assigns || self.options.version >= (4, 5)
    }
}

impl Door for Oracle {
    fn apply(&mut self, rows: &[Row]) -> Result<Vec<Answer>, Refusal> {
        let read = |(number, row)| {
            self.read(row).map_err(|column: &str| Refusal { column: column.to_string(), row: Some(number) })
        };
        let sensible = rows.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let answers: Vec<Answer> = sensible.into_iter().map(|row| self.judge(row)).collect();
        self.has_times |= rows.iter().zip(&answers).any(|(row, answer)| {
            answer.verdict == "ACCEPTED" && row.timestamp.is_some_and(|timestamp| timestamp != -1)
        });
        Ok(answers)
    }

    /// Without any timestamp, no producer is known to be idle.
    fn evict(&mut self, now: i64) -> Result<usize, Refusal> {
        let before = self.histories.len();
        if before > 0 && !self.has_times {
            return Err(policy_refused());
        }
        let limit = i128::from(self.options.max_idle_ms);
        self.histories.retain(|_, history| {
            let idle = i128::from(now) - i128::from(last_timestamp(history));
            idle < limit || open(history).is_some()
        });
        Ok(before - self.histories.len())
    }

    fn restart(&mut self, now: i64) {
        // If no producer is known to be idle, none is dropped.
        self.evict(now).unwrap_or(0);
        self.histories.values_mut().for_each(|history| history.push(Event::Restart));
    }

    fn set_log_end(&mut self, partition: i64, offset: i64) -> Result<(), Refusal> {
        if !self.follows_logs() || offset < 0 {
            return Err(policy_refused());
        }
        self.log_ends.insert(partition, offset);
        Ok(())
    }

    fn log_end(&self, partition: i64) -> i64 {
        self.log_ends.get(&partition).copied().unwrap_or(0)
    }

    fn entries(&self) -> Vec<Entry> {
        let entry = |(&(pid, partition), history): (_, &Vec<Event>)| Entry {
            pid,
            partition,
            epoch: epoch(history),
            window: window(history, self.options.window),
            open: open(history),
            coordinator_epoch: coordinator_epoch(history),
            last_timestamp: last_timestamp(history),
        };
        self.histories.iter().map(entry).collect()
    }
}

fn policy_refused() -> Refusal {
    Refusal { column: "policy".into(), row: None }
}

// Questions about a history, which has at least one batch or marker.

fn epoch(history: &[Event]) -> i64 {
    let epoch = |event: &Event| match event {
        Event::Batch { epoch, .. } | Event::Marker { epoch, .. } => Some(*epoch),
        Event::Restart => None,
    };
    history.iter().rev().find_map(epoch).unwrap_or(NOTHING)
}

fn last_timestamp(history: &[Event]) -> i64 {
    let timestamp = |event: &Event| match event {
        Event::Batch { timestamp, .. } | Event::Marker { timestamp, .. } => Some(*timestamp),
        Event::Restart => None,
    };
    history.iter().rev().find_map(timestamp).unwrap_or(NOTHING)
}

fn coordinator_epoch(history: &[Event]) -> i64 {
    let known = |event: &Event| match event {
        Event::Marker { coordinator_epoch, .. } if *coordinator_epoch >= 0 => Some(*coordinator_epoch),
        _ => None,
    };
    history.iter().rev().find_map(known).unwrap_or(NOTHING)
}

/// The first transactional batch since the last marker.
fn open(history: &[Event]) -> Option<Open> {
    let is_marker = |event: &Event| matches!(event, Event::Marker { .. });
    let since = history.iter().rposition(is_marker).map_or(0, |marker| marker + 1);
    history[since..].iter().find_map(|event| match event {
        Event::Batch { transactional: true, kept, .. } => {
            Some(Open { first_offset: kept.offsets.map(|offsets| offsets.0) })
        }
        _ => None,
    })
}

/// The last batches since the current epoch began, oldest first.
fn window(history: &[Event], length: usize) -> Vec<Kept> {
    let current = epoch(history);
    let (mut window, mut left) = (Vec::new(), length);
    for event in history.iter().rev() {
        match event {
            Event::Batch { epoch, .. } | Event::Marker { epoch, .. } if *epoch != current => break,
            Event::Batch { kept, .. } if left > 0 => {
                window.push(kept.clone());
                left -= 1;
            }
            Event::Restart => left = left.min(1),
            _ => {}
        }
    }
    window.reverse();
    window
}

impl Oracle {
    /// A valid row, or the invalid column.
    fn read(&self, row: &Row) -> Result<ValidRow, &'static str> {
        let demand = |column, holds: bool| if holds { Ok(()) } else { Err(column) };
        let default_origin = if row.control.is_none() { "client" } else { "coordinator" };
        let origin = row.origin.unwrap_or(default_origin);
        demand("origin", ["client", "coordinator", "replica"].contains(&origin))?;
        let has_pid = row.pid.is_some_and(|pid| pid != -1);
        let kind = match row.control {
            _ if !has_pid && matches!(row.control, None | Some("other")) => Kind::Untracked,
            None => Kind::Batch,
            Some("commit" | "abort") if has_pid => Kind::Marker,
            Some("empty" | "other") if has_pid => Kind::Void,
            _ => return Err("control"),
        };
        demand("origin", origin != "client" || matches!(row.control, None | Some("other")))?;
        demand("pid", row.pid.is_none_or(|pid| pid >= -1))?;
        demand("transactional", has_pid || row.transactional != Some(true))?;
        let needs_partition = has_pid || self.follows_logs();
        demand("partition", !needs_partition || row.partition.is_some_and(|it| (0..=MAX).contains(&it)))?;
        demand("epoch", !has_pid || row.epoch.is_some_and(|epoch| (0..1 << 15).contains(&epoch)))?;
        demand("coordinator_epoch", row.coordinator_epoch.is_none_or(|epoch| epoch >= -1))?;

        let brings_offsets = !self.options.assigns || origin == "replica";
        let reads_offsets = brings_offsets && (has_pid || self.options.assigns);
        let (seqs, length) = self.extent(row, kind, origin, reads_offsets)?;
        if reads_offsets {
            let is_needed = self.options.assigns || row.last_offset.is_some();
            demand("offset", row.offset.map_or(!is_needed, |offset| offset >= 0))?;
            let last = row.offset.map(|offset| offset + length - 1);
            demand("last_offset", row.last_offset.is_none() || row.last_offset == last)?;
        }
        Ok(ValidRow {
            kind,
            origin,
            pid: row.pid.unwrap_or(NOTHING),
            partition: row.partition.unwrap_or(NOTHING),
            epoch: row.epoch.unwrap_or(NOTHING),
            seqs,
            length,
            offset: row.offset.filter(|_| brings_offsets),
            transactional: row.transactional == Some(true),
            timestamp: row.timestamp.unwrap_or(NOTHING),
            coordinator_epoch: row.coordinator_epoch.unwrap_or(NOTHING),
            transaction_version: row.transaction_version.unwrap_or(0),
        })
    }

    /// First and last sequence, and the number of offsets of the row.
    fn extent(
        &self,
        row: &Row,
        kind: Kind,
        origin: &str,
        reads_offsets: bool,
    ) -> Result<((i64, i64), i64), &'static str> {
        const NONE: (i64, i64) = (NOTHING, NOTHING);
        let by_count = row.count.filter(|count| (1..=MAX).contains(count)).ok_or("count");
        let by_offsets = match (row.offset, row.last_offset) {
            (Some(first), Some(last)) if reads_offsets => {
                Some(Some(last - first + 1).filter(|length| (1..=MAX + 1).contains(length)).ok_or("last_offset"))
            }
            _ => None,
        };
        match kind {
            _ if row.control.is_some() => Ok((NONE, 1)),
            Kind::Untracked if self.follows_logs() => Ok((NONE, by_offsets.unwrap_or(by_count)?)),
            Kind::Untracked | Kind::Marker | Kind::Void => Ok((NONE, 1)),
            Kind::Batch => {
                let first = row.base_seq.or(Some(NOTHING)).filter(|it| (-1..=MAX).contains(it)).ok_or("base_seq")?;
                match row.last_seq {
                    _ if first == -1 && origin == "client" => Err("base_seq"),
                    Some(last) if first == -1 && last != -1 => Err("last_seq"),
                    _ if first == -1 => Ok((NONE, by_offsets.unwrap_or(by_count)?)),
                    Some(last) if (0..=MAX).contains(&last) => {
                        // The number of sequences across the wrap.
                        let length = if last >= first { last - first + 1 } else { MAX + 1 - first + last + 1 };
                        Ok(((first, last), length))
                    }
                    Some(_) => Err("last_seq"),
                    None => by_count.map(|count| ((first, (first + count - 1) % (MAX + 1)), count)),
                }
            }
        }
    }

    fn judge(&mut self, mut row: ValidRow) -> Answer {
        if self.options.assigns && row.origin != "replica" {
            row.offset = Some(self.log_end(row.partition));
        }
        let history = self.histories.get(&(row.pid, row.partition));
        let verdict = match row.kind {
            Kind::Untracked => ("UNTRACKED", None),
            Kind::Void => ("ACCEPTED", None),
            Kind::Marker => (history.map_or("ACCEPTED", |history| self.judge_marker(history, &row)), None),
            Kind::Batch => {
                if let Some(first_copy) = history.and_then(|history| self.first_copy(history, &row)) {
                    let offset = first_copy.offsets.map(|offsets| offsets.0);
                    return Answer { verdict: "DUPLICATE", expected: None, offset };
                }
                self.judge_batch(history, &row)
            }
        };
        let is_taken = matches!(verdict.0, "ACCEPTED" | "UNTRACKED");
        if is_taken {
            self.record(&row);
        }
        Answer { verdict: verdict.0, expected: verdict.1, offset: row.offset.filter(|_| is_taken) }
    }

    fn first_copy(&self, history: &[Event], row: &ValidRow) -> Option<Kept> {
        let is_looked_for = row.origin == "client" && row.epoch == epoch(history);
        let is_copy = |kept: &Kept| is_looked_for && (kept.first, kept.last) == row.seqs;
        window(history, self.options.window).into_iter().find(is_copy)
    }

    fn judge_batch(&self, history: Option<&Vec<Event>>, row: &ValidRow) -> (&'static str, Option<i64>) {
        let Some(history) = history else {
            let is_new_log = self.log_end(row.partition) == 0 && row.offset.unwrap_or(0) == 0;
            let needs_zero = self.options.first_is_zero
                || self.options.version <= (2, 4)
                || (self.options.version >= (4, 5) && is_new_log);
            let is_refused = row.origin == "client" && needs_zero && row.seqs.0 != 0;
            return if is_refused { ("OUT_OF_ORDER", Some(0)) } else { ("ACCEPTED", None) };
        };
        if row.epoch < epoch(history) && row.origin != "replica" {
            return ("FENCED", None);
        }
        if row.origin == "client" {
            let last = window(history, 1).last().map_or(NOTHING, |kept| kept.last);
            let next = if row.epoch > epoch(history) || last == MAX { 0 } else { last + 1 };
            if row.seqs.0 != next {
                return ("OUT_OF_ORDER", Some(next));
            }
        }
        if open(history).is_some() && !row.transactional { ("INVALID_TXN_STATE", None) } else { ("ACCEPTED", None) }
    }

    fn judge_marker(&self, history: &[Event], row: &ValidRow) -> &'static str {
        let stored = epoch(history);
        let must_rise = row.transaction_version >= 2
            && self.options.version >= (4, 2)
            && open(history).is_some()
            && (self.options.version == (4, 2) || stored != 32767);
        if row.origin == "replica" {
            "ACCEPTED"
        } else if row.epoch < stored || (must_rise && row.epoch == stored) {
            "FENCED"
        } else if row.coordinator_epoch != NOTHING && row.coordinator_epoch < coordinator_epoch(history) {
            "COORDINATOR_FENCED"
        } else {
            "ACCEPTED"
        }
    }

    fn record(&mut self, row: &ValidRow) {
        let (epoch, timestamp) = (row.epoch, row.timestamp);
        let event = match row.kind {
            Kind::Batch => {
                let offsets = row.offset.map(|offset| (offset, offset + row.length - 1));
                let kept = Kept { first: row.seqs.0, last: row.seqs.1, offsets };
                Some(Event::Batch { epoch, kept, transactional: row.transactional, timestamp })
            }
            Kind::Marker => Some(Event::Marker { epoch, coordinator_epoch: row.coordinator_epoch, timestamp }),
            Kind::Void | Kind::Untracked => None,
        };
        if let Some(event) = event {
            self.histories.entry((row.pid, row.partition)).or_default().push(event);
        }
        if self.follows_logs() {
            let begin = row.offset.unwrap_or(self.log_end(row.partition));
            self.log_ends.insert(row.partition, begin + row.length);
        }
    }
}
