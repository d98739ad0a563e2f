//! The state table by size: nanoseconds a row, bytes an entry, checksums, and the limits beside them.
//!
//! ```text
//! curve --entries 10k,1M,100M --shape kafka,any_order --rounds 5 --parts build,random
//! ```
//!
//! Prints a JSON object a line, one for each shape, size and part. Every answer is checked against an exact count: a
//! wrong one ends the program. `bench/curve.py` runs each shape and size in a process of its own and makes the table.

mod parts;
mod shape;
mod stream;
mod system;

use shape::{SHAPES, Shape};
use std::path::PathBuf;
use std::process::ExitCode;

/// What is asked for.
struct Options {
    entries: Vec<usize>,
    shapes: Vec<&'static Shape>,
    parts: Vec<String>,
    rounds: usize,
    /// Rows of a round.
    rows: usize,
    /// Where snapshots are written.
    folder: PathBuf,
}

const PARTS: [&str; 8] = ["build", "declared", "random", "runs", "evict", "disorder", "threads", "snapshot"];

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("curve: {problem}");
            return ExitCode::from(2);
        }
    };
    for shape in &options.shapes {
        for &entries in &options.entries {
            parts::measure(shape, entries, &options);
        }
    }
    ExitCode::SUCCESS
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        entries: vec![10_000, 100_000, 1_000_000],
        shapes: SHAPES.iter().collect(),
        parts: PARTS.map(String::from).to_vec(),
        rounds: 3,
        rows: 4_000_000,
        folder: std::env::temp_dir(),
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--entries" => options.entries = each(&value, count)?,
            "--shape" => options.shapes = each(&value, Shape::named)?,
            "--parts" => options.parts = each(&value, part)?,
            "--rounds" => options.rounds = count(&value)?,
            "--rows" => options.rows = count(&value)?,
            "--folder" => options.folder = value.into(),
            _ => return Err(format!("no option {name}: --entries, --shape, --parts, --rounds, --rows, --folder")),
        }
    }
    Ok(options)
}

fn each<T>(list: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    list.split(',').map(parse).collect()
}

fn part(name: &str) -> Result<String, String> {
    if PARTS.contains(&name) { Ok(name.into()) } else { Err(format!("'{name}' is none of {}", PARTS.join(", "))) }
}

/// `10k`, `100M` or plain digits.
fn count(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1_000 } else { 1_000_000 }),
        None => (text, 1),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    number.filter(|&number| number > 0).ok_or_else(|| format!("'{text}' is no count such as 20000, 10k or 100M"))
}
