//! The first pass over a batch: every value is validated, and rows are gathered into runs.
//!
//! Both happen in one reading of the columns, for reading them is what the whole call costs when
//! producers write in runs. A row goes on a run when pid, partition and epoch are those of the row
//! before and seq is one more. The untracked rows' other columns may hold anything.
//!
//! What is found is a bit a row: where keys come in random order every row begins a run, and a list of runs would be
//! written and read for nothing. Where runs are long, the first row of each is copied while it is in the cache: it would
//! take longer to read them from the columns again than to judge them.

use crate::batch::{Batch, Seqs};
use crate::dispatch::{Work, dispatch};
use crate::error::make_room;
use crate::prefetch::{STEP, prefetch};
use crate::{Column, Error, Result, Untracked};

/// Rows looked at together; one bit of a word each.
pub(crate) const BLOCK: usize = 64;

/// Sequence numbers of either width.
pub(crate) trait Seq: Copy {
    fn wide(self) -> i64;
    fn goes_on(self, before: Self) -> bool;
}

impl Seq for i32 {
    #[inline]
    fn wide(self) -> i64 {
        i64::from(self)
    }

    #[inline]
    fn goes_on(self, before: Self) -> bool {
        self == before.wrapping_add(1)
    }
}

impl Seq for i64 {
    #[inline]
    fn wide(self) -> i64 {
        self
    }

    #[inline]
    fn goes_on(self, before: Self) -> bool {
        self == before.wrapping_add(1)
    }
}

/// What a valid row may hold.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// The greatest sequence number.
    pub seq_max: i64,
    /// Whether rows may come without a producer.
    pub untracked: Untracked,
}

/// How the rows of a batch are cut into runs.
#[derive(Default)]
pub(crate) struct Cut {
    /// Bit `b` of word `w`: whether row `64 w + b + 1` begins a run; row 0 does. Not used where lengths were given.
    begins: Vec<u64>,
    /// The first row of each run, where the batch has a line a run.
    starts: Vec<u32>,
    runs: usize,
    pub(crate) rows: u32,
    /// Whether the batch has a line a run, and not a line a row: that which was given, or that of [`Cut::batch`].
    pub(crate) is_gathered: bool,
    heads: Heads,
}

/// The first rows of runs.
#[derive(Default)]
struct Heads {
    /// Whether they are gathered, and stand for the batch.
    are_used: bool,
    has_epochs: bool,
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
}

/// One run in so many rows, at the most, where first rows are gathered.
const ROWS_A_HEAD: usize = 8;
/// Of a batch whose first rows come more often, so many are gathered in vain.
const HEADS_IN_VAIN: usize = BLOCK;
/// So many are kept from call to call.
const HEADS_KEPT: usize = 1 << 13;

impl Cut {
    /// How many runs there are.
    pub(crate) fn len(&self) -> usize {
        self.runs
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let Heads { pid, partition, epoch, seq, .. } = &self.heads;
        let heads = (pid.capacity() + seq.capacity()) * size_of::<i64>()
            + partition.capacity() * size_of::<i32>()
            + epoch.capacity() * size_of::<i16>();
        heads + self.begins.capacity() * size_of::<u64>() + self.starts.capacity() * size_of::<u32>()
    }

    /// Gives back memory that only a batch of many runs needs.
    pub(crate) fn shrink(&mut self) {
        if self.heads.pid.capacity() > HEADS_KEPT {
            (self.heads, self.starts) = (Heads::default(), Vec::new());
        }
    }

    /// The batch whose lines are meant by [`Cut::line`]: that which was cut, or the first rows of its runs.
    pub(crate) fn batch<'a>(&'a self, batch: &Batch<'a>) -> Batch<'a> {
        let Heads { are_used, has_epochs, pid, partition, epoch, seq } = &self.heads;
        if !are_used {
            return *batch;
        }
        Batch { pid, partition, epoch: has_epochs.then_some(epoch), seq: Seqs::I64(seq), timestamp: None }
    }

    /// Where in the batch a run stands that begins with the row `start`.
    #[inline(always)]
    pub(crate) fn line(&self, run: usize, start: u32) -> usize {
        if self.is_gathered { run } else { start as usize }
    }

    /// Reads the runs in order.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { cut: self, run: 0, start: 0, word: 0, bits: self.begins.first().copied().unwrap_or(0) }
    }

    /// For each run its line in the batch, its first row and the row after its last.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let mut cursor = self.cursor();
        (0..self.runs).map(move |run| {
            let start = cursor.start;
            cursor.advance();
            (self.line(run, start), start as usize, cursor.start as usize)
        })
    }

    /// Validates a batch and finds its runs.
    pub(crate) fn find(&mut self, batch: &Batch<'_>, domain: &Domain) -> Result<()> {
        self.scan(batch, domain, false)
    }

    /// The same for a batch whose runs will be judged by their first rows alone.
    pub(crate) fn gather(&mut self, batch: &Batch<'_>, domain: &Domain) -> Result<()> {
        self.scan(batch, domain, true)?;
        self.is_gathered = self.heads.are_used;
        Ok(())
    }

    fn scan(&mut self, batch: &Batch<'_>, domain: &Domain, gathers: bool) -> Result<()> {
        check_lengths(batch)?;
        (self.is_gathered, self.rows, self.runs) = (false, batch.len() as u32, 0);
        self.begins.clear();
        self.heads.begin(gathers && !batch.is_empty(), batch.epoch.is_some(), &mut self.starts);
        if batch.is_empty() {
            return Ok(());
        }
        make_room(&mut self.begins, batch.len().div_ceil(BLOCK))?;
        let epoch = batch.epoch.unwrap_or(&[]);
        let Cut { begins, starts, heads, .. } = self;
        self.runs = match batch.seq {
            Seqs::I32(seq) => dispatch(Scan { columns: Columns { batch, epoch, seq }, domain, begins, starts, heads }),
            Seqs::I64(seq) => dispatch(Scan { columns: Columns { batch, epoch, seq }, domain, begins, starts, heads }),
        }?;
        Ok(())
    }

    /// Validates a batch that has a line a run, of as many rows as `lengths` says.
    pub(crate) fn take(&mut self, batch: &Batch<'_>, lengths: &[u32], domain: &Domain) -> Result<()> {
        let fail = |row, problem| Err(Error::Batch { column: Column::Seq, row, problem });
        if lengths.len() != batch.len() {
            return fail(None, format!("has {} rows, of which {} lengths are given", batch.len(), lengths.len()));
        }
        self.find(batch, domain)?;
        self.starts.clear();
        make_room(&mut self.starts, lengths.len())?;
        let mut rows = 0u32;
        for (run, &length) in lengths.iter().enumerate() {
            let seq = batch.seq.get(run);
            let is_beyond = batch.pid[run] != -1 && seq > domain.seq_max - i64::from(length.max(1) - 1);
            if length == 0 || is_beyond {
                let within = format!("1 and above, and the last row within 0..={}", domain.seq_max);
                return fail(Some(run), format!("a run of {length} rows from {seq} on; needed are {within}"));
            }
            self.starts.push(rows);
            let Some(sum) = rows.checked_add(length) else {
                return fail(Some(run), format!("a call takes at most {} rows", u32::MAX));
            };
            rows = sum;
        }
        (self.is_gathered, self.rows, self.runs) = (true, rows, lengths.len());
        Ok(())
    }
}

impl Heads {
    fn begin(&mut self, are_used: bool, has_epochs: bool, starts: &mut Vec<u32>) {
        (self.are_used, self.has_epochs) = (are_used, has_epochs);
        starts.clear();
        self.pid.clear();
        self.partition.clear();
        self.epoch.clear();
        self.seq.clear();
    }

    /// Copies the rows from `from` on that `word` says; no more, if they come too often. Called once for 64 rows, so it
    /// is not compiled again for each kind of processor.
    #[inline(never)]
    fn take<S: Seq>(&mut self, columns: &Columns<'_, S>, from: usize, word: u64, starts: &mut Vec<u32>) -> Result<()> {
        let Columns { batch, epoch, seq } = columns;
        make_room(starts, BLOCK)?;
        make_room(&mut self.pid, BLOCK)?;
        make_room(&mut self.partition, BLOCK)?;
        make_room(&mut self.epoch, BLOCK)?;
        make_room(&mut self.seq, BLOCK)?;
        let mut bits = word;
        while bits != 0 {
            let row = from + bits.trailing_zeros() as usize;
            starts.push(row as u32);
            self.pid.push(batch.pid[row]);
            self.partition.push(batch.partition[row]);
            self.epoch.push(epoch.get(row).copied().unwrap_or(0));
            self.seq.push(seq[row].wide());
            bits &= bits - 1;
        }
        self.are_used = starts.len() <= from / ROWS_A_HEAD + HEADS_IN_VAIN;
        Ok(())
    }
}

/// The runs of a batch that are still to be read.
pub(crate) struct Cursor<'a> {
    cut: &'a Cut,
    /// The number of the next run.
    pub(crate) run: usize,
    /// Its first row; behind the last run, the number of rows.
    start: u32,
    /// The word of `begins` that tells the run after it, and the bits of that word that are still to be read.
    word: usize,
    bits: u64,
}

impl Cursor<'_> {
    /// Writes the first row of each of the next runs to `bounds`, then the row after the last. Gives how many they are.
    #[inline(always)]
    pub(crate) fn next_runs(&mut self, bounds: &mut [u32; STEP + 1]) -> usize {
        bounds[0] = self.start;
        self.refill();
        let begin = self.bits >> (self.bits.trailing_zeros() & 63);
        if begin & 0xffff == 0xffff && !self.cut.is_gathered {
            let first = self.first_of_bits();
            for (number, bound) in (0..).zip(&mut bounds[1..]) {
                *bound = first + number;
            }
            self.start = bounds[STEP];
            self.bits &= !(0xffff << self.bits.trailing_zeros());
            self.run += STEP;
            return STEP;
        }
        let mut count = 0;
        while count < STEP && self.start < self.cut.rows {
            self.advance();
            count += 1;
            bounds[count] = self.start;
        }
        count
    }

    /// Goes on to the next run.
    #[inline(always)]
    fn advance(&mut self) {
        self.run += 1;
        if self.cut.is_gathered {
            self.start = self.cut.starts.get(self.run).copied().unwrap_or(self.cut.rows);
            return;
        }
        self.refill();
        if self.bits == 0 {
            self.start = self.cut.rows;
        } else {
            self.start = self.first_of_bits();
            self.bits &= self.bits - 1;
        }
    }

    /// Takes the next word that has a bit, where none is left of this one.
    #[inline(always)]
    fn refill(&mut self) {
        while self.bits == 0 && self.word + 1 < self.cut.begins.len() {
            self.word += 1;
            self.bits = self.cut.begins[self.word];
        }
    }

    /// The row of the first bit that is still to be read.
    #[inline(always)]
    fn first_of_bits(&self) -> u32 {
        (self.word * BLOCK) as u32 + self.bits.trailing_zeros() + 1
    }
}

/// Validates a batch and writes the first row of each of its runs to `starts`: rows of one key and epoch whose
/// sequence numbers follow each other.
pub fn find_runs(batch: &Batch<'_>, domain: &Domain, starts: &mut Vec<u32>) -> Result<()> {
    let mut cut = Cut::default();
    cut.find(batch, domain)?;
    starts.clear();
    make_room(starts, cut.len())?;
    starts.extend((!batch.is_empty()).then_some(0));
    for (from, &word) in (1..).step_by(BLOCK).zip(&cut.begins) {
        if word == u64::MAX {
            starts.extend(from..from + BLOCK as u32);
            continue;
        }
        let mut bits = word;
        while bits != 0 {
            starts.push(from + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    Ok(())
}

pub(crate) fn check_lengths(batch: &Batch<'_>) -> Result<()> {
    let rows = batch.len();
    let lengths = [
        (Column::Partition, batch.partition.len()),
        (Column::Epoch, batch.epoch.map_or(rows, <[i16]>::len)),
        (Column::Seq, batch.seq.len()),
        (Column::Timestamp, batch.timestamp.map_or(rows, <[i64]>::len)),
    ];
    if let Some((column, found)) = lengths.into_iter().find(|&(_, length)| length != rows) {
        let problem = format!("has {found} rows, the pid column has {rows}");
        return Err(Error::Batch { column, row: None, problem });
    }
    if rows > u32::MAX as usize {
        let problem = format!("has {rows} rows, a call takes at most {}", u32::MAX);
        return Err(Error::Batch { column: Column::Pid, row: None, problem });
    }
    Ok(())
}

/// The columns with their widths known. `epoch` is empty where there are none.
struct Columns<'a, S> {
    batch: &'a Batch<'a>,
    epoch: &'a [i16],
    seq: &'a [S],
}

/// The first pass over a batch. Gives how many runs there are.
struct Scan<'a, S> {
    columns: Columns<'a, S>,
    domain: &'a Domain,
    begins: &'a mut Vec<u64>,
    starts: &'a mut Vec<u32>,
    heads: &'a mut Heads,
}

impl<S: Seq> Work for Scan<'_, S> {
    type Done = Result<usize>;
    const IS_WIDE: bool = true;

    #[inline(always)]
    fn work(self) -> Result<usize> {
        scan(self)
    }
}

#[inline(always)]
fn scan<S: Seq>(scan: Scan<'_, S>) -> Result<usize> {
    let Scan { columns, domain, begins, starts, heads } = scan;
    let rows = columns.seq.len();
    check_rows(&columns, domain, 0..1)?;
    if heads.are_used {
        heads.take(&columns, 0, 1, starts)?;
    }
    let (mut row, mut runs) = (1, 1);
    while row + BLOCK <= rows {
        prefetch_ahead(columns.batch.pid, row);
        prefetch_ahead(columns.batch.partition, row);
        prefetch_ahead(columns.seq, row);
        prefetch_ahead(columns.epoch, row);
        let (word, is_suspect) = look_at_block(&columns, domain, row);
        if is_suspect {
            check_rows(&columns, domain, row..row + BLOCK)?;
        }
        begins.push(word);
        if heads.are_used && word != 0 {
            heads.take(&columns, row, word, starts)?;
        }
        runs += word.count_ones() as usize;
        row += BLOCK;
    }
    check_rows(&columns, domain, row..rows)?;
    let word = (row..rows).fold(0, |word, at| word | u64::from(!goes_on(&columns, at)) << (at - row));
    begins.push(word);
    if heads.are_used {
        heads.take(&columns, row, word, starts)?;
    }
    Ok(runs + word.count_ones() as usize)
}

/// Prefetches rows of a later block. Processors recognize that columns are read in order, but stop where a page ends.
#[inline(always)]
fn prefetch_ahead<T>(column: &[T], row: usize) {
    const AHEAD: usize = 8 * BLOCK;
    let ahead = column.as_ptr().wrapping_add(row + AHEAD).cast::<u8>();
    (0..BLOCK * size_of::<T>()).step_by(64).for_each(|byte| prefetch(ahead.wrapping_add(byte)));
}

#[inline(always)]
fn goes_on<S: Seq>(columns: &Columns<'_, S>, row: usize) -> bool {
    let Columns { batch, epoch, seq } = columns;
    batch.pid[row] == batch.pid[row - 1]
        && batch.partition[row] == batch.partition[row - 1]
        && (epoch.is_empty() || epoch[row] == epoch[row - 1])
        && seq[row].goes_on(seq[row - 1])
}

/// For the 64 rows from `row` on: which begin a run, and whether any value needs a closer look.
/// Loops over arrays of known length, without a branch, so that they become vector code.
#[inline(always)]
fn look_at_block<S: Seq>(columns: &Columns<'_, S>, domain: &Domain, row: usize) -> (u64, bool) {
    let Columns { batch, epoch, seq } = columns;
    let mut begins = [0u8; BLOCK];
    let (pid, pid_before) = block(batch.pid, row);
    let (partition, partition_before) = block(batch.partition, row);
    let (seq, seq_before) = block(seq, row);
    let mut sign = 0i64;
    let mut highest = i64::MIN;
    for i in 0..BLOCK {
        begins[i] = u8::from(pid[i] != pid_before[i]);
        sign |= pid[i];
    }
    for i in 0..BLOCK {
        begins[i] |= u8::from(partition[i] != partition_before[i]);
    }
    let partition_sign = partition.iter().fold(0, |sign, &value| sign | value);
    for i in 0..BLOCK {
        begins[i] |= u8::from(!seq[i].goes_on(seq_before[i]));
        sign |= seq[i].wide();
    }
    if size_of::<S>() == 8 || domain.seq_max < i64::from(i32::MAX) {
        highest = seq.iter().fold(highest, |highest, &value| highest.max(value.wide()));
    }
    let mut epoch_sign = 0i16;
    if !epoch.is_empty() {
        let (epoch, epoch_before) = block(epoch, row);
        for i in 0..BLOCK {
            begins[i] |= u8::from(epoch[i] != epoch_before[i]);
            epoch_sign |= epoch[i];
        }
    }
    let is_suspect = sign < 0 || partition_sign < 0 || epoch_sign < 0 || highest > domain.seq_max;
    (pack(&begins), is_suspect)
}

/// 64 values, and the 64 that begin one row earlier.
#[inline(always)]
fn block<T>(values: &[T], row: usize) -> (&[T; BLOCK], &[T; BLOCK]) {
    let now = values[row..row + BLOCK].first_chunk().expect("a block was asked for");
    let before = values[row - 1..row - 1 + BLOCK].first_chunk().expect("a block was asked for");
    (now, before)
}

/// One bit for each byte, which is 0 or 1.
#[inline(always)]
pub(crate) fn pack(bytes: &[u8; BLOCK]) -> u64 {
    let mut word = 0;
    for (index, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // The multiplication gathers the low bit of each of eight bytes in the top byte.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= gathered << (8 * index);
    }
    word
}

/// Looks at rows one by one and names the first that is out of its domain.
#[cold]
#[inline(never)]
fn check_rows<S: Seq>(columns: &Columns<'_, S>, domain: &Domain, rows: std::ops::Range<usize>) -> Result<()> {
    let Columns { batch, epoch, seq } = columns;
    for row in rows {
        let fail = |column, problem| Err(Error::Batch { column, row: Some(row), problem });
        let pid = batch.pid[row];
        if pid == -1 {
            if domain.untracked == Untracked::Fail {
                return fail(Column::Pid, "carries no producer (null or -1), and untracked='fail' allows none".into());
            }
            continue;
        }
        if pid < -1 {
            return fail(Column::Pid, format!("value {pid} is outside 0..={} (-1: untracked)", i64::MAX));
        }
        if batch.partition[row] < 0 {
            return fail(Column::Partition, format!("value {} is outside 0..={}", batch.partition[row], i32::MAX));
        }
        if !epoch.is_empty() && epoch[row] < 0 {
            return fail(Column::Epoch, format!("value {} is outside 0..={}", epoch[row], i16::MAX));
        }
        let seq = seq[row].wide();
        if !(0..=domain.seq_max).contains(&seq) {
            let remedy = if domain.seq_max < i64::MAX && seq > domain.seq_max {
                ", the policy's sequence space; wrap=None is for 64-bit counters"
            } else {
                ""
            };
            return fail(Column::Seq, format!("value {seq} is outside 0..={}{remedy}", domain.seq_max));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: Domain = Domain { seq_max: i32::MAX as i64, untracked: Untracked::Keep };

    /// Columns of runs of 1 to 130 rows, so that breaks fall everywhere in a block.
    fn columns(rows: usize) -> (Vec<i64>, Vec<i32>, Vec<i16>, Vec<i32>) {
        let (mut pid, mut partition, mut epoch, mut seq) = (vec![], vec![], vec![], vec![]);
        let mut run = 0;
        while pid.len() < rows {
            for row in 0..1 + run * 37 % 130 {
                pid.push(i64::from(run % 3));
                partition.push(run % 2);
                epoch.push((run % 5 / 4) as i16);
                seq.push(run * 1000 + row);
            }
            run += 1;
        }
        pid.truncate(rows);
        partition.truncate(rows);
        epoch.truncate(rows);
        seq.truncate(rows);
        (pid, partition, epoch, seq)
    }

    #[test]
    fn every_path_finds_the_breaks_that_a_row_by_row_look_finds() {
        for rows in [1, 2, 63, 64, 65, 66, 128, 129, 1000, 5000] {
            let (pid, partition, epoch, seq) = columns(rows);
            let batch =
                Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq: Seqs::I32(&seq), timestamp: None };
            let columns = Columns { batch: &batch, epoch: &epoch, seq: &seq };
            let expected: Vec<u32> =
                (0..rows).filter(|&row| row == 0 || !goes_on(&columns, row)).map(|row| row as u32).collect();
            let mut dispatched = Vec::new();
            find_runs(&batch, &DOMAIN, &mut dispatched).expect("valid rows");
            let mut portable = Cut { rows: rows as u32, ..Cut::default() };
            let Cut { begins, starts, heads, .. } = &mut portable;
            let work = Scan { columns, domain: &DOMAIN, begins, starts, heads };
            portable.runs = scan(work).expect("valid rows");
            assert_eq!(dispatched, expected);
            let runs: Vec<_> = portable.runs().collect();
            let ends = expected.iter().skip(1).copied().chain([rows as u32]);
            let lines = expected.iter().zip(ends).map(|(&start, end)| (start as usize, start as usize, end as usize));
            assert!(runs.into_iter().eq(lines));
        }
    }

    /// As many lines as runs where runs are long, of the same rows; none where most rows begin a run, late or from the
    /// start.
    #[test]
    fn first_rows_stand_for_long_runs() {
        let (mut pid, mut partition, mut epoch, mut seq) = columns(5_000);
        let mut cut = Cut::default();
        for (rows, are_gathered) in [(1, true), (64, true), (65, true), (5_000, true), (0, false), (7_000, false)] {
            if rows > pid.len() {
                let more = rows - pid.len();
                pid.extend(0..more as i64);
                partition.resize(rows, 0);
                epoch.resize(rows, 0);
                seq.resize(rows, 0);
            }
            let batch = Batch {
                pid: &pid[..rows],
                partition: &partition[..rows],
                epoch: Some(&epoch[..rows]),
                seq: Seqs::I32(&seq[..rows]),
                timestamp: None,
            };
            cut.find(&batch, &DOMAIN).expect("valid rows");
            let expected: Vec<_> = cut.runs().map(|(_, start, end)| (start, end)).collect();
            assert!(std::ptr::eq(cut.batch(&batch).pid, &raw const pid[..rows]));
            cut.gather(&batch, &DOMAIN).expect("valid rows");
            assert_eq!(cut.is_gathered, are_gathered, "{rows} rows");
            let runs: Vec<_> = cut.runs().map(|(_, start, end)| (start, end)).collect();
            assert_eq!(runs, expected);
            let gathered = cut.batch(&batch);
            for (line, start, _) in cut.runs() {
                let of_line = (gathered.pid[line], gathered.partition[line], gathered.seq.get(line));
                assert_eq!(of_line, (pid[start], partition[start], i64::from(seq[start])));
                assert_eq!(gathered.epoch.map(|epoch| epoch[line]), Some(epoch[start]));
            }
            assert!(!are_gathered || gathered.len() == runs.len());
        }
        cut.shrink();
        assert!(cut.memory_bytes() < 1 << 16);
    }

    #[test]
    fn a_bad_value_is_found_wherever_it_stands() {
        for row in [0, 1, 63, 64, 65, 128, 199] {
            let (pid, mut partition, epoch, seq) = columns(200);
            partition[row] = -5;
            let batch =
                Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq: Seqs::I32(&seq), timestamp: None };
            let error = find_runs(&batch, &DOMAIN, &mut Vec::new()).expect_err("a negative partition");
            assert_eq!(error.to_string(), format!("column 'partition', row {row}: value -5 is outside 0..=2147483647"));
        }
    }
}
