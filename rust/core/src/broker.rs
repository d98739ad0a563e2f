//! Judges produce batches and markers as the leader of a Kafka partition does.
//!
//! For each producer and partition, the table stores its epoch, its last batches and its open transaction. The rules
//! are in `judge`, with one function for batches and one for markers. The memory layout of producers is in `line`.
//! Transaction verification, a handshake between a broker and its coordinator, is not included.

mod batch;
mod judge;
mod line;
mod shelf;

use crate::error::make_room;
use crate::keys::{KeyKind, Keys};
use crate::prefetch::CHUNK;
use crate::{Error, Result, Verdict};
pub use batch::{Control, Origin, Origins, ProduceBatches};
pub use judge::WindowBatch;
use judge::{Judgement, Producer, Rules};
use rustc_hash::FxHashMap;
use shelf::{Shelves, with_shelf};

/// An unknown offset.
pub(crate) const NONE: i64 = -1;

/// The version of the broker whose rules apply. kafka-rules 4.3 lists the differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion {
    /// The number before the dot.
    pub major: u8,
    /// The number after the dot.
    pub minor: u8,
}

impl BrokerVersion {
    const OLDEST: BrokerVersion = BrokerVersion { major: 2, minor: 4 };
    const NEWEST: BrokerVersion = BrokerVersion { major: 4, minor: 5 };
}

impl std::str::FromStr for BrokerVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<BrokerVersion> {
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let version = text
            .split_once('.')
            .and_then(|(major, minor)| Some(BrokerVersion { major: number(major)?, minor: number(minor)? }));
        version.filter(|it| (Self::OLDEST..=Self::NEWEST).contains(it)).ok_or_else(|| {
            Error::Policy(format!(
                "version={text:?}: expected a version of Kafka from {} to {}",
                Self::OLDEST,
                Self::NEWEST
            ))
        })
    }
}

impl std::fmt::Display for BrokerVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The options of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerOptions {
    /// The version whose rules apply.
    pub version: BrokerVersion,
    /// Number of batches to remember per producer, 1 to 255.
    pub window: u8,
    /// Whether an unknown producer must begin at 0, whatever the version allows.
    pub begins_at_zero: bool,
    /// Whether the table assigns offsets, as a leader does, or reads them.
    pub assigns_offsets: bool,
    /// How long a producer may be idle, in milliseconds.
    pub max_idle_ms: i64,
}

impl Default for BrokerOptions {
    fn default() -> BrokerOptions {
        BrokerOptions {
            version: BrokerVersion { major: 4, minor: 3 },
            window: 5,
            begins_at_zero: false,
            assigns_offsets: false,
            max_idle_ms: 86_400_000,
        }
    }
}

/// The state of a producer in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// The producer.
    pub pid: i64,
    /// The partition, or its number in [`BrokerTable::keys`].
    pub partition: i32,
    /// Its epoch.
    pub epoch: i16,
    /// The coordinator epoch of the last marker; -1: none.
    pub coordinator_epoch: i32,
    /// The timestamp of the last batch or marker, in milliseconds; -1: none.
    pub last_timestamp: i64,
    /// Whether a transaction is open.
    pub is_open: bool,
    /// The first offset of the open transaction; -1: unknown.
    pub open_from: i64,
    /// Its last batches, oldest first.
    pub batches: Vec<WindowBatch>,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerJudged {
    /// The code of each row's [`Verdict`].
    pub verdicts: Vec<u8>,
    /// Number of rows by verdict code.
    pub counts: [u64; Verdict::COUNT],
    /// For each row that is out of order, in row order: the row, and the only sequence number that would be accepted.
    pub expected: Vec<(u64, i64)>,
    /// The first offset of each accepted batch, or of the original of a duplicate; -1 if there is none. Empty if
    /// offsets are unknown.
    pub offsets: Vec<i64>,
}

/// The producer state of brokers, and the rules by which they judge produce batches.
pub struct BrokerTable {
    options: BrokerOptions,
    rules: Rules,
    keys: Keys,
    shelves: Shelves,
    /// The next offset of each partition, if the rules need it.
    log_ends: FxHashMap<i32, i64>,
    /// Whether any accepted batch had a timestamp. Without one, no producer can be idle.
    has_times: bool,
    is_half_done: bool,
}

impl BrokerTable {
    /// An empty table.
    pub fn new(options: BrokerOptions) -> Result<BrokerTable> {
        if options.window == 0 {
            return Err(Error::Policy("window=0 is outside 1..=255".into()));
        }
        if options.max_idle_ms < 0 {
            return Err(Error::Policy(format!("max_idle_ms={} is below 0", options.max_idle_ms)));
        }
        let mut keys = Keys::default();
        keys.pid.kind = Some(KeyKind::Plain);
        Ok(BrokerTable {
            rules: Rules::new(&options),
            shelves: Shelves::new(),
            options,
            keys,
            log_ends: FxHashMap::default(),
            has_times: false,
            is_half_done: false,
        })
    }

    /// The options of the table.
    pub fn options(&self) -> &BrokerOptions {
        &self.options
    }

    /// The type and the numbers of its partitions.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The type and the numbers of its partitions, mutable.
    pub fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// Number of producers, counted per partition.
    pub fn len(&self) -> usize {
        with_shelf!(&self.shelves, shelf => shelf.len())
    }

    /// Whether there are no producers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the table has neither producers nor ends of logs.
    pub fn is_blank(&self) -> bool {
        self.is_empty() && self.log_ends.is_empty()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        with_shelf!(&self.shelves, shelf => shelf.memory_bytes())
            + self.keys.partition.dictionary.memory_bytes()
            + self.log_ends.capacity() * size_of::<(i32, i64)>()
            + size_of::<BrokerTable>()
    }

    /// Whether any accepted batch had a timestamp. Without one, no producer is known to be idle.
    pub(crate) fn has_times(&self) -> bool {
        self.has_times
    }

    /// For tables that are rebuilt.
    pub(crate) fn set_has_times(&mut self, has_times: bool) {
        self.has_times = has_times;
    }

    /// Whether a call ran out of memory before it was complete. The table must then not be used.
    pub fn is_half_done(&self) -> bool {
        self.is_half_done
    }

    /// The state of a producer in a partition.
    pub fn get(&self, pid: i64, partition: i32) -> Option<ProducerEntry> {
        let mut producer = Producer::default();
        with_shelf!(&self.shelves, shelf => shelf.read(pid, partition, &mut producer))
            .then(|| entry(pid, partition, &producer))
    }

    /// The state of all producers, in the order of pid and partition (by value).
    pub fn entries(&self) -> impl ExactSizeIterator<Item = ProducerEntry> + '_ {
        self.sorted_keys().into_iter().map(|(pid, partition)| self.get(pid, partition).expect("a known key"))
    }

    pub(crate) fn sorted_keys(&self) -> Vec<(i64, i32)> {
        let mut keys = Vec::with_capacity(self.len());
        with_shelf!(&self.shelves, shelf => shelf.for_each_key(|pid, partition| keys.push((pid, partition))));
        let space = &self.keys.partition;
        keys.sort_unstable_by(|one, other| one.0.cmp(&other.0).then_with(|| space.order(one.1.into(), other.1.into())));
        keys
    }

    /// The offset of the next batch of a partition. 0 before the first batch.
    pub fn log_end(&self, partition: i32) -> i64 {
        self.log_ends.get(&partition).copied().unwrap_or(0)
    }

    /// The partitions with a known log end, in their order (by value), with the ends.
    pub fn log_ends(&self) -> Vec<(i32, i64)> {
        let mut ends: Vec<_> = self.log_ends.iter().map(|(&partition, &end)| (partition, end)).collect();
        ends.sort_unstable_by(|one, other| self.keys.partition.order(one.0.into(), other.0.into()));
        ends
    }

    /// Sets the end of a partition's log. Returns `Error::Policy` if the offset is negative.
    pub fn set_log_end(&mut self, partition: i32, offset: i64) -> Result<()> {
        if offset < 0 {
            return Err(Error::Policy(format!("offset={offset} is outside 0..=9223372036854775807")));
        }
        self.log_ends.insert(partition, offset);
        Ok(())
    }

    /// Judges every batch in order, and updates the table. After an error the table is unchanged, with one exception:
    /// see [`BrokerTable::is_half_done`].
    pub fn apply(&mut self, batches: &[ProduceBatches<'_>]) -> Result<BrokerJudged> {
        self.validate(batches)?;
        let needed = batches.iter().fold(self.shelves.kind(), |kind, batches| kind.max(shelf::Kind::of(batches)));
        let needed = if self.options.assigns_offsets { shelf::Kind::Offsets } else { needed };
        let rows = batches.iter().map(ProduceBatches::len).sum();
        let call = Call::new(rows, needed == shelf::Kind::Offsets, self.follows_log_ends())?;
        self.shelves.widen(needed)?;
        let judged = self.judge(batches, call);
        self.is_half_done = judged.is_err();
        let judged = judged?;
        self.has_times = self.has_times || accepts_a_time(batches, &judged.verdicts);
        Ok(judged)
    }

    /// Returns the same verdicts as `apply` without changing the table. It judges on a copy of the affected state.
    pub fn check(&self, batches: &[ProduceBatches<'_>]) -> Result<BrokerJudged> {
        let mut copy = BrokerTable::new(self.options.clone())?;
        copy.shelves.widen(self.shelves.kind())?;
        copy.log_ends.clone_from(&self.log_ends);
        let mut producer = Producer::default();
        let keys = batches.iter().flat_map(|batches| batches.pid.iter().zip(batches.partition));
        for (&pid, &partition) in keys.filter(|key| *key.0 >= 0 && *key.1 >= 0) {
            if with_shelf!(&self.shelves, shelf => shelf.read(pid, partition, &mut producer)) {
                copy.put(pid, partition, &producer)?;
            }
        }
        copy.apply(batches)
    }

    /// Validates all batches before the first is judged.
    fn validate(&self, batches: &[ProduceBatches<'_>]) -> Result<()> {
        let mut from = 0;
        for batches in batches {
            let valid = batches.validate(self.follows_log_ends(), self.options.assigns_offsets);
            valid.map_err(|error| error.after(from))?;
            from += batches.len();
        }
        if self.follows_log_ends() { self.check_ends(batches) } else { Ok(()) }
    }

    /// Checks that no log end can exceed 64 bits, whichever batches are accepted.
    fn check_ends(&self, batches: &[ProduceBatches<'_>]) -> Result<()> {
        let known = self.log_ends.values().copied().max().unwrap_or(0);
        let (from_end, end) = batches.iter().fold((0, known), |(count, end), batches| {
            let (more, brought) = batches.ends(self.options.assigns_offsets);
            (count + more as i64, end.max(brought))
        });
        let is_enough = end.checked_add(from_end.saturating_mul(1 << 31)).is_some();
        if is_enough {
            return Ok(());
        }
        Err(Error::Policy(format!("a log that ends at {end} takes no more batches: their offsets may exceed 64 bits")))
    }

    /// Whether the rules need the ends of logs: if the table assigns offsets, or if new partitions have their own rule.
    pub fn follows_log_ends(&self) -> bool {
        self.options.assigns_offsets || self.rules.begins_at_zero_in_new_partitions
    }

    fn judge(&mut self, batches: &[ProduceBatches<'_>], mut call: Call) -> Result<BrokerJudged> {
        let BrokerTable { options, rules, shelves, log_ends, .. } = self;
        with_shelf!(shelves, shelf => for batches in batches {
            shelf.judge(batches, rules, options.assigns_offsets, log_ends, &mut call)?;
        });
        Ok(call.judged)
    }

    /// Simulates a clean restart of a broker: each producer keeps the last batch of its window, and producers that were
    /// idle for `max_idle_ms` are dropped unless they have an open transaction. Returns the number of dropped
    /// producers.
    pub fn restart(&mut self, now_ms: i64) -> usize {
        let (has_times, limit) = (self.has_times, self.options.max_idle_ms);
        with_shelf!(&mut self.shelves, shelf => shelf.retain(|producer| {
            let batches = producer.window.len();
            producer.window.drain(..batches.saturating_sub(1));
            !has_times || !producer.is_expired(now_ms, limit)
        }))
    }

    /// Drops producers that were idle for `max_idle_ms`, unless they have an open transaction. Returns their number.
    pub fn evict(&mut self, now_ms: i64) -> Result<usize> {
        if !self.has_times && !self.is_empty() {
            return Err(Error::Policy("evict needs timestamps, and no batch of this table had one".into()));
        }
        let limit = self.options.max_idle_ms;
        Ok(with_shelf!(&mut self.shelves, shelf => shelf.retain(|producer| !producer.is_expired(now_ms, limit))))
    }

    /// Stores the state of a producer, and replaces what was known of it. For tables that are rebuilt. Returns
    /// `Error::Snapshot` if no broker could have this state.
    pub fn add(&mut self, entry: &ProducerEntry) -> Result<()> {
        let problem = entry.problem(self.options.window);
        if let Some(problem) = problem {
            return Err(Error::Snapshot(format!("producer {}, partition {}: {problem}", entry.pid, entry.partition)));
        }
        let has_offsets = entry.open_from != NONE
            || entry.coordinator_epoch != -1
            || entry.batches.iter().any(|batch| batch.last_offset != NONE);
        let kind = match (has_offsets, entry.last_timestamp) {
            (true, _) => shelf::Kind::Offsets,
            (false, -1) => shelf::Kind::Bare,
            (false, _) => shelf::Kind::Times,
        };
        self.shelves.widen(kind)?;
        self.has_times |= entry.last_timestamp != -1;
        let producer = Producer {
            epoch: entry.epoch,
            coordinator_epoch: entry.coordinator_epoch,
            last_timestamp: entry.last_timestamp,
            is_open: entry.is_open,
            open_from: entry.open_from,
            window: entry.batches.clone(),
        };
        self.put(entry.pid, entry.partition, &producer)
    }

    fn put(&mut self, pid: i64, partition: i32, producer: &Producer) -> Result<()> {
        with_shelf!(&mut self.shelves, shelf => shelf.put(pid, partition, producer))
    }
}

impl ProducerEntry {
    /// What is wrong with the entry, if no broker could have it.
    fn problem(&self, window: u8) -> Option<String> {
        let is_batch = |batch: &WindowBatch| {
            batch.last_seq >= -1
                && batch.offset_delta >= 0
                && (batch.last_offset == NONE || batch.last_offset >= i64::from(batch.offset_delta))
        };
        if self.pid < 0 || self.partition < 0 || self.epoch < 0 {
            return Some("its pid, partition or epoch is below 0".into());
        }
        if self.coordinator_epoch < -1 || self.open_from < NONE || (self.open_from != NONE && !self.is_open) {
            return Some("its transaction is inconsistent".into());
        }
        if self.batches.len() > window.into() {
            return Some(format!("it has {} batches, but the window has {window} at most", self.batches.len()));
        }
        (!self.batches.iter().all(is_batch)).then(|| "it has a batch with inconsistent numbers".into())
    }
}

/// Whether any batch with a timestamp was accepted. A refused batch leaves no trace (I3).
fn accepts_a_time(batches: &[ProduceBatches<'_>], verdicts: &[u8]) -> bool {
    let mut from = 0;
    batches.iter().any(|batches| {
        let own = &verdicts[from..from + batches.len()];
        from += batches.len();
        let mut timed = batches.timestamp.into_iter().flatten().zip(own);
        timed.any(|(&timestamp, &verdict)| timestamp != -1 && verdict == Verdict::Accepted as u8)
    })
}

fn entry(pid: i64, partition: i32, producer: &Producer) -> ProducerEntry {
    ProducerEntry {
        pid,
        partition,
        epoch: producer.epoch,
        coordinator_epoch: producer.coordinator_epoch,
        last_timestamp: producer.last_timestamp,
        is_open: producer.is_open,
        open_from: producer.open_from,
        batches: producer.window.clone(),
    }
}

/// The results of a call so far.
struct Call {
    judged: BrokerJudged,
    /// Whether offsets are reported.
    reports_offsets: bool,
    /// Whether the ends of logs are tracked.
    follows: bool,
}

impl Call {
    /// Creates a call with memory for the results of each row.
    fn new(rows: usize, reports_offsets: bool, follows: bool) -> Result<Call> {
        let mut judged = BrokerJudged::default();
        make_room(&mut judged.verdicts, rows)?;
        make_room(&mut judged.offsets, if reports_offsets { rows } else { 0 })?;
        Ok(Call { judged, reports_offsets, follows })
    }

    #[inline(always)]
    fn accept(&mut self, offset: i64) {
        self.note(Verdict::Accepted, offset);
    }

    #[inline(always)]
    fn note(&mut self, verdict: Verdict, offset: i64) {
        self.judged.verdicts.push(verdict as u8);
        self.judged.counts[verdict as usize] += 1;
        if self.reports_offsets {
            self.judged.offsets.push(offset);
        }
    }

    fn note_judgement(&mut self, judgement: Judgement, offset: i64) {
        match judgement {
            Judgement::Accepted => self.accept(offset),
            Judgement::Duplicate(original) => self.note(Verdict::Duplicate, original),
            Judgement::OutOfOrder(expected) => {
                self.judged.expected.push((self.judged.verdicts.len() as u64, expected.into()));
                self.note(Verdict::OutOfOrder, NONE);
            }
            Judgement::Refused(verdict) => self.note(verdict, NONE),
        }
    }
}
