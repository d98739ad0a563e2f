//! When appended batches are on disk, and how threads share one wait for it.

use crate::error::{Error, Result};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When an append returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Its bytes are on disk; it waited for them alone.
    Each,
    /// Its bytes are on disk; whoever appended meanwhile waited for the same sync.
    Group,
    /// Its bytes are with the system, which has them on disk after this time, or loses them with its power.
    Interval(Duration),
}

/// How far the log is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Every batch below this offset.
    pub(crate) end: i64,
    /// First offset of the last segment, and how much of it.
    pub(crate) base: i64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Progress {
    synced: Synced,
    is_syncing: bool,
    /// Why nothing will be synced any more.
    failure: Option<String>,
    is_closed: bool,
}

/// What threads wait at.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    progress: Mutex<Progress>,
    changed: Condvar,
    /// Held while a file of the log is synced. Who holds it waits for no other lock but that of the progress.
    turn: Mutex<()>,
}

/// What a thread does that waits for an offset.
pub(crate) enum Turn {
    /// It is on disk.
    Done,
    /// This thread syncs for everybody.
    Lead,
    /// It will never be.
    Failed(String),
}

impl Commit {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // What it holds is right after each statement.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn synced(&self) -> Synced {
        self.progress().synced
    }

    /// Waits until the log is on disk up to an offset, or until nobody syncs.
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

    /// The one who led has done it, or not.
    pub(crate) fn stop_leading(&self) {
        self.progress().is_syncing = false;
        self.changed.notify_all();
    }

    /// The log is on disk so far.
    pub(crate) fn advance(&self, synced: Synced) {
        let mut progress = self.progress();
        if synced.end > progress.synced.end || synced.base > progress.synced.base {
            progress.synced = synced;
        }
        drop(progress);
        self.changed.notify_all();
    }

    /// Runs what syncs a file of the log: one at a time, and nothing once one has failed.
    ///
    /// The system reports a failed sync to one caller, whichever it is, and the next sync succeeds without the bytes
    /// (fsync(2)). So no other sync begins or returns between a failure and its note here. `describe` says what failed.
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

    /// Why nothing will be synced any more.
    pub(crate) fn failure(&self) -> Option<String> {
        self.progress().failure.clone()
    }

    /// Nothing more will be synced or appended. Gives the error for this call; every other one gets the same.
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

    /// Ends the waiting of [`Commit::sleep`].
    pub(crate) fn close(&self) {
        self.progress().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for so long; false once the log was closed.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let is_open = |progress: &mut Progress| !progress.is_closed;
        let (progress, _) =
            self.changed.wait_timeout_while(self.progress(), time, is_open).unwrap_or_else(PoisonError::into_inner);
        !progress.is_closed
    }
}
