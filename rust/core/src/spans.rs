//! The first pass over a batch. It validates every value and cuts the rows into spans.
//!
//! Both happen in one pass over the columns, because reading them is the main cost of a call if producers write long
//! spans. A row continues a span if pid, partition and epoch equal those of the previous row and seq is one more. Other
//! columns of untracked rows can have any value.
//!
//! The result is one bit per row. If keys come in random order, every row begins a span, and a list of spans would cost
//! time without a benefit. If spans are long, the first row of each is copied while it is in the cache. Reading these
//! rows from the columns again would take longer than judging them.

use crate::batch::{Batch, Seqs};
use crate::dispatch::{Work, dispatch};
use crate::error::make_room;
use crate::prefetch::{STEP, prefetch};
use crate::{Column, Error, Result, Untracked};

/// Number of rows that are read together, one bit of a word each.
pub(crate) const BLOCK: usize = 64;

/// Sequence numbers of either width.
pub(crate) trait Seq: Copy {
    fn wide(self) -> i64;
    fn follows(self, before: Self) -> bool;
}

impl Seq for i32 {
    #[inline]
    fn wide(self) -> i64 {
        i64::from(self)
    }

    #[inline]
    fn follows(self, before: Self) -> bool {
        self == before.wrapping_add(1)
    }
}

impl Seq for i64 {
    #[inline]
    fn wide(self) -> i64 {
        self
    }

    #[inline]
    fn follows(self, before: Self) -> bool {
        self == before.wrapping_add(1)
    }
}

/// The valid values of a row.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// The greatest sequence number.
    pub seq_max: i64,
    /// Whether rows without a producer are valid.
    pub untracked: Untracked,
}

/// The spans of a batch.
#[derive(Default)]
pub(crate) struct Cut {
    /// Bit `b` of word `w`: whether row `64 w + b + 1` begins a span. Row 0 always does. Not used if the caller passes
    /// lengths.
    begins: Vec<u64>,
    /// The first row of each span, if the batch has one line per span.
    starts: Vec<u32>,
    spans: usize,
    pub(crate) rows: u32,
    /// Whether the batch has one line per span instead of one per row. This holds for the caller's batch or for
    /// [`Cut::batch`].
    pub(crate) is_gathered: bool,
    heads: Heads,
}

/// The first rows of spans.
#[derive(Default)]
struct Heads {
    /// Whether the first rows are copied and represent the batch.
    are_used: bool,
    has_epochs: bool,
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
}

/// First rows are copied if there is at most one span in this number of rows.
const ROWS_A_HEAD: usize = 8;
/// If spans are shorter, at most this number of first rows is copied in vain.
const HEADS_IN_VAIN: usize = BLOCK;
/// Capacity that is kept between calls.
const HEADS_KEPT: usize = 1 << 13;

impl Cut {
    /// How many spans there are.
    pub(crate) fn len(&self) -> usize {
        self.spans
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let Heads { pid, partition, epoch, seq, .. } = &self.heads;
        let heads = (pid.capacity() + seq.capacity()) * size_of::<i64>()
            + partition.capacity() * size_of::<i32>()
            + epoch.capacity() * size_of::<i16>();
        heads + self.begins.capacity() * size_of::<u64>() + self.starts.capacity() * size_of::<u32>()
    }

    /// Frees memory that only batches with many spans need.
    pub(crate) fn shrink(&mut self) {
        if self.heads.pid.capacity() > HEADS_KEPT {
            (self.heads, self.starts) = (Heads::default(), Vec::new());
        }
    }

    /// The batch to which [`Cut::line`] refers: the original, or the first rows of its spans.
    pub(crate) fn batch<'a>(&'a self, batch: &Batch<'a>) -> Batch<'a> {
        let Heads { are_used, has_epochs, pid, partition, epoch, seq } = &self.heads;
        if !are_used {
            return *batch;
        }
        Batch { pid, partition, epoch: has_epochs.then_some(epoch), seq: Seqs::I64(seq), timestamp: None }
    }

    /// The line of a span in the batch. `start`: its first row.
    #[inline(always)]
    pub(crate) fn line(&self, span: usize, start: u32) -> usize {
        if self.is_gathered { span } else { start as usize }
    }

    /// Reads the spans in order.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { cut: self, span: 0, start: 0, word: 0, bits: self.begins.first().copied().unwrap_or(0) }
    }

    /// For each span: its line in the batch, its first row, and the row after its last.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let mut cursor = self.cursor();
        (0..self.spans).map(move |span| {
            let start = cursor.start;
            cursor.advance();
            (self.line(span, start), start as usize, cursor.start as usize)
        })
    }

    /// Validates a batch and finds its spans.
    pub(crate) fn find(&mut self, batch: &Batch<'_>, domain: &Domain) -> Result<()> {
        self.scan(batch, domain, false)
    }

    /// Like `find`, for a batch whose spans are judged by their first rows alone.
    pub(crate) fn gather(&mut self, batch: &Batch<'_>, domain: &Domain) -> Result<()> {
        self.scan(batch, domain, true)?;
        self.is_gathered = self.heads.are_used;
        Ok(())
    }

    fn scan(&mut self, batch: &Batch<'_>, domain: &Domain, gathers: bool) -> Result<()> {
        check_lengths(batch)?;
        (self.is_gathered, self.rows, self.spans) = (false, batch.len() as u32, 0);
        self.begins.clear();
        self.heads.begin(gathers && !batch.is_empty(), batch.epoch.is_some(), &mut self.starts);
        if batch.is_empty() {
            return Ok(());
        }
        make_room(&mut self.begins, batch.len().div_ceil(BLOCK))?;
        let epoch = batch.epoch.unwrap_or(&[]);
        let Cut { begins, starts, heads, .. } = self;
        self.spans = match batch.seq {
            Seqs::I32(seq) => dispatch(Scan { columns: Columns { batch, epoch, seq }, domain, begins, starts, heads }),
            Seqs::I64(seq) => dispatch(Scan { columns: Columns { batch, epoch, seq }, domain, begins, starts, heads }),
        }?;
        Ok(())
    }

    /// Validates a batch with one line per span. `lengths` has the number of rows of each span.
    pub(crate) fn take(&mut self, batch: &Batch<'_>, lengths: &[u32], domain: &Domain) -> Result<()> {
        let fail = |row, problem| Err(Error::Batch { column: Column::Seq, row, problem });
        if lengths.len() != batch.len() {
            return fail(None, format!("has {} rows, but {} lengths were passed", batch.len(), lengths.len()));
        }
        self.find(batch, domain)?;
        self.starts.clear();
        make_room(&mut self.starts, lengths.len())?;
        let mut rows = 0u32;
        for (span, &length) in lengths.iter().enumerate() {
            let seq = batch.seq.get(span);
            let is_beyond = batch.pid[span] != -1 && seq > domain.seq_max - i64::from(length.max(1) - 1);
            if length == 0 || is_beyond {
                let within = format!("at least 1 row, and the last row within 0..={}", domain.seq_max);
                return fail(Some(span), format!("a span of {length} rows from {seq} on; expected {within}"));
            }
            self.starts.push(rows);
            let Some(sum) = rows.checked_add(length) else {
                return fail(Some(span), format!("a call takes at most {} rows: use several calls", u32::MAX));
            };
            rows = sum;
        }
        (self.is_gathered, self.rows, self.spans) = (true, rows, lengths.len());
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

    /// Copies the rows that `word` selects, beginning at `from`, and stops if spans are too short. It is called once
    /// per 64 rows, so it is not compiled for each kind of processor.
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

/// Iterates over the spans of a batch.
pub(crate) struct Cursor<'a> {
    cut: &'a Cut,
    /// The number of the next span.
    pub(crate) span: usize,
    /// Its first row. After the last span, the number of rows.
    start: u32,
    /// The word of `begins` with the next span, and the unread bits of that word.
    word: usize,
    bits: u64,
}

impl Cursor<'_> {
    /// Writes the first row of each of the next spans to `bounds`, then the row after the last. Returns their number.
    #[inline(always)]
    pub(crate) fn next_spans(&mut self, bounds: &mut [u32; STEP + 1]) -> usize {
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
            self.span += STEP;
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

    /// Moves to the next span.
    #[inline(always)]
    fn advance(&mut self) {
        self.span += 1;
        if self.cut.is_gathered {
            self.start = self.cut.starts.get(self.span).copied().unwrap_or(self.cut.rows);
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

    /// Loads the next word with a set bit if the current one has none left.
    #[inline(always)]
    fn refill(&mut self) {
        while self.bits == 0 && self.word + 1 < self.cut.begins.len() {
            self.word += 1;
            self.bits = self.cut.begins[self.word];
        }
    }

    /// The row of the first unread bit.
    #[inline(always)]
    fn first_of_bits(&self) -> u32 {
        (self.word * BLOCK) as u32 + self.bits.trailing_zeros() + 1
    }
}

/// Validates a batch and writes the first row of each of its spans to `starts`. A span has rows of one key and epoch
/// with consecutive sequence numbers.
pub fn find_spans(batch: &Batch<'_>, domain: &Domain, starts: &mut Vec<u32>) -> Result<()> {
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
        let problem = format!("has {rows} rows, but a call takes at most {}: use several calls", u32::MAX);
        return Err(Error::Batch { column: Column::Pid, row: None, problem });
    }
    Ok(())
}

/// The columns with static types. `epoch` is empty if there are no epochs.
struct Columns<'a, S> {
    batch: &'a Batch<'a>,
    epoch: &'a [i16],
    seq: &'a [S],
}

/// The first pass over a batch. Returns the number of spans.
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
    let (mut row, mut spans) = (1, 1);
    while row + BLOCK <= rows {
        prefetch_ahead(columns.batch.pid, row);
        prefetch_ahead(columns.batch.partition, row);
        prefetch_ahead(columns.seq, row);
        prefetch_ahead(columns.epoch, row);
        let (word, is_suspect) = scan_block(&columns, domain, row);
        if is_suspect {
            check_rows(&columns, domain, row..row + BLOCK)?;
        }
        begins.push(word);
        if heads.are_used && word != 0 {
            heads.take(&columns, row, word, starts)?;
        }
        spans += word.count_ones() as usize;
        row += BLOCK;
    }
    check_rows(&columns, domain, row..rows)?;
    let word = (row..rows).fold(0, |word, at| word | u64::from(!is_continuation(&columns, at)) << (at - row));
    begins.push(word);
    if heads.are_used {
        heads.take(&columns, row, word, starts)?;
    }
    Ok(spans + word.count_ones() as usize)
}

/// Prefetches rows of a later block. Processors recognize sequential reads of columns, but stop at the end of a page.
#[inline(always)]
fn prefetch_ahead<T>(column: &[T], row: usize) {
    const AHEAD: usize = 8 * BLOCK;
    let ahead = column.as_ptr().wrapping_add(row + AHEAD).cast::<u8>();
    (0..BLOCK * size_of::<T>()).step_by(64).for_each(|byte| prefetch(ahead.wrapping_add(byte)));
}

#[inline(always)]
fn is_continuation<S: Seq>(columns: &Columns<'_, S>, row: usize) -> bool {
    let Columns { batch, epoch, seq } = columns;
    batch.pid[row] == batch.pid[row - 1]
        && batch.partition[row] == batch.partition[row - 1]
        && (epoch.is_empty() || epoch[row] == epoch[row - 1])
        && seq[row].follows(seq[row - 1])
}

/// Finds which of the 64 rows from `row` on begin a span, and whether any value needs a closer check. It loops over
/// arrays of fixed length without a branch, so that the compiler can vectorize it.
#[inline(always)]
fn scan_block<S: Seq>(columns: &Columns<'_, S>, domain: &Domain, row: usize) -> (u64, bool) {
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
        begins[i] |= u8::from(!seq[i].follows(seq_before[i]));
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

/// Packs bytes with the values 0 and 1 into bits.
#[inline(always)]
pub(crate) fn pack(bytes: &[u8; BLOCK]) -> u64 {
    let mut word = 0;
    for (index, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // The multiplication collects the low bits of eight bytes in the top byte.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= gathered << (8 * index);
    }
    word
}

/// Checks rows one by one and reports the first invalid one.
#[cold]
#[inline(never)]
fn check_rows<S: Seq>(columns: &Columns<'_, S>, domain: &Domain, rows: std::ops::Range<usize>) -> Result<()> {
    let Columns { batch, epoch, seq } = columns;
    for row in rows {
        let fail = |column, problem| Err(Error::Batch { column, row: Some(row), problem });
        let pid = batch.pid[row];
        if pid == -1 {
            if domain.untracked == Untracked::Fail {
                let problem = "carries no producer (null or -1), which untracked='fail' refuses. untracked='keep' \
                               keeps such rows, but does not recognize their repeats";
                return fail(Column::Pid, problem.into());
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
                ", the range of this policy; 64-bit counters need a policy with wrap=None"
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

    /// Columns with spans of 1 to 130 rows, so that spans begin at every place of a block.
    fn columns(rows: usize) -> (Vec<i64>, Vec<i32>, Vec<i16>, Vec<i32>) {
        let (mut pid, mut partition, mut epoch, mut seq) = (vec![], vec![], vec![], vec![]);
        let mut span = 0;
        while pid.len() < rows {
            for row in 0..1 + span * 37 % 130 {
                pid.push(i64::from(span % 3));
                partition.push(span % 2);
                epoch.push((span % 5 / 4) as i16);
                seq.push(span * 1000 + row);
            }
            span += 1;
        }
        pid.truncate(rows);
        partition.truncate(rows);
        epoch.truncate(rows);
        seq.truncate(rows);
        (pid, partition, epoch, seq)
    }

    #[test]
    fn every_path_finds_the_same_spans_as_a_row_by_row_scan() {
        for rows in [1, 2, 63, 64, 65, 66, 128, 129, 1000, 5000] {
            let (pid, partition, epoch, seq) = columns(rows);
            let batch =
                Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq: Seqs::I32(&seq), timestamp: None };
            let columns = Columns { batch: &batch, epoch: &epoch, seq: &seq };
            let expected: Vec<u32> =
                (0..rows).filter(|&row| row == 0 || !is_continuation(&columns, row)).map(|row| row as u32).collect();
            let mut dispatched = Vec::new();
            find_spans(&batch, &DOMAIN, &mut dispatched).expect("valid rows");
            let mut portable = Cut { rows: rows as u32, ..Cut::default() };
            let Cut { begins, starts, heads, .. } = &mut portable;
            let work = Scan { columns, domain: &DOMAIN, begins, starts, heads };
            portable.spans = scan(work).expect("valid rows");
            assert_eq!(dispatched, expected);
            let spans: Vec<_> = portable.spans().collect();
            let ends = expected.iter().skip(1).copied().chain([rows as u32]);
            let lines = expected.iter().zip(ends).map(|(&start, end)| (start as usize, start as usize, end as usize));
            assert!(spans.into_iter().eq(lines));
        }
    }

    /// If spans are long, there is one line per span, with the same rows. If most rows begin a span, there are none,
    /// whether this shows at the start or later.
    #[test]
    fn first_rows_represent_long_spans() {
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
            let expected: Vec<_> = cut.spans().map(|(_, start, end)| (start, end)).collect();
            assert!(std::ptr::eq(cut.batch(&batch).pid, &raw const pid[..rows]));
            cut.gather(&batch, &DOMAIN).expect("valid rows");
            assert_eq!(cut.is_gathered, are_gathered, "{rows} rows");
            let spans: Vec<_> = cut.spans().map(|(_, start, end)| (start, end)).collect();
            assert_eq!(spans, expected);
            let gathered = cut.batch(&batch);
            for (line, start, _) in cut.spans() {
                let of_line = (gathered.pid[line], gathered.partition[line], gathered.seq.get(line));
                assert_eq!(of_line, (pid[start], partition[start], i64::from(seq[start])));
                assert_eq!(gathered.epoch.map(|epoch| epoch[line]), Some(epoch[start]));
            }
            assert!(!are_gathered || gathered.len() == spans.len());
        }
        cut.shrink();
        assert!(cut.memory_bytes() < 1 << 16);
    }

    #[test]
    fn a_bad_value_is_found_in_any_position() {
        for row in [0, 1, 63, 64, 65, 128, 199] {
            let (pid, mut partition, epoch, seq) = columns(200);
            partition[row] = -5;
            let batch =
                Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq: Seqs::I32(&seq), timestamp: None };
            let error = find_spans(&batch, &DOMAIN, &mut Vec::new()).expect_err("a negative partition");
            assert_eq!(error.to_string(), format!("column 'partition', row {row}: value -5 is outside 0..=2147483647"));
        }
    }
}
