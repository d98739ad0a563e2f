//! Files that are replaced whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// EISDIR, on Linux and macOS alike.
const IS_A_DIRECTORY: i32 = 21;

/// Two calls at once that replace the same file must not write to the same one beside it.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// Writes beside the file, syncs, puts it in its place, and syncs the folder. Gives what `write` gave.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(IS_A_DIRECTORY))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".{}.{}.{attempt}.new", name.to_string_lossy(), std::process::id()));
    let written = write_synced(&beside, write).and_then(|done| fs::rename(&beside, path).map(|()| done));
    if written.is_err() {
        // What is left of an attempt that failed is in nobody's way, so a failure to remove it is not told.
        let _ = fs::remove_file(&beside);
        return written;
    }
    File::open(folder)?.sync_all()?;
    written
}

fn write_synced<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let mut file = File::create(path)?;
    let done = write(&mut file)?;
    file.sync_all()?;
    Ok(done)
}
