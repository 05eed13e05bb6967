//! Snapshots: they keep the system log short. The replica that leads it writes the catalogue into it from time to time, and
//! discards what is before; a replica that lacks the discarded records reads the catalogue from there.
//!
//! Invariants:
//! - records are discarded only once a snapshot without them is committed as a whole;
//! - a replica that has neither all records nor a whole snapshot reports `Unavailable`: it knows no catalogue, and none that is empty;
//! - no snapshot is in the log before all members have reported that they read version 4 of the format: earlier versions do not know
//!   snapshots;
//! - such a replica reads each record of the system log once, however often it looks for a snapshot;
//! - while the system log has not answered one part of a snapshot, it gets no other ones: it would have all of them once its disk goes on.

use super::names::in_doubt;
use super::{GROUP_TIMEOUT, Logs};
use crate::api::catalogue::snapshot::SnapshotParts;
use crate::api::catalogue::{Catalogue, CatalogueRecord, NEWER};
use crate::error::{Error, ErrorKind, Result};
use crate::read::reader::Reader;
use crate::read::records::Record;
use crate::read::view::Start;
use crate::record::batch::Malformed;
use crate::replica::queue::inbox::AdminRequest;
use crate::replica::queue::proposals::Command;
use crate::sync::completion::Ticket;
use crate::sync::pause;
use crate::types::{Index, Timestamp};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Replicas that read this version of the format, or a later one, know snapshots of the catalogue.
const SNAPSHOT_VERSION: u32 = 4;
/// How long members may take to report which version they read, and when they are asked again.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const ASK_INTERVAL: Duration = Duration::from_secs(10);
/// How often reading begins again because records were discarded meanwhile.
const ATTEMPTS_MAX: u32 = 16;

impl Logs {
    /// The catalogue of the newest whole snapshot in the system log. `search`: what earlier calls have read, while they found none.
    ///
    /// # Errors
    /// `Unavailable`: there is none yet. Those of reading the system log.
    pub(super) fn read_snapshot(&self, search: &mut SnapshotSearch) -> Result<Catalogue> {
        let system = &self.inner.system;
        for _ in 0..ATTEMPTS_MAX {
            let first = system.first_index();
            match search.read_on(&|start| system.reader(start), first, system.last_index()) {
                Err(error) if error.kind() == ErrorKind::Discarded => {}
                Ok(None) if system.first_index() != first => {}
                Ok(Some(snapshot)) => return snapshot.catalogue().map_err(|why| malformed(first, why)),
                Ok(None) => {
                    let what = format!(
                        "the system log begins at record {first}, and the snapshot of the catalogue is not whole here yet: try \
                         again later"
                    );
                    return Err(Error::new(ErrorKind::Unavailable, what));
                }
                Err(error) => return Err(error),
            }
        }
        let what = "the records of the system log are discarded faster than they are read; try again later";
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Whether all members of the system log have reported that they can read a snapshot. Does not wait for them: a later call has
    /// their answers.
    fn all_know_snapshots(&self) -> Result<bool> {
        let system = &self.inner.system;
        if system.status().replica.members.len() < 2 {
            return Ok(true);
        }
        let mut readers = self.inner.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(asked) = readers.asked.take() else {
            if readers.again.is_none_or(|again| again <= pause::now()) {
                readers.asked =
                    Some(system.submit_request(AdminRequest::AwaitVersion(SNAPSHOT_VERSION), ANSWER_WAIT)?);
            }
            return Ok(false);
        };
        match asked.poll() {
            None => readers.asked = Some(asked),
            Some(Ok(())) => return Ok(true),
            Some(Err(error)) => {
                readers.again = Some(pause::now() + ASK_INTERVAL);
                if !std::mem::replace(&mut readers.was_named, true) {
                    tracing::warn!(%error, "the system log is not shortened until all members can read a snapshot of the catalogue");
                }
            }
        }
        Ok(false)
    }

    /// Writes a snapshot, and discards what is before it, if this replica leads the system log and that is worth it. A failure is
    /// reported: the next call tries again.
    pub(super) fn keep_system_short(&self) {
        if let Err(error) = self.shorten_system() {
            tracing::warn!(%error, "the system log could not be shortened; that is tried again");
        }
    }

    fn shorten_system(&self) -> Result<()> {
        let system = &self.inner.system;
        if !system.replica_leads() {
            return Ok(());
        }
        system.may_wait()?;
        let mut unanswered = match self.inner.shortening.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if unanswered.as_ref().is_some_and(|step| step.poll().is_none()) {
            return Ok(());
        }
        *unanswered = None;
        // Each record can be in an object of its own, and the log has room for a number of them until it discards some.
        let options = system.options();
        let most = options.vault.as_ref().map_or(u64::MAX, |_| options.objects_max() as u64 / 2);
        let parts = {
            let catalogue = self.catalogue()?;
            let is_first = catalogue.snapshot_next() == Index(1) && system.first_index() == Index(1);
            match catalogue.wants_snapshot(most) && (!is_first || self.all_know_snapshots()?) {
                true => catalogue.snapshot(system.random_id()?),
                false => Vec::new(),
            }
        };
        for part in parts {
            await_step(system.submit(&part.encode()[..])?, &mut unanswered)?;
        }
        // Also what another leader has left.
        let next = self.catalogue()?.snapshot_next();
        if next <= system.first_index() {
            return Ok(());
        }
        // Programs may discard none of these records: `Log::discard` refuses that.
        await_step(system.submit_command(Command::Discard { first: next })?, &mut unanswered)
    }
}

/// Waits for a step of shortening the system log. One that has no answer in time is put into `unanswered`.
///
/// # Errors
/// `Timeout`: it may still be done. Those of the step.
fn await_step(step: Ticket<Index>, unanswered: &mut Option<Ticket<Index>>) -> Result<()> {
    match step.wait_timeout(GROUP_TIMEOUT) {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            *unanswered = Some(step);
            Err(in_doubt())
        }
        answer => answer.map(drop),
    }
}

/// Whether all members of the system log can read a snapshot.
#[derive(Default)]
pub(super) struct SnapshotReaders {
    /// The question that waits for its answer.
    asked: Option<Ticket<()>>,
    /// The last answer was no: the next question comes then.
    again: Option<Instant>,
    /// A member that cannot was named in the program's log.
    was_named: bool,
}

/// A search for the newest whole snapshot. It goes on where it ended the last time.
#[derive(Debug, Default)]
pub(super) struct SnapshotSearch {
    /// The next record that it reads.
    next: Index,
    /// The parts of a snapshot that is not whole yet.
    parts: SnapshotParts,
    newest: Option<SnapshotParts>,
}

impl SnapshotSearch {
    /// Reads the records that are new, of those from `first` to `last`. Returns the newest whole snapshot behind which all records are
    /// there; the search begins again then.
    ///
    /// # Errors
    /// Those of reading the log: the next call goes on with the record that could not be read.
    fn read_on(
        &mut self,
        reader: &dyn Fn(Start) -> Result<Reader>,
        first: Index,
        last: Index,
    ) -> Result<Option<SnapshotParts>> {
        // Records that were discarded before they were read can only have been parts that are missing now.
        self.next = self.next.max(first);
        if self.next <= last {
            let mut reader = reader(Start::Index(self.next))?;
            while let Some(record) = reader.next_record()? {
                if let CatalogueRecord::Part(part) = parsed(&record)?
                    && self.parts.push(part)
                {
                    let whole = std::mem::take(&mut self.parts);
                    self.newest =
                        Some(whole).filter(|whole| whole.next() >= Some(first)).or(self.newest.take());
                }
                self.next = record.index.next();
            }
        }
        self.newest.take_if(|whole| whole.next() < Some(first));
        Ok(self.newest.take().inspect(|_| *self = Self::default()))
    }
}

/// The catalogue of a system log that does not change, and begins with record `first`.
///
/// # Errors
/// `Corrupt`: records before are missing, and no whole snapshot has what they said. Those of reading the log.
pub(crate) fn catalogue_of(reader: &dyn Fn(Start) -> Result<Reader>, first: Index) -> Result<Catalogue> {
    let mut catalogue = Catalogue::default();
    if catalogue.next() < first {
        let newest = SnapshotSearch::default().read_on(reader, first, Index(u64::MAX))?;
        let newest =
            newest.ok_or_else(|| malformed(first, "the catalogue before it is in no whole snapshot"))?;
        catalogue = newest.catalogue().map_err(|why| malformed(first, why))?;
    }
    let mut reader = reader(Start::Index(catalogue.next()))?;
    while let Some(record) = reader.next_record()? {
        catalogue.apply(parsed(&record)?);
    }
    Ok(catalogue)
}

/// The catalogue of a system log that does not change, as it was at a time: with everything that was written by then. If nothing that is
/// left says how it was then, its oldest state, and the time of that. The log begins with record `first`; `begin` is the record and the
/// time with which what is there begins, at `first` or a few records before it, in the same entry.
///
/// # Errors
/// As [`catalogue_of`].
pub(crate) fn catalogue_at(
    reader: &dyn Fn(Start) -> Result<Reader>,
    first: Index,
    begin: (Index, Timestamp),
    time: Timestamp,
) -> Result<(Catalogue, Option<Timestamp>)> {
    let mut catalogue = Catalogue::default();
    if catalogue.next() < first {
        let oldest = oldest_snapshot(reader, first)?;
        let oldest =
            oldest.ok_or_else(|| malformed(first, "the catalogue before it is in no whole snapshot"))?;
        catalogue = oldest.catalogue().map_err(|why| malformed(first, why))?;
        // The time of the last record that the snapshot knows. It may have been written later.
        let of = match catalogue.next() {
            next if next > first => time_of(reader, next.previous())?,
            _ if begin.0 < first => time_of(reader, first)?,
            _ => Some(begin.1),
        };
        if let Some(of) = of.filter(|of| *of > time) {
            return Ok((catalogue, Some(of)));
        }
    }
    let mut reader = reader(Start::Index(catalogue.next()))?;
    while let Some(record) = reader.next_record()?.filter(|record| record.timestamp <= time) {
        catalogue.apply(parsed(&record)?);
    }
    Ok((catalogue, None))
}

/// The oldest whole snapshot behind which all records are there, of those from `first` on.
fn oldest_snapshot(reader: &dyn Fn(Start) -> Result<Reader>, first: Index) -> Result<Option<SnapshotParts>> {
    let (mut parts, mut reader) = (SnapshotParts::default(), reader(Start::Index(first))?);
    while let Some(record) = reader.next_record()? {
        if let CatalogueRecord::Part(part) = parsed(&record)?
            && parts.push(part)
        {
            let whole = std::mem::take(&mut parts);
            if whole.next() >= Some(first) {
                return Ok(Some(whole));
            }
        }
    }
    Ok(None)
}

/// The time of a record. None: there is no such record.
fn time_of(reader: &dyn Fn(Start) -> Result<Reader>, index: Index) -> Result<Option<Timestamp>> {
    let mut reader = reader(Start::Index(index))?;
    Ok(reader.next_record()?.map(|record| record.timestamp))
}

/// A record of the system log.
///
/// # Errors
/// `Corrupt`. `Unsupported`: a newer version has written it.
pub(super) fn parsed(record: &Record<'_>) -> Result<CatalogueRecord> {
    CatalogueRecord::parse(record.data).map_err(|why| malformed(record.index, why))
}

fn malformed(index: Index, why: Malformed) -> Error {
    let kind = if why == NEWER { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
    Error::new(kind, format!("record {index} of the system log: {why}"))
}

#[cfg(all(test, not(loom)))]
mod tests;
