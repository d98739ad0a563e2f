//! Judges the spans of a call in a pipeline.

use super::call::{Call, Times};
use super::{Cuts, room_for};
use crate::batch::{Batch, Seqs};
use crate::dispatch::{Work, dispatch};
use crate::fast_path::FastOutcome;
use crate::judge::{Rules, Span};
use crate::lines::{RowLine, Searches};
use crate::prefetch::{CHUNK, STEP, prefetch};
use crate::shelf::{InOverflow, Shelf};
use crate::spans::{Cursor, Cut, Seq};
use crate::{Result, Verdict};

/// Judges every span in order.
pub(super) fn judge_batches<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    batches: &[Batch<'a>],
    cuts: &'a Cuts,
    call: &mut Call<'a>,
) -> Result<()> {
    for (batch, cut) in batches.iter().zip(cuts) {
        let batch = &cut.batch(batch);
        match batch.seq {
            Seqs::I32(seq) => dispatch(Spans { shelf, rules, batch, seq, cut, call })?,
            Seqs::I64(seq) => dispatch(Spans { shelf, rules, batch, seq, cut, call })?,
        }
        call.batch_from += cut.rows as usize;
    }
    Ok(())
}

/// The spans of a batch and the shelf that judges them.
struct Spans<'a, 'b, L: RowLine, S> {
    shelf: &'a mut Shelf<L>,
    rules: &'a Rules,
    batch: &'a Batch<'b>,
    seq: &'a [S],
    cut: &'a Cut,
    call: &'a mut Call<'b>,
}

impl<L: RowLine, S: Seq> Work for Spans<'_, '_, L, S> {
    type Done = Result<()>;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn work(self) -> Result<()> {
        judge_spans(self)
    }
}

/// Number of steps that can be in progress at once.
const STEPS: usize = CHUNK / STEP;
/// Number of ticks after which a step prefetches its lines and their entries in the overflow, and after which it is
/// judged. The memory has already arrived. Longer delays would evict it from the nearest cache again.
const LINES_AFTER: usize = 1;
const OVERFLOW_AFTER: usize = 2;
const HOLES_AFTER: usize = 3;
const JUDGED_AFTER: usize = 4;

/// Spans that are judged together.
struct Step {
    count: usize,
    /// The number of the first span.
    from: usize,
    /// The first row of each span, and the row after the last.
    bounds: [u32; STEP + 1],
    pid: [i64; STEP],
    partition: [i32; STEP],
    epoch: [i16; STEP],
    seq: [i64; STEP],
    searches: Searches,
    in_overflow: InOverflow,
}

impl Step {
    fn empty() -> Step {
        Step {
            count: 0,
            from: 0,
            bounds: [0; STEP + 1],
            pid: [0; STEP],
            partition: [0; STEP],
            epoch: [0; STEP],
            seq: [0; STEP],
            searches: Searches::none(),
            in_overflow: InOverflow::NONE,
        }
    }

    /// Takes the next spans of a batch.
    #[inline(always)]
    fn take<S: Seq>(&mut self, cursor: &mut Cursor<'_>, cut: &Cut, batch: &Batch<'_>, seq: &[S]) {
        self.from = cursor.span;
        self.count = cursor.next_spans(&mut self.bounds);
        let first = cut.line(self.from, self.bounds[0]);
        if self.count == STEP && cut.line(self.from + STEP - 1, self.bounds[STEP - 1]) == first + STEP - 1 {
            self.pid = of_step(batch.pid, first);
            self.partition = of_step(batch.partition, first);
            self.seq = of_step(seq, first).map(Seq::wide);
            prefetch_ahead(batch.pid, first);
            prefetch_ahead(batch.partition, first);
            prefetch_ahead(seq, first);
            if let Some(epoch) = batch.epoch {
                self.epoch = of_step(epoch, first);
                prefetch_ahead(epoch, first);
            }
            return;
        }
        for span in 0..self.count {
            let line = cut.line(self.from + span, self.bounds[span]);
            (self.pid[span], self.partition[span], self.seq[span]) =
                (batch.pid[line], batch.partition[line], seq[line].wide());
            if let Some(epoch) = batch.epoch {
                self.epoch[span] = epoch[line];
            }
        }
    }

    #[inline(always)]
    fn key(&self, span: usize) -> (i64, i32) {
        (self.pid[span], self.partition[span])
    }
}

#[inline(always)]
fn of_step<T: Copy>(column: &[T], first: usize) -> [T; STEP] {
    *column[first..].first_chunk().expect("as many lines follow")
}

/// Prefetches the rows of a later step. Columns are read in order, but lines and tags at random in between, so the
/// processor does not recognize the order.
#[inline(always)]
fn prefetch_ahead<T>(column: &[T], first: usize) {
    const AHEAD: usize = CHUNK;
    let rows = column.as_ptr().wrapping_add(first + AHEAD).cast::<u8>();
    (0..STEP * size_of::<T>()).step_by(64).for_each(|byte| prefetch(rows.wrapping_add(byte)));
}

/// Judges all spans in a pipeline. At each tick a step begins (its spans are hashed and their tags prefetched), an
/// earlier step prefetches its lines, and a still earlier one is judged. If no spans remain or the table must grow,
/// empty steps begin until no step is in progress.
#[inline(always)]
fn judge_spans<L: RowLine, S: Seq>(spans: Spans<'_, '_, L, S>) -> Result<()> {
    let Spans { shelf, rules, batch, seq, cut, call } = spans;
    let mut steps: [Step; STEPS] = std::array::from_fn(|_| Step::empty());
    let mut cursor = cut.cursor();
    let (mut tick, mut judged) = (0usize, 0);
    let mut coming = Coming { spans: 0, lines: shelf.lines().len() };
    // Spans with entries in the overflow come in groups. If there was none for some time, the next is unlikely to be
    // one.
    let mut overflow_until = 2 * STEPS;
    while judged < cut.len() {
        let under_way = cursor.span - judged;
        let mut has_room = shelf.room() >= room_for((cut.len() - judged).min(under_way + STEP));
        if !has_room && under_way == 0 {
            let expected = coming.lines_of(cut.len() - judged, judged, shelf.lines().len());
            shelf.reserve_midway(room_for(cut.len() - judged), expected)?;
            has_room = true;
        }
        let step = &mut steps[tick % STEPS];
        step.count = 0;
        step.in_overflow.clear();
        if has_room && cursor.span < cut.len() {
            step.take(&mut cursor, cut, batch, seq);
            shelf.lines().begin(&step.pid, &step.partition, &mut step.searches);
        }
        if tick < overflow_until && shelf.has_overflow() {
            let Step { count, pid, partition, searches, in_overflow, .. } =
                &mut steps[tick.wrapping_sub(OVERFLOW_AFTER) % STEPS];
            shelf.prefetch_overflow(searches, pid, partition, *count, in_overflow);
            let step = &steps[tick.wrapping_sub(HOLES_AFTER) % STEPS];
            shelf.prefetch_holes(&step.in_overflow, &step.seq, step.count);
        }
        // Prefetched memory has time to arrive in between. Two whole steps are more requests than a processor can hold.
        for half in [0..STEP / 2, STEP / 2..STEP] {
            if half.start > 0 {
                let step = &mut steps[tick.wrapping_sub(LINES_AFTER) % STEPS];
                if step.count > 0 {
                    shelf.lines().prefetch_lines(&mut step.searches);
                }
            }
            let step = &steps[tick.wrapping_sub(JUDGED_AFTER) % STEPS];
            if judge_step(shelf, rules, step, half, cut, batch.timestamp, call) {
                overflow_until = tick + 2 * STEPS;
            }
        }
        judged += steps[tick.wrapping_sub(JUDGED_AFTER) % STEPS].count;
        tick += 1;
        if tick.is_multiple_of(STEPS) {
            shelf.end_period();
        }
    }
    shelf.release_numbers();
    Ok(())
}

/// The state of a call at the last estimate of the lines it will add.
struct Coming {
    spans: usize,
    lines: usize,
}

impl Coming {
    /// Minimum number of spans for an estimate.
    const SPANS_MIN: usize = 4096;

    /// Estimates how many lines the remaining spans will add, if keys continue to come as they did since the last
    /// estimate.
    ///
    /// The share of spans that found their lines shows how many lines are known: with random keys, it equals the share
    /// of known lines among all. On average, half of the lines added since the last estimate were known.
    fn lines_of(&mut self, left: usize, spans: usize, lines: usize) -> usize {
        let (of_spans, added) = (spans - self.spans, lines.saturating_sub(self.lines));
        if of_spans < Self::SPANS_MIN {
            return 0;
        }
        let known = self.lines + added / 2;
        *self = Coming { spans, lines };
        let by_share = (left as u128 * added as u128 / of_spans as u128) as usize;
        let found = of_spans.saturating_sub(added);
        if found == 0 {
            return by_share;
        }
        let all = (known as u128 * of_spans as u128 / found as u128) as usize;
        by_share.min(all.saturating_sub(lines))
    }
}

/// Judges the spans of a step. Returns whether the slot of any span alone could not decide.
#[inline(always)]
fn judge_step<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    step: &Step,
    half: std::ops::Range<usize>,
    cut: &Cut,
    times: Option<&'a [i64]>,
    call: &mut Call<'a>,
) -> bool {
    let mut is_unclear = false;
    for span in half.start..half.end.min(step.count) {
        let (row, end) = (step.bounds[span] as usize, step.bounds[span + 1] as usize);
        let of_key = Span::plain(step.epoch[span], step.seq[span], (end - row) as i64);
        let at = At { step, span, row };
        is_unclear |= match times {
            Some(times) if L::IS_TIMED => {
                let times = match cut.is_gathered {
                    true => Times::Shared(times[cut.line(step.from + span, 0)], end - row),
                    false => Times::Each(&times[row..end]),
                };
                judge_timed_span(shelf, rules, at, of_key, times, call)
            }
            _ => judge_span(shelf, rules, at, of_key, call),
        };
    }
    is_unclear
}

/// A span of a step, and the row where the judged part of it begins.
#[derive(Clone, Copy)]
struct At<'a> {
    step: &'a Step,
    span: usize,
    row: usize,
}

/// Judges a span of a key. Returns whether its slot alone could not decide.
#[inline(always)]
fn judge_span<L: RowLine>(shelf: &mut Shelf<L>, rules: &Rules, at: At<'_>, span: Span, call: &mut Call<'_>) -> bool {
    if let Some(number) = at.step.in_overflow.number(at.span) {
        let (pid, partition) = at.step.key(at.span);
        let searched = (&at.step.searches, at.span);
        let judged = shelf.judge_in_overflow(&rules.plain, (pid, partition), span, number, searched);
        if judged.skipped_from < span.seq {
            call.skip((pid, partition, span.epoch), judged.skipped_from, span.seq - 1);
        }
        match judged.outcome {
            FastOutcome::Repeated => call.fill(at.row, at.row + 1, Verdict::Duplicate),
            FastOutcome::Filled => call.fill_skipped((pid, partition, span.epoch), span.seq),
            _ => {}
        }
        if judged.outcome != FastOutcome::Unclear {
            return true;
        }
    }
    let outcome = shelf.judge_fast(&rules.plain, at.step.key(at.span), span, &at.step.searches, at.span);
    match outcome {
        FastOutcome::Continued | FastOutcome::Begun | FastOutcome::Filled => {}
        FastOutcome::Repeated => call.fill(at.row, at.row + span.rows as usize, Verdict::Duplicate),
        FastOutcome::Unclear => {
            // Fields are passed one by one: a span whose address is taken would be written to memory for every row.
            let Span { epoch, seq, rows, newest, is_old } = span;
            judge_unclear(shelf, rules, (at.step, at.span, at.row), epoch, seq, rows, newest, is_old, call);
        }
    }
    outcome == FastOutcome::Unclear
}

#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a span taken apart, see judge_span")]
fn judge_unclear<L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    (step, index, row): (&Step, usize, usize),
    epoch: i16,
    seq: i64,
    rows: i64,
    newest: i64,
    is_old: bool,
    call: &mut Call<'_>,
) {
    let key = step.key(index);
    if key.0 == -1 {
        return call.fill(row, row + rows as usize, Verdict::Untracked);
    }
    call.begin_span(row, (key.0, key.1, epoch));
    let span = Span { epoch, seq, rows, newest, is_old };
    if !shelf.judge_near(rules, key, span, (&step.searches, index), call) {
        shelf.judge_beyond(rules, key, span, call);
    }
}

/// Judges a span whose rows have timestamps, cut where it crosses the horizon. Returns whether a part of it was
/// unclear.
fn judge_timed_span<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    at: At<'_>,
    span: Span,
    times: Times<'a>,
    call: &mut Call<'a>,
) -> bool {
    if at.step.pid[at.span] == -1 {
        call.fill(at.row, at.row + span.rows as usize, Verdict::Untracked);
        return false;
    }
    let horizon = call.horizon_ms;
    let is_old = |time: i64| horizon.is_some_and(|horizon| time <= horizon);
    let times = match times {
        Times::Each(times) => times,
        Times::Shared(time, _) => {
            call.times = times;
            return judge_span(shelf, rules, at, Span { newest: time, is_old: is_old(time), ..span }, call);
        }
    };
    let (mut before, mut is_unclear) = (0, false);
    for part in times.chunk_by(|&one, &next| is_old(one) == is_old(next)) {
        let newest = part.iter().copied().max().unwrap_or(0);
        call.times = Times::Each(part);
        let of_part = Span { seq: span.seq + before, rows: part.len() as i64, newest, is_old: is_old(part[0]), ..span };
        is_unclear |= judge_span(shelf, rules, At { row: at.row + before as usize, ..at }, of_part, call);
        before += of_part.rows;
    }
    is_unclear
}

#[cfg(test)]
mod tests {
    use super::Coming;

    #[test]
    fn as_many_lines_are_expected_as_come() {
        let (all, spans) = (100_000, 1_000_000);
        let (mut seen, mut lines, mut state) = (vec![false; all], 0, 7u64);
        let mut coming = Coming { spans: 0, lines: 0 };
        for span in 0..spans {
            if span == 100 {
                assert_eq!(coming.lines_of(spans - span, span, lines), 0, "too few to visit");
            } else if [20_000, 50_000, 120_000, 200_000].contains(&span) {
                let expected = coming.lines_of(spans - span, span, lines);
                assert!((all - lines) * 8 / 10 < expected && expected < (all - lines) * 21 / 20, "{expected}, {lines}");
            }
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            lines += usize::from(!std::mem::replace(&mut seen[(state >> 33) as usize % all], true));
        }
        let mut each = Coming { spans: 0, lines: 0 };
        assert_eq!(each.lines_of(3_000, 5_000, 5_000), 3_000, "every span begins one");
        assert_eq!(each.lines_of(3_000, 10_000, 5_000), 0, "none does");
    }
}
