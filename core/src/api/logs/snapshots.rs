//! Snapshots: they keep the system log short. The replica that leads it writes the catalogue into it from time to time, and
//! discards what is before; a replica that lacks the discarded records reads the catalogue from there.
//!
//! Invariants:
//! - records are discarded only once a snapshot without them is committed as a whole;
//! - a replica that has neither all records nor a whole snapshot reports `Unavailable`: it knows no catalogue, and none that is empty.

use super::Logs;
use crate::api::catalogue::snapshot::SnapshotParts;
use crate::api::catalogue::{Catalogue, CatalogueRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::read::reader::Start;
use crate::read::records::Record;
use crate::replica::queue::proposals::Command;
use crate::types::Index;
use std::sync::TryLockError;

/// How often reading begins again because records were discarded meanwhile.
const ATTEMPTS_MAX: u32 = 16;

impl Logs {
    /// The catalogue of the newest whole snapshot in the system log.
    ///
    /// # Errors
    /// `Unavailable`: there is none yet. Those of reading the system log.
    pub(super) fn read_snapshot(&self) -> Result<Catalogue> {
        for _ in 0..ATTEMPTS_MAX {
            let first = self.inner.system.first_index();
            match self.newest_snapshot(first) {
                Err(error) if error.kind() == ErrorKind::Discarded => {}
                Ok(None) if self.inner.system.first_index() != first => {}
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

    /// The newest whole snapshot behind which all records are there, from `first` on.
    fn newest_snapshot(&self, first: Index) -> Result<Option<SnapshotParts>> {
        let mut reader = self.inner.system.reader(Start::Index(first))?;
        let (mut parts, mut newest) = (SnapshotParts::default(), None);
        while let Some(record) = reader.next_record()? {
            if let CatalogueRecord::Part(part) = parsed(&record)?
                && parts.push(part)
            {
                let whole = std::mem::take(&mut parts);
                newest = Some(whole).filter(|whole| whole.next() >= Some(first)).or(newest);
            }
        }
        Ok(newest)
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
        let _one = match self.inner.shortening.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let parts = {
            let catalogue = self.catalogue()?;
            if !catalogue.wants_snapshot() { Vec::new() } else { catalogue.snapshot(system.random_id()?) }
        };
        for part in parts {
            system.append(&part.encode()[..])?;
        }
        // Also what another leader has left.
        let next = self.catalogue()?.snapshot_next();
        if next <= system.first_index() {
            return Ok(());
        }
        // Programs may discard none of these records: `Log::discard` refuses that.
        system.command(Command::Discard { first: next }).map(drop)
    }
}

/// A record of the system log.
///
/// # Errors
/// `Corrupt`.
pub(super) fn parsed(record: &Record<'_>) -> Result<CatalogueRecord> {
    CatalogueRecord::parse(record.data).map_err(|why| malformed(record.index, why))
}

fn malformed(index: Index, why: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("record {index} of the system log: {why}"))
}
