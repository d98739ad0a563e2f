//! Runs work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{LazyLock, Mutex, PoisonError};
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

/// Calls `consume` with a function that returns the values of `next`, in order. `is_parallel`: whether `next` is called on
/// a thread of its own, if there are several processors. It is then called ahead, also once after `consume` has ended. At
/// most three values exist at once: one that is produced, one that waits, and one that is consumed.
pub(crate) fn ahead<T: Send, R>(
    is_parallel: bool,
    next: impl FnMut() -> Option<T> + Send,
    consume: impl FnOnce(&mut dyn FnMut() -> Option<T>) -> R,
) -> R {
    let next = Mutex::new(next);
    let locked = || next.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(1);
        let produce = move || {
            let mut next = locked();
            while next().is_some_and(|value| sender.send(value).is_ok()) {}
        };
        // If the system cannot start a thread, this one does all the work.
        let is_worth_it = is_parallel && threads() > 1;
        let producer = is_worth_it.then(|| thread::Builder::new().spawn_scoped(scope, produce).ok()).flatten();
        let is_started = producer.is_some();
        let done = consume(&mut || if is_started { receiver.recv().ok() } else { locked()() });
        drop(receiver);
        if let Some(Err(panic)) = producer.map(thread::ScopedJoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_as_many_as_are_asked_for() {
        for (is_parallel, asked) in [false, true].into_iter().flat_map(|it| [(it, 0), (it, 1), (it, 7), (it, 20)]) {
            let mut numbers = 0..10;
            let found: Vec<u32> =
                ahead(is_parallel, || numbers.next(), |next| std::iter::from_fn(&mut *next).take(asked).collect());
            assert!(found.iter().copied().eq(0..asked.min(10) as u32), "{found:?}");
        }
    }

    #[test]
    #[should_panic(expected = "no value")]
    fn a_panic_of_the_producer_is_not_an_end() {
        ahead(true, || -> Option<()> { panic!("no value") }, |next| next());
    }
}
