//! Producers by key: in lines with the optional data that rows need, or in the overflow.

use super::batch::{Control, Origin, ProduceBatches, Row};
use super::judge::{Judgement, Producer, Rules};
use super::line::{BatchLine, Offsets, SideData, Times};
use super::{CHUNK, Call, NONE};
use crate::lines::{EntryKey, Line, Lines, Searches};
use crate::prefetch::STEP;
use crate::slab::Slab;
use crate::{Result, Verdict};
use rustc_hash::FxHashMap;

/// The optional data of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bare,
    Times,
    Offsets,
}

impl Kind {
    /// The data that these batches need.
    pub(super) fn of(batches: &ProduceBatches<'_>) -> Kind {
        match (batches.has_offsets(), batches.timestamp) {
            (true, _) => Kind::Offsets,
            (false, Some(_)) => Kind::Times,
            (false, None) => Kind::Bare,
        }
    }
}

/// Producers in lines of one kind.
pub(super) enum Shelves {
    Bare(Shelf<()>),
    Times(Shelf<Times>),
    Offsets(Shelf<Offsets>),
}

/// Runs an expression for the shelf, whatever its kind.
macro_rules! with_shelf {
    ($shelves:expr, $shelf:ident => $do:expr) => {
        match $shelves {
            $crate::broker::shelf::Shelves::Bare($shelf) => $do,
            $crate::broker::shelf::Shelves::Times($shelf) => $do,
            $crate::broker::shelf::Shelves::Offsets($shelf) => $do,
        }
    };
}
pub(super) use with_shelf;

impl Shelves {
    pub(super) fn new() -> Shelves {
        Shelves::Bare(Shelf::new())
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Shelves::Bare(_) => Kind::Bare,
            Shelves::Times(_) => Kind::Times,
            Shelves::Offsets(_) => Kind::Offsets,
        }
    }

    /// Moves all producers to lines with more data when a table first needs it.
    pub(super) fn widen(&mut self, kind: Kind) -> Result<()> {
        if kind > self.kind() {
            *self = with_shelf!(&*self, shelf => match kind {
                Kind::Bare => Shelves::Bare(shelf.copied()?),
                Kind::Times => Shelves::Times(shelf.copied()?),
                Kind::Offsets => Shelves::Offsets(shelf.copied()?),
            });
        }
        Ok(())
    }
}

/// A hash table of lines, and the overflow for producers that do not fit into one.
pub(super) struct Shelf<B: SideData> {
    lines: Lines<BatchLine<B>>,
    overflow: Slab<Producer>,
    producers: usize,
    /// The producer that is being judged. It is reused, to keep the memory of its window.
    scratch: Producer,
}

impl<B: SideData> Shelf<B> {
    fn new() -> Shelf<B> {
        Shelf { lines: Lines::new(None), overflow: Slab::default(), producers: 0, scratch: Producer::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.producers
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let window = |producer: &Producer| producer.window.capacity() * size_of::<super::WindowBatch>();
        self.lines.memory_bytes() + self.overflow.memory_bytes(window)
    }

    pub(super) fn for_each_key(&self, mut visit: impl FnMut(i64, i32)) {
        self.lines.for_each(|key, _| visit(key.pid, key.partition));
    }

    /// Reads the state of a producer. Returns false if it is unknown.
    pub(super) fn read(&self, pid: i64, partition: i32, producer: &mut Producer) -> bool {
        let Some(place) = self.lines.find(EntryKey::newest(pid, partition)) else { return false };
        read_line(&self.lines.read(place), &self.overflow, producer)
    }

    /// Stores a producer, and replaces its old state.
    pub(super) fn put(&mut self, pid: i64, partition: i32, producer: &Producer) -> Result<()> {
        self.lines.reserve(1)?;
        let line = self.lines.add(EntryKey::newest(pid, partition));
        self.producers += usize::from(line.is_empty());
        write_line(line, &mut self.overflow, producer);
        Ok(())
    }

    fn copied<C: SideData>(&self) -> Result<Shelf<C>> {
        let mut copy = Shelf::new();
        let (mut producer, mut enough) = (Producer::default(), Ok(()));
        self.lines.for_each(|key, line| {
            if enough.is_ok() && read_line(&line, &self.overflow, &mut producer) {
                enough = copy.put(key.pid, key.partition, &producer);
            }
        });
        enough.map(|()| copy)
    }

    /// Keeps the producers for which `keep` returns true, with its changes. Returns the number of dropped producers.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Producer) -> bool) -> usize {
        let (before, mut producer, mut places) = (self.producers, Producer::default(), Vec::new());
        for segment in 0..self.lines.segments() {
            self.lines.for_each_line(segment, |place, _, _| places.push(place.slot(0)));
            for place in places.drain(..) {
                let line = self.lines.line_at(place);
                if !read_line(line, &self.overflow, &mut producer) {
                    continue;
                }
                if keep(&mut producer) {
                    write_line(line, &mut self.overflow, &producer);
                } else {
                    line.in_overflow().into_iter().for_each(|number| self.overflow.free(number));
                    line.clear(0);
                    self.producers -= 1;
                }
            }
        }
        self.lines.shrink();
        before - self.producers
    }

    /// Judges batches in three passes over each chunk: hash and prefetch the tags; find and prefetch the lines; judge.
    pub(super) fn judge(
        &mut self,
        batches: &ProduceBatches<'_>,
        rules: &Rules,
        assigns: bool,
        log_ends: &mut FxHashMap<i32, i64>,
        call: &mut Call,
    ) -> Result<()> {
        let mut searches = [Searches::none(); CHUNK / STEP];
        for from in (0..batches.len()).step_by(CHUNK) {
            let rows = (batches.len() - from).min(CHUNK);
            self.lines.reserve_midway(CHUNK, 0)?;
            let (pids, partitions) = (&batches.pid[from..][..rows], &batches.partition[from..][..rows]);
            // Producers often write many batches in a row: one search is enough for all of them.
            let is_one = pids.iter().all(|pid| *pid == pids[0]) && partitions.iter().all(|it| *it == partitions[0]);
            let (searched, step) = if is_one { (1, 0) } else { (rows, 1) };
            let searches = &mut searches[..searched.div_ceil(STEP)];
            for (number, searches) in searches.iter_mut().enumerate() {
                let of_step = number * STEP..(number * STEP + STEP).min(searched);
                let (mut pid, mut partition) = ([0; STEP], [0; STEP]);
                pid[..of_step.len()].copy_from_slice(&pids[of_step.clone()]);
                partition[..of_step.len()].copy_from_slice(&partitions[of_step]);
                self.lines.begin(&pid, &partition, searches);
            }
            searches.iter_mut().for_each(|searches| self.lines.prefetch_lines(searches));
            for at in 0..rows {
                let (row, at) = (batches.row(from + at, assigns), at * step);
                let search = (&searches[at / STEP], at % STEP);
                if call.follows {
                    self.judge_in_log(row, search, rules, assigns, log_ends, call);
                } else {
                    self.judge_row(&row, search, rules, false, call);
                }
            }
        }
        Ok(())
    }

    /// Judges a row of a log with a known end, and moves the end.
    fn judge_in_log(
        &mut self,
        mut row: Row,
        search: (&Searches, usize),
        rules: &Rules,
        assigns: bool,
        log_ends: &mut FxHashMap<i32, i64>,
        call: &mut Call,
    ) {
        let end = log_ends.get(&row.partition).copied().unwrap_or(0);
        if assigns && row.origin != Origin::Replica {
            row.offset = end;
        }
        // An offset above 0 shows that there were earlier records, seen or not.
        let is_new_partition = end == 0 && row.offset <= 0;
        if self.judge_row(&row, search, rules, is_new_partition, call) {
            let records = if row.control == Control::Data { i64::from(row.delta) + 1 } else { 1 };
            let first = if row.offset == NONE { end } else { row.offset };
            log_ends.insert(row.partition, first + records);
        }
    }

    /// Judges a row. Returns whether it was accepted or not judged, and so is in the log.
    #[inline(always)]
    fn judge_row(
        &mut self,
        row: &Row,
        search: (&Searches, usize),
        rules: &Rules,
        is_new: bool,
        call: &mut Call,
    ) -> bool {
        if row.pid < 0 {
            call.note(Verdict::Untracked, row.offset);
            return true;
        }
        if let Some(line) = self.lines.find_searched(search.0, search.1, (row.pid, row.partition))
            && line.try_append(row, rules.window)
        {
            call.accept(row.offset);
            return true;
        }
        self.judge_unclear(row, rules, is_new, call)
    }

    /// Judges a row that the line alone cannot decide.
    #[cold]
    #[inline(never)]
    fn judge_unclear(&mut self, row: &Row, rules: &Rules, is_new: bool, call: &mut Call) -> bool {
        let key = EntryKey::newest(row.pid, row.partition);
        let mut producer = std::mem::take(&mut self.scratch);
        let is_known = self.read(row.pid, row.partition, &mut producer);
        let judgement = rules.judge(is_known.then_some(&producer), row, is_new);
        call.note_judgement(judgement, row.offset);
        if judgement == Judgement::Accepted && !matches!(row.control, Control::Empty | Control::Other) {
            if !is_known {
                producer = Producer { window: std::mem::take(&mut producer.window), ..Producer::unknown(row.epoch) };
                producer.window.clear();
                self.producers += 1;
            }
            producer.take(row, rules.window);
            write_line(self.lines.add(key), &mut self.overflow, &producer);
        }
        self.scratch = producer;
        judgement == Judgement::Accepted
    }
}

/// Reads a producer from its line. Returns false if the line is empty.
fn read_line<B: SideData>(line: &BatchLine<B>, overflow: &Slab<Producer>, producer: &mut Producer) -> bool {
    match line.in_overflow() {
        Some(number) => producer.copy_from(overflow.get(number)),
        None => line.read_to(producer),
    }
    !line.is_empty()
}

/// Stores a producer in its line if it fits, otherwise in the overflow.
fn write_line<B: SideData>(line: &mut BatchLine<B>, overflow: &mut Slab<Producer>, producer: &Producer) {
    let number = line.in_overflow();
    if line.write_from(producer) {
        number.into_iter().for_each(|number| overflow.free(number));
        return;
    }
    let number = number.unwrap_or_else(|| overflow.add());
    line.put_in_overflow(number);
    overflow.get_mut(number).copy_from(producer);
}
