//! A simulated disk that calls a test before it fills a file with zeros, writes to a file or syncs it.
#![allow(unreachable_pub, reason = "each test file uses a part of it")]

use chiplog::disk::sim::SimDisk;
use chiplog::disk::{Disk, DiskFile, Lock};
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The calls. By default they do nothing.
pub trait Hooks: Send + Sync {
    fn before_fill(&self) {}
    fn before_write(&self, _bufs: &[IoSlice<'_>]) {}
    fn before_sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk with hooks.
pub struct Hooked<H> {
    disk: SimDisk,
    hooks: Arc<H>,
}

struct HookedFile<H> {
    file: Arc<dyn DiskFile>,
    hooks: Arc<H>,
}

impl<H: Hooks + 'static> Hooked<H> {
    pub fn new(hooks: Arc<H>) -> Self {
        Self { disk: SimDisk::default(), hooks }
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(HookedFile { file, hooks: self.hooks.clone() })
    }
}

impl<H> fmt::Debug for Hooked<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl<H> fmt::Debug for HookedFile<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedFile")
    }
}

impl<H: Hooks + 'static> Disk for Hooked<H> {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name).map(|file| self.file(file))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name, write).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        self.disk.lock(name)
    }
}

impl<H: Hooks> DiskFile for HookedFile<H> {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.hooks.before_write(bufs);
        self.file.write_at(offset, bufs)
    }

    fn fill_with_zeros(&self, range: Range<u64>) -> io::Result<()> {
        self.hooks.before_fill();
        self.file.fill_with_zeros(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.hooks.before_sync()?;
        self.file.sync()
    }
}
