//! Runs of a call, judged in a pipeline.

use super::call::{Call, Times};
use super::{Cuts, room_for};
use crate::batch::{Batch, Seqs};
use crate::dispatch::{Work, dispatch};
use crate::fast_path::Plainly;
use crate::judge::{Rules, Run};
use crate::lines::{RowLine, Searches};
use crate::prefetch::{CHUNK, STEP, prefetch};
use crate::runs::{Cursor, Cut, Seq};
use crate::shelf::{InOverflow, Shelf};
use crate::{Result, Verdict};

/// Judges every run in order.
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
            Seqs::I32(seq) => dispatch(Runs { shelf, rules, batch, seq, cut, call })?,
            Seqs::I64(seq) => dispatch(Runs { shelf, rules, batch, seq, cut, call })?,
        }
        call.batch_from += cut.rows as usize;
    }
    Ok(())
}

/// The runs of a batch, to be judged against a shelf.
struct Runs<'a, 'b, L: RowLine, S> {
    shelf: &'a mut Shelf<L>,
    rules: &'a Rules,
    batch: &'a Batch<'b>,
    seq: &'a [S],
    cut: &'a Cut,
    call: &'a mut Call<'b>,
}

impl<L: RowLine, S: Seq> Work for Runs<'_, '_, L, S> {
    type Done = Result<()>;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn work(self) -> Result<()> {
        judge_runs(self)
    }
}

/// Room for the steps that are under way at once.
const STEPS: usize = CHUNK / STEP;
/// After how many ticks a step asks for its lines and for what they need of entries in the overflow, and is judged. What was
/// asked for has arrived by then; more would be pushed out of the nearest cache again.
const LINES_AFTER: usize = 1;
const OVERFLOW_AFTER: usize = 2;
const HOLES_AFTER: usize = 3;
const JUDGED_AFTER: usize = 4;

/// Runs that are judged together.
struct Step {
    count: usize,
    /// The number of the first.
    from: usize,
    /// The first row of each, and the row after the last.
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

    /// Takes the next runs of a batch.
    #[inline(always)]
    fn take<S: Seq>(&mut self, cursor: &mut Cursor<'_>, cut: &Cut, batch: &Batch<'_>, seq: &[S]) {
        self.from = cursor.run;
        self.count = cursor.next_runs(&mut self.bounds);
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
        for run in 0..self.count {
            let line = cut.line(self.from + run, self.bounds[run]);
            (self.pid[run], self.partition[run], self.seq[run]) =
                (batch.pid[line], batch.partition[line], seq[line].wide());
            if let Some(epoch) = batch.epoch {
                self.epoch[run] = epoch[line];
            }
        }
    }

    #[inline(always)]
    fn key(&self, run: usize) -> (i64, i32) {
        (self.pid[run], self.partition[run])
    }
}

#[inline(always)]
fn of_step<T: Copy>(column: &[T], first: usize) -> [T; STEP] {
    *column[first..].first_chunk().expect("as many lines follow")
}

/// Prefetches the rows of a later step. Columns are read in order, but lines and tags at random in between, and the
/// processor does not recognize the order then.
#[inline(always)]
fn prefetch_ahead<T>(column: &[T], first: usize) {
    const AHEAD: usize = CHUNK;
    let rows = column.as_ptr().wrapping_add(first + AHEAD).cast::<u8>();
    (0..STEP * size_of::<T>()).step_by(64).for_each(|byte| prefetch(rows.wrapping_add(byte)));
}

/// A pipeline: at each tick a step begins (its runs are hashed and tags asked for), one that began earlier asks for its
/// lines, and one that began before those is judged. Where the runs are at an end, or the table must grow, steps
/// without a run begin until nothing is under way.
#[inline(always)]
fn judge_runs<L: RowLine, S: Seq>(runs: Runs<'_, '_, L, S>) -> Result<()> {
    let Runs { shelf, rules, batch, seq, cut, call } = runs;
    let mut steps: [Step; STEPS] = std::array::from_fn(|_| Step::empty());
    let mut cursor = cut.cursor();
    let (mut tick, mut judged) = (0usize, 0);
    let mut coming = Coming { runs: 0, lines: shelf.lines().len() };
    // Runs that need entries in the overflow come together: where none did for a while, hardly one will now.
    let mut overflow_until = 2 * STEPS;
    while judged < cut.len() {
        let under_way = cursor.run - judged;
        let mut has_room = shelf.room() >= room_for((cut.len() - judged).min(under_way + STEP));
        if !has_room && under_way == 0 {
            let expected = coming.lines_of(cut.len() - judged, judged, shelf.lines().len());
            shelf.reserve_midway(room_for(cut.len() - judged), expected)?;
            has_room = true;
        }
        let step = &mut steps[tick % STEPS];
        step.count = 0;
        step.in_overflow.clear();
        if has_room && cursor.run < cut.len() {
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
        // What is asked for in between has the time to come: two steps at once are more than a processor waits for.
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
    }
    Ok(())
}

/// Where a call stood when it was last asked how many lines it will add.
struct Coming {
    runs: usize,
    lines: usize,
}

impl Coming {
    /// Runs by which a share can be told.
    const RUNS_MIN: usize = 4096;

    /// How many lines the remaining runs will add, if keys go on coming as they did since the last time.
    ///
    /// If some runs found their lines, so many lines are known of all that come: with keys by chance, the share of runs
    /// that found theirs is that of known lines. Half of those since the last time were known on average.
    fn lines_of(&mut self, left: usize, runs: usize, lines: usize) -> usize {
        let (of_runs, added) = (runs - self.runs, lines.saturating_sub(self.lines));
        if of_runs < Self::RUNS_MIN {
            return 0;
        }
        let known = self.lines + added / 2;
        *self = Coming { runs, lines };
        let by_share = (left as u128 * added as u128 / of_runs as u128) as usize;
        let found = of_runs.saturating_sub(added);
        if found == 0 {
            return by_share;
        }
        let all = (known as u128 * of_runs as u128 / found as u128) as usize;
        by_share.min(all.saturating_sub(lines))
    }
}

/// Judges the runs of a step. Gives whether the slot of one alone could not tell.
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
    for run in half.start..half.end.min(step.count) {
        let (row, end) = (step.bounds[run] as usize, step.bounds[run + 1] as usize);
        let of_key = Run::plain(step.epoch[run], step.seq[run], (end - row) as i64);
        let at = At { step, run, row };
        is_unclear |= match times {
            Some(times) if L::IS_TIMED => {
                let times = match cut.is_gathered {
                    true => Times::Shared(times[cut.line(step.from + run, 0)], end - row),
                    false => Times::Each(&times[row..end]),
                };
                judge_timed_run(shelf, rules, at, of_key, times, call)
            }
            _ => judge_run(shelf, rules, at, of_key, call),
        };
    }
    is_unclear
}

/// A run of a step, and the row where what is judged of it begins.
#[derive(Clone, Copy)]
struct At<'a> {
    step: &'a Step,
    run: usize,
    row: usize,
}

/// Judges a run of a key. Gives whether its slot alone could not tell.
#[inline(always)]
fn judge_run<L: RowLine>(shelf: &mut Shelf<L>, rules: &Rules, at: At<'_>, run: Run, call: &mut Call<'_>) -> bool {
    if let Some(number) = shelf.number_of(&at.step.in_overflow, at.run) {
        let (plainly, jumped_from) = shelf.judge_in_overflow(&rules.plain, number, run);
        if jumped_from < run.seq {
            let (pid, partition) = at.step.key(at.run);
            call.jump((pid, partition, run.epoch), jumped_from, run.seq - 1);
        }
        if plainly == Plainly::Repeated {
            call.fill(at.row, at.row + 1, Verdict::Duplicate);
        }
        if plainly != Plainly::Unclear {
            return true;
        }
    }
    let plainly = shelf.judge_plainly(&rules.plain, at.step.key(at.run), run, &at.step.searches, at.run);
    match plainly {
        Plainly::WentOn | Plainly::Begun => {}
        Plainly::Repeated => call.fill(at.row, at.row + run.rows as usize, Verdict::Duplicate),
        Plainly::Unclear => {
            // One by one: a run whose address is taken here would be written to memory for every row.
            let Run { epoch, seq, rows, newest, is_old } = run;
            judge_unclear(shelf, rules, (at.step, at.run, at.row), epoch, seq, rows, newest, is_old, call);
        }
    }
    plainly == Plainly::Unclear
}

#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a run taken apart, see judge_run")]
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
    call.begin_run(row, (key.0, key.1, epoch));
    let run = Run { epoch, seq, rows, newest, is_old };
    if !shelf.judge_near(rules, key, run, (&step.searches, index), call) {
        shelf.judge_beyond(rules, key, run, call);
    }
}

/// Judges a run whose rows have timestamps, cut where it crosses the horizon. Gives whether a part of it was unclear.
fn judge_timed_run<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    at: At<'_>,
    run: Run,
    times: Times<'a>,
    call: &mut Call<'a>,
) -> bool {
    if at.step.pid[at.run] == -1 {
        call.fill(at.row, at.row + run.rows as usize, Verdict::Untracked);
        return false;
    }
    let horizon = call.horizon_ms;
    let is_old = |time: i64| horizon.is_some_and(|horizon| time <= horizon);
    let times = match times {
        Times::Each(times) => times,
        Times::Shared(time, _) => {
            call.times = times;
            return judge_run(shelf, rules, at, Run { newest: time, is_old: is_old(time), ..run }, call);
        }
    };
    let (mut before, mut is_unclear) = (0, false);
    for part in times.chunk_by(|&one, &next| is_old(one) == is_old(next)) {
        let newest = part.iter().copied().max().unwrap_or(0);
        call.times = Times::Each(part);
        let of_part = Run { seq: run.seq + before, rows: part.len() as i64, newest, is_old: is_old(part[0]), ..run };
        is_unclear |= judge_run(shelf, rules, At { row: at.row + before as usize, ..at }, of_part, call);
        before += of_part.rows;
    }
    is_unclear
}

#[cfg(test)]
mod tests {
    use super::Coming;

    #[test]
    fn as_many_lines_are_expected_as_come() {
        let (all, runs) = (100_000, 1_000_000);
        let (mut seen, mut lines, mut state) = (vec![false; all], 0, 7u64);
        let mut coming = Coming { runs: 0, lines: 0 };
        for run in 0..runs {
            if run == 100 {
                assert_eq!(coming.lines_of(runs - run, run, lines), 0, "too few to tell");
            } else if [20_000, 50_000, 120_000, 200_000].contains(&run) {
                let expected = coming.lines_of(runs - run, run, lines);
                assert!((all - lines) * 8 / 10 < expected && expected < (all - lines) * 21 / 20, "{expected}, {lines}");
            }
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            lines += usize::from(!std::mem::replace(&mut seen[(state >> 33) as usize % all], true));
        }
        let mut each = Coming { runs: 0, lines: 0 };
        assert_eq!(each.lines_of(3_000, 5_000, 5_000), 3_000, "every run begins one");
        assert_eq!(each.lines_of(3_000, 10_000, 5_000), 0, "none does");
    }
}
