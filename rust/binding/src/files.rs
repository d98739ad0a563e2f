//! Files of snapshots. They are replaced completely or not at all, and read to their end.

use fencepost_columns::Failure;
use fencepost_core as core;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// The code for a folder where a file is expected: EISDIR on Linux and macOS, ERROR_ACCESS_DENIED on Windows.
const IS_A_DIRECTORY: i32 = if cfg!(windows) { 5 } else { 21 };

/// Writes to a temporary file in the same folder, syncs it, renames it, and syncs the folder. Returns the result of
/// `write`.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(IS_A_DIRECTORY))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Two concurrent calls for the same path must not write to the same file. A fork has the random state of its
    // parent, and in containers many processes have the id 1.
    let random = RandomState::new().build_hasher().finish();
    let temporary = folder.join(format!(".{}.{}.{random:016x}.new", name.to_string_lossy(), std::process::id()));
    let written = write_synced(&temporary, write).and_then(|done| fs::rename(&temporary, path).map(|()| done));
    if written.is_err() {
        // A temporary file that stays does no harm, so a failure to remove it is not reported.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    fencepost_log::sync_folder(folder)?;
    written
}

fn write_synced<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let mut file = File::create_new(path)?;
    let done = write(&mut file)?;
    file.sync_all()?;
    Ok(done)
}

/// Bytes of a file that are read or written in one call of the system.
pub(crate) const READ_BYTES: usize = 1 << 20;

/// Reads a snapshot from a file with `read`, which also gets the size of the file. The snapshot must end at the file's
/// end.
pub(crate) fn read_snapshot<T>(
    path: &Path,
    read: impl FnOnce(&mut BufReader<File>, u64) -> core::Result<T>,
) -> Result<T, Failure> {
    let unreadable = |error| Failure::Io(error, path.display().to_string());
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut input = BufReader::with_capacity(READ_BYTES.min(bytes as usize + 1), file);
    // If the file cannot be read at all, this is an error of the system, not of the snapshot.
    input.fill_buf().map_err(unreadable)?;
    let table = read(&mut input, bytes).map_err(|error| Failure::from(error).in_file(path))?;
    match io::copy(&mut input, &mut io::sink()).map_err(unreadable)? {
        0 => Ok(table),
        more => Err(Failure::snapshot(format!("{more} bytes follow the snapshot")).in_file(path)),
    }
}
