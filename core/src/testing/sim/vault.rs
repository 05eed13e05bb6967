//! The object store of a simulation: objects in memory behind faults. It never loses an object, and sees whether two replicas
//! would store different bytes under one name.
//!
//! Must not know: what is in an object.

use crate::backup::Pin;
use crate::backup::fetch::{Found, end_of, find, objects_of};
use crate::backup::slices;
use crate::error::Result;
use crate::store::format::block::BlockHeader;
use crate::store::objects::slice_names::SliceName;
use crate::types::{EntryIndex, LogId};
use crate::vault::{FaultOptions, FaultyVault, MemoryVault, ObjectInfo, Vault};
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The objects, and the fault of a put.
#[derive(Debug, Default)]
struct Objects {
    memory: MemoryVault,
    wrong: Mutex<Option<String>>,
    /// The entries of slices that were put since this was looked at, and whether anything was put or deleted.
    landed: Mutex<Vec<BlockHeader>>,
    has_changed: AtomicBool,
}

impl Objects {
    fn check(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let Some(size) = self.memory.size(name)? else { return Ok(()) };
        let there = self.memory.get(name, 0..size)?;
        if there != bytes {
            let same = there.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            let what = format!(
                "object {name} of {size} bytes is put again with {} other ones, from byte {same} on",
                bytes.len()
            );
            self.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        }
        Ok(())
    }
}

impl Objects {
    /// Notes the entries of a slice.
    fn note_slice(&self, name: &str, bytes: &Bytes) -> Result<()> {
        let log = name.split_once("/s/").and_then(|(log, _)| u128::from_str_radix(log, 16).ok()).map(LogId);
        let Some(name) = log.and_then(|log| SliceName::parse(log, name)) else { return Ok(()) };
        let slice = slices::read(&self.memory, &name, bytes.len() as u64)?;
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        landed.extend(slice.entries.iter().map(|(header, _)| *header));
        Ok(())
    }
}

impl Vault for Objects {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.check(name, &pieces.concat())?;
        self.has_changed.store(true, Ordering::Relaxed);
        self.memory.put(name, pieces)?;
        self.note_slice(name, &pieces.concat().into())
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.memory.create(name, bytes)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.memory.get(name, range)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.memory.size(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.memory.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.has_changed.store(true, Ordering::Relaxed);
        self.memory.delete(name)
    }
}

/// The object store of all replicas.
#[derive(Debug)]
pub(super) struct SimVault {
    /// Whether replicas store slices, too: in half of all runs.
    pub(super) takes_slices: bool,
    objects: Arc<Objects>,
    faulty: FaultyVault,
}

impl SimVault {
    /// An object store that fails in some of all calls, or in none.
    pub(super) fn new(seed: u64, fails: bool) -> Self {
        let objects = Arc::new(Objects::default());
        let rate = if fails { 30 } else { 0 };
        let faults = FaultOptions::default().refused(rate).unanswered(rate).missing(rate / 3);
        let faulty = FaultyVault::new(objects.clone(), seed, faults.flipped(rate).short(rate / 3));
        Self { takes_slices: seed.is_multiple_of(2), objects, faulty }
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        self.faulty.set_faults(FaultOptions::default());
    }

    /// The fault of a put, if one had any.
    pub(super) fn wrong(&self) -> Option<String> {
        self.objects.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks an object that a replica would store now against the one that is there, if it is.
    pub(super) fn compare(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.objects.check(name, &pieces.concat())
    }

    /// The names of the objects that a backup of the log is made of, without faults.
    ///
    /// # Errors
    /// Those of [`Backup::fetch`](crate::backup::Backup::fetch).
    pub(super) fn needed(&self, log: LogId) -> Result<Vec<String>> {
        Ok(objects_of(&*self.objects, log)?.into_iter().map(|(_, object)| object.name).collect())
    }

    /// The entries of slices that were stored since the last call.
    pub(super) fn take_landed(&self) -> Vec<BlockHeader> {
        std::mem::take(&mut *self.objects.landed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether anything was stored or deleted since the last call.
    pub(super) fn has_changed(&self) -> bool {
        self.objects.has_changed.swap(false, Ordering::Relaxed)
    }

    /// The last entry of the log that would be made of the object store alone, without faults.
    ///
    /// # Errors
    /// Those of [`Backup::fetch`](crate::backup::Backup::fetch).
    pub(super) fn reach(&self, log: LogId) -> Result<EntryIndex> {
        let Found { slices: names, objects, lacking } = find(&*self.objects, log)?;
        let end = objects.last().map(|(number, at)| end_of(&*self.objects, log, *number, at)).transpose()?;
        let chain = slices::longest(&*self.objects, &names, end, &mut |_| {})?;
        if let Some(error) = lacking.filter(|_| objects.is_empty() && chain.slices.is_empty()) {
            return Err(error);
        }
        let sliced = chain.slices.last().map(|name| name.last);
        Ok(sliced.into_iter().chain(end.map(|(raft, _)| raft)).max().unwrap_or_default())
    }

    /// How many objects a pin lacks, without faults.
    pub(super) fn lacks(&self, log: LogId, pin: &Pin) -> Result<u64> {
        pin.missing(&*self.objects, log)
    }

    /// The names of all objects, without faults.
    pub(super) fn names(&self) -> Vec<String> {
        self.objects.list("").unwrap_or_default().into_iter().map(|object| object.name).collect()
    }
}

/// Whether this is the name or the folder of a pin or a begin. These the store shows once it has them, or it fails: deletion relies
/// on that.
fn is_mark(name: &str) -> bool {
    name.contains("/pin/") || name.contains("/begin/")
}

impl Vault for SimVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.faulty.put(name, pieces)
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.faulty.create(name, bytes)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.faulty.get(name, range)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let found = self.faulty.size(name)?;
        if is_mark(name) { self.objects.size(name) } else { Ok(found) }
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let found = self.faulty.list(prefix)?;
        if is_mark(prefix) { self.objects.list(prefix) } else { Ok(found) }
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.faulty.delete(name)
    }
}
