//! The real disk: a directory on Linux, through rustix.
//!
//! Invariant: directories are made with mode 0700 and files with 0600. In a directory that its group may read and others
//! may not (0750, 2750), files get 0640. The process's umask applies too. Existing files and directories keep their mode.

use super::{Disk, DiskFile, Lock, Map, Space};
use rustix::fs::{
    Access, Advice, AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, access, fadvise, fallocate,
    fcntl_getfl, fcntl_setfl, flock, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most pieces `pwritev` takes at once (`IOV_MAX` on Linux).
const SLICES_MAX: usize = 1024;
/// The alignment of direct writes: no device requires more.
const PAGE_BYTES: usize = 4096;

/// The unit in which the system reports the space that a file takes.
const STAT_BLOCK_BYTES: u64 = 512;

const DIRECTORY_MODE: u32 = 0o700;

/// A directory of the file system.
#[derive(Debug)]
pub(crate) struct RealDisk {
    path: PathBuf,
    dir: File,
    /// The mode of new files.
    mode: Mode,
}

impl RealDisk {
    /// Opens a directory. With `create`, makes it first if it is missing (see [`Disk::sync_ancestors`]).
    pub(crate) fn open(path: &Path, create: bool) -> io::Result<Self> {
        if create && !path.exists() {
            DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
        }
        // A directory that cannot be examined does not count as missing.
        if !fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let dir = File::open(path)?;
        let mode = file_mode(fstat(&dir)?.st_mode);
        Ok(Self { path: std::path::absolute(path)?, dir, mode })
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(openat(&self.dir, name, flags | OFlags::CLOEXEC, self.mode)?.into())
    }
}

/// All names are looked up in the directory that was opened, even if the process or the directory moves.
impl Disk for RealDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            match entry?.file_name().to_string_lossy().into_owned() {
                name if name == "." || name == ".." => {}
                name => names.push(name),
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile { file: self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)? }))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Arc::new(RealFile { file: self.open_at(name, access)? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.dir, from, &self.dir, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    fn space(&self) -> io::Result<Option<Space>> {
        let (of_disk, of_directory) = (rustix::fs::fstatvfs(&self.dir)?, rustix::fs::fstat(&self.dir)?);
        let free = of_disk.f_bavail.saturating_mul(of_disk.f_frsize);
        Ok(Some(Space { device: of_directory.st_dev, free }))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        for directory in self.path.canonicalize()?.ancestors().skip(1) {
            match File::open(directory) {
                Ok(directory) => match directory.sync_all() {
                    // This process did not make it, and its file system cannot sync directories or is read-only.
                    Err(e) if not_ours(&e) => {}
                    synced => synced?,
                },
                // This process did not make a directory whose names it may not even list.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        loop {
            let file = self.open_at(name, OFlags::RDWR | OFlags::CREATE)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // The previous holder may have removed the file: then another process can lock a new file of the same name.
            let held = fstat(&file)?;
            match statat(&self.dir, name, AtFlags::empty()) {
                Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                    return Ok(Box::new(RealLock { file }));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[derive(Debug)]
struct RealLock {
    file: File,
}

impl Lock for RealLock {}

impl Drop for RealLock {
    /// Without this the lock would last until the last copy of the descriptor is closed, and a forked child has one.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for chunk in bufs.chunks(SLICES_MAX) {
            at += write_chunk(&self.file, at, chunk)?;
        }
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<bool> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The device zeroes the range if it can. Otherwise zeros are written past the page cache where the file system
    /// supports that: they then use no memory and do not delay the syncs of appends.
    fn fill_with_zeros(&self, range: Range<u64>) -> io::Result<()> {
        if write_zeroes(&self.file, &range)? {
            return Ok(());
        }
        let flags = fcntl_getfl(&self.file)?;
        let direct = fcntl_setfl(&self.file, flags | OFlags::DIRECT).is_ok();
        let filled = fill(&self.file, range.clone());
        if direct {
            fcntl_setfl(&self.file, flags)?;
        }
        match filled {
            // Some file systems accept the flag and refuse the write.
            Err(e) if direct && e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                fill(&self.file, range)
            }
            other => other,
        }
    }

    fn will_need(&self, range: Range<u64>) {
        let length = std::num::NonZeroU64::new(range.end - range.start);
        let _ = fadvise(&self.file, range.start, length, Advice::WillNeed);
    }

    fn forget(&self, range: Range<u64>) {
        let length = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
        let _ = fadvise(&self.file, range.start, length, Advice::DontNeed);
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<bool> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            return match fallocate(&self.file, flags, range.start, range.end - range.start) {
                Ok(()) => Ok(true),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
                Err(Errno::INTR) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * STAT_BLOCK_BYTES)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn map(&self) -> io::Result<Map> {
        Map::new(&self.file)
    }
}

/// Checks whether a directory can be moved to `path`: nothing exists there, or an empty directory that is not a mount
/// point.
///
/// # Errors
/// `DirectoryNotEmpty`, `NotADirectory`, `ResourceBusy` (a mount point): it cannot. Other errors: the check failed.
pub(crate) fn check_vacant(path: &Path) -> io::Result<()> {
    let here = match fs::symlink_metadata(path) {
        Ok(here) => here,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if !here.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if fs::read_dir(path)?.next().is_some() {
        return Err(io::ErrorKind::DirectoryNotEmpty.into());
    }
    match path.parent().map(fs::metadata) {
        Some(Ok(above)) if above.dev() != here.dev() => Err(io::ErrorKind::ResourceBusy.into()),
        _ => Ok(()),
    }
}

/// Checks that files can be made in a directory, by its mode and its file system. A full one passes.
///
/// # Errors
/// `PermissionDenied`, `ReadOnlyFilesystem`. Other errors: the check failed.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    Ok(access(path, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Whether a directory has nothing in it. Stops at the first name.
pub(crate) fn is_empty(path: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(path)?.next().transpose()?.is_none())
}

/// The whole path of what exists, without symbolic links.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// Makes a missing directory, and its missing parents.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    let mut made = DirBuilder::new();
    made.mode(DIRECTORY_MODE);
    if let Some(above) = path.parent().filter(|above| !above.exists()) {
        made.recursive(true).create(above)?;
    }
    made.recursive(false).create(path)
}

/// The highest directory above `path` that is missing. None: the directory above `path` exists.
pub(crate) fn missing_above(path: &Path) -> Option<&Path> {
    let is_missing = |above: &&Path| !above.as_os_str().is_empty() && !above.exists();
    path.ancestors().skip(1).take_while(is_missing).last()
}

/// Renames a directory to `to` beside it, where nothing or an empty directory exists. Durable when it returns.
pub(crate) fn move_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        Some(above) => File::open(above)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes an empty directory.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    fs::remove_dir(path)
}

/// Removes a directory with everything in it.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    fs::remove_dir_all(path)
}

/// The mode of files in a directory with this mode.
fn file_mode(directory: u32) -> Mode {
    let (group_reads, others) = (directory & 0o050 == 0o050, directory & 0o007);
    Mode::from_raw_mode(if group_reads && others == 0 { 0o640 } else { 0o600 })
}

fn not_ours(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem)
}

/// `FALLOC_FL_WRITE_ZEROES` of Linux 6.17: the device zeroes blocks, which then count as written. No zeros are
/// transferred, and a later write into the blocks changes no metadata, just as after a write of zeros.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// False: the kernel, the file system or the device does not support it, or a signal interrupted it. The caller then
/// writes the zeros.
fn write_zeroes(file: &File, range: &Range<u64>) -> io::Result<bool> {
    match fallocate(file, WRITE_ZEROES, range.start, range.end - range.start) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whether the device under a file zeroes the space prepared for a log, so that a growing log is written once and not
/// twice. If so, it lengthens the file to 1 MiB.
///
/// # Errors
/// The file system is full, or the file cannot be written.
pub fn device_writes_zeroes(file: &File) -> io::Result<bool> {
    write_zeroes(file, &(0..1 << 20))
}

/// Zeros are written in pieces of this size. A sync of the log waits for the piece that the device is writing: with 1 MiB
/// the p99 of quiet logs beside a busy one was 23 ms instead of 5 (docs/performance.md, `many_fair`).
const ZERO_PIECE_BYTES: usize = 128 << 10;

/// Writes zeros over a range, from a buffer aligned for direct writes.
fn fill(file: &File, range: Range<u64>) -> io::Result<()> {
    let buffer = vec![0; ZERO_PIECE_BYTES + PAGE_BYTES];
    let start = buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
    let zeros = &buffer[start..start + ZERO_PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let n = usize::try_from(range.end - at).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all_at(&zeros[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

/// Writes with one `pwritev`, and the remainder with `pwrite`.
fn write_chunk(file: &File, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<u64> {
    let total: usize = bufs.iter().map(|b| b.len()).sum();
    let mut written = loop {
        match rustix::io::pwritev(file, bufs, offset) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut before = 0;
    for buf in bufs {
        let end = before + buf.len();
        if written < end {
            file.write_all_at(&buf[written - before..], offset + written as u64)?;
            written = end;
        }
        before = end;
    }
    Ok(total as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn hole_takes_no_space_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path(), false).unwrap();
        let file = disk.create("f").unwrap();
        file.write_at(0, &[IoSlice::new(&[7; 1 << 20])]).unwrap();
        file.sync().unwrap();
        let before = file.allocated().unwrap();
        let is_supported = file.punch_hole(65_536..524_288).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
        let mut found = vec![1; 1 << 20];
        file.read_at(0, &mut found).unwrap();
        if !is_supported {
            assert!(found.iter().all(|b| *b == 7), "nothing has changed");
            return;
        }
        assert!(found[65_536..524_288].iter().all(|b| *b == 0));
        assert!(found[..65_536].iter().chain(&found[524_288..]).all(|b| *b == 7));
        file.sync().unwrap();
        assert!(file.allocated().unwrap() < before, "{before}");
    }

    /// Covers both ways: zeroed by the device, and written.
    #[test]
    fn fill_with_zeros_zeroes_exactly_its_range() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path(), false).unwrap();
        let file = disk.create("f").unwrap();
        file.write_at(0, &[IoSlice::new(&[7; 300_000])]).unwrap();
        file.fill_with_zeros(4096..200_704).unwrap();
        file.fill_with_zeros(300_000..(1 << 20)).unwrap();
        let mut found = vec![1; 1 << 20];
        file.read_at(0, &mut found).unwrap();
        assert!(found[..4096].iter().all(|b| *b == 7) && found[200_704..300_000].iter().all(|b| *b == 7));
        assert!(found[4096..200_704].iter().chain(&found[300_000..]).all(|b| *b == 0));
        let probe = File::create_new(dir.path().join("probe")).unwrap();
        let is_by_device = device_writes_zeroes(&probe).unwrap();
        assert_eq!(probe.metadata().unwrap().len(), if is_by_device { 1 << 20 } else { 0 });
    }
}
