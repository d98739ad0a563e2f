//! The folder of a partition, as what a log asks of it. Bytes are on disk once their file was synced, names once the
//! folder was.

use fencepost_kafka::ReadAt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ends the names of files that are not there yet.
const UNFINISHED: &str = ".new";
/// The file whose lock says that somebody writes. It stays: to remove it would take it from under the next one.
const LOCK: &str = ".writer";

/// A folder.
pub trait Disk: Send + Sync {
    /// What errors call a file.
    fn path(&self, name: &str) -> String;

    /// The files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// An empty file, in the place of what was there.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// A file that is there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// A whole file with these bytes, or none: its content is on disk before its name can be.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Takes a file away, if it is there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Waits until the names are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is written at its end.
pub trait LogFile: ReadAt {
    /// Writes all of the bytes, or gives an error after some of them.
    fn write_all_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts it off behind so many bytes, durably.
    fn cut(&self, bytes: u64) -> io::Result<()>;

    /// Waits until what was written is on disk.
    fn sync(&self) -> io::Result<()>;
}

/// All bytes of a file that is there.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; usize::try_from(file.bytes()?).map_err(io::Error::other)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// A folder of the system's.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Held as long as somebody writes. The system takes it back from a process that dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Folder {
    /// Creates what of the path is not there, durably.
    pub fn create(path: &Path) -> io::Result<Folder> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.exists()).collect();
        fs::create_dir_all(path)?;
        for folder in missing.into_iter().rev() {
            let above = folder.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(above)?.sync_all()?;
        }
        Ok(Folder { path: path.into() })
    }

    /// `None` where another one holds it, in this process or in another.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
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
            // What a writer that died had not finished: nobody else is here.
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
            FileExt::write_all_at(&file, bytes, 0)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path.join(name))
        };
        write().inspect_err(|_| {
            // In nobody's way if it stays: the next one who opens the log removes it.
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
        File::open(&self.path)?.sync_all()
    }
}

impl LogFile for File {
    fn write_all_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, position)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.sync_all()
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
