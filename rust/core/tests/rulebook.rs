//! Runs the rule book with the core's API.

use fencepost_core::{
    Admit, Batch, Column, Epochs, Error, KeyKind, KeySpace, PartKind, PartValue, Policy, Seqs, StateTable, Untracked,
    Verdict, decode_parts, encode_bytes, encode_int,
};
use fencepost_testkit::rulebook::{
    Action, Answer, Call, Cell, Door, Missing, Options, Refusal, Row, cases, differences, folder,
};

/// A table for the rows of the book. Keys that are not integers are numbered first, and values that do not fit into a
/// column of the core are refused here.
struct CoreDoor {
    table: StateTable,
    /// The table into which the current one will be merged.
    first: Option<StateTable>,
    /// A change of the policy of every table.
    change: fn(&mut Policy),
}

/// The columns of one call.
#[derive(Default)]
struct Columns {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
    timestamp: Vec<i64>,
}

fn policy_of(options: &Options) -> Option<Policy> {
    let mut policy = Policy::preset(&options.policy)?;
    for (field, value) in options.policy_fields() {
        policy.set(&field, &value).ok()?;
    }
    policy.validate().ok()?;
    Some(policy)
}

fn table_of(options: &Options, policy: Policy) -> StateTable {
    let untracked = if options.option("untracked") == Some("fail") { Untracked::Fail } else { Untracked::Keep };
    StateTable::new(policy)
        .expect("validated")
        .with_untracked(untracked)
        .with_keep_timestamp(options.option("keep") == Some("timestamp"))
        .with_entries_max(options.option("entries_max").map(|max| max.parse().expect("a count")))
}

fn copy(table: &StateTable) -> StateTable {
    StateTable::restore(&table.snapshot()).expect("its own snapshot")
}

fn parts(cell: &Cell) -> &[Cell] {
    if let Cell::Tuple(parts) = cell { parts } else { std::slice::from_ref(cell) }
}

fn is_untracked(pid: &Cell) -> bool {
    parts(pid).iter().any(|part| matches!(part, Cell::Null | Cell::Int(-1)))
}

fn kind_of(cell: &Cell) -> KeyKind {
    match cell {
        Cell::Int(_) | Cell::Null => KeyKind::Plain,
        _ => {
            let kind = |part: &Cell| if matches!(part, Cell::Int(_)) { PartKind::Int } else { PartKind::Utf8 };
            KeyKind::Parts(parts(cell).iter().map(kind).collect())
        }
    }
}

/// The core's number of a key.
fn number(space: &mut KeySpace, cell: &Cell) -> i64 {
    if let Cell::Int(value) = cell {
        return *value;
    }
    let mut bytes = Vec::new();
    for part in parts(cell) {
        match part {
            Cell::Int(value) => encode_int(&mut bytes, *value),
            Cell::Text(text) => encode_bytes(&mut bytes, text.as_bytes()),
            _ => unreachable!("a key without null"),
        }
    }
    space.dictionary.intern(&bytes).expect("memory").into()
}

fn cell(space: &KeySpace, number: i64) -> Cell {
    let KeyKind::Parts(kinds) = space.kind() else { return Cell::Int(number) };
    let values = decode_parts(kinds, space.dictionary.bytes(number as u32)).expect("encoded above");
    let cell = |value| match value {
        PartValue::Int(value) => Cell::Int(value),
        PartValue::Bytes(bytes) => Cell::Text(String::from_utf8(bytes).expect("a text")),
    };
    let mut cells: Vec<Cell> = values.into_iter().map(cell).collect();
    if cells.len() == 1 { cells.remove(0) } else { Cell::Tuple(cells) }
}

impl CoreDoor {
    fn columns(&mut self, call: &Call) -> Result<Columns, Refusal> {
        let at = |column: &str, row| Refusal { column: column.into(), row };
        let tracked = || call.rows.iter().filter(|row| !is_untracked(&row.pid));
        if let Some(row) = tracked().next() {
            let fixed = self.table.keys_mut().fix(kind_of(&row.pid), kind_of(&row.partition));
            fixed.map_err(|error| refusal(&error))?;
        }
        let mut columns = Columns::default();
        for (number, row) in call.rows.iter().enumerate() {
            self.push(&mut columns, row).map_err(|column| at(column, Some(number)))?;
        }
        Ok(columns)
    }

    fn push(&mut self, columns: &mut Columns, row: &Row) -> Result<(), &'static str> {
        if is_untracked(&row.pid) {
            columns.pid.push(-1);
            columns.partition.push(-7);
            columns.epoch.push(-7);
            columns.seq.push(-7);
            columns.timestamp.push(-7);
            return Ok(());
        }
        if parts(&row.pid).iter().any(|part| matches!(part, Cell::Int(pid) if *pid < -1)) {
            return Err("pid");
        }
        let is_bad = |part: &Cell| match part {
            Cell::Null => true,
            Cell::Int(value) => !(0..1 << 31).contains(value),
            _ => false,
        };
        if parts(&row.partition).iter().any(is_bad) {
            return Err("partition");
        }
        let keys = self.table.keys_mut();
        columns.pid.push(number(&mut keys.pid, &row.pid));
        columns.partition.push(number(&mut keys.partition, &row.partition) as i32);
        columns.epoch.push(match (&row.epoch, self.table.policy().epochs) {
            (_, Epochs::Ignore) => 0,
            (Cell::Int(epoch), _) => i16::try_from(*epoch).map_err(|_| "epoch")?,
            _ => return Err("epoch"),
        });
        columns.seq.push(if let Cell::Int(seq) = &row.seq { *seq } else { return Err("seq") });
        columns.timestamp.push(match row.timestamp {
            Cell::Int(timestamp) => timestamp,
            _ if self.table.keeps_timestamp() => return Err("timestamp"),
            _ => 0,
        });
        Ok(())
    }

    fn in_the_books_words(&self, missing: &[fencepost_core::Missing]) -> Vec<Missing> {
        let has_epochs = self.table.policy().epochs != Epochs::Ignore;
        let each = |it: &fencepost_core::Missing| Missing {
            pid: cell(&self.table.keys().pid, it.pid),
            epoch: has_epochs.then_some(it.epoch.into()),
            partition: cell(&self.table.keys().partition, it.partition.into()),
            first_seq: it.first_seq,
            last_seq: it.last_seq,
            count: it.count as i64,
        };
        missing.iter().map(each).collect()
    }
}

fn refusal(error: &Error) -> Refusal {
    match error {
        Error::Batch { column, row, .. } => Refusal { column: column.to_string(), row: *row },
        Error::Policy(_) => Refusal { column: "policy".into(), row: None },
        Error::Capacity { .. } => Refusal { column: "capacity".into(), row: None },
        Error::Snapshot(_) | Error::Memory { .. } => panic!("not of a rule: {error}"),
    }
}

impl CoreDoor {
    fn evict(&mut self, now: i64, idle: i64) -> Result<Answer, Refusal> {
        let dropped = self.table.evict(now, idle).map_err(|error| refusal(&error))? as u64;
        Ok(Answer { dropped, horizon: self.table.horizon_ms(), ..Answer::default() })
    }

    fn forget(&mut self, pid: &Cell, partition: Option<&Cell>) -> Answer {
        let before = self.table.keys().mark();
        let keys = self.table.keys_mut();
        let pid = number(&mut keys.pid, pid);
        let partition = partition.map(|partition| number(&mut keys.partition, partition) as i32);
        let dropped = self.table.forget(pid, partition) as u64;
        self.table.keys_mut().go_back(before);
        Answer { dropped, ..Answer::default() }
    }

    fn begin_other(&mut self, options: &Options) -> Answer {
        let mut policy = policy_of(options).expect("a policy that can be made");
        (self.change)(&mut policy);
        self.first = Some(std::mem::replace(&mut self.table, table_of(options, policy)));
        Answer::default()
    }

    /// Merges in both directions: the results are equal, and a refusal changes nothing.
    fn merge(&mut self) -> Result<Answer, Refusal> {
        let mut first = self.first.take().expect("another table was begun");
        let second = std::mem::replace(&mut self.table, first);
        let mut mirrored = copy(&second).with_entries_max(self.table.entries_max());
        let before = self.table.snapshot();
        let merged = self.table.merge(&second).map_err(|error| refusal(&error));
        let overlap = merged.inspect_err(|_| assert_eq!(self.table.snapshot(), before, "a refusal shows"))?;
        first = StateTable::restore(&before).expect("its own snapshot");
        assert_eq!(mirrored.merge(&first).expect("a merge that goes one way").len(), overlap.len());
        assert_eq!(mirrored.snapshot(), self.table.snapshot(), "a merge is not commutative");
        Ok(Answer { overlap: self.in_the_books_words(&overlap), ..Answer::default() })
    }

    fn judge(&mut self, call: &Call) -> Result<Answer, Refusal> {
        if call.has_epoch && self.table.policy().epochs == Epochs::Ignore {
            let batch = Batch { pid: &[], partition: &[], epoch: Some(&[]), seq: Seqs::I64(&[]), timestamp: None };
            let error = self.table.apply(&[batch]).expect_err("an epoch where there are none");
            assert!(matches!(error, Error::Batch { column: Column::Epoch, .. }), "{error}");
            return Err(Refusal { column: "policy".into(), row: None });
        }
        let before = self.table.keys().mark();
        let columns = self.columns(call)?;
        let Columns { pid, partition, epoch, seq, timestamp } = &columns;
        let epoch = (self.table.policy().epochs != Epochs::Ignore).then_some(&epoch[..]);
        let judged =
            match self.table.apply(&[Batch { pid, partition, epoch, seq: Seqs::I64(seq), timestamp: Some(timestamp) }])
            {
                Ok(judged) => judged,
                Err(error) => {
                    self.table.keys_mut().go_back(before);
                    return Err(refusal(&error));
                }
            };
        let expected = |row: usize| judged.expected.iter().find(|it| it.0 == row as u64).map(|it| it.1);
        let verdict = |(row, &code): (usize, &u8)| (Verdict::ALL[code as usize].name().to_string(), expected(row));
        Ok(Answer {
            verdicts: judged.verdicts.iter().enumerate().map(verdict).collect(),
            missing: self.in_the_books_words(&judged.missing(self.table.keys()).collect::<Vec<_>>()),
            stale_epoch: judged.stale_epoch,
            border: Some(judged.border),
            ..Answer::default()
        })
    }
}

impl Door for CoreDoor {
    fn apply(&mut self, call: &Call) -> Result<Answer, Refusal> {
        match &call.action {
            Action::Apply => self.judge(call),
            Action::Evict { now, idle } => self.evict(*now, *idle),
            Action::Forget { pid, partition } => Ok(self.forget(pid, partition.as_ref())),
            Action::Other(options) => Ok(self.begin_other(options)),
            Action::Merge => self.merge(),
        }
    }

    fn open(&self) -> Vec<Missing> {
        self.in_the_books_words(&self.table.missing())
    }

    fn finals(&self) -> Vec<Missing> {
        let ranges = self.table.entries().filter_map(|entry| {
            let (first_seq, last_seq) = entry.final_range?;
            let count = (last_seq - first_seq) as u64 + 1;
            let (pid, partition, epoch) = (entry.pid, entry.partition, entry.epoch);
            Some(fencepost_core::Missing { pid, partition, epoch, first_seq, last_seq, count })
        });
        self.in_the_books_words(&ranges.collect::<Vec<_>>())
    }
}

/// The differences between the book and a core with changed policies.
fn differences_of(change: fn(&mut Policy)) -> Vec<String> {
    let mut found = Vec::new();
    for case in cases(&folder()).expect("the book can be read") {
        let Some(mut policy) = policy_of(&case.options) else {
            found.extend(differences(&case, None));
            continue;
        };
        change(&mut policy);
        if policy.validate().is_ok() {
            let door = &mut CoreDoor { table: table_of(&case.options, policy), first: None, change };
            found.extend(differences(&case, Some(door)));
        }
    }
    found
}

#[test]
fn the_core_keeps_the_book() {
    let found = differences_of(|_| ());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_book_is_read_whole() {
    let cases = cases(&folder()).expect("the book can be read");
    let rows: usize = cases.iter().flat_map(|case| &case.calls).map(|call| call.rows.len()).sum();
    assert!(rows > 500, "only {rows} rows");
}

#[test]
fn a_core_with_other_rules_is_caught() {
    let broken: [fn(&mut Policy); 8] = [
        |policy| policy.window += 1,
        |policy| policy.wrap = policy.wrap.map(|wrap| wrap + 1),
        |policy| {
            if policy.admit == Admit::Next {
                policy.admit = Admit::Forward;
            }
        },
        |policy| {
            if policy.epochs == Epochs::Fence {
                policy.epochs = Epochs::Key;
            }
        },
        |policy| policy.first = fencepost_core::First::Zero,
        |policy| policy.max_jump = None,
        |policy| policy.reach = policy.reach.map(|reach| reach + 1),
        |policy| policy.intervals_max = policy.intervals_max.map(|intervals| intervals + 1),
    ];
    for (number, change) in broken.into_iter().enumerate() {
        assert!(!differences_of(change).is_empty(), "the book has nothing against broken core {number}");
    }
}
