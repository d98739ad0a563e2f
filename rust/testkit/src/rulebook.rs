//! Reads the rule book: converts the pages of `spec` to cases that any API can run.
//!
//! `spec/README.md` explains the format. Results that a page does not list must not occur: a call without a `missing`
//! line expects no missing ranges. A misspelt line therefore fails instead of being ignored.

use std::path::{Path, PathBuf};

/// The result of reading. The error has the page, the line and the reason.
pub type Result<T> = std::result::Result<T, String>;

/// One cell of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cell {
    /// No value.
    Null,
    /// An integer of at most 64 bits.
    Int(i64),
    /// A text.
    Text(String),
    /// A composite: one cell per column.
    Tuple(Vec<Cell>),
}

/// A row, and its expected verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The producer.
    pub pid: Cell,
    /// Its epoch; [`Cell::Null`] if the policy ignores epochs.
    pub epoch: Cell,
    /// The partition it numbers.
    pub partition: Cell,
    /// The sequence number.
    pub seq: Cell,
    /// Milliseconds; [`Cell::Null`] if the table keeps none.
    pub timestamp: Cell,
    /// The name of the verdict in all APIs (`OUT_OF_ORDER`), or `-` in a call that is refused.
    pub verdict: String,
    /// For an `OUT_OF_ORDER` row: the sequence that would have been accepted, if there is one.
    pub expected: Option<i64>,
}

/// A range of sequences that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The producer.
    pub pid: Cell,
    /// Its epoch; `None` if the policy ignores epochs.
    pub epoch: Option<i64>,
    /// The partition.
    pub partition: Cell,
    /// The first sequence of the range.
    pub first_seq: i64,
    /// Its last sequence, less than the first if the range crosses the wrap.
    pub last_seq: i64,
    /// Number of positions.
    pub count: i64,
}

/// Why a whole call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The role of the invalid column. `policy` if the policy does not accept the columns or the step, `capacity` if a
    /// limit would be exceeded.
    pub column: String,
    /// The invalid row, from 0; `None` if the whole column is invalid.
    pub row: Option<usize>,
}

/// The action of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Judges its rows.
    Apply,
    /// Drops idle entries.
    Evict {
        /// The current time, in milliseconds.
        now: i64,
        /// How long an entry may be idle, in milliseconds.
        idle: i64,
    },
    /// Drops the entries of a producer.
    Forget {
        /// The producer.
        pid: Cell,
        /// Only this partition of it, if named.
        partition: Option<Cell>,
    },
    /// Begins another, empty table. All steps up to the next `Merge` apply to it.
    Other(Options),
    /// Merges the other table into the previous one.
    Merge,
}

/// A preset, changed fields, and options of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The preset's name.
    pub policy: String,
    /// Changed fields, as text; `untracked`, `keep` and `entries_max` are options of the table.
    pub fields: Vec<(String, String)>,
}

impl Options {
    /// The fields of the policy.
    pub fn policy_fields(&self) -> Vec<(String, String)> {
        self.fields.iter().filter(|(field, _)| !TABLE_OPTIONS.contains(&field.as_str())).cloned().collect()
    }

    /// An option of the table.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

const TABLE_OPTIONS: [&str; 3] = ["untracked", "keep", "entries_max"];

/// One call of one table, and its expected results.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its action.
    pub action: Action,
    /// Its line on the page.
    pub line: usize,
    /// Whether an epoch column is mapped.
    pub has_epoch: bool,
    /// The rows to judge, in order.
    pub rows: Vec<Row>,
    /// Missing ranges that the call lists.
    pub missing: Vec<Missing>,
    /// Missing ranges that the table lists after the call.
    pub open: Vec<Missing>,
    /// The final ranges that the table has after the call, in positions.
    pub finals: Vec<Missing>,
    /// Positions that both tables of a merge had accepted.
    pub overlap: Vec<Missing>,
    /// Number of dropped entries.
    pub dropped: u64,
    /// The horizon after an eviction.
    pub horizon: Option<i64>,
    /// Number of rows below the highest accepted epoch of their key.
    pub stale_epoch: u64,
    /// Number of rows that the border rules put into a neighbouring lap.
    pub border: u64,
    /// The error, if the call is refused.
    pub error: Option<Refusal>,
}

/// A policy and consecutive calls on one table of it, or a policy that is refused.
#[derive(Clone, Debug)]
pub struct Case {
    /// The page's name without its ending.
    pub page: String,
    /// The line of the policy.
    pub line: usize,
    /// The options of its table.
    pub options: Options,
    /// Whether the policy is refused.
    pub refused: bool,
    /// The calls on the table.
    pub calls: Vec<Call>,
}

/// The folder of the rule book in this workspace.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec")
}

/// Every case of every page, in order.
pub fn cases(folder: &Path) -> Result<Vec<Case>> {
    cases_of(folder, read_page)
}

/// The cases of all pages of a folder, in order.
pub(crate) fn cases_of<C>(folder: &Path, read_page: fn(&str, &str) -> Result<Vec<C>>) -> Result<Vec<C>> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut cases = Vec::new();
    for path in pages(folder).map_err(failed)? {
        let page = path.file_stem().unwrap_or_default().to_string_lossy();
        cases.extend(read_page(&page, &std::fs::read_to_string(&path).map_err(failed)?)?);
    }
    if cases.is_empty() { Err(format!("{}: no page", folder.display())) } else { Ok(cases) }
}

fn pages(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    paths.sort();
    Ok(paths)
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
    number: usize,
    line: &'a str,
    header: &mut Vec<&'a str>,
    cases: &mut Vec<Case>,
) -> Result<()> {
    if !line.starts_with('|') {
        header.clear();
        if let Some(policy) = line.strip_prefix("policy: ") {
            cases.push(case(page, number, policy, false)?);
        } else if let Some(action) = action(line, cases)? {
            let case = cases.last_mut().ok_or("a step before any policy")?;
            case.calls.push(Call::new(number, action, false));
        } else if let Some(item) = line.strip_prefix("- ") {
            expect(last_call(cases)?, item)?;
        }
    } else if header.is_empty() {
        *header = cells(line);
        if header[0] != "refused" {
            const NAMES: [&str; 8] = ["pid", "epoch", "partition", "seq", "timestamp", "verdict", "expected", "why"];
            if let Some(name) = header.iter().find(|name| !NAMES.contains(name)) {
                return Err(format!("unknown column '{name}'"));
            }
            let case = cases.last_mut().ok_or("a table before any policy")?;
            case.calls.push(Call::new(number, Action::Apply, header.contains(&"epoch")));
        }
    } else if !line.starts_with("|-") {
        let cells = cells(line);
        if cells.len() != header.len() {
            return Err(format!("{} cells under {} columns", cells.len(), header.len()));
        }
        if header[0] == "refused" {
            cases.push(case(page, number, cells[0], true)?);
        } else {
            last_call(cases)?.rows.extend(rows(header, &cells)?);
        }
    }
    Ok(())
}

impl Call {
    fn new(line: usize, action: Action, has_epoch: bool) -> Call {
        Call {
            action,
            line,
            has_epoch,
            rows: Vec::new(),
            missing: Vec::new(),
            open: Vec::new(),
            finals: Vec::new(),
            overlap: Vec::new(),
            dropped: 0,
            horizon: None,
            stale_epoch: 0,
            border: 0,
            error: None,
        }
    }
}

fn check_page(cases: &[Case]) -> Result<()> {
    if !cases.iter().any(|case| !case.calls.is_empty()) {
        return Err("no row at all".into());
    }
    for case in cases {
        if !case.refused && case.calls.is_empty() {
            return Err(format!("the policy of line {} has no table", case.line));
        }
        for call in &case.calls {
            if call.rows.is_empty() == (call.action == Action::Apply) {
                return Err(format!("the table of line {} has no row, or a step has some", call.line));
            }
            if call.rows.iter().any(|row| (row.verdict == "-") != call.error.is_some()) {
                return Err(format!("the table of line {} needs verdicts or an error, never both", call.line));
            }
        }
    }
    Ok(())
}

fn case(page: &str, line: usize, text: &str, refused: bool) -> Result<Case> {
    Ok(Case { page: page.to_string(), line, options: options(text)?, refused, calls: Vec::new() })
}

fn options(text: &str) -> Result<Options> {
    let mut words = text.split_whitespace();
    let policy = words.next().ok_or("no policy")?.to_string();
    let pair = |word: &str| word.split_once('=').map(|(field, value)| (field.to_string(), value.to_string()));
    let fields = words.map(pair).collect::<Option<_>>().ok_or("not field=value")?;
    Ok(Options { policy, fields })
}

/// The action of a line between the tables, if it is a step.
fn action(line: &str, cases: &[Case]) -> Result<Option<Action>> {
    let Some((name, text)) = line.split_once(':') else { return Ok(None) };
    let text = text.trim();
    let step = match name {
        "evict" => {
            let (now, idle) =
                text.strip_prefix("now=").and_then(|text| text.split_once(" idle=")).ok_or("now= idle=")?;
            Action::Evict { now: parse_int(now)?, idle: parse_int(idle)? }
        }
        "forget" => {
            let text = text.strip_prefix("pid=").ok_or("pid=")?;
            let (pid, partition) = text.split_once(" partition=").map_or((text, None), |(pid, it)| (pid, Some(it)));
            Action::Forget { pid: parse_cell(pid)?, partition: partition.map(parse_cell).transpose()? }
        }
        "other" if text.is_empty() => Action::Other(cases.last().ok_or("no policy above")?.options.clone()),
        "other" => Action::Other(options(text)?),
        "merge" if text.is_empty() => Action::Merge,
        _ => return Ok(None),
    };
    Ok(Some(step))
}

fn last_call(cases: &mut [Case]) -> Result<&mut Call> {
    cases.last_mut().and_then(|case| case.calls.last_mut()).ok_or_else(|| "no table above".to_string())
}

pub(crate) fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap_or(line).split('|').map(str::trim).collect()
}

/// One row, or the rows of `first..last` in the column seq.
fn rows(header: &[&str], cells: &[&str]) -> Result<Vec<Row>> {
    let cell = |name: &str| header.iter().position(|column| *column == name).map(|index| cells[index]);
    let value = |name: &str| cell(name).map_or(Ok(Cell::Null), parse_cell);
    let (verdict, expected) = (cell("verdict").ok_or("no verdict")?, cell("expected").unwrap_or(""));
    if (verdict == "OUT_OF_ORDER") == expected.is_empty() {
        return Err("expected belongs to OUT_OF_ORDER alone".into());
    }
    let row = |seq| -> Result<Row> {
        let expected = if matches!(expected, "" | "null") { None } else { Some(parse_int(expected)?) };
        let (pid, epoch, partition) = (value("pid")?, value("epoch")?, value("partition")?);
        let timestamp = value("timestamp")?;
        Ok(Row { pid, epoch, partition, seq, timestamp, verdict: verdict.to_string(), expected })
    };
    match cell("seq").ok_or("no seq")?.split_once("..") {
        Some((first, last)) => (parse_int(first)?..=parse_int(last)?).map(|seq| row(Cell::Int(seq))).collect(),
        None => Ok(vec![row(value("seq")?)?]),
    }
}

fn parse_int(text: &str) -> Result<i64> {
    text.replace('_', "").parse().map_err(|_| format!("'{text}' is not an integer"))
}

fn parse_cell(text: &str) -> Result<Cell> {
    let within = |open, close| text.strip_prefix(open).and_then(|text: &str| text.strip_suffix(close));
    if text == "null" {
        Ok(Cell::Null)
    } else if let Some(text) = within('"', '"') {
        Ok(Cell::Text(text.to_string()))
    } else if let Some(parts) = within('(', ')') {
        Ok(Cell::Tuple(parts.split(", ").map(parse_cell).collect::<Result<_>>()?))
    } else {
        parse_int(text).map(Cell::Int)
    }
}

fn expect(call: &mut Call, item: &str) -> Result<()> {
    let (labels, value) = item.split_once(": ").ok_or("an item without a value")?;
    let count = || value.parse().map_err(|_| format!("'{value}' is not a count"));
    for label in labels.split(", ") {
        match label {
            "missing" => call.missing = value.split("; ").map(parse_missing).collect::<Result<_>>()?,
            "open" => call.open = value.split("; ").map(parse_missing).collect::<Result<_>>()?,
            "final" => call.finals = value.split("; ").map(parse_missing).collect::<Result<_>>()?,
            "overlap" => call.overlap = value.split("; ").map(parse_missing).collect::<Result<_>>()?,
            "dropped" => call.dropped = count()?,
            "horizon" => call.horizon = Some(parse_int(value)?),
            "stale_epoch" => call.stale_epoch = count()?,
            "border" => call.border = count()?,
            "error" => call.error = Some(parse_refusal(value)?),
            _ => return Err(format!("unknown item '{label}'")),
        }
    }
    Ok(())
}

pub(crate) fn parse_refusal(text: &str) -> Result<Refusal> {
    let (column, row) = text.split_once(", row ").map_or((text, None), |(column, row)| (column, Some(row)));
    let row = row.map(|row| row.parse().map_err(|_| format!("'{row}' is not a row"))).transpose()?;
    Ok(Refusal { column: column.to_string(), row })
}

/// Parses `pid / epoch / partition: first..last (count)`, without the epoch if there are none.
fn parse_missing(text: &str) -> Result<Missing> {
    let (names, span) = text.rsplit_once(": ").ok_or("a range without a key")?;
    let names = names.split(" / ").map(parse_cell).collect::<Result<Vec<_>>>()?;
    let (pid, epoch, partition) = match names.as_slice() {
        [pid, Cell::Int(epoch), partition] => (pid.clone(), Some(*epoch), partition.clone()),
        [pid, partition] => (pid.clone(), None, partition.clone()),
        _ => return Err(format!("'{text}' does not name a key")),
    };
    let (span, count) = span.split_once(" (").map_or((span, None), |(span, count)| (span, Some(count)));
    let (first, last) = span.split_once("..").ok_or("a range is first..last")?;
    let (first_seq, last_seq) = (parse_int(first)?, parse_int(last)?);
    let count = count.map_or(Ok(last_seq - first_seq + 1), |count| parse_int(count.trim_end_matches(')')))?;
    if count < 1 {
        return Err(format!("a range that passes the wrap needs its count: '{text}'"));
    }
    Ok(Missing { pid, epoch, partition, first_seq, last_seq, count })
}

/// The result of a call of an API, in the terms of the rule book.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// For each row, the name of the verdict and, for `OUT_OF_ORDER`, the sequence that would have been accepted.
    pub verdicts: Vec<(String, Option<i64>)>,
    /// Missing ranges that the call lists.
    pub missing: Vec<Missing>,
    /// Number of rows below the highest accepted epoch of their key.
    pub stale_epoch: u64,
    /// Number of rows that the border rules put into a neighbouring lap; `None` if the API does not count them.
    pub border: Option<u64>,
    /// Number of dropped entries.
    pub dropped: u64,
    /// The horizon after an eviction.
    pub horizon: Option<i64>,
    /// Positions that both tables of a merge had accepted.
    pub overlap: Vec<Missing>,
}

/// One table behind an API, and the other table of a merge while it exists.
pub trait Door {
    /// Runs a call, or refuses it and changes nothing.
    fn apply(&mut self, call: &Call) -> std::result::Result<Answer, Refusal>;

    /// Missing ranges of the table.
    fn open(&self) -> Vec<Missing>;

    /// The final ranges of the table, in positions, in the order of its entries.
    fn finals(&self) -> Vec<Missing>;
}

/// Compares an API with the rule book. The result is empty if they agree.
///
/// `door` is `None` if the API refused the policy.
pub fn differences(case: &Case, door: Option<&mut dyn Door>) -> Vec<String> {
    match door {
        None if case.refused => Vec::new(),
        None => vec![format!("{}:{}: refused", case.page, case.line)],
        Some(_) if case.refused => vec![format!("{}:{}: not refused", case.page, case.line)],
        Some(door) => {
            let judge = |call: &Call| -> Vec<String> {
                let found = call_complaints(call, door);
                found.into_iter().map(|difference| format!("{}:{}, {difference}", case.page, call.line)).collect()
            };
            case.calls.iter().flat_map(judge).collect()
        }
    }
}

fn call_complaints(call: &Call, door: &mut dyn Door) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, book: String, door: String| {
        if book != door {
            found.push(format!("{what}: the book says {book}, found {door}"));
        }
    };
    let before = (door.open(), door.finals());
    let (error, answer) = match door.apply(call) {
        Ok(answer) => (None, Some(answer)),
        Err(refusal) => (Some(refusal), None),
    };
    compare("error", format!("{:?}", call.error), format!("{error:?}"));
    if let (Some(answer), None) = (answer, &call.error) {
        compare("rows", call.rows.len().to_string(), answer.verdicts.len().to_string());
        for (row, verdict) in call.rows.iter().zip(&answer.verdicts) {
            let book = (row.verdict.clone(), row.expected);
            let what = format!("({:?}, {:?}, {:?}, {:?})", row.pid, row.epoch, row.partition, row.seq);
            compare(&what, format!("{book:?}"), format!("{verdict:?}"));
        }
        compare("missing", format!("{:?}", call.missing), format!("{:?}", answer.missing));
        compare("stale_epoch", call.stale_epoch.to_string(), answer.stale_epoch.to_string());
        compare("border", call.border.to_string(), answer.border.unwrap_or(call.border).to_string());
        compare("dropped", call.dropped.to_string(), answer.dropped.to_string());
        compare("horizon", format!("{:?}", call.horizon), format!("{:?}", answer.horizon));
        compare("overlap", format!("{:?}", call.overlap), format!("{:?}", answer.overlap));
        compare("open", format!("{:?}", call.open), format!("{:?}", door.open()));
        compare("final", format!("{:?}", call.finals), format!("{:?}", door.finals()));
    } else if call.action != Action::Merge {
        compare("open", format!("{:?}", before.0), format!("{:?}", door.open()));
        compare("final", format!("{:?}", before.1), format!("{:?}", door.finals()));
    }
    found
}
