//! The groups of named logs: each is added once, and is the one that the catalogue knows by its number.

use super::Logs;
use super::options::GROUPS_MAX;
use crate::api::catalogue::CatalogueRecord;
use crate::api::log::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Index, LogId};
use std::collections::BTreeMap;
use std::sync::PoisonError;

impl Logs {
    /// Adds a group that runs here, from 1 on. Notes it in the catalogue if that is new, and if this replica leads the
    /// system log.
    ///
    /// # Errors
    /// `InvalidArgument`: it holds one log on its own, or the number is out of bounds. `AlreadyExists`: there is a group of
    /// this number. `Diverged`: the catalogue knows another directory by this number. Those of [`Log::append`].
    pub fn add_group(&self, number: u32, group: Log) -> Result<()> {
        let system = &self.inner.system;
        if !(1..=GROUPS_MAX).contains(&number) {
            let what = format!("group {number}: groups of named logs have numbers from 1 to {GROUPS_MAX}");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if group.last_index() > Index(0) && !group.logs().is_shared() {
            let what = format!("{} holds one log on its own, and no named logs", group.path().display());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        group.logs().reserve();
        self.note_group(number, &group)?;
        let mut groups = self.inner.groups.write().unwrap_or_else(PoisonError::into_inner);
        if groups.contains_key(&number) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("group {number} runs here already")));
        }
        groups.insert(number, group);
        tracing::debug!(group = number, of = %system.path().display(), "a group of named logs was added");
        Ok(())
    }

    /// Checks that a group is the one that the catalogue knows, and notes it if it is new and this replica leads.
    pub(super) fn note_group(&self, number: u32, group: &Log) -> Result<()> {
        match self.group_id(number)? {
            Some(known) => is_known(number, known, group),
            None if self.inner.system.replica_leads() => self.register_group(number, group),
            None => Ok(()),
        }
    }

    /// Notes a new group in the catalogue, before it is added: of two that are made at the same time the first counts. In
    /// a cluster the leader of group 0 accepts this.
    ///
    /// # Errors
    /// `Diverged`: the catalogue knows another directory by this number, or the group has logs of another catalogue. Those
    /// of [`Log::append`].
    pub fn register_group(&self, number: u32, group: &Log) -> Result<()> {
        if !group.logs().opened().is_none() {
            let what = format!(
                "{} has named logs, but the catalogue does not know the group: it is of another catalogue, or the \
                 directory of the catalogue was lost or is on a disk that is not mounted",
                group.path().display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let record = CatalogueRecord::Group { group: number, id: group.log_id() };
        self.inner.system.append(&record.encode()[..])?;
        self.group_id(number)?.map_or(Ok(()), |known| is_known(number, known, group))
    }

    /// The permanent id of a group's own log, as far as the catalogue is known here. `None`: there is no such group yet.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn group_id(&self, number: u32) -> Result<Option<LogId>> {
        Ok(self.catalogue()?.group(number))
    }

    /// A group that runs here.
    pub(super) fn group(&self, number: u32) -> Result<Log> {
        let groups = self.inner.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(&number).cloned().ok_or_else(|| {
            let what = format!(
                "group {number} does not run here yet: {} do. If that lasts, was its directory removed?",
                groups.len()
            );
            Error::new(ErrorKind::Unavailable, what)
        })
    }

    /// The groups that run here, by number: for the status, the members and the leader of each. Appends and readers need
    /// one of the named logs.
    pub fn groups(&self) -> BTreeMap<u32, Log> {
        self.inner.groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks that a log, if it is a named one, is of one of the groups that run here.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check_is_here(&self, log: &Log) -> Result<()> {
        let groups = self.inner.groups.read().unwrap_or_else(PoisonError::into_inner);
        if !log.is_named() || groups.values().any(|group| group.is_of_one_group_with(log)) {
            return Ok(());
        }
        let of = log.path().display();
        let what = format!(
            "the log is of the group in {of}, which these Logs do not run: append with those that the log came from"
        );
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}

/// Checks that a group has the id that the catalogue knows.
fn is_known(number: u32, known: LogId, group: &Log) -> Result<()> {
    if known == group.log_id() {
        return Ok(());
    }
    let what = format!(
        "{} is not the directory that the catalogue knows as group {number}: it was removed, replaced, or is on a disk \
         that is not mounted; put the right one in its place",
        group.path().display()
    );
    Err(Error::new(ErrorKind::Diverged, what))
}
