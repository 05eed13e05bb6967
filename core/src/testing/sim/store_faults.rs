//! Store faults: whether an error of a reader is one that the simulated object store explains, or the disk of its cache.
//!
//! | an error is explained if | the excuse |
//! |---|---|
//! | the object store had a fault during the call, or bytes that it flipped before were kept | [`excuse::STORE`] |
//! | the disk that holds the cache had a fault, or is full | [`excuse::CACHE`] |
//! | what it names was deleted: the replica does not know yet of the discard, or of the object with that payload | [`excuse::GONE`] |
//! | the replica has not learnt yet that an object with the record is stored, and has no file with it | [`excuse::LATE`] |
//!
//! A reader that fails at one record again and again is never explained: a fault of the store goes with the next call.
//!
//! Must not know: what is in the records.

use super::excuse;
use super::vault::SimVault;
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind};
use crate::types::{Index, LogNumber};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often in a row a reader may fail at one record. A call fails in one of ten cases at most, and a reader makes few.
const IN_A_ROW_MAX: u32 = 12;

/// In the error of a record that is in no file, and in no object that is known.
const NOT_KNOWN_YET: &str = "does not know yet which object it is in";

/// The object store of a process, and the disk of its cache.
#[derive(Debug)]
pub(super) struct StoreFaults {
    vault: Option<Arc<SimVault>>,
    disk: SimDisk,
    /// The faults that there had been when the call began.
    before: u64,
    /// The records at which readers failed last, and how often in a row.
    in_a_row: BTreeMap<LogNumber, (Index, u32)>,
    excuses: BTreeMap<&'static str, u64>,
}

impl StoreFaults {
    pub(super) fn new(vault: Option<Arc<SimVault>>, disk: &SimDisk) -> Self {
        let (in_a_row, excuses) = (BTreeMap::new(), BTreeMap::new());
        Self { vault, disk: disk.clone(), before: 0, in_a_row, excuses }
    }

    /// As [`Self::new`], for a call that began after this number of faults.
    pub(super) fn since(vault: Option<Arc<SimVault>>, disk: &SimDisk, before: u64) -> Self {
        Self { before, ..Self::new(vault, disk) }
    }

    /// A call begins, which may fail.
    pub(super) fn begin(&mut self) {
        self.before = self.vault.as_ref().map_or(0, |vault| vault.faults());
    }

    /// Whether the error with which the call ended is explained; if it is, the excuse is counted. `at`: the record that a reader wanted.
    pub(super) fn explain(&mut self, error: &Error, at: Option<(LogNumber, Index)>) -> bool {
        let Some(why) = self.reason(error) else { return false };
        if let Some((log, at)) = at.filter(|_| why == excuse::STORE) {
            let (last, times) = self.in_a_row.entry(log).or_default();
            *times = if *last == at { *times + 1 } else { 1 };
            *last = at;
            if *times > IN_A_ROW_MAX {
                return false;
            }
        }
        *self.excuses.entry(why).or_default() += 1;
        true
    }

    fn reason(&self, error: &Error) -> Option<&'static str> {
        let (vault, text) = (self.vault.as_ref()?, error.to_string());
        let is_of_object = ["/p/", "/o/", ".object"].iter().any(|of| text.contains(of));
        let is_of_store = is_of_object || error.kind() == ErrorKind::Unavailable;
        // First of all: it may be wanted again and again, until the replica has learnt of the discard.
        if is_of_object && vault.names_deleted(&text) {
            return Some(excuse::GONE);
        }
        let is_kept =
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::OutOfRange) && vault.has_flipped();
        if is_of_store && (vault.faults() > self.before || is_kept) {
            return Some(excuse::STORE);
        }
        if is_of_object && (self.disk.faults_fired() > 0 || self.disk.is_limited() || self.disk.is_off()) {
            return Some(excuse::CACHE);
        }
        if error.kind() == ErrorKind::Unavailable && text.contains(NOT_KNOWN_YET) {
            return Some(excuse::LATE);
        }
        None
    }

    /// The excuses since the last call, and how often each was used.
    pub(super) fn take_excuses(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.excuses)
    }
}
