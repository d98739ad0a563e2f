//! Tests the naive oracle with the broker's rule book, and the reader of the book. A broken oracle must be detected.

use fencepost_testkit::broker::rulebook::{Action, Spelling, cases, differences, folder, read_page};
use fencepost_testkit::broker::{Answer, Door, Entry, Kept, MAX, Open, Options, Oracle, Refusal, Row};

/// The differences between the book and an API made of the options of a case.
fn differences_of<D: Door>(door: impl Fn(Options) -> D) -> Vec<String> {
    let mut found = Vec::new();
    for case in cases(&folder()).expect("the book can be read") {
        for spelling in [Spelling::Count, Spelling::LastSeq] {
            let mut door = Options::named(&case.options).map(&door);
            found.extend(differences(&case, door.as_mut().map(|door| door as &mut dyn Door), spelling));
        }
    }
    found
}

#[test]
fn the_oracle_keeps_the_book() {
    let found = differences_of(Oracle::new);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_book_is_read_whole() {
    let cases = cases(&folder()).expect("the book can be read");
    let rows = |action: &Action| if let Action::Apply(rows) = action { rows.len() } else { 0 };
    let steps = || cases.iter().flat_map(|case| &case.steps);
    let count: usize = steps().map(|step| rows(&step.action)).sum();
    assert!(count >= 650, "only {count} rows");
    assert!(steps().filter(|step| step.entries.is_some()).count() >= 60);
    assert!(steps().filter(|step| step.error.is_some()).count() >= 25);
    assert!(cases.iter().filter(|case| case.refused).count() >= 5);
}

/// An oracle whose rows or options are changed before it sees them.
struct Broken {
    oracle: Oracle,
    change: fn(&mut Row),
}

impl Door for Broken {
    fn apply(&mut self, rows: &[Row]) -> Result<Vec<Answer>, Refusal> {
        let mut rows = rows.to_vec();
        rows.iter_mut().for_each(self.change);
        self.oracle.apply(&rows)
    }

    fn evict(&mut self, now: i64) -> Result<usize, Refusal> {
        self.oracle.evict(now)
    }

    fn restart(&mut self, now: i64) {
        self.oracle.restart(now);
    }

    fn set_log_end(&mut self, partition: i64, offset: i64) -> Result<(), Refusal> {
        self.oracle.set_log_end(partition, offset)
    }

    fn log_end(&self, partition: i64) -> i64 {
        self.oracle.log_end(partition)
    }

    fn entries(&self) -> Vec<Entry> {
        self.oracle.entries()
    }
}

#[test]
fn broken_oracles_are_found_out() {
    let options: [fn(&mut Options); 9] = [
        |options| options.window += 1,
        |options| options.window = (options.window - 1).max(1),
        |options| options.first_is_zero = true,
        |options| options.first_is_zero = false,
        |options| options.version = (4, 1),
        |options| options.version = options.version.max((4, 2)),
        |options| options.version = options.version.min((4, 4)),
        |options| options.assigns = false,
        |options| options.max_idle_ms += 1,
    ];
    for (number, change) in options.into_iter().enumerate() {
        let broken = |mut options: Options| {
            change(&mut options);
            Oracle::new(options)
        };
        assert!(!differences_of(broken).is_empty(), "the book has nothing against broken options {number}");
    }
    let rows: [fn(&mut Row); 9] = [
        |row| row.epoch = row.epoch.map(|_| 0),
        |row| row.partition = row.partition.map(|_| 0),
        |row| row.transactional = None,
        |row| row.coordinator_epoch = None,
        |row| row.transaction_version = None,
        |row| row.timestamp = row.timestamp.map(|_| 0),
        |row| row.origin = row.origin.filter(|origin| *origin != "replica"),
        |row| row.origin = Some("replica"),
        |row| row.offset = None,
    ];
    for (number, change) in rows.into_iter().enumerate() {
        let broken = |options| Broken { oracle: Oracle::new(options), change };
        assert!(!differences_of(broken).is_empty(), "the book has nothing against broken rows {number}");
    }
}

#[test]
fn a_row_is_read_as_it_is_written() {
    let text = "\
broker: version=2.4 offsets=assign

| pid | partition | seq | transactional | control | origin | verdict | expected | offsets | why |
|---|---|---|---|---|---|---|---|---|---|
| 8 | 1 | MAX-1..3 | yes | | replica | OUT_OF_ORDER | MAX | | because |
| | 1 | none*3 | no | abort | | ACCEPTED | | 12 | |

 | prose |
 |---|

- entries: 8 / 1: e3 [0..4@10..14, none@15..16, MAX..0] txn ? coord 2 at -5; 9 / 0: e0 [] txn 7
- log_end: 0: 15; 1: 3

evict: now=-5

- dropped: 2
- entries: none
";
    let [case] = &read_page("page", text).expect("a page")[..] else { panic!("one case") };
    let [call, evict] = &case.steps[..] else { panic!("two steps") };
    let Action::Apply(rows) = &call.action else { panic!("a call") };
    let first = Row { pid: Some(8), epoch: Some(0), partition: Some(1), origin: Some("replica"), ..Row::default() };
    let seqs = |row, base_seq, count, last_seq| Row { base_seq, count, last_seq, ..row };
    let first = Row { transactional: Some(true), ..seqs(first, Some(MAX - 1), Some(6), Some(3)) };
    let second = Row { epoch: Some(0), partition: Some(1), control: Some("abort"), ..Row::default() };
    let second = Row { transactional: Some(false), ..seqs(second, Some(-1), Some(3), Some(-1)) };
    assert_eq!(rows, &[first, second]);
    let Action::Apply(spelt) = call.spelt(Spelling::Count) else { panic!("a call") };
    assert_eq!((spelt[0].count, spelt[0].last_seq), (Some(6), None));
    let Action::Apply(spelt) = call.spelt(Spelling::LastSeq) else { panic!("a call") };
    assert_eq!((spelt[0].count, spelt[0].last_seq), (None, Some(3)));
    assert_eq!((spelt[1].count, spelt[1].last_seq), (Some(3), Some(-1)));
    let kept = |first, last, offsets| Kept { first, last, offsets };
    let entry = Entry {
        pid: 8,
        partition: 1,
        epoch: 3,
        window: vec![kept(0, 4, Some((10, 14))), kept(-1, -1, Some((15, 16))), kept(MAX, 0, None)],
        open: Some(Open { first_offset: None }),
        coordinator_epoch: 2,
        last_timestamp: -5,
    };
    let open = Some(Open { first_offset: Some(7) });
    let (pid, partition, epoch, window) = (9, 0, 0, Vec::new());
    let other = Entry { pid, partition, epoch, window, open, coordinator_epoch: -1, last_timestamp: -1 };
    assert_eq!(call.entries, Some(vec![entry, other]));
    assert_eq!(call.log_ends, [(0, 15), (1, 3)]);
    assert_eq!((&evict.action, evict.dropped, &evict.entries), (&Action::Evict(-5), 2, &Some(Vec::new())));
}

#[test]
fn a_page_that_states_nothing_or_nonsense_is_not_read() {
    const HEADER: &str = "broker:\n\n| pid | seq | verdict |\n|---|---|---|\n";
    const ROW: &str = "| 7 | 0..4 | ACCEPTED |\n";
    let below = |text: &str| format!("{HEADER}{ROW}\n{text}\n");
    let pages = [
        String::new(),
        "prose alone".into(),
        "broker:\n".into(),
        HEADER.into(),
        "| refused |\n|---|\n| window=0 |\n".into(),
        below("- entires: none"),
        below("- error: pid, row 0"),
        below("- dropped: 1"),
        below("- entries: 7 / 0: 0..4"),
        below("- entries: 7 / 0: e0 [0..4] open 3"),
        below("evict: now=7 idle=3"),
        below("restart:"),
        below("evict: now=7\n\n- missing: none"),
        below("broker:"),
        format!("{HEADER}| 7 | 0 | OUT_OF_ORDER |\n"),
        format!("{HEADER}| 7 | 0 | ACEPTED |\n"),
        format!("{}{ROW}", HEADER.replace("broker:", "broker: windows=3")),
        format!("{}{ROW}", HEADER.replace("seq", "sequence")),
        format!("{}| 7 | true | ACCEPTED |\n", HEADER.replace("seq", "transactional")),
    ];
    for page in pages {
        assert!(read_page("page", &page).is_err(), "{page}");
    }
    assert!(read_page("page", &format!("{HEADER}{ROW}")).is_ok());
}
