//! Requests about the log's objects in an object store.

use super::Log;
use crate::cluster::options::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::InboxEvent;
use crate::types::Index;
use std::sync::atomic::Ordering;

impl Log {
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
