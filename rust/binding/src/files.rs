//! Files that are replaced whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// EISDIR, on Linux and macOS alike.
const IS_A_DIRECTORY: i32 = 21;

/// Two calls at once that replace the same file must not write to the same one beside it.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// Writes beside the file, syncs, puts it in its place, and syncs the folder.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(IS_A_DIRECTORY))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".{}.{}.{attempt}.new", name.to_string_lossy(), std::process::id()));
    let written = write_synced(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = written {
        // What is left of an attempt that failed is in nobody's way, so a failure to remove it is not told.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
