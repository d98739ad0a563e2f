//! Runs work on several threads.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// More threads would only wait for memory.
const THREADS_MAX: usize = 8;

/// Number of threads of a call. It is read once per process: Linux reads the files of control groups for it, which
/// takes as long as validating 35,000 rows.
pub(crate) fn threads() -> usize {
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX));
    *THREADS
}

/// Runs numbered pieces of work on several threads, each with its own state. Returns the results in order.
pub(crate) fn in_parallel<S, T: Send>(
    threads: usize,
    count: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let some = || {
        let (mut state, mut done) = (state(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, work(&mut state, number)));
        }
    };
    let mut done = thread::scope(|scope| {
        // If the system cannot start a thread, the others do the work.
        let others = (1..threads.min(count)).map_while(|_| thread::Builder::new().spawn_scoped(scope, some).ok());
        let others: Vec<_> = others.collect();
        let mut done = some();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|&(number, _)| number);
    done.into_iter().map(|(_, it)| it).collect()
}
