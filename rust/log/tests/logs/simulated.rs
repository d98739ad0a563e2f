//! A simulated disk that loses unsynced bytes, and fails when a test requests it.
//!
//! A failed sync behaves as on Linux (fsync(2), and the `errseq_t` of a file). Its pages count as written although they
//! are not on disk, one caller gets the error, and the next sync succeeds without them.

use fencepost_kafka::ReadAt;
use fencepost_log::{Disk, LogFile};
use fencepost_testkit::workload::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The unit that is written or lost as a whole.
pub(crate) const SECTOR: usize = 32;

/// The content of a file: as the system returns it, and as it is on disk.
#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that were written since the last sync began.
    dirty: BTreeSet<usize>,
    /// Whether a sync failed to write back, and no caller has received the error yet.
    has_error: bool,
}

impl Content {
    fn on_disk(bytes: &[u8]) -> Content {
        Content { seen: bytes.to_vec(), durable: bytes.to_vec(), ..Content::default() }
    }

    /// Copies sectors to the disk.
    fn write_back(&mut self, seen: &[u8], sectors: &BTreeSet<usize>) {
        self.durable.resize(seen.len(), 0);
        for from in sectors.iter().map(|sector| sector * SECTOR).filter(|&from| from < seen.len()) {
            let upto = (from + SECTOR).min(seen.len());
            self.durable[from..upto].copy_from_slice(&seen[from..upto]);
        }
    }
}

/// Moments at which a test can hold a sync of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The disk has not started.
    Begun,
    /// The disk has finished or failed, and the caller does not know it yet.
    Done,
    /// The caller is about to receive the result.
    Reported,
}

/// Called in the thread that syncs. Its argument is whether the disk failed.
pub(crate) type Pause = Arc<dyn Fn(Moment, bool) + Send + Sync>;

#[derive(Default)]
struct Sim {
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    /// Names on disk, and later changes: the file that has the name now, or none.
    durable_names: BTreeMap<String, usize>,
    changes: Vec<(String, Option<usize>)>,
    operations: u64,
    fails: Option<Fault>,
    syncs: u64,
    sync_time: Duration,
    pause: Option<Pause>,
}

/// Which operation fails, counted from the first, and whether later ones fail too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: u64,
    pub(crate) forever: bool,
}

/// A folder.
#[derive(Clone, Default)]
pub(crate) struct SimDisk(Arc<Mutex<Sim>>);

struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl SimDisk {
    pub(crate) fn new() -> SimDisk {
        SimDisk::default()
    }

    fn sim(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().expect("no panic within")
    }

    /// Number of changing operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.sim().operations
    }

    /// Number of syncs of files so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.sim().syncs
    }

    /// Sets the duration of syncs.
    pub(crate) fn set_sync_time(&self, time: Duration) {
        self.sim().sync_time = time;
    }

    /// Lets a test hold syncs of files.
    pub(crate) fn set_pause(&self, pause: Option<Pause>) {
        self.sim().pause = pause;
    }

    pub(crate) fn fail(&self, fault: Option<Fault>) {
        let mut sim = self.sim();
        sim.operations = 0;
        sim.fails = fault;
    }

    /// The visible bytes of a file.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let sim = self.sim();
        sim.files[sim.names[name]].seen.clone()
    }

    /// Replaces the bytes of a file, also on disk.
    pub(crate) fn set_bytes(&self, name: &str, bytes: &[u8]) {
        let mut sim = self.sim();
        let content = Content::on_disk(bytes);
        let file = sim.names.get(name).copied();
        let file = file.unwrap_or(sim.files.len());
        let count = sim.files.len().max(file + 1);
        sim.files.resize(count, Content::default());
        sim.files[file] = content;
        sim.names.insert(name.into(), file);
        sim.durable_names = sim.names.clone();
        sim.changes.clear();
    }

    /// The folder after its process was killed: the system has all bytes.
    pub(crate) fn after_kill(&self) -> SimDisk {
        let sim = self.sim();
        let copy = SimDisk::new();
        let mut other = copy.sim();
        other.files.clone_from(&sim.files);
        other.names.clone_from(&sim.names);
        other.durable_names.clone_from(&sim.durable_names);
        other.changes.clone_from(&sim.changes);
        drop(other);
        copy
    }

    /// The folder after a power failure: of unsynced changes, some names and some sectors are there.
    pub(crate) fn after_power_loss(&self, random: &mut Random) -> SimDisk {
        let sim = self.sim();
        let copy = SimDisk::new();
        let mut other = copy.sim();
        other.names.clone_from(&sim.durable_names);
        for (name, file) in sim.changes.iter().filter(|_| random.chance(50)) {
            match file {
                Some(file) => drop(other.names.insert(name.clone(), *file)),
                None => drop(other.names.remove(name)),
            }
        }
        other.durable_names = other.names.clone();
        other.files = sim.files.iter().map(|content| torn(content, random)).collect();
        drop(other);
        copy
    }
}

fn torn(content: &Content, random: &mut Random) -> Content {
    let Content { seen, durable, dirty, .. } = content;
    let (short, long) = (seen.len().min(durable.len()), seen.len().max(durable.len()));
    let length = short + random.below((long - short) as u64 + 1) as usize;
    let mut bytes = durable.clone();
    bytes.resize(length, 0);
    let percent = [0, 50, 95, 100][random.below(4) as usize];
    for from in dirty.iter().map(|sector| sector * SECTOR) {
        let upto = (from + SECTOR).min(length).min(seen.len());
        if from < upto && random.chance(percent) {
            bytes[from..upto].copy_from_slice(&seen[from..upto]);
        }
    }
    Content::on_disk(&bytes)
}

impl Sim {
    /// Counts a change. Returns whether it fails.
    fn begin(&mut self) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        let fails = self.fails.is_some_and(|fault| number == fault.at || (fault.forever && number > fault.at));
        if fails { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    fn name(&mut self, name: &str, file: Option<usize>) {
        match file {
            Some(file) => drop(self.names.insert(name.into(), file)),
            None => drop(self.names.remove(name)),
        }
        self.changes.push((name.into(), file));
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimDisk {
    fn path(&self, name: &str) -> String {
        format!("disk/{name}")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.sim().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut sim = self.sim();
        sim.begin()?;
        let file = sim.files.len();
        sim.files.push(Content::default());
        sim.name(name, Some(file));
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = self.sim().find(name)?;
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut sim = self.sim();
        sim.begin()?;
        let file = sim.files.len();
        sim.files.push(Content::on_disk(bytes));
        sim.name(name, Some(file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut sim = self.sim();
        sim.begin()?;
        sim.name(name, None);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut sim = self.sim();
        sim.begin()?;
        sim.durable_names = sim.names.clone();
        sim.changes.clear();
        Ok(())
    }
}

impl ReadAt for SimFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.sim().files[self.file].seen.len() as u64)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.sim().files[self.file].seen.read_at(position, buffer)
    }
}

impl LogFile for SimFile {
    /// A failed write has written a part, as on a full disk.
    fn write_all_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut sim = self.disk.sim();
        let done = sim.begin();
        let some = if done.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let content = &mut sim.files[self.file];
        let (from, upto) = (position as usize, position as usize + some.len());
        content.seen.resize(content.seen.len().max(upto), 0);
        content.seen[from..upto].copy_from_slice(some);
        content.dirty.extend(from / SECTOR..upto.div_ceil(SECTOR));
        done
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        let mut sim = self.disk.sim();
        sim.begin()?;
        sim.files[self.file].seen.truncate(bytes as usize);
        drop(sim);
        self.write_back()
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sim().syncs += 1;
        self.write_back()
    }
}

impl SimFile {
    /// Bytes written in the meantime are not part of it.
    fn write_back(&self) -> io::Result<()> {
        let mut sim = self.disk.sim();
        let is_failing = sim.begin().is_err();
        let content = &mut sim.files[self.file];
        let (seen, dirty) = (content.seen.clone(), std::mem::take(&mut content.dirty));
        let (time, pause) = (sim.sync_time, sim.pause.clone());
        drop(sim);
        let hold = |moment| pause.iter().for_each(|pause| pause(moment, is_failing));
        hold(Moment::Begun);
        std::thread::sleep(time);
        let mut sim = self.disk.sim();
        let content = &mut sim.files[self.file];
        if is_failing {
            content.has_error = true;
            // A part of it reached the disk.
            let mut random = Random::new(seen.len() as u64);
            let percent = [0, 50, 90][random.below(3) as usize];
            content.write_back(&seen, &dirty.into_iter().filter(|_| random.chance(percent)).collect());
        } else {
            content.write_back(&seen, &dirty);
        }
        drop(sim);
        hold(Moment::Done);
        let has_error = std::mem::take(&mut self.disk.sim().files[self.file].has_error);
        hold(Moment::Reported);
        if has_error { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}
