//! Decides when appended batches are on disk, and lets threads share one sync.

use crate::error::{Error, Result};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When an append returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Its bytes are on disk. Each append has its own sync.
    Each,
    /// Its bytes are on disk. Concurrent appends share a sync.
    Group,
    /// Its bytes are in the memory of the system, and on disk after this time. A power failure can lose them.
    Interval(Duration),
}

/// The part of the log that is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Every batch below this offset.
    pub(crate) end: i64,
    /// First offset of the last segment, and its size on disk.
    pub(crate) base: i64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Progress {
    synced: Synced,
    is_syncing: bool,
    /// Why there will be no more syncs.
    failure: Option<String>,
    is_closed: bool,
}

/// Coordinates waiting threads.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    progress: Mutex<Progress>,
    changed: Condvar,
    /// Locked while a file of the log is synced. Its holder waits for no other lock except that of the progress.
    turn: Mutex<()>,
}

/// The result of waiting for an offset.
pub(crate) enum Turn {
    /// The offset is on disk.
    Done,
    /// This thread must sync for all.
    Lead,
    /// The offset will never be on disk.
    Failed(String),
}

impl Commit {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // The data is consistent after each statement.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn synced(&self) -> Synced {
        self.progress().synced
    }

    /// Waits until the log is on disk up to an offset, or until no thread syncs.
    pub(crate) fn wait(&self, end: i64) -> Turn {
        let mut progress = self.progress();
        loop {
            if progress.synced.end >= end {
                return Turn::Done;
            }
            if let Some(failure) = &progress.failure {
                return Turn::Failed(failure.clone());
            }
            if !progress.is_syncing {
                progress.is_syncing = true;
                return Turn::Lead;
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the sync of the leading thread, successful or not.
    pub(crate) fn stop_leading(&self) {
        self.progress().is_syncing = false;
        self.changed.notify_all();
    }

    /// Records that the log is on disk up to here.
    pub(crate) fn advance(&self, synced: Synced) {
        let mut progress = self.progress();
        if synced.end > progress.synced.end || synced.base > progress.synced.base {
            progress.synced = synced;
        }
        drop(progress);
        self.changed.notify_all();
    }

    /// Runs a sync of a file of the log: one at a time, and none after a failure.
    ///
    /// The system reports a failed sync to only one caller, and the next sync succeeds without the bytes (fsync(2)).
    /// Therefore no other sync begins or returns between a failure and its record here. `describe`: the text of the
    /// failure.
    pub(crate) fn take_turn(
        &self,
        sync: impl FnOnce() -> io::Result<()>,
        describe: impl FnOnce(&io::Error) -> String,
    ) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure() {
            Some(failure) => Err(Error::Poisoned(failure)),
            None => sync().map_err(|error| self.fail(&describe(&error))),
        }
    }

    /// Why there will be no more syncs.
    pub(crate) fn failure(&self) -> Option<String> {
        self.progress().failure.clone()
    }

    /// Stops all syncs and appends. Returns the error for this call; all later calls return the same.
    pub(crate) fn fail(&self, what: &str) -> Error {
        let mut progress = self.progress();
        let reason = progress.failure.get_or_insert_with(|| {
            format!("{what}; nothing of this call is acknowledged, and nothing more is appended: open the log again")
        });
        let error = Error::Poisoned(reason.clone());
        drop(progress);
        self.changed.notify_all();
        error
    }

    /// Wakes [`Commit::sleep`].
    pub(crate) fn close(&self) {
        self.progress().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for this time. Returns false after the log was closed.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let is_open = |progress: &mut Progress| !progress.is_closed;
        let (progress, _) =
            self.changed.wait_timeout_while(self.progress(), time, is_open).unwrap_or_else(PoisonError::into_inner);
        !progress.is_closed
    }
}
