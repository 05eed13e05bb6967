//! A log of a shared group, and the group as the holder of such logs.

use super::Log;
use crate::cluster::options::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::options::log_options::LogOption;
use crate::read::log_set::{LogSet, sealed, unknown};
use crate::record::batch::Batch;
use crate::replica::queue::proposals::WaitLimit;
use crate::store::format::geometry::{LOG_BYTES, logs_room};
use crate::store::format::mixed::{RUN_BYTES, RUNS_MAX, TABLE_FIXED_BYTES};
use crate::sync::completion::Ticket;
use crate::types::{LogId, LogNumber, Term};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Log {
    /// The handle of a log of a shared group, from the group's.
    ///
    /// # Errors
    /// `NotFound`: the group does not have the log.
    pub(crate) fn of_log(&self, log: LogNumber, id: LogId) -> Result<Self> {
        Ok(Self { inner: self.inner.clone(), view: self.inner.view.of_log(log)?, id })
    }

    /// The handle of one of the logs of a shared group, by its number, from the handle of the group. For a copy of a
    /// group, which has no catalogue: [`Logs`](crate::Logs) gives handles by name.
    ///
    /// # Errors
    /// `NotFound`: the group does not have the log, as far as is known here.
    pub fn named(&self, log: LogNumber) -> Result<Self> {
        self.of_log(log, self.id)
    }

    /// How many named logs this group holds, as far as is committed here; 0 for a log on its own. Never blocks.
    pub fn named_logs(&self) -> usize {
        self.view.logs.len()
    }

    /// How many named logs of this group keep as many bytes as their `capacity_bytes` allow, as far as this replica has looked it up:
    /// while it leads, their appends are refused. Never blocks.
    #[doc(hidden)]
    pub fn full_logs(&self) -> usize {
        self.inner.queue.full_logs()
    }

    /// The most named logs that this group can hold now, beside the options of logs, the objects and the open sessions that it has. Never
    /// blocks.
    pub fn named_logs_max(&self) -> usize {
        let set = self.group_options();
        let sessions_max = set.get(LogOption::SessionsMax).and_then(|max| u32::try_from(max).ok());
        let Options { segment_bytes, sessions_max: own, .. } = self.inner.options;
        // A lower limit closes no session.
        let open = self.inner.published.sessions.load(Ordering::Relaxed);
        let room = logs_room(segment_bytes, sessions_max.unwrap_or(own).max(open), self.session_window());
        let others = self.view.logs.options_bytes() + self.view.logs.objects_bytes();
        (room.saturating_sub(others) / LOG_BYTES).saturating_sub(1)
    }

    /// Whether this replica gave leadership to another one within the last ten minutes because its disk was slow: see
    /// [`ClusterOptions::slow_disk_sync`](crate::cluster::ClusterOptions::slow_disk_sync). A program that spreads leaders over servers does
    /// not give it back until then. Never blocks.
    pub fn has_slow_disk(&self) -> bool {
        self.inner.published.has_slow_disk.load(Ordering::Relaxed)
    }

    /// Whether this replica found no room for another file when it tried last, or refuses entries for another reason: as leader it would
    /// refuse appends. A program that spreads
    /// leaders over servers passes over such a replica. Never blocks.
    pub fn lacks_room(&self) -> bool {
        self.inner.published.lacks_room.load(Ordering::Relaxed)
    }

    /// Whether this replica leads.
    pub(crate) fn replica_leads(&self) -> bool {
        self.role() == Role::Leader
    }

    /// The term of this replica, as of its last step.
    pub(crate) fn replica_term(&self) -> Term {
        self.replica(|replica| replica.term)
    }

    /// A new random id for a log.
    pub(crate) fn random_id(&self) -> Result<LogId> {
        let mut id = [0; 16];
        let drawn = self.view.segments.disk().random(&mut id);
        drawn.map_err(|e| Error::io("draw a random number for", self.path(), e))?;
        Ok(LogId(u128::from_le_bytes(id)))
    }

    /// The logs of the group.
    pub(crate) fn logs(&self) -> &LogSet {
        &self.view.logs
    }

    /// Closes the log, and does not wait until that is done.
    pub(crate) fn begin_close(&self) -> Result<()> {
        self.check_fork()?;
        self.inner.begin_close();
        self.poison_cause().map_or(Ok(()), Err)
    }

    /// Checks that this is no named log that was dropped or sealed.
    pub(super) fn check_takes_appends(&self) -> Result<()> {
        let log = self.view.log;
        if log.is_none() {
            return Ok(());
        }
        match self.logs().get(log) {
            Some(state) if state.sealed => Err(sealed(log, state.next)),
            Some(_) => Ok(()),
            None => Err(unknown(log)),
        }
    }

    pub(crate) fn is_named(&self) -> bool {
        !self.view.log.is_none()
    }

    /// Whether both are views of one group.
    pub(crate) fn is_of_one_group_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Submits batches of several logs of one shared group: all of them are appended, or none. Waits for room up to the
    /// time-out of the options, unless it `never_waits`.
    ///
    /// # Errors
    /// See [`Logs::submit_together`](crate::Logs::submit_together).
    pub(crate) fn submit_together(appends: &[(&Self, &Batch)], never_waits: bool) -> Result<Vec<Ticket>> {
        let Some((first, _)) = appends.first() else { return Ok(Vec::new()) };
        Self::check_together(appends, first)?;
        let limit = if never_waits { WaitLimit::None } else { first.wait_limit() };
        first.inner.queue.push_together(&numbered(appends), limit)
    }

    /// The same, but waits for room without blocking the thread, and without a time-out.
    ///
    /// # Errors
    /// See [`Logs::submit_together_when_room`](crate::Logs::submit_together_when_room).
    pub(crate) async fn submit_together_when_room(appends: &[(&Self, &Batch)]) -> Result<Vec<Ticket>> {
        let Some((first, _)) = appends.first() else { return Ok(Vec::new()) };
        Self::check_together(appends, first)?;
        let batches = numbered(appends);
        loop {
            match first.inner.queue.push_together_or_wait(&batches)? {
                Ok(tickets) => return Ok(tickets),
                Err(room) => drop(room.await?),
            }
        }
    }

    /// Checks batches that are to be appended together, and that a block has room for them.
    fn check_together(appends: &[(&Self, &Batch)], first: &Self) -> Result<()> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        let (mut bytes, mut records) = (TABLE_FIXED_BYTES, 0u64);
        for (log, batch) in appends {
            log.check_batch(batch)?;
            bytes += RUN_BYTES + batch.as_bytes().len();
            records += u64::from(batch.count());
            if !log.is_of_one_group_with(first) || log.view.log.is_none() {
                return invalid("logs that are appended to together have to be named logs of one group");
            }
            if batch.session().is_some() {
                return invalid("batches that are appended together cannot belong to sessions");
            }
        }
        let max = first.inner.options.block_bytes_max;
        if bytes <= max as usize && appends.len() <= RUNS_MAX && records <= u64::from(u32::MAX) {
            return Ok(());
        }
        let what = format!(
            "{} batches of {records} records take {bytes} bytes together; a block has room for {RUNS_MAX} batches, {} \
             records and {max} bytes: raise block_bytes_max, or append less together",
            appends.len(),
            u32::MAX
        );
        Err(Error::new(ErrorKind::TooLarge, what))
    }
}

/// The batches, with the numbers of their logs.
fn numbered<'a>(appends: &[(&Log, &'a Batch)]) -> Vec<(LogNumber, &'a Batch)> {
    appends.iter().map(|(log, batch)| (log.view.log, *batch)).collect()
}
