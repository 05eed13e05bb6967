//! The object store of a simulation: objects in memory behind faults. It never loses an object, and sees whether two replicas
//! would store different bytes under one name.
//!
//! Must not know: what is in an object.

use crate::backup::found::{Found, end_of, find, made_of};
use crate::backup::{Branch, Pin};
use crate::backup::{slices, tail};
use crate::error::{Error, ErrorKind, Result};
use crate::record::reference::PayloadId;
use crate::store::format::block::BlockHeader;
use crate::store::objects::names::log_folder;
use crate::store::objects::payloads::{fetch, payload_id, payload_name, payloads, pick, resolve};
use crate::store::objects::slice_names::SliceName;
use crate::types::{EntryIndex, Index, LogId, LogNumber};
use crate::vault::{FaultCounts, FaultOptions, FaultyVault, MemoryVault, ObjectInfo, Vault};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The objects, and the fault of a put.
#[derive(Debug, Default)]
struct Objects {
    memory: MemoryVault,
    wrong: Mutex<Option<String>>,
    /// The entries of slices that were put since this was looked at, and whether anything was put or deleted.
    landed: Mutex<Vec<BlockHeader>>,
    /// The records with which slices begin that were put since this was looked at, and begin with the state of the log.
    begins: Mutex<Vec<Index>>,
    has_changed: AtomicBool,
    /// Payload slices that were deleted, for checks that come to their entries later.
    deleted: MemoryVault,
    /// Whether anything was deleted since this was looked at: payload, or what led to the end of the log without it.
    has_deleted: AtomicBool,
    /// The names of objects and payload slices that were deleted.
    gone: Mutex<BTreeSet<String>>,
    /// Payload slices that were put since this was looked at.
    payloads: Mutex<Vec<PayloadId>>,
    /// The next object with this part in its name arrives damaged; the names of those that did, and were not put again.
    spoils: Mutex<Option<&'static str>>,
    spoiled: Mutex<BTreeSet<String>>,
}

impl Objects {
    fn check(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if lock(&self.spoiled).contains(name) {
            return Ok(());
        }
        let Some(size) = self.memory.size(name)? else { return Ok(()) };
        let there = self.memory.get(name, 0..size)?;
        if there != bytes {
            let same = there.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            let what = format!(
                "object {name} of {size} bytes is put again with {} other ones, from byte {same} on",
                bytes.len()
            );
            lock(&self.wrong).get_or_insert(what);
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
        lock(&self.landed).extend(slice.entries.iter().map(|(header, _)| *header));
        lock(&self.begins).extend(slice.opening.map(|_| slice.base.next));
        Ok(())
    }
}

impl Vault for Objects {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.check(name, &pieces.concat())?;
        self.has_changed.store(true, Ordering::Relaxed);
        lock(&self.spoiled).remove(name);
        if lock(&self.spoils).take_if(|part| name.contains(*part)).is_some() {
            let mut bytes = pieces.concat();
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
            lock(&self.spoiled).insert(name.to_owned());
            return self.memory.put(name, &[bytes.into()]);
        }
        self.memory.put(name, pieces)?;
        let log = name.split_once("/p/").and_then(|(log, _)| u128::from_str_radix(log, 16).ok()).map(LogId);
        let payload = log.and_then(|log| payload_id(log, name));
        lock(&self.payloads).extend(payload);
        self.note_slice(name, &pieces.concat().into())
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        if !name.contains("/o/") {
            return self.memory.create(name, bytes);
        }
        let is_new = self.memory.size(name)?.is_none();
        if is_new {
            self.put(name, &[bytes])?;
        } else {
            self.check(name, &bytes)?;
        }
        Ok(is_new)
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
        if let Some(bytes) = self.memory.size(name)? {
            if name.contains("/p/") {
                self.deleted.put(name, &[self.memory.get(name, 0..bytes)?])?;
            }
            self.has_deleted.store(true, Ordering::Relaxed);
        }
        lock(&self.gone).insert(name.to_owned());
        self.memory.delete(name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a batch in payload slices, and its log.
pub(super) type PayloadPlace = (PayloadId, u32, LogNumber);

/// The object store of all replicas.
#[derive(Debug)]
pub(super) struct SimVault {
    /// Whether replicas store slices, too: in half of all runs.
    pub(super) takes_slices: bool,
    /// Whether appends go to payload slices: in a quarter of all runs.
    pub(super) takes_payloads: bool,
    objects: Arc<Objects>,
    faulty: FaultyVault,
    /// The objects that calls find while the directory of the object store is not mounted, and after how many more calls that
    /// begins. None: it is mounted.
    unmounted: MemoryVault,
    calls_left: Mutex<Option<u64>>,
    calls_astray: AtomicU64,
    /// Whether reads of objects fail.
    hides_objects: AtomicBool,
    /// Objects with this part in their names cannot be put.
    refused: Mutex<Vec<String>>,
    /// The next object cannot be read until it is put again; the name of one that cannot.
    poisons: AtomicBool,
    unreadable: Mutex<Option<String>>,
    refusals: AtomicU64,
    /// The next object that is created arrives, and the answer does not.
    loses_answer: AtomicBool,
}

impl SimVault {
    /// An object store that fails in some of all calls, or in none.
    pub(super) fn new(seed: u64, fails: bool) -> Self {
        let (takes_slices, takes_payloads) = (seed.is_multiple_of(2), seed.is_multiple_of(4));
        Self { takes_slices, takes_payloads, ..Self::over(Arc::default(), seed, fails) }
    }

    /// The same objects, with faults of its own.
    pub(super) fn beside(&self, seed: u64, fails: bool) -> Self {
        Self::over(self.objects.clone(), seed, fails)
    }

    fn over(objects: Arc<Objects>, seed: u64, fails: bool) -> Self {
        let rate = if fails { 30 } else { 0 };
        let faults = FaultOptions::default().refused(rate).unanswered(rate).missing(rate / 3);
        let faulty = FaultyVault::new(objects.clone(), seed, faults.flipped(rate).short(rate / 3));
        let (unmounted, calls_left, calls_astray) =
            (MemoryVault::default(), Mutex::default(), AtomicU64::new(0));
        Self {
            takes_slices: false,
            takes_payloads: false,
            objects,
            faulty,
            unmounted,
            calls_left,
            calls_astray,
            hides_objects: AtomicBool::new(false),
            refused: Mutex::default(),
            poisons: AtomicBool::new(false),
            unreadable: Mutex::default(),
            refusals: AtomicU64::new(0),
            loses_answer: AtomicBool::new(false),
        }
    }

    /// The next object arrives damaged.
    pub(super) fn spoil_object(&self) {
        self.spoil("/o/");
    }

    /// The next object with this part in its name arrives damaged.
    pub(super) fn spoil(&self, part: &'static str) {
        *lock(&self.objects.spoils) = Some(part);
    }

    /// Whether an object is still to arrive damaged.
    pub(super) fn is_to_spoil(&self) -> bool {
        lock(&self.objects.spoils).is_some()
    }

    /// An object that has arrived damaged, and was not stored again.
    pub(super) fn spoiled(&self) -> Option<String> {
        lock(&self.objects.spoiled).first().cloned()
    }

    /// The next object cannot be read until it is put again.
    pub(super) fn poison_object(&self) {
        self.poisons.store(true, Ordering::Relaxed);
    }

    /// The answer to the next creation of an object is lost.
    pub(super) fn lose_answer(&self) {
        self.loses_answer.store(true, Ordering::Relaxed);
    }

    /// An object that cannot be read, and was not put again.
    pub(super) fn unreadable(&self) -> Option<String> {
        lock(&self.unreadable).clone()
    }

    /// An object was put.
    fn arrives(&self, name: &str) {
        if !name.contains("/o/") {
            return;
        }
        lock(&self.unreadable).take_if(|unreadable| unreadable == name);
        if self.poisons.swap(false, Ordering::Relaxed) {
            *lock(&self.unreadable) = Some(name.to_owned());
        }
    }

    /// An object that is there cannot be read until it is put again.
    pub(super) fn poison(&self, name: &str) {
        *lock(&self.unreadable) = Some(name.to_owned());
    }

    /// How often an object could not be read.
    pub(super) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Whether objects cannot be read.
    pub(super) fn hide_objects(&self, hides: bool) {
        self.hides_objects.store(hides, Ordering::Relaxed);
    }

    /// Puts an object that no replica has made.
    pub(super) fn leave(&self, name: &str) -> Result<()> {
        self.objects.memory.put(name, &[Bytes::from_static(b"of another history")])
    }

    /// Objects with one of these parts in their names cannot be put from now on.
    pub(super) fn refuse_parts(&self, parts: &[&str]) {
        *lock(&self.refused) = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    fn takes(&self, name: &str) -> Result<()> {
        let is_refused = lock(&self.refused).iter().any(|part| name.contains(part));
        if is_refused { Err(refused(name)) } else { Ok(()) }
    }

    /// How many objects a branch lacks that it reads from other logs, without faults.
    pub(super) fn missing_of_branch(&self, log: LogId) -> Result<u64> {
        Branch::of(&*self.objects, log)?.map_or(Ok(0), |branch| branch.missing(&*self.objects))
    }

    /// After this number of calls the directory of the object store is not mounted any more: it looks empty, and takes what is put there.
    pub(super) fn unmount_after(&self, calls: u64) {
        *lock(&self.calls_left) = Some(calls);
    }

    pub(super) fn mount(&self) {
        *lock(&self.calls_left) = None;
    }

    /// The object store that the next call finds.
    fn found(&self) -> &dyn Vault {
        match &mut *lock(&self.calls_left) {
            Some(0) => {
                self.calls_astray.fetch_add(1, Ordering::Relaxed);
                &self.unmounted
            }
            Some(left) => {
                *left -= 1;
                &self.faulty
            }
            None => &self.faulty,
        }
    }

    /// All calls fail.
    pub(super) fn refuse(&self) {
        self.faulty.set_faults(FaultOptions::default().refused(1_000));
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        self.faulty.set_faults(FaultOptions::default());
    }

    /// The fault of a put, if one had any.
    pub(super) fn wrong(&self) -> Option<String> {
        lock(&self.objects.wrong).clone()
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
        Ok(made_of(&*self.objects, log)?.1.into_iter().map(|(_, object)| object.name).collect())
    }

    /// The entries of slices that were stored since the last call.
    pub(super) fn take_landed(&self) -> Vec<BlockHeader> {
        std::mem::take(&mut *lock(&self.objects.landed))
    }

    /// The records with which slices begin that begin with the state of the log, and were stored since the last call.
    pub(super) fn take_begins(&self) -> Vec<Index> {
        std::mem::take(&mut *lock(&self.objects.begins))
    }

    /// The payload slices that were stored since the last call.
    pub(super) fn take_payloads(&self) -> Vec<PayloadId> {
        std::mem::take(&mut *lock(&self.objects.payloads))
    }

    /// How many payload slices of a log there are.
    pub(super) fn payloads(&self, log: LogId) -> usize {
        self.objects.memory.list(&payloads(log)).map_or(0, |found| found.len())
    }

    /// How many calls have had a fault.
    pub(super) fn faults(&self) -> u64 {
        let FaultCounts { refused, unanswered, missing, flipped, short, .. } = self.faulty.counts();
        refused + unanswered + missing + flipped + short + self.calls_astray.load(Ordering::Relaxed)
    }

    /// Whether bytes were ever returned that are not those in the object store.
    pub(super) fn has_flipped(&self) -> bool {
        let counts = self.faulty.counts();
        counts.flipped + counts.short > 0
    }

    /// Whether a text names an object that was deleted, and is not there.
    pub(super) fn names_deleted(&self, text: &str) -> bool {
        let is_gone = |name: &&String| {
            text.contains(&***name) && self.objects.memory.size(name).is_ok_and(|size| size.is_none())
        };
        lock(&self.objects.gone).iter().any(|name| is_gone(&name))
    }

    /// Whether anything was stored or deleted since the last call.
    pub(super) fn has_changed(&self) -> bool {
        self.objects.has_changed.swap(false, Ordering::Relaxed)
    }

    /// A block with the batches to which it refers, without faults; also if their slices were deleted since.
    ///
    /// # Errors
    /// Those of the object store: a slice was never there, or has other bytes.
    pub(super) fn resolve(
        &self,
        log: LogId,
        header: BlockHeader,
        body: Bytes,
    ) -> Result<(BlockHeader, Bytes)> {
        resolve(header, body, |header, reference| {
            let slice = match self.has_payload(log, reference.slice)? {
                true => fetch(&self.objects.memory, log, reference),
                false => fetch(&self.objects.deleted, log, reference),
            };
            pick(log, &slice?, header, reference)
        })
    }

    /// Whether a payload slice is there.
    pub(super) fn has_payload(&self, log: LogId, id: PayloadId) -> Result<bool> {
        Ok(self.objects.memory.size(&payload_name(log, id))?.is_some())
    }

    /// Whether a payload slice was deleted since the last call.
    pub(super) fn has_deleted(&self) -> bool {
        self.objects.has_deleted.swap(false, Ordering::Relaxed)
    }

    /// The object store without faults.
    pub(super) fn sound(&self) -> &dyn Vault {
        &*self.objects
    }

    /// The last entry whose payload a log would not need that is made of the object store alone.
    ///
    /// # Errors
    /// As [`Self::reach`].
    pub(super) fn payload_from(&self, log: LogId) -> Result<EntryIndex> {
        let Found { slices: names, objects, .. } = find(&*self.objects, log)?;
        let end = objects.last().map(|newest| end_of(&*self.objects, log, newest)).transpose()?;
        let chain = slices::longest(&*self.objects, &names, end, &mut |_| {})?;
        let begin = chain.slices.first().filter(|_| chain.begins).map(|name| EntryIndex(name.first.0 - 1));
        Ok(begin.or(end.map(|(raft, _)| raft)).unwrap_or_default())
    }

    /// The last entry of the log that would be made of the object store alone, without faults.
    ///
    /// # Errors
    /// Those of [`Backup::fetch`](crate::backup::Backup::fetch).
    pub(super) fn reach(&self, log: LogId) -> Result<EntryIndex> {
        let Found { slices: names, objects, lacking, .. } = find(&*self.objects, log)?;
        let end = objects.last().map(|newest| end_of(&*self.objects, log, newest)).transpose()?;
        let chain = slices::longest(&*self.objects, &names, end, &mut |_| {})?;
        if let Some(error) = lacking.filter(|_| objects.is_empty() && chain.slices.is_empty()) {
            return Err(error);
        }
        let sliced = chain.slices.last().map(|name| name.last);
        Ok(sliced.into_iter().chain(end.map(|(raft, _)| raft)).max().unwrap_or_default())
    }

    /// The last entry that objects and slices of entries give, and the places of the batches behind it that a log would have that is made
    /// of the object store alone, without faults.
    ///
    /// # Errors
    /// As [`Self::reach`].
    pub(super) fn tail(&self, log: LogId) -> Result<(EntryIndex, Vec<PayloadPlace>)> {
        let payloads = tail::payload_names(&*self.objects, log)?;
        let Found { slices: names, objects, .. } = find(&*self.objects, log)?;
        let end = objects.last().map(|last| end_of(&*self.objects, log, last)).transpose()?;
        let chain = slices::longest(&*self.objects, &names, end, &mut |_| {})?;
        let found = tail::behind(&*self.objects, log, &payloads, &names, &chain, end)?;
        if let Some(fault) = found.fault {
            return Err(fault);
        }
        let mut places = Vec::new();
        for part in &found.parts {
            let mut at = part.begin;
            for (of, header, _) in part.batches(&*self.objects, log)? {
                places.push((part.slice, at, of));
                at += header.length;
            }
        }
        Ok((chain.end(end).unwrap_or_default().0, places))
    }

    /// How many objects a pin lacks, without faults.
    pub(super) fn lacks(&self, log: LogId, pin: &Pin) -> Result<u64> {
        pin.missing(&*self.objects, log)
    }

    /// The names of all objects of a log, without faults.
    pub(super) fn names_of(&self, log: LogId) -> Vec<String> {
        let found = self.objects.list(&log_folder(log)).unwrap_or_default();
        found.into_iter().map(|object| object.name).collect()
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

fn refused(name: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{name} is refused"))
}

impl Vault for SimVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.takes(name)?;
        self.found().put(name, pieces)?;
        self.arrives(name);
        Ok(())
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.takes(name)?;
        let is_new = self.found().create(name, bytes)?;
        if is_new {
            self.arrives(name);
        }
        if name.contains("/o/") && self.loses_answer.swap(false, Ordering::Relaxed) {
            return Err(refused(name));
        }
        Ok(is_new)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        if name.contains("/o/") && self.hides_objects.load(Ordering::Relaxed) {
            return Err(refused(name));
        }
        if lock(&self.unreadable).as_deref() == Some(name) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(refused(name));
        }
        self.found().get(name, range)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let store = self.found();
        let found = store.size(name)?;
        if is_mark(name) && std::ptr::addr_eq(store, &self.faulty) {
            self.objects.size(name)
        } else {
            Ok(found)
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let store = self.found();
        let found = store.list(prefix)?;
        if is_mark(prefix) && std::ptr::addr_eq(store, &self.faulty) {
            self.objects.list(prefix)
        } else {
            Ok(found)
        }
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.found().delete(name)
    }
}
