//! The real disk: a directory on Linux, through rustix.

use super::{Disk, DiskFile, Lock, Map};
use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most pieces `pwritev` takes at once (`IOV_MAX` on Linux).
const SLICES_MAX: usize = 1024;

/// A directory of the file system.
#[derive(Debug)]
pub(crate) struct RealDisk {
    path: PathBuf,
    dir: File,
}

impl RealDisk {
    /// Opens a directory; with `create`, makes it first, durably, if it is missing.
    pub(crate) fn open(path: &Path, create: bool) -> io::Result<Self> {
        if create && !path.is_dir() {
            fs::create_dir_all(path)?;
            if let Some(parent) = path.canonicalize()?.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        if !path.is_dir() {
            let kind = if path.exists() { io::ErrorKind::NotADirectory } else { io::ErrorKind::NotFound };
            return Err(kind.into());
        }
        Ok(Self { path: path.to_path_buf(), dir: File::open(path)? })
    }
}

impl Disk for RealDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(write).open(self.path.join(name))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let file = options.open(self.path.join(name))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { _file: file }))
    }
}

#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl Lock for RealLock {}

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

    fn write_zeros(&self, offset: u64, length: usize) -> io::Result<()> {
        let mut direct = 0;
        if offset.is_multiple_of(DIRECT_ALIGN as u64) {
            direct = length - length % DIRECT_ALIGN;
            if !write_direct(&self.file, offset, direct)? {
                direct = 0;
            }
        }
        self.file.write_all_at(&vec![0; length - direct], offset + direct as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn map(&self) -> io::Result<Map> {
        Map::new(&self.file)
    }
}

/// What devices want the places, lengths and buffers of direct writes to be multiples of.
const DIRECT_ALIGN: usize = 4096;

/// Writes zeros past the page cache, where each page would cost ten times what its part of the write does.
/// False: not possible with this file; any part may have been written.
fn write_direct(file: &File, offset: u64, length: usize) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return Ok(false);
    }
    let zeros = vec![0; length + DIRECT_ALIGN];
    let skip = zeros.as_ptr().align_offset(DIRECT_ALIGN);
    let written = file.write_all_at(&zeros[skip..skip + length], offset);
    fcntl_setfl(file, flags)?;
    match written {
        // A device with larger sectors, or a file system that says no only now.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(false),
        other => other.map(|()| true),
    }
}

/// One `pwritev`, and what it left over by `pwrite`.
fn write_chunk(file: &File, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<u64> {
    let total: usize = bufs.iter().map(|b| b.len()).sum();
    let mut written = loop {
        match rustix::io::pwritev(file, bufs, offset) {
            Err(rustix::io::Errno::INTR) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_any_length_replace_what_was_there_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path(), false).unwrap();
        let file = disk.create("f").unwrap();
        for (offset, length) in [(0u64, 8192usize), (4096, 10_000), (100, 5000), (4096, 10), (8192, 0)] {
            file.write_at(0, &[IoSlice::new(&[7; 20_000])]).unwrap();
            file.write_zeros(offset, length).unwrap();
            let mut back = vec![0; 20_000];
            file.read_at(0, &mut back).unwrap();
            let zeros = offset as usize..offset as usize + length;
            for (at, byte) in back.into_iter().enumerate() {
                assert_eq!(byte, if zeros.contains(&at) { 0 } else { 7 }, "{at} of {offset} + {length}");
            }
            // Afterwards the file takes unaligned writes as before.
            file.write_at(1, &[IoSlice::new(&[8; 3])]).unwrap();
        }
    }

    #[test]
    fn zeros_make_a_file_longer() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path(), false).unwrap();
        let file = disk.create("f").unwrap();
        file.write_zeros(0, 100_000).unwrap();
        assert_eq!(file.len().unwrap(), 100_000);
    }
}
