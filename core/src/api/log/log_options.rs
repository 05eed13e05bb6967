//! The options that are set in the log itself.

use super::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::{LogOption, LogOptions};
use crate::replica::queue::inbox::AdminRequest;
use crate::sync::completion::Ticket;
use std::time::Duration;

impl Log {
    /// The options that are set for the log, the same on every replica, as far as this replica knows them committed.
    /// They override the options that a leader was opened with. Of a named log: its own ones. Never blocks.
    pub fn log_options(&self) -> LogOptions {
        match self.view.log.is_none() {
            true => self.group_options(),
            false => self.view.logs.options(self.view.log),
        }
    }

    /// Whether appends of the log, or of the group of a named log, go to payload slices. `None`: they never did.
    #[doc(hidden)]
    pub fn payload_slices(&self) -> Option<bool> {
        self.group_options().get(LogOption::PayloadSlices).map(|value| value == 1)
    }

    /// The options that are set for the whole group of a named log.
    pub(crate) fn group_options(&self) -> LogOptions {
        self.inner.published.log_options()
    }

    /// Sets options of the log, or unsets those whose value is `None`; other options keep their values. Only the
    /// leader accepts this. Blocks until the change is committed; from then on every leader uses the new values. The
    /// first change makes the log one of format version 2, which earlier versions of chiplog refuse to open: see
    /// [`pages::format`](crate::pages::format).
    ///
    /// A named log has the options [`LogOption::OF_NAMED_LOGS`] of its own; all others are set for its group, by the handle
    /// of [`Logs::groups`](crate::Logs::groups). Of two `record_bytes_max` or `sessions_max` the lower one
    /// applies; `session_idle_max` of the log replaces that of its group. A record that was appended under a higher limit is `TooLarge` if it is
    /// sent again. Retention of a named log goes by whole segments of its group, when a
    /// segment has become full: the log's part of a segment is discarded once the segments behind it hold at least
    /// `retention_bytes` of the log, or once the segment's last record is older than `retention_age`. So a named log keeps at
    /// least `retention_bytes`, where a log on its own keeps at most that. Appends that exceed the `capacity_bytes` of a named log are `Full`,
    /// as far as [`LogOption::CapacityBytes`] says.
    ///
    /// ```
    /// use chiplog::{Log, LogOption, Options};
    /// # use std::time::Duration;
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::default())?;
    /// log.set_log_options(&[(LogOption::RetentionBytes, Some(1 << 30))], Duration::from_secs(5))?;
    /// assert_eq!(log.log_options().get(LogOption::RetentionBytes), Some(1 << 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the option that is out of bounds, or conflicts with an option that this replica was opened
    /// with. `NotFound`: the named log was deleted. `Unsupported`: names a member that has not reported support for the log's
    /// options; nothing was changed. `NotLeader`, `Removed`, `Full`, `Busy`: nothing was changed. `Unavailable`: this replica lost
    /// leadership meanwhile, and the change may or may not happen. `Poisoned`, `Closed`, `Forked`. It is safe to retry.
    pub fn set_log_options(&self, changes: &[(LogOption, Option<u64>)], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        self.submit_set_log_options(changes, timeout)?.wait()
    }

    /// As [`Log::set_log_options`], but returns at once. `timeout` limits how long
    /// the leader waits for members to report support.
    ///
    /// # Errors
    /// As [`Log::set_log_options`].
    pub fn submit_set_log_options(
        &self,
        changes: &[(LogOption, Option<u64>)],
        timeout: Duration,
    ) -> Result<Ticket<()>> {
        let discards = [LogOption::RetentionBytes, LogOption::RetentionAge, LogOption::CapacityBytes];
        if changes.iter().any(|(option, set)| set.is_some() && discards.contains(option)) {
            self.check_keeps_all("limit its size or age")?;
        }
        self.submit_request(AdminRequest::SetOptions(self.view.log, changes.to_vec()), timeout)
    }

    /// Checks that this log is not the catalogue of named logs, whose records are all needed.
    pub(super) fn check_keeps_all(&self, wish: &str) -> Result<()> {
        if !self.view.logs.holds_catalogue() {
            return Ok(());
        }
        let what =
            format!("the log is the catalogue of named logs, which needs all its records: do not {wish}");
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}
