//! Work on several threads.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

/// More threads would wait for memory.
const THREADS_MAX: usize = 8;

/// How many threads a call uses. Read once per process: Linux reads the files of control groups for it, which takes as
/// long as validating 35,000 rows.
pub(crate) fn threads() -> usize {
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX));
    *THREADS
}

/// Does work by number on several threads, each with a state of its own, and gives what came of it in order.
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
        // If the system has no thread left, the others do the work.
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

/// Gives items to `take` one after the other, while another thread makes the next ones, at most `ahead` of them.
pub(crate) fn with_next_ahead<T: Send, E>(
    mut items: impl Iterator<Item = T> + Send,
    ahead: usize,
    mut take: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        let (sender, made) = sync_channel(ahead);
        let next = &mut items;
        // If the system has no thread left, all items are left. If nobody takes them any more, the others are not made.
        let _ = thread::Builder::new().spawn_scoped(scope, move || next.try_for_each(|item| sender.send(item)));
        made.into_iter().try_for_each(&mut take)
    })?;
    items.try_for_each(take)
}

#[cfg(test)]
mod tests {
    use super::with_next_ahead;

    #[test]
    fn items_are_taken_in_order_until_one_is_refused() {
        let mut taken = Vec::new();
        let all = with_next_ahead(0..1000, 3, |item| {
            taken.push(item);
            Ok::<_, ()>(())
        });
        assert_eq!((all, taken), (Ok(()), Vec::from_iter(0..1000)));
        let mut made = 0;
        let some = (0..1000).inspect(|_| made += 1);
        assert_eq!(with_next_ahead(some, 3, |item| if item < 7 { Ok(()) } else { Err(item) }), Err(7));
        assert!((8..=13).contains(&made), "{made} were made");
    }
}
