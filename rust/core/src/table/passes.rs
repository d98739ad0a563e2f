//! Runs of a call, judged in chunks.

use super::call::{Call, Times};
use super::{Cuts, room_for};
use crate::batch::{Batch, Seqs};
use crate::dispatch::{Work, dispatch};
use crate::judge::{Rules, Run};
use crate::lines::{CHUNK, Plainly, RowLine, Search};
use crate::runs::{Cut, Seq};
use crate::shelf::Shelf;
use crate::{Result, Verdict};

/// Judges every run in order.
pub(super) fn judge_batches<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    batches: &[Batch<'a>],
    cuts: &Cuts,
    call: &mut Call<'a>,
) -> Result<()> {
    for (batch, cut) in batches.iter().zip(cuts) {
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

/// Three passes over each chunk of runs: hash and ask for the tags; find and ask for the line; judge.
#[inline(always)]
fn judge_runs<L: RowLine, S: Seq>(runs: Runs<'_, '_, L, S>) -> Result<()> {
    let Runs { shelf, rules, batch, seq, cut, call } = runs;
    let times = batch.timestamp.filter(|_| L::IS_TIMED);
    // Cut to one length: one check of a line's number is enough for all columns.
    let lines = batch.len();
    let (pids, partitions, seq) = (&batch.pid[..lines], &batch.partition[..lines], &seq[..lines]);
    let epochs = batch.epoch.map(|epoch| &epoch[..lines]);
    let mut bounds = [0; CHUNK + 1];
    let (mut pid, mut partition) = ([0; CHUNK], [0; CHUNK]);
    let mut searches = [Search::default(); CHUNK];
    let mut unclear = CHUNK;
    for (number, chunk) in cut.starts.chunks(CHUNK).enumerate() {
        let runs = chunk.len().min(CHUNK);
        bounds[..runs].copy_from_slice(chunk);
        bounds[runs] = cut.starts.get((number + 1) * CHUNK).copied().unwrap_or(cut.rows);
        shelf.reserve_midway(room_for(runs))?;
        for run in 0..runs {
            let line = cut.line(number * CHUNK + run, bounds[run]);
            (pid[run], partition[run]) = (pids[line], partitions[line]);
        }
        shelf.begin_searches(&pid[..runs], &partition[..runs], &mut searches[..runs]);
        for search in &mut searches[..runs] {
            shelf.go_on_searching(search);
        }
        // Runs that need entries kept aside come together: where the chunk before had none, hardly one will now.
        if unclear > 0 && shelf.has_aside() {
            let seq_of = |run: usize| seq[cut.line(number * CHUNK + run, bounds[run])].wide();
            shelf.ask_for_aside(&pid[..runs], &partition[..runs], &searches[..runs], seq_of);
        }
        unclear = 0;
        for run in 0..runs {
            let (row, end) = (bounds[run] as usize, bounds[run + 1] as usize);
            let key = (pid[run], partition[run]);
            if key.0 == -1 {
                call.fill(row, end, Verdict::Untracked);
                continue;
            }
            let line = cut.line(number * CHUNK + run, bounds[run]);
            let seq = seq[line].wide();
            let epoch = epochs.map_or(0, |epochs| epochs[line]);
            let of_key = Run::plain(epoch, seq, (end - row) as i64);
            match times {
                None => unclear += usize::from(judge_run(shelf, rules, &searches[run], (key, row), of_key, call)),
                Some(times) => {
                    let times = match cut.is_gathered {
                        true => Times::Shared(times[line], end - row),
                        false => Times::Each(&times[row..end]),
                    };
                    unclear +=
                        usize::from(judge_timed_run(shelf, rules, &searches[run], (key, row), of_key, times, call));
                }
            }
        }
    }
    Ok(())
}

/// Judges a run of a key that begins at `row`. Gives whether its slot alone could not tell.
#[inline(always)]
fn judge_run<L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    search: &Search,
    (key, row): ((i64, i32), usize),
    run: Run,
    call: &mut Call<'_>,
) -> bool {
    let plainly = shelf.judge_plainly(&rules.plain, key, run, search);
    match plainly {
        Plainly::WentOn | Plainly::Begun => {}
        Plainly::Repeated => call.fill(row, row + run.rows as usize, Verdict::Duplicate),
        Plainly::Unclear => {
            // One by one: a run whose address is taken here would be written to memory for every row.
            let Run { epoch, seq, rows, newest, is_old } = run;
            judge_unclear(shelf, rules, search, (key.0, key.1, row), epoch, seq, rows, newest, is_old, call);
        }
    }
    plainly == Plainly::Unclear
}

#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a run taken apart, see judge_run")]
fn judge_unclear<L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    search: &Search,
    (pid, partition, row): (i64, i32, usize),
    epoch: i16,
    seq: i64,
    rows: i64,
    newest: i64,
    is_old: bool,
    call: &mut Call<'_>,
) {
    call.begin_run(row, (pid, partition, epoch));
    let run = Run { epoch, seq, rows, newest, is_old };
    if !shelf.judge_near(rules, (pid, partition), run, search, call) {
        shelf.judge_beyond(rules, (pid, partition), run, call);
    }
}

/// Judges a run whose rows have timestamps, cut where it crosses the horizon. Gives whether a part of it was unclear.
fn judge_timed_run<'a, L: RowLine>(
    shelf: &mut Shelf<L>,
    rules: &Rules,
    search: &Search,
    (key, row): ((i64, i32), usize),
    run: Run,
    times: Times<'a>,
    call: &mut Call<'a>,
) -> bool {
    let horizon = call.horizon_ms;
    let is_old = |time: i64| horizon.is_some_and(|horizon| time <= horizon);
    let times = match times {
        Times::Each(times) => times,
        Times::Shared(time, _) => {
            call.times = times;
            let run = Run { newest: time, is_old: is_old(time), ..run };
            return judge_run(shelf, rules, search, (key, row), run, call);
        }
    };
    let (mut before, mut is_unclear) = (0, false);
    for part in times.chunk_by(|&one, &next| is_old(one) == is_old(next)) {
        let newest = part.iter().copied().max().unwrap_or(0);
        call.times = Times::Each(part);
        let part = Run { seq: run.seq + before, rows: part.len() as i64, newest, is_old: is_old(part[0]), ..run };
        is_unclear |= judge_run(shelf, rules, search, (key, row + before as usize), part, call);
        before += part.rows;
    }
    is_unclear
}
