use super::*;

/// A log of one partition, written row by row.
#[derive(Default)]
struct Written {
    pid: Vec<i64>,
    offset: Vec<i64>,
    last_offset: Vec<i64>,
    transactional: Vec<u8>,
    control: Vec<u8>,
    end: i64,
}

impl Written {
    fn push(&mut self, pid: i64, count: i64, is_transactional: bool, control: Control) {
        self.pid.push(pid);
        self.offset.push(self.end);
        self.end += count;
        self.last_offset.push(self.end - 1);
        self.transactional.push(is_transactional.into());
        self.control.push(control as u8);
    }

    fn data(&mut self, pid: i64, count: i64) {
        self.push(pid, count, true, Control::Data);
    }

    fn plain(&mut self, count: i64) {
        self.push(-1, count, false, Control::Data);
    }

    fn marker(&mut self, pid: i64, control: Control) {
        self.push(pid, 1, true, control);
    }

    fn apply(&self, index: &mut TransactionIndex) -> Outcomes {
        let rows = self.pid.len();
        let rows = LogRows {
            pid: &self.pid,
            epoch: &vec![0; rows],
            partition: &vec![0; rows],
            offset: &self.offset,
            last_offset: Some(&self.last_offset),
            transactional: Some(&self.transactional),
            control: &self.control,
            timestamp: None,
        };
        index.apply(&[rows]).expect("valid rows")
    }
}

fn entry((pid, first_offset, last_offset, last_stable_offset): (i64, i64, i64, i64)) -> AbortedTransaction {
    AbortedTransaction { pid, first_offset, last_offset, last_stable_offset }
}

/// Kafka's UnifiedLogTest.testTransactionIndexUpdated.
#[test]
fn the_index_of_kafka_own_test() {
    let mut log = Written::default();
    log.data(1, 5);
    log.plain(3);
    log.data(2, 2);
    log.data(1, 4);
    log.data(3, 3);
    log.plain(2);
    log.data(1, 10);
    log.marker(1, Control::Abort);
    log.data(2, 6);
    log.data(4, 3);
    log.plain(10);
    log.data(3, 9);
    log.marker(3, Control::Commit);
    log.data(4, 8);
    log.data(2, 7);
    log.marker(2, Control::Abort);
    log.plain(10);
    log.data(4, 4);
    log.marker(4, Control::Commit);
    let mut index = TransactionIndex::default();
    log.apply(&mut index);
    assert_eq!(index.aborted(0), [entry((1, 0, 29, 8)), entry((2, 8, 74, 36))]);
    assert_eq!((index.first_unstable_offset(0), index.last_stable_offset(0)), (None, Some(90)));
}

/// One row per call: pid, epoch, first and last offset, control.
fn step(index: &mut TransactionIndex, (pid, epoch, offset, control): (i64, i16, i64, Control)) -> Result<Outcomes> {
    let (pid, epoch, offset, control) = (&[pid], &[epoch], &[offset], &[control as u8]);
    index.apply(&[LogRows { pid, epoch, offset, control, ..plain_row() }])
}

#[test]
fn an_epoch_that_rises_stays_in_the_transaction_until_a_marker_of_any_epoch() {
    let mut index = TransactionIndex::default();
    for row in [(7, 0, 0, Control::Data), (7, 1, 1, Control::Data)] {
        assert_eq!(step(&mut index, row).expect("a valid row").outcomes, [Outcome::Open as u8]);
    }
    let open = index.open().next().expect("one is open");
    assert_eq!((open.epoch, open.first_offset, open.last_offset, open.last_timestamp), (1, 0, 1, None));
    let decided = step(&mut index, (7, 5, 2, Control::Abort)).expect("a valid row");
    assert_eq!(decided.outcomes, [Outcome::None as u8]);
    let resolved = Resolved { partition: 0, pid: 7, first_offset: 0, last_offset: 2, outcome: Outcome::Aborted };
    assert_eq!(decided.resolved, [resolved]);
    assert_eq!(index.aborted(0), [entry((7, 0, 2, 3))]);
    assert_eq!(step(&mut index, (7, 5, 3, Control::Abort)).expect("nothing is open").resolved, []);
    assert_eq!(index.aborted(0).len(), 1);
}

#[test]
fn rows_without_effect_leave_transactions_open() {
    let mut index = TransactionIndex::default();
    step(&mut index, (7, 0, 0, Control::Data)).expect("a valid row");
    step(&mut index, (7, 0, 1, Control::Empty)).expect("emptied by compaction");
    step(&mut index, (-1, -1, 2, Control::Other)).expect("a change of leaders");
    step(&mut index, (8, 0, 3, Control::Commit)).expect("a marker of another producer");
    assert_eq!((index.first_unstable_offset(0), index.last_stable_offset(0)), (Some(0), Some(0)));
    assert_eq!((index.last_stable_offset(1), index.log_end(0)), (None, Some(4)));
    assert_eq!((index.open_count(), index.is_empty()), (1, false));
}

#[test]
fn without_a_column_all_data_with_a_producer_is_transactional() {
    let mut index = TransactionIndex::default();
    assert_eq!((index.open_count(), index.is_empty()), (0, true));
    for (row, (pid, outcome)) in (0..).zip([(-1, Outcome::None), (0, Outcome::Open), (1, Outcome::Open)]) {
        let outcomes = step(&mut index, (pid, 0, row, Control::Data)).expect("a valid row").outcomes;
        assert_eq!(outcomes, [outcome as u8], "pid {pid}");
    }
    assert_eq!((index.open_count(), index.first_unstable_offset(0)), (2, Some(1)));
}

#[test]
fn outcomes_have_names() {
    assert_eq!(Outcome::ALL.map(Outcome::name), ["none", "committed", "aborted", "open"]);
}

#[test]
fn aborted_transactions_can_be_forgotten_up_to_an_offset() {
    let mut log = Written::default();
    for pid in 0..100 {
        log.data(pid, 1);
        log.marker(pid, Control::Abort);
    }
    let mut index = TransactionIndex::default();
    log.apply(&mut index);
    assert_eq!(index.forget_aborted(0, 101), 50);
    assert_eq!(index.aborted(0)[0], entry((50, 100, 101, 102)));
    assert_eq!((index.forget_aborted(0, 101), index.forget_aborted(9, 101)), (0, 0));
    assert_eq!((index.forget_aborted(0, i64::MAX), index.aborted(0).len()), (50, 0));
}

/// Half a million transactions, with at most some thousands open at once, the oldest for a long time.
#[test]
fn memory_depends_on_open_transactions() {
    let mut index = TransactionIndex::default();
    let mut bytes_max = 0;
    let mut offset = 0;
    for round in 0..100 {
        let mut log = Written { end: offset, ..Written::default() };
        for pid in 0..5_000 {
            log.data(pid, 1);
        }
        let kept_open = round % 10;
        for pid in kept_open * 100..5_000 {
            log.marker(pid, Control::Commit);
        }
        log.apply(&mut index);
        offset = log.end;
        bytes_max = bytes_max.max(index.memory_bytes());
        assert_eq!(index.open().count() as i64, kept_open * 100);
    }
    assert!(bytes_max < 5_000 * 200, "{bytes_max} bytes for 5000 open transactions at most");
    let mut log = Written { end: offset, ..Written::default() };
    for pid in 0..5_000 {
        log.marker(pid, Control::Commit);
    }
    log.apply(&mut index);
    assert!(index.memory_bytes() < 20_000, "{} bytes where nothing is open", index.memory_bytes());
}

/// Most of 4000 transactions end, and the oldest or the newest 20 stay open. After that the oldest stays open while many
/// others begin and end.
#[test]
fn memory_of_ended_transactions_is_freed() {
    for ended in [0..3980, 20..4000] {
        let (mut index, mut log) = (TransactionIndex::default(), Written::default());
        (0..4000).for_each(|pid| log.data(pid, 1));
        ended.for_each(|pid| log.marker(pid, Control::Commit));
        log.apply(&mut index);
        assert!(index.memory_bytes() < 20_000, "{} bytes for 20 open transactions", index.memory_bytes());
        let mut log = Written { end: log.end, ..Written::default() };
        for _ in 0..4000 {
            log.data(5000, 1);
            log.marker(5000, Control::Commit);
        }
        log.apply(&mut index);
        assert!(index.memory_bytes() < 20_000, "{} bytes behind an open transaction", index.memory_bytes());
        assert_eq!(index.open_count(), 20);
    }
}

/// Two valid rows of one producer, changed by the test.
fn refuse(change: impl Fn(&mut LogRows<'_>)) -> String {
    let mut index = TransactionIndex::default();
    step(&mut index, (7, 0, 9, Control::Data)).expect("a valid row");
    let mut rows = LogRows {
        pid: &[7, 7],
        epoch: &[0, 0],
        partition: &[3, 0],
        offset: &[5, 10],
        last_offset: Some(&[5, 12]),
        transactional: Some(&[1, 1]),
        control: &[0, 2],
        timestamp: None,
    };
    index.clone().apply(&[rows]).expect("valid rows");
    change(&mut rows);
    let error = index.apply(&[rows]).expect_err("an invalid row");
    assert_eq!((index.log_end(0), index.log_end(3)), (Some(10), None), "a call that fails leaves no trace");
    assert_eq!((index.open().count(), index.aborted(0).len()), (1, 0));
    error.to_string()
}

#[test]
fn bad_rows_are_named_and_leave_no_trace() {
    let behind = refuse(|rows| rows.offset = &[5, 9]);
    assert!(behind.starts_with("column 'offset', row 1: value 9 is below 10, "), "{behind}");
    let refused = [
        refuse(|rows| rows.offset = &[-5, 10]),
        refuse(|rows| rows.last_offset = Some(&[5, 9])),
        refuse(|rows| (rows.offset, rows.last_offset) = (&[5, i64::MAX], None)),
        refuse(|rows| rows.pid = &[7, -2]),
        refuse(|rows| rows.pid = &[7, -1]),
        refuse(|rows| rows.pid = &[-1, 7]),
        refuse(|rows| rows.epoch = &[0, -1]),
        refuse(|rows| rows.partition = &[3, -2]),
        refuse(|rows| rows.control = &[0, 5]),
        refuse(|rows| rows.epoch = &[0]),
    ];
    let expected = [
        "column 'offset', row 0: value -5 is outside 0..=9223372036854775806",
        "column 'last_offset', row 1: value 9 is outside 10..=9223372036854775806, from the row's offset on",
        "column 'offset', row 1: value 9223372036854775807 is outside 0..=9223372036854775806",
        "column 'pid', row 1: value -2 is outside 0..=9223372036854775807 (-1: no producer)",
        "column 'control', row 1: a marker needs a producer id",
        "column 'transactional', row 0: true, but the row has no producer id",
        "column 'epoch', row 1: value -1 is outside 0..=32767",
        "column 'partition', row 1: value -2 is outside 0..=2147483647 (-1: not known)",
        "column 'control', row 1: value 5 is outside 0..=4",
        "column 'epoch': has 1 rows, the pid column has 2",
    ];
    assert_eq!(refused, expected);
}

/// Rows that are also unusual in another way, which is allowed: no number of the partition, no producer, a control row
/// of another kind, the first offset.
#[test]
fn the_column_that_is_wrong_is_named() {
    let of_epoch = [
        refuse(|rows| (rows.partition, rows.epoch) = (&[3, -1], &[0, -1])),
        refuse(|rows| (rows.control, rows.epoch) = (&[0, 4], &[0, -1])),
    ];
    let of_offset = [
        refuse(|rows| (rows.pid, rows.epoch, rows.control, rows.offset) = (&[7, -1], &[0, -1], &[0, 4], &[5, 9])),
        refuse(|rows| rows.offset = &[5, 0]),
    ];
    for (column, errors) in [("epoch", of_epoch), ("offset", of_offset)] {
        for error in errors {
            assert!(error.starts_with(&format!("column '{column}', row 1: ")), "{error}");
        }
    }
    assert!(refuse(|rows| rows.offset = &[5, 0]).contains("below 10"));
}

#[test]
fn a_partition_may_have_no_number_and_keys_can_be_fixed() {
    let mut index = TransactionIndex::default();
    assert!(!index.keys().partition.is_fixed());
    index.keys_mut().fix(crate::KeyKind::Plain, crate::KeyKind::Plain).expect("the first types");
    assert!(index.keys().partition.is_fixed());
    index.apply(&[LogRows { partition: &[-1], ..plain_row() }]).expect("one partition without a number");
    assert_eq!(index.log_end(-1), Some(1));
}

fn plain_row() -> LogRows<'static> {
    LogRows {
        pid: &[-1],
        epoch: &[-1],
        partition: &[0],
        offset: &[0],
        last_offset: None,
        transactional: None,
        control: &[0],
        timestamp: None,
    }
}

#[test]
fn an_error_in_a_later_batch_undoes_earlier_ones() {
    let mut index = TransactionIndex::default();
    let rows = |offset| LogRows { pid: &[7], epoch: &[0], offset, ..plain_row() };
    let error = index.apply(&[rows(&[4]), rows(&[5]), rows(&[5])]).expect_err("an offset twice");
    assert!(error.to_string().starts_with("column 'offset', row 2: value 5 is below 6, "), "{error}");
    assert!(index.is_empty());
    index.apply(&[rows(&[4]), rows(&[5])]).expect("valid rows");
}
