//! Tests the oracle with the rule book, and checks that the book detects broken oracles.

use super::{Admit, Epochs, Oracle, Place, Policy, Tracked, Verdict, position};
use crate::rulebook::{
    Action, Answer, Call, Cell, Door, Missing, Options, Refusal, Row, cases, differences, folder, read_page,
};

type BookRow = Tracked<(Cell, Cell)>;
type Change = fn(&mut Policy);
type ChangeCall = fn(&mut Call);

/// The oracle as an API of the book. It validates the input cell by cell, as the core's caller does.
#[derive(Clone)]
struct OracleDoor {
    oracle: Oracle<(Cell, Cell)>,
    policy: Policy,
    untracked_fails: bool,
    keeps_timestamp: bool,
    entries_max: Option<usize>,
    /// The API of the table into which this one will be merged.
    first: Option<Box<OracleDoor>>,
    /// The types of the key's cells, once known.
    kind: Option<(String, String)>,
}

impl OracleDoor {
    fn new(options: &Options, policy: Policy) -> OracleDoor {
        OracleDoor {
            oracle: Oracle::new(policy),
            policy,
            untracked_fails: options.option("untracked") == Some("fail"),
            keeps_timestamp: options.option("keep") == Some("timestamp"),
            entries_max: options.option("entries_max").map(|max| max.parse().expect("a count")),
            first: None,
            kind: None,
        }
    }

    fn begin_other(&mut self, options: &Options) -> Result<Answer, Refusal> {
        let policy = Policy::named(&options.policy, &options.policy_fields()).expect("a policy of the book");
        let other = OracleDoor::new(options, policy);
        let first = std::mem::replace(self, other);
        self.first = Some(Box::new(first));
        Ok(Answer::default())
    }

    fn merge(&mut self) -> Result<Answer, Refusal> {
        let first = *self.first.take().expect("another table was begun");
        let other = std::mem::replace(self, first);
        let refuse = |column: &str| Err(Refusal { column: column.into(), row: None });
        let before = self.oracle.clone();
        let agree = self.keeps_timestamp == other.keeps_timestamp
            && (self.kind == other.kind || self.kind.is_none() || other.kind.is_none());
        if agree && self.oracle.is_full() {
            return refuse("capacity");
        }
        let Some(overlap) = agree.then(|| self.oracle.merge(&other.oracle).ok()).flatten() else {
            return refuse("policy");
        };
        if self.entries_max.is_some_and(|max| self.oracle.len() > max) {
            self.oracle = before;
            return refuse("capacity");
        }
        self.kind = self.kind.take().or(other.kind);
        Ok(Answer { overlap: in_the_books_words(overlap), ..Answer::default() })
    }

    fn evict(&mut self, now: i64, idle: i64) -> Result<Answer, Refusal> {
        if !self.keeps_timestamp {
            return Err(Refusal { column: "policy".into(), row: None });
        }
        let dropped = self.oracle.evict(now, idle) as u64;
        Ok(Answer { dropped, horizon: self.oracle.horizon(), ..Answer::default() })
    }

    fn judge(&mut self, call: &Call) -> Result<Answer, Refusal> {
        let rows = self.validate(call)?;
        if self.oracle.is_full() {
            return Err(Refusal { column: "capacity".into(), row: None });
        }
        let judged = self.oracle.apply(&rows);
        let names = judged.verdicts.iter().map(|verdict| verdict.name().to_string());
        Ok(Answer {
            verdicts: names.zip(judged.expected).collect(),
            missing: in_the_books_words(judged.missing),
            stale_epoch: judged.stale_epoch,
            border: Some(judged.border),
            ..Answer::default()
        })
    }

    fn validate(&mut self, call: &Call) -> Result<Vec<Option<BookRow>>, Refusal> {
        let at = |column: &str, row| Refusal { column: column.into(), row };
        if call.has_epoch && self.policy.epochs == Epochs::Ignore {
            return Err(at("policy", None));
        }
        let rows = call.rows.iter().enumerate().map(|(number, row)| {
            self.tracked(row).map_err(|column| at(column, Some(number))).map(|tracked| (row, tracked))
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let mut kind = self.kind.clone();
        for (row, _) in rows.iter().filter(|(_, tracked)| tracked.is_some()) {
            let found = (shape(&row.pid), shape(&row.partition));
            let known = kind.get_or_insert_with(|| found.clone());
            if known.0 != found.0 {
                return Err(at("pid", None));
            } else if known.1 != found.1 {
                return Err(at("partition", None));
            }
        }
        self.kind = kind;
        Ok(rows.into_iter().map(|(_, tracked)| tracked).collect())
    }

    /// The row, `None` if it is untracked, or the invalid column.
    fn tracked(&self, row: &Row) -> Result<Option<BookRow>, &'static str> {
        if parts(&row.pid).iter().any(|part| matches!(part, Cell::Int(pid) if *pid < -1)) {
            return Err("pid");
        }
        if parts(&row.pid).iter().any(|part| matches!(part, Cell::Null | Cell::Int(-1))) {
            return if self.untracked_fails { Err("pid") } else { Ok(None) };
        }
        let bad = |part: &Cell| matches!(part, Cell::Null) || matches!(part, Cell::Int(n) if !(0..1 << 31).contains(n));
        if parts(&row.partition).iter().any(bad) {
            return Err("partition");
        }
        let within = |cell: &Cell, max| match cell {
            Cell::Int(value) if (0..=max).contains(value) => Some(*value),
            _ => None,
        };
        let epoch = match self.policy.epochs {
            Epochs::Ignore => 0,
            Epochs::Key | Epochs::Fence => within(&row.epoch, i16::MAX.into()).ok_or("epoch")?,
        };
        let seq = within(&row.seq, self.policy.wrap.map_or(i64::MAX, |wrap| wrap - 1)).ok_or("seq")?;
        let timestamp = match row.timestamp {
            Cell::Int(timestamp) if self.keeps_timestamp => timestamp,
            _ if self.keeps_timestamp => return Err("timestamp"),
            _ => 0,
        };
        Ok(Some(Tracked { key: (row.pid.clone(), row.partition.clone()), epoch, seq, timestamp }))
    }
}

fn parts(cell: &Cell) -> &[Cell] {
    if let Cell::Tuple(parts) = cell { parts } else { std::slice::from_ref(cell) }
}

fn shape(cell: &Cell) -> String {
    match cell {
        Cell::Null => "null".into(),
        Cell::Int(_) => "int".into(),
        Cell::Text(_) => "text".into(),
        Cell::Tuple(parts) => parts.iter().map(shape).collect::<Vec<_>>().join(","),
    }
}

fn in_the_books_words(missing: Vec<super::Missing<(Cell, Cell)>>) -> Vec<Missing> {
    let each = |super::Missing { key: (pid, partition), epoch, first_seq, last_seq, count }| Missing {
        pid,
        epoch,
        partition,
        first_seq,
        last_seq,
        count,
    };
    missing.into_iter().map(each).collect()
}

impl Door for OracleDoor {
    fn apply(&mut self, call: &Call) -> Result<Answer, Refusal> {
        match &call.action {
            Action::Apply => self.judge(call),
            Action::Evict { now, idle } => self.evict(*now, *idle),
            Action::Forget { pid, partition } => {
                let is_named = |key: &(Cell, Cell)| key.0 == *pid && partition.as_ref().is_none_or(|it| key.1 == *it);
                Ok(Answer { dropped: self.oracle.forget(is_named) as u64, ..Answer::default() })
            }
            Action::Other(options) => self.begin_other(options),
            Action::Merge => self.merge(),
        }
    }

    fn open(&self) -> Vec<Missing> {
        in_the_books_words(self.oracle.missing())
    }

    fn finals(&self) -> Vec<Missing> {
        in_the_books_words(self.oracle.finals())
    }
}

/// The differences between the book and an oracle with a changed policy and position rule.
fn differences_of(change: impl Fn(&mut Policy), place: Place) -> Vec<String> {
    differences_of_calls(change, place, |_| ())
}

/// Like `differences_of`, for an oracle that receives other calls than those of the book.
fn differences_of_calls(change: impl Fn(&mut Policy), place: Place, change_call: ChangeCall) -> Vec<String> {
    let mut found = Vec::new();
    for case in cases(&folder()).expect("the book can be read") {
        let Ok(mut policy) = Policy::named(&case.options.policy, &case.options.policy_fields()) else {
            found.extend(differences(&case, None));
            continue;
        };
        change(&mut policy);
        let mut door = OracleDoor::new(&case.options, policy);
        door.oracle.place = place;
        found.extend(differences(&case, Some(&mut ChangedCalls { door, change_call })));
    }
    found
}

/// An API that changes calls before it runs them.
struct ChangedCalls {
    door: OracleDoor,
    change_call: ChangeCall,
}

impl Door for ChangedCalls {
    fn apply(&mut self, call: &Call) -> Result<Answer, Refusal> {
        let mut heard = call.clone();
        (self.change_call)(&mut heard);
        self.door.apply(&heard)
    }

    fn open(&self) -> Vec<Missing> {
        self.door.open()
    }

    fn finals(&self) -> Vec<Missing> {
        self.door.finals()
    }
}

#[test]
fn the_oracle_keeps_the_book() {
    let found = differences_of(|_| (), position);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_book_is_read_whole() {
    let cases = cases(&folder()).expect("the book can be read");
    let pages: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.page).collect();
    let rows: Vec<_> = cases.iter().flat_map(|case| &case.calls).flat_map(|call| &call.rows).collect();
    println!("{} pages, {} cases, {} rows", pages.len(), cases.len(), rows.len());
    assert!(pages.len() >= 19, "{pages:?}");
    assert!(rows.len() >= 2000);
    for verdict in [
        Verdict::Accepted,
        Verdict::Duplicate,
        Verdict::OutOfOrder,
        Verdict::Fenced,
        Verdict::Untracked,
        Verdict::Forgotten,
    ] {
        assert!(rows.iter().any(|row| row.verdict == verdict.name()), "{verdict:?} is on no page");
    }
}

#[test]
fn a_policy_field_that_is_ignored_is_found_out() {
    let mutants: [(&str, Change); 19] = [
        ("gap accepted", |policy| replace(&mut policy.admit, Admit::Next, Admit::Forward)),
        ("late is new", |policy| replace(&mut policy.admit, Admit::Forward, Admit::Any)),
        ("late is refused", |policy| replace(&mut policy.admit, Admit::Any, Admit::Forward)),
        ("fence is key", |policy| replace(&mut policy.epochs, Epochs::Fence, Epochs::Key)),
        ("fence ignores epochs", |policy| replace(&mut policy.epochs, Epochs::Fence, Epochs::Ignore)),
        ("key is fence", |policy| replace(&mut policy.epochs, Epochs::Key, Epochs::Fence)),
        ("first is anything", |policy| policy.first_is_zero = false),
        ("first is zero", |policy| policy.first_is_zero = true),
        ("window one too long", |policy| policy.window += 1),
        ("window one too short", |policy| policy.window -= 1),
        ("late is out of order", |policy| policy.late_is_duplicate = false),
        ("late is a duplicate", |policy| policy.late_is_duplicate = true),
        ("gaps are reported", |policy| policy.gaps_are_normal = false),
        ("no jump is too far", |policy| policy.max_jump = None),
        ("one more may be jumped", |policy| policy.max_jump = policy.max_jump.map(|jump| jump + 1)),
        ("no hole is out of reach", |policy| policy.reach = None),
        ("reach one too long", |policy| policy.reach = policy.reach.map(|reach| reach + 1)),
        ("reach one too short", |policy| policy.reach = policy.reach.map(|reach| reach - 1)),
        ("one more hole", |policy| policy.intervals_max = policy.intervals_max.map(|holes| holes + 1)),
    ];
    for (name, mutant) in mutants {
        assert!(!differences_of(mutant, position).is_empty(), "nobody noticed: {name}");
    }
}

fn replace<T: PartialEq>(field: &mut T, from: T, to: T) {
    if *field == from {
        *field = to;
    }
}

#[test]
fn a_step_that_is_misunderstood_is_found_out() {
    let mutants: [(&str, ChangeCall); 9] = [
        ("idle entries stay a little longer", |call| {
            if let Action::Evict { idle, .. } = &mut call.action {
                *idle += 1;
            }
        }),
        ("idle entries go a little sooner", |call| {
            if let Action::Evict { idle, .. } = &mut call.action {
                *idle -= 1;
            }
        }),
        ("nothing is evicted", |call| {
            if let Action::Evict { now, .. } = &mut call.action {
                *now = i64::MIN / 2;
            }
        }),
        ("no row is old", |call| call.rows.iter_mut().for_each(|row| later(row, 1 << 40))),
        ("the horizon lies one lower", |call| call.rows.iter_mut().for_each(|row| later(row, 1))),
        ("a span is as old as its first row", |call| {
            let first = call.rows.first().map(|row| row.timestamp.clone());
            call.rows.iter_mut().for_each(|row| row.timestamp = first.clone().expect("this row"));
        }),
        ("all partitions are forgotten", |call| {
            if let Action::Forget { partition, .. } = &mut call.action {
                *partition = None;
            }
        }),
        ("nothing is forgotten", |call| {
            if let Action::Forget { pid, .. } = &mut call.action {
                *pid = Cell::Int(99);
            }
        }),
        ("the other table is of the same policy", |call| {
            if let Action::Other(options) = &mut call.action {
                options.fields.clear();
            }
        }),
    ];
    for (name, mutant) in mutants {
        assert!(!differences_of_calls(|_| (), position, mutant).is_empty(), "nobody noticed: {name}");
    }
}

fn later(row: &mut Row, by: i64) {
    if let Cell::Int(timestamp) = &mut row.timestamp {
        *timestamp += by;
    }
}

#[test]
fn a_wrong_rule_of_positions_is_found_out() {
    let mutants: [(&str, Place); 6] = [
        ("wrap does not wrap", |_, _, seq| (seq.into(), false)),
        ("nearest lap", |policy, highest, seq| {
            let wrap = policy.wrap.map_or(1 << 64, i128::from);
            let lap = highest.div_euclid(wrap);
            let laps = [lap - 1, lap, lap + 1].map(|lap| lap * wrap + i128::from(seq));
            (laps.into_iter().min_by_key(|place| (place - highest).abs()).expect("three laps"), false)
        }),
        ("zone one too wide", |policy, highest, seq| with_zone(policy, highest, seq, 1)),
        ("zone one too narrow", |policy, highest, seq| with_zone(policy, highest, seq, -1)),
        ("a lap before the first", |policy, highest, seq| {
            position(&Policy { first_is_zero: false, ..*policy }, highest, seq)
        }),
        ("no lap before", |policy, highest, seq| {
            let (place, is_border) = position(policy, highest, seq);
            let wrap = policy.wrap.map_or(1 << 64, i128::from);
            (place.max(highest.div_euclid(wrap) * wrap + i128::from(seq)), is_border)
        }),
    ];
    for (name, mutant) in mutants {
        let found = differences_of(|_| (), mutant);
        assert!(found.iter().any(|difference| !difference.contains(", border:")), "nobody noticed: {name}");
    }
}

/// The rule with a border zone that is wider by some sequences.
fn with_zone(policy: &Policy, highest: i128, seq: i64, wider: i128) -> (i128, bool) {
    let Some(wrap) = policy.wrap.map(i128::from) else {
        return (seq.into(), false);
    };
    let (zone, seq) = ((wrap / 4).min(1 << 20) + wider, i128::from(seq));
    let (lap, within) = (highest.div_euclid(wrap), highest.rem_euclid(wrap));
    let up = within >= wrap - zone && seq < zone;
    let down = within < zone && seq >= wrap - zone && (!policy.first_is_zero || lap > 0);
    ((lap + i128::from(up) - i128::from(down)) * wrap + seq, up || down)
}

#[test]
fn a_page_that_states_nothing_or_nonsense_is_not_read() {
    let header = "policy: any_order\n\n| pid | epoch | partition | seq | verdict |\n|---|---|---|---|---|\n";
    let row = "| 7 | 0 | 0 | 0 | ACCEPTED |\n";
    assert!(read_page("page", &format!("{header}{row}")).is_ok());
    let pages = [
        String::new(),
        "prose alone".into(),
        "policy: any_order\n".into(),
        header.into(),
        "| refused |\n|---|\n| nothing |\n".into(),
        format!("{header}{row}\n- mising: 7 / 0 / 0: 1..1\n"),
        format!("{header}{row}\n- error: seq, row 0\n"),
        format!("{header}| 7 | 0 | 0 | 0 | OUT_OF_ORDER |\n"),
        format!("{header}{row}\n- missing: 7 / 0 / 0: 15..1\n"),
        format!("{header}{row}\npolicy: any_order\n"),
        format!("{}{row}", header.replace("seq", "sequence")),
        format!("{header}{row}\nevict: idle=5\n"),
        format!("{header}{row}\nforget: partition=5\n"),
        format!("evict: now=5 idle=5\n{header}{row}"),
        format!("{header}{row}\nmerge:\n{row}"),
    ];
    for page in pages {
        assert!(read_page("page", &page).is_err(), "was read: {page}");
    }
}
