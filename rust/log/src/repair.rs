//! Implements `on_damage="cut"` before a log is opened: it reads every segment, and the log ends at the first damage.
//!
//! Files are removed in an order that keeps an interrupted repair safe: the log is still refused and can be repaired
//! again. The order is: states after the new end, segments after it beginning with the last, then the rest of the
//! damaged segment.

use crate::disk::Disk;
use crate::error::Result;
use crate::segment::{INDEX, LOG, SNAPSHOT, STATE, TIME_INDEX, TXN_INDEX, name_of, offsets_of, refused, unopened};
use fencepost_kafka::{BatchColumns, ReadAt, RecoveryScan};
use std::sync::Arc;

/// Number of batches that are read at a time.
const CALL_ROWS: usize = 1 << 16;

/// The removed parts of a log.
#[derive(Default)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    /// Files of states after the new end, the newest first.
    pub(crate) states: Vec<String>,
}

/// The end of the undamaged beginning of the log.
struct End {
    offset: i64,
    /// The segment in which it ends, and its undamaged size.
    segment: usize,
    bytes: u64,
}

/// Removes everything from the first damage on, and states of offsets that no longer exist. If a file cannot be read,
/// nothing is changed.
pub(crate) fn cut(disk: &dyn Disk) -> Result<Cut> {
    let names = unopened(disk, "", disk.names())?;
    let bases = offsets_of(&names, LOG);
    if bases.is_empty() {
        return Ok(Cut::default());
    }
    let end = find_end(disk, &bases)?;
    let mut cut = Cut { bytes: 0, states: states_behind(&names, end.offset) };
    remove_all(disk, &cut.states)?;
    for &base in bases[end.segment + 1..].iter().rev() {
        cut.bytes += bytes_of(disk, base)?;
        remove_all(disk, &[INDEX, TIME_INDEX, TXN_INDEX, LOG].map(|ending| name_of(base, ending)))?;
    }
    let (base, name) = (bases[end.segment], name_of(bases[end.segment], LOG));
    let behind = bytes_of(disk, base)? - end.bytes;
    if behind > 0 {
        let file = unopened(disk, &name, disk.open(&name))?;
        file.cut(end.bytes).map_err(|error| refused(disk, &name, error, UNFINISHED))?;
        cut.bytes += behind;
    }
    Ok(cut)
}

/// The text of an error after files were removed.
const UNFINISHED: &str = "the damaged part was removed only partly; open the log with on_damage=\"cut\" again";

fn find_end(disk: &dyn Disk, bases: &[i64]) -> Result<End> {
    let mut end = End { offset: bases[0], segment: 0, bytes: 0 };
    for (segment, &base) in bases.iter().enumerate() {
        // Offsets that are in no segment, or in two.
        if base != end.offset {
            break;
        }
        let name = name_of(base, LOG);
        let reader: Arc<dyn ReadAt> = unopened(disk, &name, disk.open(&name))?;
        let mut scan = RecoveryScan::new(reader, base)?;
        let mut columns = BatchColumns::default();
        let is_whole = loop {
            columns.clear();
            match scan.read(&mut columns, CALL_ROWS) {
                Ok(true) => {}
                Ok(false) => break true,
                Err(damage) if damage.is_unread() => return Err(damage.in_file(&disk.path(&name)).into()),
                Err(_) => break false,
            }
        };
        end = End { offset: scan.last_offset() + 1, segment, bytes: scan.position() };
        if !is_whole {
            break;
        }
    }
    Ok(end)
}

fn states_behind(names: &[String], offset: i64) -> Vec<String> {
    let of = |ending| offsets_of(names, ending).into_iter().map(move |it| (it, ending == STATE, name_of(it, ending)));
    let mut states: Vec<_> = of(STATE).chain(of(SNAPSHOT)).filter(|it| it.0 > offset).collect();
    states.sort_unstable_by(|one, other| other.cmp(one));
    states.into_iter().map(|(_, _, name)| name).collect()
}

fn bytes_of(disk: &dyn Disk, base: i64) -> Result<u64> {
    let name = name_of(base, LOG);
    unopened(disk, &name, disk.open(&name).and_then(|file| file.bytes()))
}

/// Removes files durably.
fn remove_all(disk: &dyn Disk, names: &[String]) -> Result<()> {
    let fail = |name: &str, error| refused(disk, name, error, UNFINISHED);
    names.iter().try_for_each(|name| disk.remove(name).map_err(|error| fail(name, error)))?;
    if names.is_empty() { Ok(()) } else { disk.sync().map_err(|error| fail("", error)) }
}
