//! Requests about the log's objects in an object store.

use super::Log;
use crate::cluster::options::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::InboxEvent;
use crate::store::objects::names::{log_folder, object_name};
use crate::store::segment::objects::Numbered;
use crate::types::{Index, Timestamp};
use std::sync::atomic::Ordering;

/// An object of a log or a group that is in the object store, as the log itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogObject {
    /// Its number: objects have no gap between them.
    pub number: u64,
    /// Its name in the object store.
    pub name: String,
    /// Its first record, and the record behind its last one. They are equal if it has none.
    pub first: Index,
    /// See `first`.
    pub next: Index,
    /// The time of its last entry.
    pub timestamp: Timestamp,
    /// Its size.
    pub bytes: u64,
    /// The CRC-32C of all its bytes.
    pub crc32c: u32,
}

impl Log {
    /// Whether readers of this log read the object of this name in the object store: it is this log's, or, if this log is a branch, one of
    /// an ancestor that the branch reads, or an ancestor's `root`.
    #[doc(hidden)]
    pub fn reads_object(&self, name: &str) -> bool {
        name.starts_with(&log_folder(self.log_id())) || self.view.segments.objects().is_of_ancestor(name)
    }

    /// Whether this is a named log, and this the name of an object of its group, with the records of all logs of the group; or the group's
    /// `root`.
    #[doc(hidden)]
    pub fn is_in_object_of_group(&self, name: &str) -> bool {
        self.is_named() && name.starts_with(&log_folder(self.inner.identity.log))
    }

    /// Whether this log is a branch that still reads objects of another log.
    #[doc(hidden)]
    pub fn reads_other_logs(&self) -> bool {
        self.view.segments.objects().has_ancestors()
    }

    /// The number of the first object that can be this log's own. Of a branch, those before it are other logs'.
    #[doc(hidden)]
    pub fn own_objects_from(&self) -> u64 {
        self.view.segments.objects().own_from()
    }

    /// Up to `count` objects in the object store that have records of this log which are not discarded, oldest first: from this
    /// number on, or from the oldest one that is left. One named log has none: ask its group. Blocks for the object store if the log's own
    /// state does not have the rows of old objects any more.
    ///
    /// # Errors
    /// Those of the object store, then.
    #[doc(hidden)]
    pub fn stored_objects(&self, number: u64, count: usize) -> Result<Vec<LogObject>> {
        if !self.view.log.is_none() {
            return Ok(Vec::new());
        }
        self.view.segments.objects().numbered_from(number, count).map(|found| self.shown(found))
    }

    /// As [`Self::stored_objects`], without waiting for the object store. None: it has to be asked for rows of old objects.
    #[doc(hidden)]
    pub fn known_objects(&self, number: u64, count: usize) -> Option<Vec<LogObject>> {
        if !self.view.log.is_none() {
            return Some(Vec::new());
        }
        self.view.segments.objects().known_from(number, count).map(|found| self.shown(found))
    }

    fn shown(&self, found: Vec<Numbered>) -> Vec<LogObject> {
        let log = self.log_id();
        let shown = found.into_iter().map(|(number, segment, crc32c)| LogObject {
            number,
            name: object_name(log, number),
            first: segment.base.next,
            next: segment.end().next,
            timestamp: segment.last_timestamp(),
            bytes: u64::from(segment.bytes),
            crc32c,
        });
        shown.collect()
    }

    /// Whether an object of this number is in the object store, and has records of this log that are not discarded. Does not wait for the
    /// object store.
    #[doc(hidden)]
    pub fn has_stored_object(&self, number: u64) -> bool {
        let numbers = self.view.segments.objects().numbers().filter(|_| self.view.log.is_none());
        numbers.is_some_and(|(oldest, next)| (oldest..next).contains(&number))
    }

    /// Has the leader put all records up to `upto` into objects soon, without waiting for
    /// [`object_bytes`](crate::Options::object_bytes) or [`object_age`](crate::Options::object_age). Returns at once;
    /// [`Metrics::stored_index`](crate::Metrics::stored_index) tells when they are stored. The request is forgotten if another
    /// replica becomes the leader: repeat it there. A backup in the object store is this, and then a [`Pin`](crate::backup::Pin).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use chiplog::vault::{MemoryVault, Vault};
    /// # let dir = tempfile::tempdir()?;
    /// let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
    /// let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20).vault(vault))?;
    /// let index = log.append(b"x")?;
    /// log.cut_objects(index)?;
    /// while log.metrics().stored_index < index.get() {
    ///     std::thread::sleep(std::time::Duration::from_millis(5));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the log has no object store, or is a named log. `OutOfRange`: record `upto` is not committed yet.
    /// `NotLeader`, `Forked`.
    pub fn cut_objects(&self, upto: Index) -> Result<()> {
        self.check_fork()?;
        if self.inner.options.vault.is_none() || !self.view.log.is_none() {
            let what = format!(
                "{} has no object store: give its servers `object_store`. Named logs have none",
                self.path().display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if self.role() != Role::Leader {
            let what = format!("{} does not lead: ask the leader to store objects", self.path().display());
            return Err(Error::new(ErrorKind::NotLeader, what));
        }
        // Behind the end, the entries about an object would be in the next one, and so on without an end.
        let last = self.view.positions.committed();
        if upto > last {
            let what = format!(
                "record {upto} of {} cannot be put into an object: the last committed one is {last}",
                self.path().display()
            );
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        self.inner.published.cut_upto.fetch_max(upto.get(), Ordering::Relaxed);
        self.inner.queue.push_event(InboxEvent::JobEnded);
        Ok(())
    }
}
