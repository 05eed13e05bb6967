//! Older rows: the leader moves the rows of older objects out of the log's object table, and says with which object the log begins.
//!
//! ```text
//!   twice as many rows as the table keeps ──> read the newest object's opening (job) ──> the same rows ──> move rows ──committed──> they leave
//!   a discard into a run of older rows    ──> read the run's rows (job) ──> begin ──committed──> the table begins with that object
//! ```
//!
//! Nothing is stored for it: each object begins with the table of its time. So the rows are in the object store before they leave the
//! table, in the holder and in most objects around it, and whoever makes the holder again makes them again. Any leader may move any rows:
//! a command holds for the table behind the entry before it, or is refused. A crash between the look and the command leaves nothing.
//!
//! Invariants:
//! - rows are moved only if the holder, as it is in the object store, has them at the offset that the command says (R1);
//! - they are moved only in a log whose options say so, which all members know, and in no group of named logs (R2);
//! - the rows of the oldest run are read on the thread of jobs, never by the node (R3). Until they are here, and the log's begin is exact,
//!   retention discards nothing: it counts the bytes of whole objects.
//!
//! Must not know: which object store it is.

use super::super::Node;
use super::OPTION_TIMEOUT;
use super::jobs::{Job, JobDone};
use super::rows_jobs::{RowsLook, RunLook};
use crate::error::{ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::objects::StoredAt;
use crate::store::format::older_rows::{RUN_MIN, RowsRun};
use crate::sync::clock::Moment;
use crate::types::{Index, Timestamp};
use crate::vault::Vault;
use std::sync::Arc;
use std::time::Duration;

/// The rows of the oldest run.
#[derive(Debug, Default)]
pub(super) struct OldestRows {
    /// The number behind the run's last object, and its objects. None: they are not here.
    fetched: Option<(u64, Vec<StoredAt>)>,
    /// Nothing is tried before: the last attempt failed. Other jobs go on.
    again: Moment,
    /// Behind this object's number the newest one did not have all rows: the next one has.
    looked: Option<u64>,
}

/// The rows that stay at least, in a log whose leader sets the option.
const ROWS_KEPT: u64 = 1024;
/// When an attempt that failed is repeated.
const ROWS_AGAIN: Duration = Duration::from_secs(10);

impl Node {
    /// The next job about older rows, of a leader.
    pub(super) fn rows_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Result<Option<Job>> {
        if now < self.tiering.oldest_rows.again {
            return Ok(None);
        }
        if let Some(run) = self.run_to_fetch() {
            let lineage = self.replica.sequencer.committed().objects.lineage(self.tiering.log);
            return Ok(Some(Job::FetchRun(Box::new(RunLook { vault: vault.clone(), lineage, run }))));
        }
        if let Some(begin) = self.exact_begin() {
            self.propose_object(begin, now)?;
            return Ok(None);
        }
        if !self.has_many_rows() {
            return Ok(None);
        }
        Ok(self.rows_look(vault).map(|look| Job::FindRows(Box::new(look))))
    }

    /// When [`Self::rows_job`] has something to do.
    pub(super) fn rows_due(&self, now: Moment) -> Option<Moment> {
        let is_due = self.run_to_fetch().is_some() || self.exact_begin().is_some() || self.has_many_rows();
        is_due.then(|| now.max(self.tiering.oldest_rows.again))
    }

    /// Whether the table has half of the rows that it has room for, and the log no option under which older ones leave it. Objects that
    /// wait to be stored move no rows: the other half is for them.
    pub(super) fn lacks_object_rows(&self) -> bool {
        let sequencer = &self.replica.sequencer;
        let committed = sequencer.committed();
        !sequencer.logs().is_shared()
            && committed.options.get(LogOption::ObjectRows).is_none()
            && sequencer.rows_max() >= 4 * RUN_MIN as usize // else it would move none
            && committed.objects.len() >= sequencer.rows_max() / 2
    }

    /// Sets the option if the log lacks it: without it nothing would be stored once the table is full.
    pub(super) fn keep_object_rows(&mut self, now: Moment) -> Result<()> {
        if !self.lacks_object_rows() || now < self.tiering.asked_until {
            return Ok(());
        }
        self.tiering.asked_until = now.plus(OPTION_TIMEOUT * 2);
        let objects = self.replica.sequencer.committed().objects.len();
        tracing::info!(
            objects,
            object_rows = ROWS_KEPT,
            "the log has many objects, and sets object_rows once all members report that they know it"
        );
        self.set_options(vec![(LogOption::ObjectRows, Some(ROWS_KEPT))], now)
    }

    /// How many rows are moved at a time, and stay at least. None: the options of the log do not say that rows are moved.
    fn rows_kept(&self) -> Option<u32> {
        let sequencer = &self.replica.sequencer;
        let set = sequencer.committed().options.get(LogOption::ObjectRows)?;
        // Small segments have room for fewer.
        let most = sequencer.rows_max() as u64 / 4;
        Some(u32::try_from(set.min(most)).unwrap_or(u32::MAX).max(RUN_MIN))
    }

    /// Whether the table has enough rows of stored objects for the older ones to leave it.
    fn has_many_rows(&self) -> bool {
        let sequencer = &self.replica.sequencer;
        let objects = &sequencer.committed().objects;
        !sequencer.logs().is_shared()
            && self.tiering.oldest_rows.looked != Some(objects.next_to_show())
            && self.rows_kept().is_some_and(|kept| objects.stored_rows() as u64 >= 2 * u64::from(kept))
    }

    fn rows_look(&self, vault: &Arc<dyn Vault>) -> Option<RowsLook> {
        let objects = &self.replica.sequencer.committed().objects;
        let count = self.rows_kept()?;
        let rows = objects.first_rows(count)?;
        let of = objects.rows_from()..objects.rows_from() + u64::from(count);
        let holder = if planted!(162) { of.end } else { objects.next_to_show() - 1 };
        Some(RowsLook { vault: vault.clone(), lineage: objects.lineage(self.tiering.log), of, rows, holder })
    }

    /// The oldest run, if its rows are needed here and are not: for retention, or because records of it are discarded.
    fn run_to_fetch(&self) -> Option<RowsRun> {
        let committed = self.replica.sequencer.committed();
        let run = committed.objects.runs().next()?;
        let retains = self.effective.retention_bytes.is_some() || self.effective.retention_age.is_some();
        let is_wanted = retains || committed.first > run.begin.next;
        let is_here =
            self.tiering.oldest_rows.fetched.as_ref().is_some_and(|(below, _)| *below == run.rows.below);
        (is_wanted && !is_here).then_some(run)
    }

    /// The first object of the oldest run that has records which are not discarded, and the sizes of those before it.
    pub(super) fn first_of_run(&self) -> Option<(StoredAt, u64)> {
        let committed = self.replica.sequencer.committed();
        let run = committed.objects.runs().next()?;
        let (_, objects) =
            self.tiering.oldest_rows.fetched.as_ref().filter(|(below, _)| *below == run.rows.below)?;
        let left = objects.iter().skip_while(|at| at.number < run.number);
        let mut gone = 0;
        for at in left {
            if at.state.end.next > committed.first {
                return Some((*at, gone));
            }
            gone += u64::from(at.object.bytes);
        }
        None
    }

    /// The command that says with which object the log begins, if the table does not say it.
    fn exact_begin(&self) -> Option<ObjectCommand> {
        let (first, bytes) = self.first_of_run()?;
        (bytes > 0).then_some(ObjectCommand::Begin { number: first.number, begin: first.begin, bytes })
    }

    /// The end of the oldest object, and the time of its last entry, if its row is elsewhere. `Some(None)`: it is not known here yet, or the
    /// table does not begin with it yet.
    pub(in crate::replica::node) fn oldest_of_run(&self) -> Option<Option<(Index, Timestamp)>> {
        self.replica.sequencer.committed().objects.runs().next()?;
        let exact = self.first_of_run().filter(|(_, gone)| *gone == 0);
        Some(exact.map(|(at, _)| (at.state.end.next, at.state.timestamp)))
    }

    pub(super) fn end_rows_job(&mut self, done: JobDone, now: Moment) -> Result<()> {
        match done {
            JobDone::FoundRows(Ok(Some(command))) => {
                self.tiering.has_succeeded("the object store");
                self.propose_object(command, now)?;
            }
            // The newest object was cut before the last of the rows was stored: the next one has them.
            JobDone::FoundRows(Ok(None)) => {
                self.tiering.oldest_rows.looked =
                    Some(self.replica.sequencer.committed().objects.next_to_show());
            }
            JobDone::FetchedRun(below, Ok((objects, by_holder))) => {
                self.tiering.has_succeeded("the object store");
                if !by_holder {
                    self.suspect_holder(now);
                }
                self.tiering.oldest_rows.fetched = Some((below, objects));
                self.retain(now)?; // it has waited for that
            }
            JobDone::FoundRows(Err(error)) | JobDone::FetchedRun(_, Err(error)) => {
                if error.kind() == ErrorKind::Corrupt {
                    self.suspect_holder(now);
                }
                let path = self.tiering.path.display();
                tracing::warn!(%path, %error, "it cannot be read what the log's older objects are; it is tried again");
                self.tiering.oldest_rows.again = now.plus(ROWS_AGAIN);
            }
            _ => {}
        }
        Ok(())
    }

    /// An object whose opening cannot be read is examined.
    fn suspect_holder(&mut self, now: Moment) {
        let objects = &self.replica.sequencer.committed().objects;
        let holder = objects.runs().next().map(|run| run.rows.holder);
        let newest = objects.next_to_show().checked_sub(1);
        for number in holder.into_iter().chain(newest) {
            self.suspect_object(number, now);
        }
    }
}
