//! Elsewhere: groups that run on other servers: their state as their leaders see it, and the end of a replica here whose
//! group was moved to other servers.
//!
//! Invariants:
//! - A replica here is removed only if the group's leader, confirmed by a majority, does not count this server among the
//!   members, and then a majority confirms that the catalogue does not place the group here.
//! - No replica is made meanwhile: both happen under one lock. So one that is made later is made for a later decision, in a
//!   directory of its own.

use super::{Groups, HOST_TIMEOUT, NAMED, label};
use chiplog::cluster::{Member, Role};
use chiplog::{Error, ErrorKind, Log, LogId, LogNumber, Logs, NodeId};
use chiplog_net::peer::GroupOn;
use chiplog_net::served::elsewhere::GroupView;
use chiplog_net::wire::address::Address;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The time limit of one server's answer about a group.
const VIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the leader of a group that was moved is asked whether this server is still a member.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// A directory whose group was moved is renamed to this extension, and a number, before its files are removed.
const MOVED: &str = "moved";

impl Groups {
    /// A group as its leader sees it, wherever that is. Blocks.
    ///
    /// # Errors
    /// `Unavailable`: no leader answered.
    pub(super) fn view(&self, logs: &Logs, group: u32, of: &[LogNumber]) -> chiplog::Result<GroupView> {
        match logs.group(group) {
            Ok(replica) if replica.role() == Role::Leader => self.own_view(logs, group, replica.log_id(), of),
            _ => self.view_elsewhere(group, of),
        }
    }

    /// A group as the replica here sees it. A leader asks a majority first.
    ///
    /// # Errors
    /// `Unavailable`: it does not run here. `Diverged`: here it is another log. Those of [`Log::barrier`].
    pub(super) fn own_view(
        &self,
        logs: &Logs,
        group: u32,
        id: LogId,
        of: &[LogNumber],
    ) -> chiplog::Result<GroupView> {
        let replica = logs.groups().remove(&group).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("group {group} does not run on this server"))
        })?;
        if replica.log_id() != id {
            let what = format!("group {group} of this server has log {}", replica.log_id());
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        if replica.role() == Role::Leader {
            replica.barrier(VIEW_TIMEOUT)?;
        }
        let mut view = GroupView::of(&replica);
        (view.logs, view.gone) = logs.in_group(group, of)?;
        Ok(view)
    }

    /// Asks the servers that are to run a group, until its leader answers. Blocks.
    ///
    /// # Errors
    /// `Unavailable`: none leads, or none answers.
    pub(super) fn view_elsewhere(&self, group: u32, of: &[LogNumber]) -> chiplog::Result<GroupView> {
        let unavailable = |why: &str| {
            Error::new(ErrorKind::Unavailable, format!("no leader of group {group} answers: {why}"))
        };
        let slot = &self.inner.slot;
        let (Some(logs), Some(default)) = (slot.named(), slot.opened()) else {
            return Err(unavailable("this server has no catalogue yet"));
        };
        let Some(id) = logs.group_id(group)? else { return Err(unavailable("there is no such group")) };
        let (place, members) = (logs.group_place(group)?, default.status().replica);
        let is_asked = |m: &&Member| m.node != members.node && (place.is_empty() || place.contains(&m.node));
        let mut left: Vec<&Member> = members.members.iter().filter(is_asked).collect();
        let mut last = unavailable("no other server runs it");
        while let Some(server) = left.pop() {
            match self.ask_view(server, group, id, of) {
                Ok(view) if view.leads => return Ok(view),
                Ok(view) => {
                    last = unavailable("those that answer do not lead it");
                    // Its leader is asked next.
                    left.sort_by_key(|server| Some(server.node) == view.leader);
                }
                Err(error) => last = unavailable(&error.to_string()),
            }
        }
        Err(last)
    }

    fn ask_view(
        &self,
        server: &Member,
        group: u32,
        log: LogId,
        of: &[LogNumber],
    ) -> chiplog::Result<GroupView> {
        let address = address_of(server)?;
        let on = GroupOn { node: server.node, address: &address.peer, group: group + 1, log };
        Handle::current().block_on(self.inner.transport.ask_view(on, of, VIEW_TIMEOUT))
    }

    /// Closes and removes the replicas here whose groups were moved to other servers, once the groups do without them.
    pub(super) fn leave_moved(&self, logs: &Logs) {
        for (group, replica) in logs.groups() {
            let own = replica.status().replica.node;
            let is_moved =
                logs.group_place(group).is_ok_and(|place| !place.is_empty() && !place.contains(&own));
            if !is_moved || replica.role() == Role::Leader {
                continue;
            }
            {
                let mut asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
                if asked.get(&group).is_some_and(|asked| asked.elapsed() < ASK_AGAIN) {
                    continue;
                }
                asked.insert(group, Instant::now());
            }
            let left = self.view_elsewhere(group, &[]).and_then(|view| {
                if view.members.contains(&own) { Ok(()) } else { self.leave(logs, group, &replica, own) }
            });
            if let Err(error) = left {
                tracing::debug!(group = %label(group), %error, "a group that was moved to other servers still runs here");
            }
        }
    }

    /// Closes and removes one, if the catalogue does not place it here.
    fn leave(&self, logs: &Logs, group: u32, replica: &Log, own: NodeId) -> chiplog::Result<()> {
        let _one = self.opening();
        logs.system().barrier(HOST_TIMEOUT)?;
        let place = logs.group_place(group)?;
        if place.is_empty() || place.contains(&own) {
            return Ok(()); // it is to run here again
        }
        drop(logs.remove_group(group));
        replica.close()?;
        let path = replica.path().to_owned();
        let aside = (1..).map(|n| path.with_extension(format!("{MOVED}-{n}"))).find(|aside| !aside.exists());
        let aside = aside.unwrap_or_else(|| path.with_extension(MOVED));
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot remove {}, whose group was moved: {e}", path.display()))
        };
        std::fs::rename(&path, &aside).map_err(failed)?;
        self.inner.directories.forget(group)?;
        std::fs::remove_dir_all(&aside).map_err(failed)?;
        tracing::info!(group = %label(group), path = %path.display(), "a group of named logs was moved to other servers, and its files here are removed");
        Ok(())
    }

    /// Removes the directories of groups that were moved: the server ended while it removed them.
    pub(super) fn remove_moved(&self) {
        let config = &self.inner.config;
        let all = std::iter::once(config.data.join(NAMED)).chain(config.group_directories.iter().cloned());
        let entries = all.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
        let is_moved = |path: &PathBuf| {
            let extension = path.extension().is_some_and(|e| e.to_string_lossy().starts_with(MOVED));
            extension && path.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("group-"))
        };
        for path in entries.flatten().map(|entry| entry.path()).filter(is_moved) {
            if let Err(error) = std::fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "the files of a group that was moved cannot be removed");
            }
        }
    }
}

/// The addresses of a server.
///
/// # Errors
/// `InvalidArgument`: they are of another grammar.
pub(super) fn address_of(server: &Member) -> chiplog::Result<Address> {
    server.address.parse().map_err(|e| {
        Error::new(ErrorKind::InvalidArgument, format!("the address of node {}: {e}", server.node))
    })
}
