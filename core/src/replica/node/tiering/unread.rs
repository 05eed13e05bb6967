//! Which objects of a log with payload slices were not read back yet: what a leader knows of it, and the look by which a new one finds out.
//! See `read_back`.
//!
//! Must not know: the network, which object store it is, who leads.

use super::object_access::check_there;
use super::payload_jobs::first_reference;
use crate::error::{ErrorKind, Result};
use crate::record::reference::PayloadId;
use crate::store::objects::payloads::{payload_id, payloads};
use crate::store::read::entry_lookup::Archive;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, LogId};
use crate::vault::Vault;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many objects are looked at, at least, although their entries do not say what has become of their payload.
const UNCLEAR_MIN: usize = 8;
/// How many times as large as its payload an object is taken to be, at most.
const OBJECT_TO_PAYLOAD_MAX: u64 = 8;

/// Which objects a leader has to read back.
#[derive(Debug, Default)]
pub(super) struct ReadBacks {
    /// Stored, and not read back since: payload of their entries stays.
    pub(super) unread: BTreeSet<u64>,
    /// Objects below this number were stored when the look at them began. None: it has not.
    pub(super) looked_below: Option<u64>,
    /// The look has ended.
    pub(super) is_known: bool,
    /// A look that failed is repeated then.
    pub(super) again: Moment,
    /// An object was stored since the last read-back.
    pub(super) has_turn: bool,
}

impl ReadBacks {
    /// Whether an object is to be read back.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.unread.contains(&number)
    }

    /// An object was read, whole.
    pub(super) fn end(&mut self, number: u64) {
        self.unread.remove(&number);
    }

    /// Objects below this number are discarded.
    pub(super) fn prune(&mut self, oldest: u64) {
        self.unread.retain(|number| *number >= oldest);
    }

    /// An object went to the object store.
    pub(super) fn has_stored(&mut self) {
        self.has_turn = true;
    }
}

/// A look at the newest objects, whether payload of their entries is still there.
pub(super) struct UnreadLook {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) log: LogId,
    pub(super) archive: Archive,
    /// The newest first.
    pub(super) stored: Vec<StoredStretch>,
}

/// The stretch of a stored object: the entries behind the first one, up to the second one.
pub(super) struct StoredStretch {
    pub(super) number: u64,
    pub(super) behind: EntryIndex,
    pub(super) upto: EntryIndex,
    pub(super) bytes: u64,
}

impl UnreadLook {
    /// The objects that may still have to be made again of payload: they are to be read back. Blocks for the object store and the disk.
    ///
    /// # Errors
    /// Those of [`Vault`] and of the archive.
    pub(super) fn run(&self) -> Result<BTreeSet<u64>> {
        let found = self.vault.list(&payloads(self.log))?;
        // A directory that is not mounted looks like one without payload.
        check_there(&*self.vault, self.log)?;
        let there: BTreeSet<PayloadId> =
            found.iter().filter_map(|found| payload_id(self.log, &found.name)).collect();
        // An object that can be made again has all of its payload there. So this ends behind as many objects as have that, with a wide margin:
        // an object also has sessions, an index and whole batches.
        let mut payload: u64 = found.iter().map(|found| found.bytes).sum();
        let (mut unread, mut unclear) = (BTreeSet::new(), 0);
        for StoredStretch { number, behind, upto, bytes } in self.stored.iter().filter(|_| !there.is_empty())
        {
            match first_reference(&self.archive, *behind, *upto) {
                // All payload of the objects before it went before.
                Ok(Some(first)) if !there.contains(&first.slice) => break,
                Ok(Some(_)) => _ = unread.insert(*number),
                Ok(None) => unclear += 1,
                // Its entries have left the files here; another replica may have them.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    unread.insert(*number);
                    unclear += 1;
                    payload = payload.saturating_sub(*bytes / OBJECT_TO_PAYLOAD_MAX);
                }
                Err(error) => return Err(error),
            }
            if unclear >= UNCLEAR_MIN && payload == 0 {
                break;
            }
        }
        Ok(unread)
    }
}
