//! Tests `BrokerTable` with the broker's rule book and the naive oracle: all short streams, and long seeded ones.

use fencepost_core::{
    BrokerOptions, BrokerTable, BrokerVersion, Error, Origin, Origins, ProduceBatches, ProducerEntry, Verdict,
};
use fencepost_testkit::broker::rulebook::{Spelling, cases, differences, folder};
use fencepost_testkit::broker::{Answer, Door, Entry, Kept, MAX, Open, Options, Oracle, Refusal, Row};
use fencepost_testkit::workload::Random;

/// The core as an API of the book. Every call is checked before it is applied.
struct CoreDoor {
    table: BrokerTable,
}

fn options_of(options: &Options) -> BrokerOptions {
    BrokerOptions {
        version: BrokerVersion { major: options.version.0 as u8, minor: options.version.1 as u8 },
        window: options.window as u8,
        begins_at_zero: options.first_is_zero,
        assigns_offsets: options.assigns,
        max_idle_ms: options.max_idle_ms,
    }
}

impl CoreDoor {
    fn new(options: &BrokerOptions) -> CoreDoor {
        CoreDoor { table: BrokerTable::new(options.clone()).expect("options that make sense") }
    }

    fn rebuild(&mut self) {
        let bytes = self.table.snapshot();
        self.table = BrokerTable::restore(&bytes).expect("its own snapshot");
        assert_eq!(self.table.snapshot(), bytes, "lost on the way through a snapshot");
    }
}

/// The columns of one call. Columns without any value are omitted.
#[derive(Default)]
struct Columns {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    base_seq: Vec<i32>,
    count: Vec<i32>,
    last_seq: Option<Vec<i32>>,
    offset: Option<Vec<i64>>,
    last_offset: Option<Vec<i64>>,
    timestamp: Option<Vec<i64>>,
    transactional: Option<Vec<u8>>,
    control: Option<Vec<u8>>,
    coordinator_epoch: Option<Vec<i32>>,
    transaction_version: Option<Vec<i8>>,
    origin: Option<Vec<u8>>,
}

/// A column whose values fit. APIs convert it before the core sees it.
fn column<T: TryFrom<i64>>(
    name: &str,
    rows: &[Row],
    none: i64,
    of: fn(&Row) -> Option<i64>,
) -> Result<Vec<T>, Refusal> {
    let each = |(row, it): (usize, &Row)| {
        T::try_from(of(it).unwrap_or(none)).map_err(|_| Refusal { column: name.into(), row: Some(row) })
    };
    rows.iter().enumerate().map(each).collect()
}

fn optional<T: TryFrom<i64>>(
    name: &str,
    rows: &[Row],
    none: i64,
    of: fn(&Row) -> Option<i64>,
) -> Result<Option<Vec<T>>, Refusal> {
    if rows.iter().any(|row| of(row).is_some()) { column(name, rows, none, of).map(Some) } else { Ok(None) }
}

const CONTROLS: [&str; 4] = ["commit", "abort", "empty", "other"];
const ORIGINS: [&str; 3] = ["client", "replica", "coordinator"];

/// The code of a word, invalid for an unknown word.
fn code(words: &[&str], word: &str) -> i64 {
    words.iter().position(|known| *known == word).map_or(i64::MAX, |at| at as i64)
}

impl Columns {
    fn of(rows: &[Row]) -> Result<Columns, Refusal> {
        let no_int = i64::from(ProduceBatches::NO_INT);
        Ok(Columns {
            pid: column("pid", rows, -1, |row| row.pid)?,
            partition: column("partition", rows, -1, |row| row.partition)?,
            epoch: column("epoch", rows, -1, |row| row.epoch)?,
            base_seq: column("base_seq", rows, -1, |row| row.base_seq)?,
            count: column("count", rows, no_int, |row| row.count)?,
            last_seq: optional("last_seq", rows, no_int, |row| row.last_seq)?,
            offset: optional("offset", rows, -1, |row| row.offset)?,
            last_offset: optional("last_offset", rows, -1, |row| row.last_offset)?,
            timestamp: optional("timestamp", rows, -1, |row| row.timestamp)?,
            transactional: optional("transactional", rows, 0, |row| row.transactional.map(i64::from))?,
            control: optional("control", rows, 0, |row| row.control.map(|it| code(&CONTROLS, it).saturating_add(1)))?,
            coordinator_epoch: optional("coordinator_epoch", rows, -1, |row| row.coordinator_epoch)?,
            transaction_version: optional("transaction_version", rows, -1, |row| row.transaction_version)?,
            origin: optional("origin", rows, ProduceBatches::NO_ORIGIN.into(), |row| {
                row.origin.map(|it| code(&ORIGINS, it))
            })?,
        })
    }

    fn batches(&self) -> ProduceBatches<'_> {
        ProduceBatches {
            pid: &self.pid,
            partition: &self.partition,
            epoch: &self.epoch,
            base_seq: &self.base_seq,
            last_seq: self.last_seq.as_deref(),
            count: Some(&self.count),
            offset: self.offset.as_deref(),
            last_offset: self.last_offset.as_deref(),
            timestamp: self.timestamp.as_deref(),
            transactional: self.transactional.as_deref(),
            control: self.control.as_deref(),
            coordinator_epoch: self.coordinator_epoch.as_deref(),
            transaction_version: self.transaction_version.as_deref(),
            origin: match &self.origin {
                None => Origins::All(Origin::Client),
                Some(codes) => Origins::Each(codes, Origin::Client),
            },
        }
    }
}

fn refusal(error: &Error) -> Refusal {
    match error {
        Error::Batch { column, row, .. } => Refusal { column: column.to_string(), row: *row },
        Error::Policy(_) => Refusal { column: "policy".into(), row: None },
        other => panic!("not of a rule: {other}"),
    }
}

impl Door for CoreDoor {
    fn apply(&mut self, rows: &[Row]) -> Result<Vec<Answer>, Refusal> {
        let columns = Columns::of(rows)?;
        let checked = self.table.check(&[columns.batches()]);
        let applied = self.table.apply(&[columns.batches()]);
        let judged = match (checked, applied) {
            (Ok(checked), Ok(applied)) => {
                assert_eq!(checked, applied, "check and apply disagree");
                applied
            }
            (Err(checked), Err(applied)) => {
                assert_eq!(checked.to_string(), applied.to_string());
                return Err(refusal(&applied));
            }
            (checked, applied) => panic!("check says {checked:?}, apply {applied:?}"),
        };
        let mut expected = judged.expected.iter().peekable();
        let answer = |(row, &code): (usize, &u8)| Answer {
            verdict: Verdict::ALL[usize::from(code)].name(),
            expected: expected.next_if(|it| it.0 == row as u64).map(|it| it.1),
            offset: judged.offsets.get(row).copied().filter(|&offset| offset != -1),
        };
        Ok(judged.verdicts.iter().enumerate().map(answer).collect())
    }

    fn evict(&mut self, now: i64) -> Result<usize, Refusal> {
        self.table.evict(now).map_err(|error| refusal(&error))
    }

    fn restart(&mut self, now: i64) {
        self.table.restart(now);
    }

    fn set_log_end(&mut self, partition: i64, offset: i64) -> Result<(), Refusal> {
        if !self.table.follows_log_ends() {
            return Err(Refusal { column: "policy".into(), row: None }); // as other APIs report it
        }
        self.table.set_log_end(partition as i32, offset).map_err(|error| refusal(&error))
    }

    fn log_end(&self, partition: i64) -> i64 {
        self.table.log_end(partition as i32)
    }

    fn entries(&self) -> Vec<Entry> {
        self.table.entries().map(in_the_books_words).collect()
    }
}

fn in_the_books_words(entry: ProducerEntry) -> Entry {
    let known = |offset: i64| (offset != -1).then_some(offset);
    Entry {
        pid: entry.pid,
        partition: entry.partition.into(),
        epoch: entry.epoch.into(),
        window: entry
            .batches
            .iter()
            .map(|batch| Kept {
                first: batch.first_seq().into(),
                last: batch.last_seq.into(),
                offsets: known(batch.first_offset()).zip(known(batch.last_offset)),
            })
            .collect(),
        open: entry.is_open.then(|| Open { first_offset: known(entry.open_from) }),
        coordinator_epoch: entry.coordinator_epoch.into(),
        last_timestamp: entry.last_timestamp,
    }
}

/// The differences between the book and a core with changed options.
fn differences_of(change: fn(&mut BrokerOptions)) -> Vec<String> {
    let mut found = Vec::new();
    for case in cases(&folder()).expect("the book can be read") {
        for spelling in [Spelling::Count, Spelling::LastSeq] {
            let mut door = Options::named(&case.options).map(|options| {
                let mut options = options_of(&options);
                change(&mut options);
                CoreDoor::new(&options)
            });
            found.extend(differences(&case, door.as_mut().map(|door| door as &mut dyn Door), spelling));
        }
    }
    found
}

/// Cores with other rules than requested.
const BROKEN: [fn(&mut BrokerOptions); 9] = [
    |options| options.window += 1,
    |options| options.window = options.window.saturating_sub(1).max(1),
    |options| options.begins_at_zero = !options.begins_at_zero,
    |options| options.version = options.version.min(BrokerVersion { major: 4, minor: 4 }),
    |options| options.version = BrokerVersion { major: 4, minor: 1 },
    |options| options.version = options.version.max(BrokerVersion { major: 4, minor: 2 }),
    |options| {
        let newest = BrokerVersion { major: 4, minor: 2 };
        options.version = if options.version.minor < 5 { options.version.min(newest) } else { options.version };
    },
    |options| options.assigns_offsets = !options.assigns_offsets,
    |options| options.max_idle_ms += 1,
];

#[test]
fn the_core_keeps_the_book() {
    let found = differences_of(|_| ());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_book_finds_a_broken_core() {
    for (number, change) in BROKEN.into_iter().enumerate() {
        assert!(!differences_of(change).is_empty(), "the book has nothing against broken core {number}");
    }
}

/// The core and the oracle, side by side. Each operation returns their difference as an error.
struct Pair {
    core: CoreDoor,
    oracle: Oracle,
}

impl Pair {
    fn new(options: &Options, change: fn(&mut BrokerOptions)) -> Pair {
        let mut changed = options_of(options);
        change(&mut changed);
        Pair { core: CoreDoor::new(&changed), oracle: Oracle::new(options.clone()) }
    }

    fn apply(&mut self, rows: &[Row]) -> Result<Vec<Answer>, String> {
        let (core, oracle) = (self.core.apply(rows), self.oracle.apply(rows));
        same(&format!("{rows:?}"), &core, &oracle)?;
        Ok(core.unwrap_or_default())
    }

    fn compare(&self) -> Result<(), String> {
        same("entries", &self.core.entries(), &self.oracle.entries())
    }
}

fn same<T: std::fmt::Debug + PartialEq>(what: &str, core: &T, oracle: &T) -> Result<(), String> {
    if core == oracle { Ok(()) } else { Err(format!("{what}\ncore:   {core:?}\noracle: {oracle:?}")) }
}

/// Batches and markers for all short streams: one producer, two epochs, a few sequences near its beginning and near the
/// wrap.
fn small_world() -> Vec<Row> {
    let key = Row { pid: Some(7), epoch: Some(0), partition: Some(0), ..Row::default() };
    let batch =
        |epoch, base_seq, count| Row { epoch: Some(epoch), base_seq: Some(base_seq), count: Some(count), ..key };
    let open = |row| Row { transactional: Some(true), ..row };
    let of = |origin, row| Row { origin: Some(origin), ..row };
    let marker = |epoch, version, coordinator_epoch| Row {
        epoch: Some(epoch),
        control: Some("commit"),
        transaction_version: Some(version),
        coordinator_epoch: Some(coordinator_epoch),
        ..key
    };
    vec![
        batch(0, 0, 1),
        batch(0, 1, 1),
        batch(0, 1, 2),
        open(batch(0, 2, 1)),
        batch(0, MAX, 2),
        batch(1, 0, 1),
        open(batch(1, 1, 1)),
        of("replica", batch(0, 1, 1)),
        of("replica", open(batch(1, 0, 1))),
        of("coordinator", batch(1, -1, 1)),
        marker(0, 0, 1),
        marker(1, 2, 0),
        of("replica", marker(0, 2, -1)),
    ]
}

/// Epochs 0 and 1 of the small world become the last two epochs.
const LAST_EPOCHS: i64 = 32766;

fn small_options() -> Vec<Options> {
    let base = Options { window: 2, max_idle_ms: 0, ..Options::default() };
    vec![
        base.clone(),
        Options { version: (2, 4), ..base.clone() },
        Options { version: (4, 1), ..base.clone() },
        Options { version: (4, 2), ..base.clone() },
        Options { version: (4, 5), assigns: true, ..base.clone() },
        Options { first_is_zero: true, assigns: true, window: 1, ..base },
    ]
}

/// Runs every stream of `length` rows in one call, and then a restart. Returns the number of streams. Epochs count from
/// `from`.
fn explore(options: &Options, from: i64, length: usize, change: fn(&mut BrokerOptions)) -> Result<usize, String> {
    let mut world = small_world();
    world.iter_mut().for_each(|row| row.epoch = row.epoch.map(|epoch| epoch + from));
    let streams = world.len().pow(length as u32);
    for stream in 0..streams {
        let mut rest = stream;
        let rows: Vec<Row> = (0..length)
            .map(|place| {
                let row = world[rest % world.len()];
                rest /= world.len();
                // A follower's rows bring their offsets.
                Row { offset: row.origin.filter(|it| *it == "replica").map(|_| place as i64 * 10), ..row }
            })
            .collect();
        let mut pair = Pair::new(options, change);
        pair.apply(&rows)?;
        pair.compare()?;
        pair.core.restart(0);
        pair.oracle.restart(0);
        pair.compare().map_err(|difference| format!("restarted after {rows:?}: {difference}"))?;
    }
    Ok(streams)
}

#[test]
fn every_short_stream_is_judged_as_the_oracle_judges() {
    let mut streams = 0;
    for options in small_options() {
        for (from, length) in [(0, 4), (LAST_EPOCHS, 3)] {
            let found = explore(&options, from, length, |_| ());
            streams += found.unwrap_or_else(|difference| panic!("{options:?}\n{difference}"));
        }
    }
    assert_eq!(streams, 6 * (13usize.pow(4) + 13usize.pow(3)));
}

#[test]
fn the_small_world_finds_a_broken_core() {
    // All except the last, because rows have no timestamps here.
    for (number, change) in BROKEN[..8].iter().enumerate() {
        let is_found = |options: Options| [0, LAST_EPOCHS].iter().any(|&it| explore(&options, it, 3, *change).is_err());
        let differs = small_options().into_iter().any(is_found);
        assert!(differs, "broken core {number} was not found out");
    }
}

/// The state of a producer in a simulation.
#[derive(Clone, Default)]
struct Stand {
    epoch: i64,
    next: i64,
    sent: Vec<(i64, i64, i64)>,
}

/// A seeded stream of batches and markers, one step at a time: normal ones, retries, gaps, new epochs, zombies,
/// followers.
struct Simulation {
    random: Random,
    stands: Vec<Stand>,
    offset: i64,
    now: i64,
    brings_offsets: bool,
    brings_times: bool,
    /// Only batches: with one producer, whole chunks of it in a row.
    is_plain: bool,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random::new(seed);
        let producers = if random.chance(20) { 1 } else { 1 + random.below(40) };
        let stands = vec![Stand::default(); producers as usize];
        let (brings_offsets, brings_times, is_plain) = (random.chance(60), random.chance(60), random.chance(30));
        let mut simulation =
            Simulation { random, stands, offset: 0, now: 1_000, brings_offsets, brings_times, is_plain };
        for place in 0..simulation.stands.len() {
            let begin = [0, 0, 42, MAX - 3][simulation.random.below(4) as usize];
            simulation.stands[place].next = begin;
            simulation.stands[place].epoch = [0, 0, 0, LAST_EPOCHS][simulation.random.below(4) as usize];
        }
        simulation
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize]
    }

    fn row(&mut self, assigns: bool) -> Row {
        let place = self.random.below(self.stands.len() as u64) as usize;
        let mut stand = std::mem::take(&mut self.stands[place]);
        let mut row = Row { pid: Some(place as i64 / 3), partition: Some(place as i64 % 3), ..Row::default() };
        row.epoch = Some(stand.epoch);
        row.transactional = self.pick(&[None, None, None, Some(false), Some(true)]);
        row.origin = self.pick(&[None, None, None, None, None, Some("client"), Some("replica"), Some("coordinator")]);
        let mut length = 1;
        match self.random.below(20) {
            _ if self.is_plain => length = self.send(&mut row, &mut stand),
            0 => (row.pid, row.transactional, row.count) = (Some(-1), None, Some(3)),
            1 | 2 => self.mark(&mut row, &mut stand),
            3 => {
                (row.base_seq, row.count) = (Some(-1), Some(2));
                row.origin = row.origin.filter(|it| *it != "client").or(Some("coordinator"));
            }
            _ => length = self.send(&mut row, &mut stand),
        }
        if row.count.is_some() && row.base_seq.unwrap_or(-1) < 0 {
            length = row.count.unwrap_or(1);
        }
        self.place(&mut row, length, assigns);
        self.stands[place] = stand;
        row
    }

    fn mark(&mut self, row: &mut Row, stand: &mut Stand) {
        row.control = Some(self.pick(&["commit", "abort", "empty"]));
        row.origin = row.origin.filter(|it| *it != "client");
        row.coordinator_epoch = self.pick(&[None, Some(0), Some(1), Some(2)]);
        row.transaction_version = self.pick(&[None, Some(1), Some(2)]);
        if stand.epoch <= LAST_EPOCHS && self.random.chance(50) {
            (stand.epoch, stand.next) = (stand.epoch + 1, 0);
        }
        row.epoch = Some(stand.epoch - i64::from(stand.epoch > 0 && self.random.chance(10)));
    }

    /// Returns the number of sequences.
    fn send(&mut self, row: &mut Row, stand: &mut Stand) -> i64 {
        let mut count = self.pick(&[1, 1, 2, 5, 100, 65536, 65537]);
        let mut first = stand.next;
        match self.random.below(20) {
            0..4 if !stand.sent.is_empty() => {
                let back = self.random.below(7.min(stand.sent.len() as u64)) as usize;
                let (epoch, earlier, long) = stand.sent[stand.sent.len() - 1 - back];
                (row.epoch, first, count) = (Some(epoch), earlier, long + i64::from(self.random.chance(10)));
            }
            4 => first = (first + 1 + self.random.below(3) as i64) % (MAX + 1),
            5 => first = 0,
            step => {
                if step == 6 && stand.epoch <= LAST_EPOCHS {
                    (stand.epoch, first) = (stand.epoch + 1, 0);
                    row.epoch = Some(stand.epoch);
                }
                stand.next = (first + count) % (MAX + 1);
                stand.sent.push((stand.epoch, first, count));
            }
        }
        row.base_seq = Some(first);
        if self.random.chance(50) {
            row.count = Some(count);
        } else {
            row.last_seq = Some((first + count - 1) % (MAX + 1));
        }
        count
    }

    fn place(&mut self, row: &mut Row, length: i64, assigns: bool) {
        let is_needed = assigns && row.origin == Some("replica");
        if is_needed || (self.brings_offsets && !self.random.chance(3)) {
            self.offset += self.pick(&[0, 0, 0, 1, 1 << 33]);
            row.offset = Some(if self.random.chance(3) { self.offset / 2 } else { self.offset });
            self.offset += length;
        }
        if self.brings_times && !self.random.chance(3) {
            self.now += self.pick(&[0, 1, 10, -5, 1 << 30]);
            row.timestamp = Some(self.now);
        }
    }
}

/// A long stream in calls of some rows, with evictions, restarts and rebuilds between them.
fn simulate(seed: u64, steps: usize, change: fn(&mut BrokerOptions)) -> Result<[usize; Verdict::COUNT], String> {
    let mut simulation = Simulation::new(seed);
    let options = Options {
        version: simulation.pick(&[(2, 4), (3, 9), (4, 2), (4, 3), (4, 5)]),
        window: simulation.pick(&[1, 2, 5, 5, 5, 6, 20]),
        first_is_zero: simulation.random.chance(20),
        assigns: simulation.random.chance(40),
        max_idle_ms: simulation.pick(&[0, 100, 1 << 31]),
    };
    let mut pair = Pair::new(&options, change);
    let mut counts = [0; Verdict::COUNT];
    for step in 0..steps {
        let rows = 1 + simulation.random.below(300);
        let rows: Vec<Row> = (0..rows).map(|_| simulation.row(options.assigns)).collect();
        for answer in pair.apply(&rows).map_err(|difference| format!("step {step}, {options:?}: {difference}"))? {
            let code = Verdict::ALL.iter().position(|verdict| verdict.name() == answer.verdict).expect("a verdict");
            counts[code] += 1;
        }
        let now = simulation.now + options.max_idle_ms + simulation.pick(&[-1, 0, 1]);
        match simulation.random.below(6) {
            0 => same("evicted", &pair.core.evict(now), &pair.oracle.evict(now))?,
            1 => {
                pair.core.restart(now);
                pair.oracle.restart(now);
            }
            2 => pair.core.rebuild(),
            3 => {
                let end = simulation.pick(&[0, 1, 1_000]);
                same("log end", &pair.core.set_log_end(1, end), &pair.oracle.set_log_end(1, end))?;
            }
            _ => {}
        }
        pair.compare().map_err(|difference| format!("after step {step}, {options:?}: {difference}"))?;
        for partition in 0..3 {
            same("log end", &pair.core.log_end(partition), &pair.oracle.log_end(partition))?;
        }
    }
    Ok(counts)
}

#[test]
fn long_streams_are_judged_as_the_oracle_judges() {
    let mut counts = [0; Verdict::COUNT];
    for seed in 0..200 {
        let found = simulate(seed, 12, |_| ()).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        counts.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
    }
    let forgotten = Verdict::Forgotten as usize;
    assert!(counts.iter().enumerate().all(|(code, &count)| (code == forgotten) == (count == 0)), "{counts:?}");
}

#[test]
fn the_simulation_finds_a_broken_core() {
    for (number, change) in BROKEN.into_iter().enumerate() {
        let differs = (0..100).any(|seed| simulate(seed, 6, change).is_err());
        assert!(differs, "broken core {number} was not found out");
    }
}
