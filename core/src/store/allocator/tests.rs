//! Tests of the allocator, on a simulated disk and on a real one.

use super::*;
use crate::disk::DiskFile;
use crate::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};
use crate::store::helper::Helpers;
use crate::store::segment::{Base, file_name};
use crate::types::Timestamp;
use std::io;
use std::time::Duration;

/// Without a helper thread no caller waits for a file: files are made when they are needed. The allocator's clock
/// decides when a failed attempt is repeated.
#[test]
fn unaided_files_are_made_when_needed() {
    let disk = Arc::new(SimDisk::default());
    let allocator = Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new());
    allocator.go_unaided();
    disk.limit_space(Some(1 << 16));
    assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full);
    disk.limit_space(None);
    allocator.set_time(Moment::START.plus(RETRY_DELAY - Duration::from_millis(1)));
    assert_eq!(allocator.take(Purpose::Data).unwrap_err().kind(), ErrorKind::Full, "too soon");
    allocator.set_time(Moment::START.plus(RETRY_DELAY));
    assert_eq!(allocator.take(Purpose::Data).unwrap().number, 1);
    allocator.help();
    assert_eq!(disk.list().unwrap(), [file_name(1), file_name(2), file_name(3)]);
    allocator.settle();
}

/// It stood in the way of leadership until the log needed another file.
#[test]
fn room_is_noticed_although_no_file_is_needed() {
    let disk = Arc::new(SimDisk::default());
    let allocator = Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new());
    allocator.go_unaided();
    disk.limit_space(Some(2 << 16));
    allocator.take(Purpose::Metadata).unwrap();
    allocator.help();
    assert!(allocator.lacks_room() && allocator.has_one_ready());
    let later = |times| Moment::START.plus(LOOK_AGAIN * times);
    allocator.set_time(later(1));
    allocator.look_for_room();
    allocator.help();
    assert!(allocator.lacks_room(), "the disk is full still");
    disk.limit_space(None);
    allocator.set_time(Moment(later(2).0 - 1));
    allocator.look_for_room();
    allocator.help();
    assert!(allocator.lacks_room(), "too soon");
    allocator.set_time(later(2));
    allocator.look_for_room();
    allocator.help();
    assert!(!allocator.lacks_room());
}

/// Work of another log that goes on until it is stopped, and gives way.
#[derive(Default)]
struct Endless {
    helper: OnceLock<Arc<Helper>>,
    is_begun: AtomicBool,
    is_stopped: AtomicBool,
}

impl HelperWork for Endless {
    fn urgency(&self) -> Option<Urgency> {
        self.helper.get().map(|_| Urgency::Later)
    }

    fn work(&self) {
        self.is_begun.store(true, Ordering::Relaxed);
        while let (Some(helper), false) = (self.helper.get(), self.is_stopped()) {
            helper.give_way();
            std::thread::yield_now();
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct NoLock;

impl crate::disk::Lock for NoLock {}

/// A log that was closed waited until a long job of another one was done: first for its own files, and then to leave.
#[test]
fn close_does_not_wait_for_a_long_job_of_another_log() {
    let disk = Arc::new(SimDisk::default());
    let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
    allocator.prepare_first().unwrap();
    let PreparedSegment { number, id, bytes, .. } = allocator.take(Purpose::Metadata).unwrap();
    let (helpers, path) = (Helpers::default(), std::path::Path::new("/"));
    let long = Arc::new(Endless::default());
    let of_long = helpers.join(1, path, long.clone(), Arc::new(NoLock)).unwrap();
    let share = helpers.join(1, path, allocator.clone(), Arc::new(NoLock)).unwrap();
    let _ = long.helper.set(of_long.helper().clone());
    allocator.shares(share.helper());
    let segment = Segment::growing(number, id, bytes, Base::default(), Timestamp(0));
    allocator.discard(vec![Arc::new(segment)]);
    let (closed, is_closed) = std::sync::mpsc::channel();
    let closing = std::thread::spawn({
        let allocator = allocator.clone();
        move || {
            allocator.settle();
            allocator.stop();
            let is_sound = share.leave();
            closed.send(is_sound).unwrap();
        }
    });
    let is_sound = is_closed.recv_timeout(Duration::from_secs(60));
    long.stop();
    assert!(of_long.leave());
    closing.join().unwrap();
    assert_eq!(is_sound, Ok(true), "it was closed while the other job was running");
    assert!(!disk.list().unwrap().contains(&file_name(number)), "its files were removed");
}

/// An append that waits for long gets its file before that is filled: whole, allocated, and all zeros.
#[test]
fn awaited_file_is_whole_though_it_was_not_filled() {
    use std::os::unix::fs::MetadataExt as _;
    const BYTES: u32 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(crate::disk::linux::RealDisk::open(dir.path(), false).unwrap());
    let allocator = Allocator::new(disk.clone(), LogId(1), BYTES, 1, Vec::new());
    allocator.go_unaided();
    allocator.go_late(true);
    assert!(allocator.is_coming(Purpose::Data));
    allocator.fill(&*disk.create("awaited").unwrap(), Duration::ZERO).unwrap();
    let path = dir.path().join("awaited");
    let (bytes, metadata) = (std::fs::read(&path).unwrap(), path.metadata().unwrap());
    assert_eq!(bytes.len(), BYTES as usize);
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(metadata.blocks() * 512 >= u64::from(BYTES), "the file has holes");
}

/// A disk that allocates files, and counts the pieces with which they are filled.
#[derive(Debug, Default)]
struct Counting {
    below: SimDisk,
    pieces: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Counted {
    below: Arc<dyn DiskFile>,
    pieces: Arc<AtomicU64>,
}

impl Counting {
    fn counted(&self, below: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(Counted { below, pieces: self.pieces.clone() })
    }
}

impl Disk for Counting {
    fn path(&self) -> &std::path::Path {
        self.below.path()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.below.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.below.create(name)?))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.below.open(name, write)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.below.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.below.sync_dir()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn crate::disk::Lock>> {
        self.below.lock(name)
    }
}

impl DiskFile for Counted {
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, bufs)
    }

    fn allocate(&self, bytes: u64) -> io::Result<bool> {
        self.below.fill_with_zeros(0..bytes).map(|()| true)
    }

    fn fill_with_zeros(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.below.fill_with_zeros(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }
}

/// An append waits for a time that is counted once, not for each file that it needs.
#[test]
fn files_are_filled_on_as_long_as_the_append_has_patience() {
    let disk = Counting::default();
    let pieces = disk.pieces.clone();
    let allocator = Allocator::new(Arc::new(disk), LogId(1), 4 << 20, 1, Vec::new());
    allocator.go_unaided();
    allocator.go_late(true);
    allocator.prepare_first().unwrap();
    assert_eq!(pieces.swap(0, Ordering::Relaxed), 4, "no append waits");
    let since = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    allocator.lock().awaited_since = Some(since);
    assert!(allocator.is_coming(Purpose::Data));
    assert_eq!(allocator.lock().awaited_since, Some(since), "it waits for the second file");
    allocator.help();
    assert_eq!(pieces.load(Ordering::Relaxed), 0, "it has waited for long");
    allocator.take(Purpose::Data).unwrap();
    assert_eq!(allocator.lock().awaited_since, None);
    allocator.help();
    assert_eq!(pieces.load(Ordering::Relaxed), 4, "the next file is ahead of need");
}

/// Each of the groups on one disk had its file filled on in turn, and an append of one of them waited for all.
#[test]
fn file_is_not_filled_within_the_job_of_another_log() {
    let disk = Counting::default();
    let pieces = disk.pieces.clone();
    let allocator = Arc::new(Allocator::new(Arc::new(disk), LogId(1), 4 << 20, 1, Vec::new()));
    let (helpers, path) = (Helpers::default(), std::path::Path::new("/"));
    let long = Arc::new(Endless::default());
    let of_long = helpers.join(1, path, long.clone(), Arc::new(NoLock)).unwrap();
    let share = helpers.join(1, path, allocator.clone(), Arc::new(NoLock)).unwrap();
    allocator.shares(share.helper());
    let _ = long.helper.set(of_long.helper().clone());
    of_long.helper().wake();
    let begun = Instant::now();
    while !long.is_begun.load(Ordering::Relaxed) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    allocator.take(Purpose::Data).unwrap(); // the long job gives way to it
    assert_eq!(pieces.load(Ordering::Relaxed), 0);
    long.stop();
    allocator.wind_up();
    allocator.stop();
    assert!(share.leave() && of_long.leave());
}

/// A failed rename removed the old file from the list. It stayed on the disk unused, and a later attempt at its
/// number replaced it.
#[test]
fn next_attempt_uses_the_file_whose_rename_failed() {
    let (name, log) = (file_name(5), LogId(1));
    for confirmed in [Landed::Nothing, Landed::All] {
        let disk = Arc::new(SimDisk::default());
        let disks: Arc<dyn Disk> = disk.clone();
        Allocator::new(disks.clone(), log, 1 << 16, 5, Vec::new()).prepare_first().unwrap();
        let allocator = Allocator::new(disks, log, 1 << 16, 5, vec![name.clone()]);
        let trouble = Trouble::Eio(confirmed);
        disk.plan(Fault { call: Some(Call::Rename), nth: 1, lasting: false, trouble });
        assert_eq!(allocator.prepare_first().unwrap_err().kind(), ErrorKind::Io);
        let kept = confirmed == Landed::Nothing;
        assert_eq!(allocator.lock().spare.contains(&name), kept);
        let created = disk.calls(Some(Call::Create));
        allocator.prepare_first().unwrap();
        assert_eq!(disk.list().unwrap(), [name.as_str()]);
        assert_eq!(disk.calls(Some(Call::Create)) == created, kept, "the old file is used");
    }
}
