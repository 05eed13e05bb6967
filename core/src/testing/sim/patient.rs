//! Patient: a replica of a simulated cluster whose log does not open because of damage. It runs the shipped
//! [`Repairing`], with messages and time from the world. It gets no appends and no reads.
//!
//! Must not know: how messages travel, what is damaged, who helps.

use super::machine::Machine;
use super::outbox::Outbox;
use super::setup::{Setup, options_of};
use crate::cluster::transport::{Envelope, Transport as _};
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::options::Options;
use crate::replica::open::{Directory, RecoveredLog, open_or_find_damage};
use crate::replica::repair::offline::{Begun, Repairing};
use crate::sync::clock::Moment;
use crate::types::{DirectoryId, EntryIndex};
use std::sync::Arc;

/// The result of starting a process.
pub(super) enum Started {
    Machine(Box<Machine>),
    Patient(Box<Patient>),
}

/// A process that repairs its log.
pub(super) struct Patient {
    repairing: Box<Repairing>,
    disk: SimDisk,
    setup: Setup,
    options: Options,
    outbox: Arc<Outbox>,
    events: Vec<Envelope>,
}

/// Opens the log on the disk, or begins to repair it.
///
/// # Errors
/// Those of `Log::open`.
pub(super) fn start(disk: &SimDisk, setup: &Setup, now: Moment) -> Result<Started> {
    let outbox = Arc::new(Outbox::new(setup.queue_bytes_max));
    let options = options_of(setup, outbox.clone());
    options.check()?;
    let opened = match open_or_find_damage(Arc::new(disk.clone()), &options)? {
        Directory::Ready(opened) => *opened,
        Directory::DamagedLog(damaged) => match Repairing::begin(*damaged)? {
            Begun::Repaired(opened) => *opened,
            Begun::Repairing(repairing) => {
                let (disk, setup) = (disk.clone(), setup.clone());
                let events = Vec::new();
                let patient = Patient { repairing, disk, setup, options, outbox, events };
                return Ok(Started::Patient(Box::new(patient)));
            }
        },
    };
    Machine::over(opened, disk, setup, options, outbox, now).map(Box::new).map(Started::Machine)
}

impl Patient {
    pub(super) fn directory(&self) -> DirectoryId {
        self.repairing.damaged().identity.directory
    }

    /// A message has arrived.
    pub(super) fn deliver(&mut self, envelope: Envelope) {
        self.events.push(envelope);
    }

    /// Processes the messages, and does the work that is due. Returns the log once it opens.
    ///
    /// # Errors
    /// It cannot be repaired.
    pub(super) fn step(&mut self, now: Moment) -> Result<Option<RecoveredLog>> {
        let outcome = self.repairing.step(now, std::mem::take(&mut self.events));
        self.repairing.take_outgoing().into_iter().for_each(|envelope| self.outbox.send(envelope));
        outcome
    }

    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// The latest time at which it has to be called, if it has work left.
    pub(super) fn deadline(&self, now: Moment) -> Option<Moment> {
        self.repairing.deadline(now)
    }

    /// The entry that it lacks.
    pub(super) fn lacks(&self) -> Option<EntryIndex> {
        self.repairing.missing()
    }

    /// How many places were repaired.
    pub(super) fn repaired(&self) -> u64 {
        self.repairing.repaired
    }

    /// Continues as a replica.
    ///
    /// # Errors
    /// Those of `Log::open`.
    pub(super) fn recover(self, opened: RecoveredLog, now: Moment) -> Result<Machine> {
        drop(self.repairing);
        Machine::over(opened, &self.disk, &self.setup, self.options, self.outbox, now)
    }
}
