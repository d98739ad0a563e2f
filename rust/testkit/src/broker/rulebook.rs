//! Reads the broker's rule book: converts the pages of `spec/broker` to cases that any API can run.
//!
//! `spec/broker/README.md` explains the format. A misspelt line fails instead of being ignored.

use super::{Answer, Door, Entry, Kept, MAX, Open, Refusal, Row};
use crate::rulebook::{Result, cases_of, cells, parse_refusal};
use std::path::{Path, PathBuf};

/// An operation on a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Judges its rows.
    Apply(Vec<Row>),
    /// Drops producers that are idle at this time.
    Evict(i64),
    /// Restarts the broker at this time.
    Restart(i64),
    /// Sets the end of a partition's log.
    SetLogEnd(i64, i64),
}

/// How the sequences of a batch are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// By the first and their number.
    Count,
    /// By the first and the last.
    LastSeq,
}

/// One step, and its expected results.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its line on the page.
    pub line: usize,
    /// Its action.
    pub action: Action,
    /// The result of each row; empty if the call is refused.
    pub answers: Vec<Answer>,
    /// Whether the answers state offsets.
    pub states_offsets: bool,
    /// All entries afterwards, if stated.
    pub entries: Option<Vec<Entry>>,
    /// The log ends of partitions afterwards.
    pub log_ends: Vec<(i64, i64)>,
    /// Number of dropped entries.
    pub dropped: usize,
    /// Why the call is refused, if it is.
    pub error: Option<Refusal>,
    has_seq: bool,
}

/// Options and consecutive steps on one table of them, or options that are refused.
#[derive(Clone, Debug)]
pub struct Case {
    /// The page's name without its ending.
    pub page: String,
    /// The line of the options.
    pub line: usize,
    /// Name and value.
    pub options: Vec<(String, String)>,
    /// Whether the options are refused.
    pub refused: bool,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The folder of the broker's rule book in this workspace.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/broker")
}

/// Every case of every page, in order.
pub fn cases(folder: &Path) -> Result<Vec<Case>> {
    cases_of(folder, read_page)
}

/// The cases of one page. A page without cases is an error.
pub fn read_page(page: &str, text: &str) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut header: Vec<&str> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        read_line(page, index + 1, line, &mut header, &mut cases)
            .map_err(|reason| format!("{page}:{}: {reason}", index + 1))?;
    }
    check_page(&cases).map_err(|reason| format!("{page}: {reason}"))?;
    Ok(cases)
}

fn read_line<'a>(
    page: &str,
    line: usize,
    text: &'a str,
    header: &mut Vec<&'a str>,
    cases: &mut Vec<Case>,
) -> Result<()> {
    if !text.starts_with('|') {
        header.clear();
        if let Some(options) = text.strip_prefix("broker:") {
            cases.push(case(page, line, options, false)?);
        } else if let Some(action) = action(text)? {
            let case = cases.last_mut().ok_or("an action before any options")?;
            case.steps.push(Step::new(line, action, &[]));
        } else if let Some(item) = text.strip_prefix("- ") {
            expect(last_step(cases)?, item)?;
        }
    } else if header.is_empty() {
        *header = cells(text);
        if header[0] != "refused" {
            if let Some(name) = header.iter().find(|name| !COLUMNS.contains(name)) {
                return Err(format!("unknown column '{name}'"));
            }
            let case = cases.last_mut().ok_or("a table before any options")?;
            case.steps.push(Step::new(line, Action::Apply(Vec::new()), header));
        }
    } else if !text.starts_with("|-") {
        let cells = cells(text);
        if cells.len() != header.len() {
            return Err(format!("{} cells under {} columns", cells.len(), header.len()));
        }
        if header[0] == "refused" {
            cases.push(case(page, line, cells[0], true)?);
        } else {
            add_row(
                last_step(cases)?,
                &|name| header.iter().position(|column| *column == name).map_or("", |index| cells[index]),
                header,
            )?;
        }
    }
    Ok(())
}

const COLUMNS: [&str; 19] = [
    "pid",
    "epoch",
    "partition",
    "seq",
    "base_seq",
    "count",
    "last_seq",
    "offset",
    "last_offset",
    "timestamp",
    "transactional",
    "control",
    "coordinator_epoch",
    "transaction_version",
    "origin",
    "verdict",
    "expected",
    "offsets",
    "why",
];
const OPTIONS: [&str; 5] = ["version", "window", "first", "offsets", "max_idle_ms"];
const VERDICTS: [&str; 8] =
    ["ACCEPTED", "DUPLICATE", "OUT_OF_ORDER", "FENCED", "INVALID_TXN_STATE", "COORDINATOR_FENCED", "UNTRACKED", "-"];

impl Step {
    fn new(line: usize, action: Action, header: &[&str]) -> Step {
        Step {
            line,
            action,
            answers: Vec::new(),
            states_offsets: header.contains(&"offsets"),
            entries: None,
            log_ends: Vec::new(),
            dropped: 0,
            error: None,
            has_seq: header.contains(&"seq"),
        }
    }

    /// The action, with sequences written as `seq` in this spelling.
    pub fn spelt(&self, spelling: Spelling) -> Action {
        let mut action = self.action.clone();
        if let (Action::Apply(rows), true) = (&mut action, self.has_seq) {
            for row in rows {
                // Without a producer or a sequence, a last sequence has no meaning.
                let has_sequences = row.pid.is_some_and(|pid| pid != -1) && row.base_seq.is_some_and(|base| base >= 0);
                match spelling {
                    Spelling::Count => row.last_seq = None,
                    Spelling::LastSeq if has_sequences => row.count = None,
                    Spelling::LastSeq => {}
                }
            }
        }
        action
    }
}

fn check_page(cases: &[Case]) -> Result<()> {
    if !cases.iter().any(|case| !case.steps.is_empty()) {
        return Err("no batch at all".into());
    }
    for case in cases {
        if !case.refused && case.steps.is_empty() {
            return Err(format!("the options of line {} have no table", case.line));
        }
        for step in &case.steps {
            let Action::Apply(rows) = &step.action else { continue };
            if rows.is_empty() {
                return Err(format!("the table of line {} has no batch", step.line));
            }
            if step.answers.iter().any(|answer| (answer.verdict == "-") != step.error.is_some()) {
                return Err(format!("the table of line {} needs verdicts or an error, never both", step.line));
            }
        }
    }
    Ok(())
}

fn case(page: &str, line: usize, text: &str, refused: bool) -> Result<Case> {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').ok_or("not option=value")?;
        if OPTIONS.contains(&name) { Ok((name.to_string(), value.to_string())) } else { Err("unknown option") }
    };
    let options = text.split_whitespace().map(pair).collect::<std::result::Result<_, _>>()?;
    Ok(Case { page: page.to_string(), line, options, refused, steps: Vec::new() })
}

/// The action of a line between the tables, if it is a step.
fn action(line: &str) -> Result<Option<Action>> {
    let Some((name, text)) = line.split_once(':') else { return Ok(None) };
    let now = || parse_int(text.trim().strip_prefix("now=").ok_or("now=")?);
    Ok(Some(match name {
        "evict" => Action::Evict(now()?),
        "restart" => Action::Restart(now()?),
        "set_log_end" => {
            let text = text.trim().strip_prefix("partition=").ok_or("partition=")?;
            let (partition, offset) = text.split_once(" offset=").ok_or("offset=")?;
            Action::SetLogEnd(parse_int(partition)?, parse_int(offset)?)
        }
        _ => return Ok(None),
    }))
}

fn last_step(cases: &mut [Case]) -> Result<&mut Step> {
    cases.last_mut().and_then(|case| case.steps.last_mut()).ok_or_else(|| "no table above".to_string())
}

fn add_row<'a>(step: &mut Step, cell: &dyn Fn(&str) -> &'a str, header: &[&str]) -> Result<()> {
    let int = |name: &str| Some(cell(name)).filter(|text| !text.is_empty()).map(parse_int).transpose();
    // A page's table without these columns has their defaults.
    let or = |name: &str, default: i64| if header.contains(&name) { int(name) } else { Ok(Some(default)) };
    let mut row = Row {
        pid: or("pid", 7)?,
        epoch: or("epoch", 0)?,
        partition: or("partition", 0)?,
        base_seq: int("base_seq")?,
        count: int("count")?,
        last_seq: int("last_seq")?,
        offset: int("offset")?,
        last_offset: int("last_offset")?,
        timestamp: int("timestamp")?,
        transactional: match cell("transactional") {
            "" => None,
            "yes" => Some(true),
            "no" => Some(false),
            other => return Err(format!("transactional is yes, no or empty: '{other}'")),
        },
        control: word(cell("control")),
        coordinator_epoch: int("coordinator_epoch")?,
        transaction_version: int("transaction_version")?,
        origin: word(cell("origin")),
    };
    if !cell("seq").is_empty() {
        let (base_seq, count, last_seq) = parse_seq(cell("seq"))?;
        (row.base_seq, row.count, row.last_seq) = (Some(base_seq), Some(count), Some(last_seq));
    }
    let verdict = VERDICTS.into_iter().find(|known| *known == cell("verdict")).ok_or("no verdict")?;
    let answer = Answer { verdict, expected: int("expected")?, offset: int("offsets")? };
    if (verdict == "OUT_OF_ORDER") != answer.expected.is_some() {
        return Err("expected belongs to OUT_OF_ORDER alone".into());
    }
    let Action::Apply(rows) = &mut step.action else { return Err("a row below an action".into()) };
    rows.push(row);
    step.answers.push(answer);
    Ok(())
}

/// A word of a page. All unknown words are equivalent.
fn word(text: &str) -> Option<&'static str> {
    const KNOWN: [&str; 7] = ["commit", "abort", "empty", "other", "client", "replica", "coordinator"];
    let known = KNOWN.into_iter().find(|known| *known == text);
    if text.is_empty() { None } else { known.or(Some("nonsense")) }
}

/// Parses an integer, `MAX`, or `MAX-n`.
fn parse_int(text: &str) -> Result<i64> {
    let not = |_| format!("'{text}' is not an integer");
    match text.strip_prefix("MAX") {
        Some("") => Ok(MAX),
        Some(less) => less.parse::<i64>().map(|less| MAX + less).map_err(not),
        None => text.parse().map_err(not),
    }
}

fn parse_range(text: &str) -> Result<(i64, i64)> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    Ok((parse_int(first)?, parse_int(last)?))
}

/// Parses `5`, `0..4`, `MAX-1..3`, `none` or `none*3` to base_seq, count and last_seq.
fn parse_seq(text: &str) -> Result<(i64, i64, i64)> {
    if let Some(count) = text.strip_prefix("none") {
        let count = count.strip_prefix('*').map_or(Ok(1), parse_int)?;
        return Ok((-1, count, -1));
    }
    let (first, last) = parse_range(text)?;
    Ok((first, (last - first).rem_euclid(MAX + 1) + 1, last))
}

fn expect(step: &mut Step, item: &str) -> Result<()> {
    let (label, value) = item.split_once(": ").ok_or("an item without a value")?;
    let is_call = matches!(step.action, Action::Apply(_));
    match label {
        "entries" if value == "none" => step.entries = Some(Vec::new()),
        "entries" => step.entries = Some(value.split("; ").map(parse_entry).collect::<Result<_>>()?),
        "log_end" => {
            let pair = |text: &str| -> Result<(i64, i64)> {
                let (partition, offset) = text.split_once(": ").ok_or("partition: offset")?;
                Ok((parse_int(partition)?, parse_int(offset)?))
            };
            step.log_ends = value.split("; ").map(pair).collect::<Result<_>>()?;
        }
        "dropped" if !is_call => step.dropped = value.parse().map_err(|_| format!("'{value}' is not a count"))?,
        "error" => step.error = Some(parse_refusal(value)?),
        _ => return Err(format!("unknown expectation '{label}'")),
    }
    Ok(())
}

/// Parses `pid / partition: epoch [sequences@offsets, ...] txn offset coord epoch at timestamp`.
fn parse_entry(text: &str) -> Result<Entry> {
    let (key, rest) = text.split_once(": e").ok_or("pid / partition: eN")?;
    let (pid, partition) = key.split_once(" / ").ok_or("pid / partition")?;
    let (epoch, rest) = rest.split_once(" [").ok_or("a window in brackets")?;
    let (window, rest) = rest.split_once(']').ok_or("a window in brackets")?;
    let window = window.split(", ").filter(|batch| !batch.is_empty()).map(parse_kept).collect::<Result<_>>()?;
    let mut entry = Entry {
        pid: parse_int(pid)?,
        partition: parse_int(partition)?,
        epoch: parse_int(epoch)?,
        window,
        open: None,
        coordinator_epoch: -1,
        last_timestamp: -1,
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    for pair in words.chunks(2) {
        match *pair {
            ["txn", "?"] => entry.open = Some(Open { first_offset: None }),
            ["txn", offset] => entry.open = Some(Open { first_offset: Some(parse_int(offset)?) }),
            ["coord", epoch] => entry.coordinator_epoch = parse_int(epoch)?,
            ["at", timestamp] => entry.last_timestamp = parse_int(timestamp)?,
            _ => return Err(format!("not an entry: '{text}'")),
        }
    }
    Ok(entry)
}

fn parse_kept(text: &str) -> Result<Kept> {
    let (seqs, offsets) = text.split_once('@').map_or((text, None), |(seqs, offsets)| (seqs, Some(offsets)));
    let (first, last) = if seqs == "none" { (-1, -1) } else { parse_range(seqs)? };
    Ok(Kept { first, last, offsets: offsets.map(parse_range).transpose()? })
}

/// Compares an API with the rule book. The result is empty if they agree.
///
/// `door` is `None` if the options were refused.
pub fn differences(case: &Case, door: Option<&mut dyn Door>, spelling: Spelling) -> Vec<String> {
    let at = |line: usize| format!("{}:{line}", case.page);
    match door {
        None if case.refused => Vec::new(),
        None => vec![format!("{}: refused", at(case.line))],
        Some(_) if case.refused => vec![format!("{}: not refused", at(case.line))],
        Some(door) => {
            let judge = |step: &Step| -> Vec<String> {
                let found = step_complaints(step, door, spelling);
                found.into_iter().map(|difference| format!("{}, {difference}", at(step.line))).collect()
            };
            case.steps.iter().flat_map(judge).collect()
        }
    }
}

fn step_complaints(step: &Step, door: &mut dyn Door, spelling: Spelling) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, book: String, door: String| {
        if book != door {
            found.push(format!("{what}: the book says {book}, found {door}"));
        }
    };
    let before = door.entries();
    let result = match step.spelt(spelling) {
        Action::Apply(rows) => door.apply(&rows).map(|answers| {
            let count = if step.error.is_some() { 0 } else { rows.len() };
            compare("rows", count.to_string(), answers.len().to_string());
            for ((row, book), mut answer) in rows.iter().zip(&step.answers).zip(answers) {
                answer.offset = answer.offset.filter(|_| step.states_offsets);
                compare(&format!("{row:?}"), format!("{book:?}"), format!("{answer:?}"));
            }
            0
        }),
        Action::Evict(now) => door.evict(now),
        Action::Restart(now) => {
            door.restart(now);
            Ok(0)
        }
        Action::SetLogEnd(partition, offset) => door.set_log_end(partition, offset).map(|()| 0),
    };
    compare("error", format!("{:?}", step.error), format!("{:?}", result.as_ref().err()));
    match result {
        Ok(dropped) => compare("dropped", step.dropped.to_string(), dropped.to_string()),
        Err(_) => compare("entries after the error", format!("{before:?}"), format!("{:?}", door.entries())),
    }
    if let Some(entries) = &step.entries {
        compare("entries", format!("{entries:?}"), format!("{:?}", door.entries()));
    }
    for &(partition, offset) in &step.log_ends {
        compare(&format!("log end of {partition}"), offset.to_string(), door.log_end(partition).to_string());
    }
    found
}
