//! The operations of a log on the folder of a partition. Bytes are on disk after a sync of their file, names after a
//! sync of the folder.

use fencepost_kafka::ReadAt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

/// The suffix of incomplete files.
const UNFINISHED: &str = ".new";
/// The file that a writer locks. It is never removed, because removal would break the lock of the next writer.
const LOCK: &str = ".writer";

/// A folder.
pub trait Disk: Send + Sync {
    /// The name of a file in errors.
    fn path(&self, name: &str) -> String;

    /// The names of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, and replaces an existing one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Creates a file with these bytes atomically: its content is on disk before its name.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Removes a file, if it exists.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Waits until the names are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is written at its end.
pub trait LogFile: ReadAt {
    /// Writes all of the bytes. If there is an error, some of them can be written.
    fn write_all_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;

    /// Truncates it to this many bytes, durably.
    fn cut(&self, bytes: u64) -> io::Result<()>;

    /// Waits until all written bytes are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// Reads all bytes of an existing file.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; usize::try_from(file.bytes()?).map_err(io::Error::other)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// A folder of the file system.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// The lock of a writer. The system releases it when the process and all forks of it have ended.
#[derive(Debug)]
pub struct Lock {
    file: File,
    /// The id of the process that has the lock.
    process: u32,
}

/// Closing the file is not enough: a fork has it open too, and the lock belongs to both. A fork releases nothing.
impl Drop for Lock {
    fn drop(&mut self) {
        if self.process == process::id() {
            let _ = self.file.unlock();
        }
    }
}

impl Folder {
    /// Creates the folder and its missing parents, durably.
    pub fn create(path: &Path) -> io::Result<Folder> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.exists()).collect();
        fs::create_dir_all(path)?;
        for folder in missing.into_iter().rev() {
            let above = folder.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
            sync_folder(above)?;
        }
        Ok(Folder { path: path.into() })
    }

    /// Locks the folder. `None` if another writer has the lock, in this process or in another.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { file, process: process::id() })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Disk for Folder {
    fn path(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            // Removes incomplete files of a writer that died. No other writer exists.
            if name.ends_with(UNFINISHED) { fs::remove_file(self.path.join(name))? } else { names.push(name) }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let options = OpenOptions::new().create(true).truncate(true).read(true).write(true).clone();
        Ok(Arc::new(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let write = || {
            let file = File::create(&unfinished)?;
            LogFile::write_all_at(&file, 0, bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path.join(name))
        };
        write().inspect_err(|_| {
            // The file does no harm if it stays: the next open of the log removes it.
            let _ = fs::remove_file(&unfinished);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn sync(&self) -> io::Result<()> {
        sync_folder(&self.path)
    }
}

impl LogFile for File {
    fn write_all_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        write_file_at(self, position, bytes)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.sync_all()
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Makes the names in a folder durable. Windows cannot sync a folder: its file systems keep names in a journal.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(path)?.sync_all() }
}

#[cfg(unix)]
fn write_file_at(file: &File, position: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, position)
}

#[cfg(windows)]
fn write_file_at(file: &File, mut position: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, position)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => {
                position += count as u64;
                bytes = &bytes[count..];
            }
        }
    }
    Ok(())
}
