//! The groups of named logs: each is added once, and is the one that the catalogue knows by its number.

use super::Logs;
use super::options::GROUPS_MAX;
use crate::api::catalogue::{CatalogueRecord, PLACED_MAX, are_nodes};
use crate::api::log::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Index, LogId, NodeId};
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
    /// `Diverged`: the catalogue knows another directory by this number, or the group has logs of another catalogue. `Timeout`: the system
    /// log gave no answer within 5 s, and the group may still be noted. Those of [`Log::append`]; it is safe to retry.
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
        self.append_record(&record)?;
        self.group_id(number)?.map_or(Ok(()), |known| is_known(number, known, group))
    }

    /// The permanent id of a group's own log, as far as the catalogue is known here. `None`: there is no such group yet.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn group_id(&self, number: u32) -> Result<Option<LogId>> {
        Ok(self.catalogue()?.group(number))
    }

    /// The groups that the catalogue has, as far as it is known here. In a cluster some can run on other servers only.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn known_groups(&self) -> Result<Vec<u32>> {
        Ok(self.catalogue()?.groups().collect())
    }

    /// The servers of the cluster that are to run a group, ascending, as far as the catalogue is known here. Empty: all of
    /// them. A decision, not a state: the group follows it by changes of its members.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn group_place(&self, number: u32) -> Result<Vec<NodeId>> {
        Ok(self.catalogue()?.place(number).to_vec())
    }

    /// Notes in the catalogue which servers are to run a group; none: all of the cluster. In a cluster the leader of group 0
    /// accepts this. Nothing moves by itself: the program changes the members of the group, see
    /// [`Log::change_members`].
    ///
    /// ```
    /// use chiplog::{Logs, LogsOptions, NodeId};
    /// # let dir = tempfile::tempdir()?;
    /// let logs = Logs::open(dir.path(), LogsOptions::default())?;
    /// logs.place_group(1, &[NodeId(1), NodeId(4), NodeId(5)])?;
    /// assert_eq!(logs.group_place(1)?, [NodeId(1), NodeId(4), NodeId(5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: the numbers of the servers do not ascend from 1, or are more than 16. `NotFound`: the catalogue has
    /// no such group. `Timeout`: the system log gave no answer within 5 s, and the place may still be noted. Those of [`Log::append`]; it is
    /// safe to retry.
    pub fn place_group(&self, number: u32, nodes: &[NodeId]) -> Result<()> {
        if !are_nodes(nodes) {
            let what = format!(
                "group {number} cannot be placed on {nodes:?}: up to {PLACED_MAX} numbers from 1, ascending, are allowed"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let Some(id) = self.group_id(number)? else {
            return Err(Error::new(ErrorKind::NotFound, format!("the catalogue has no group {number}")));
        };
        let record = CatalogueRecord::Place { group: number, id, nodes: nodes.to_vec() };
        self.append_record(&record).map(drop)
    }

    /// From now on new logs are created only in these groups, each with the most logs that it can hold: see
    /// [`Log::named_logs_max`]. For a program in a cluster: the members of a new group are added one after the other, and a
    /// record is not safe while there is only one; and a group can run on other servers only. A later call replaces the
    /// groups; without any call, all that run here are ready.
    pub fn set_ready_groups(&self, ready: BTreeMap<u32, usize>) {
        *self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
    }

    /// The groups that may get new logs, and the most logs that each can hold.
    pub(super) fn ready_groups(&self) -> BTreeMap<u32, usize> {
        let ready = self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let here =
            || self.groups().into_iter().map(|(number, group)| (number, group.named_logs_max())).collect();
        ready.unwrap_or_else(here)
    }

    /// The group that a new log goes to: of those that are ready, the one with the fewest logs that has room for more; of full ones any.
    ///
    /// # Errors
    /// `Busy`: none is ready. Those of reading the system log.
    pub(super) fn emptiest_group(&self) -> Result<u32> {
        let ready = self.ready_groups();
        let catalogue = self.catalogue()?;
        let emptiest = ready.into_iter().map(|(group, most)| (catalogue.logs_in(group), most, group));
        let emptiest = emptiest.min_by_key(|(logs, most, group)| (logs >= most, *logs, *group));
        let emptiest = emptiest.map(|(.., group)| group);
        emptiest.ok_or_else(|| {
            let what = "no group of named logs has a leader and most of its replicas now; try again later";
            Error::new(ErrorKind::Busy, what)
        })
    }

    /// Forgets a group that runs here: its logs cannot be reached through these `Logs` any more. Closes nothing. For a
    /// replica that the group's members do not count any more. `None`: no such group runs here.
    pub fn remove_group(&self, number: u32) -> Option<Log> {
        self.inner.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    /// A group that runs here.
    pub(super) fn running(&self, number: u32) -> Option<Log> {
        self.inner.groups.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// The handle of a group that runs here: for its members, its leader and its options. Appends and readers need a handle
    /// of one of its logs.
    ///
    /// # Errors
    /// `NotLeader`: in a cluster, others run it. `Unavailable`: it does not run here yet. Those of reading the system log.
    pub fn group(&self, number: u32) -> Result<Log> {
        if let Some(group) = self.running(number) {
            return Ok(group);
        }
        let (place, own) = (self.group_place(number)?, self.inner.system.status().replica);
        let what = if place.is_empty() || place.contains(&own.node) {
            format!("group {number} does not run on this server now; its log says why")
        } else {
            let nodes: Vec<String> = place.iter().map(NodeId::to_string).collect();
            format!("group {number} does not run on this server, but on node {}", nodes.join(", "))
        };
        let kind = if own.members.len() > 1 { ErrorKind::NotLeader } else { ErrorKind::Unavailable };
        Err(Error::new(kind, what))
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
