//! Hosting: makes an empty replica of a group for its leader on another server, and tells it the directory of that.
//!
//! Invariants:
//! - A directory is named to a leader under the lock, and only while its replica is served here.
//! - No replica is named that knows that it was removed, or of which the group's leader, confirmed by a majority, says so: it would join,
//!   learn of its removal, and take no part. Its directory is renamed, and a new replica is made in another one.
//! - The disk of a group can hang for ever: a call waits for a moment for the replica that it asks for. Later ones find it.

use super::elsewhere::unanswered;
use super::opening::shutting_down;
use super::{Groups, Inner, SYSTEM, Task, running};
use chiplog::cluster::{Bootstrap, Role};
use chiplog::{DirectoryId, Error, ErrorKind, Log, LogId, LogNumber, Logs, NodeId, Term};
use chiplog_net::peer::Hosting;
use chiplog_net::served::elsewhere::GroupView;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a call waits for a replica that is being opened or made: less than the leader that asks (`members.rs`). No longer if that began
/// earlier, so that a disk that hangs does not delay the calls about other groups.
const HOST_WAIT: Duration = Duration::from_millis(500);
/// How often it looks meanwhile whether another thread is done.
const HOST_LOOK: Duration = Duration::from_millis(10);

/// The outcome of a look for a replica that is asked for.
enum Asked {
    There(DirectoryId),
    /// Another thread opens it, or makes it, since then.
    Busy(Instant),
    /// It is made now.
    Begun(Receiver<chiplog::Result<bool>>),
}

impl Groups {
    /// Makes an empty replica of a group for its leader, or returns the one that is there.
    ///
    /// # Errors
    /// `Unavailable`: it is still being made, or an earlier one is being closed; or this server is shutting down, or does not know the
    /// group yet. `Diverged`: the group has another log here. Those of [`Log::open`].
    pub(super) fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        self.give_up_removed(group)?;
        loop {
            match self.host_now(group, log)? {
                Asked::There(directory) => return Ok(directory),
                Asked::Begun(outcome) => match outcome.recv_timeout(HOST_WAIT) {
                    Ok(made) => _ = made?,
                    Err(_) => return Err(still_opening(group)),
                },
                Asked::Busy(since) if since.elapsed() < HOST_WAIT => std::thread::sleep(HOST_LOOK),
                Asked::Busy(_) => return Err(still_opening(group)),
            }
        }
    }

    /// Names the replica that is there, or begins to make one.
    fn host_now(&self, group: u32, log: LogId) -> chiplog::Result<Asked> {
        let _one = self.opening();
        let slot = &self.inner.slot;
        if slot.is_draining() {
            return Err(shutting_down());
        }
        let there = match (slot.named(), group) {
            (None, SYSTEM) => None,
            (None, _) => {
                let what = "this server has no replica of the system log yet; it has to be added there first";
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
            (Some(logs), SYSTEM) => Some(logs.system().clone()),
            (Some(logs), group) => match logs.groups().remove(&group) {
                // It was removed while this server was down, and takes no part any more. Its leader wants a new one.
                Some(removed) if removed.role() == Role::Removed => {
                    self.give_up(logs, group, &removed)?;
                    return Err(still_here(group));
                }
                None if self.is_leaving(group) => return Err(still_here(group)),
                there => there,
            },
        };
        let replica = match there {
            Some(replica) if replica.log_id() == log => replica,
            Some(replica) => {
                let (ours, asked) = (replica.log_id().get(), log.get());
                let what =
                    format!("group {group} of this server has log {ours:032x}, and not log {asked:032x}");
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            None => {
                self.check_known(group, log)?;
                match group {
                    SYSTEM => self.host_system(log)?,
                    group => return self.begin_hosting(group, log),
                }
            }
        };
        *self.inner.hosted.lock().unwrap_or_else(PoisonError::into_inner).entry(group).or_default() += 1;
        Ok(Asked::There(replica.directory_id()))
    }

    /// Makes a replica of the system log. Called under the lock: this server is to let no other one make a system log meanwhile.
    fn host_system(&self, log: LogId) -> chiplog::Result<Log> {
        self.mark()?; // this cluster has a system log, even if making the replica fails
        let replica = self.start_for(SYSTEM, log)?;
        self.serve(SYSTEM, &replica)?;
        Ok(replica)
    }

    /// Opens the replica of this log, or makes an empty one. Called as [`Self::start`].
    fn start_for(&self, group: u32, log: LogId) -> chiplog::Result<Log> {
        // One that is there can be of this group: its leader asked before, and was interrupted.
        match self.start_existing(group, log)? {
            Some(replica) => Ok(replica),
            None => self.start(group, Bootstrap::Join(log)),
        }
    }

    /// Begins to make a replica, unless another thread does. Called under the lock.
    fn begin_hosting(&self, group: u32, log: LogId) -> chiplog::Result<Asked> {
        let Some(claim) = self.claim_here(group) else {
            return self.claimed_since(group).map(Asked::Busy).ok_or_else(|| still_opening(group));
        };
        let (tell, told) = channel();
        let open = move |groups: &Self| groups.start_for(group, log).map(Some);
        self.apart(claim, open, move |groups, made| {
            let failed =
                made.as_ref().err().map(|error| format!("it cannot be made for its leader: {error}"));
            let is_heard = tell.send(made).is_ok(); // else the leader does not hear why
            groups.report(group, Task::Open, &failed.filter(|_| !is_heard).unwrap_or_default());
        })?;
        Ok(Asked::Begun(told))
    }

    /// Begins to give up a replica that was removed from its group while this server was down, and has not heard of it: the group's leader
    /// says so. Blocks while that one is asked, which is only done for a replica that takes itself for a member.
    ///
    /// # Errors
    /// `Unavailable`: it is being given up. `Io`: it cannot be.
    fn give_up_removed(&self, group: u32) -> chiplog::Result<()> {
        let Some(logs) = self.inner.slot.named() else { return Ok(()) };
        let Some(replica) = logs.groups().remove(&group) else { return Ok(()) };
        let (status, directory, hosted) =
            (replica.status().replica, replica.directory_id(), self.hosted(group));
        let own = status.node;
        let is_member = status.members.iter().any(|m| m.node == own && m.directory == directory);
        let is_alone = status.members.len() < 2;
        if !is_member || is_alone || matches!(status.role, Role::Leader | Role::Removed) {
            return Ok(());
        }
        let view = self.views_elsewhere([(group, Vec::new())].into()).remove(&group);
        let view = view.unwrap_or_else(|| Err(unanswered(group, "there was no answer")));
        if view.is_ok_and(|view| !view.members.contains(&own)) {
            let _one = self.opening();
            let here = logs.groups().remove(&group).map(|here| here.directory_id());
            // Else a leader was told of this directory since, and may have added it.
            if here == Some(directory) && self.hosted(group) == hosted {
                self.give_up(logs, group, &replica)?;
            }
            return Err(still_here(group));
        }
        Ok(())
    }

    /// Begins to close a replica without which its group does, and to rename its directory. Called under the lock.
    fn give_up(&self, logs: &Logs, group: u32, removed: &Log) -> chiplog::Result<()> {
        self.close_apart(logs, group, removed, move |groups, removed| {
            let why = "the group does without the replica in this directory: delete it once `chiplog status` shows the group as ok";
            groups.set_aside(group, removed.path(), why)
        })
    }

    /// How often the leader of a group was told which directory its replica here has: it may have added that since it was seen last.
    pub(super) fn hosted(&self, group: u32) -> u64 {
        self.inner
            .hosted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&group)
            .copied()
            .unwrap_or_default()
    }

    /// Checks that the catalogue has this log by the number of the group. A directory that is there is set aside for
    /// another log, and no caller is believed that it is another one.
    fn check_known(&self, group: u32, log: LogId) -> chiplog::Result<()> {
        let Some(logs) = self.inner.slot.named() else { return Ok(()) }; // the system log itself
        match logs.group_id(group)? {
            Some(known) if known == log => Ok(()),
            Some(known) => {
                let (known, asked) = (known.get(), log.get());
                let what =
                    format!("the catalogue has log {known:032x} as group {group}, and not log {asked:032x}");
                Err(Error::new(ErrorKind::Diverged, what))
            }
            None => {
                let what = format!("the catalogue of this server has no group {group} yet; it is behind");
                Err(Error::new(ErrorKind::Unavailable, what))
            }
        }
    }
}

/// The error of a request for a replica whose directory is still that of an earlier one.
fn still_here(group: u32) -> Error {
    let what = format!("an earlier replica of group {group} on this server is being closed; try again later");
    Error::new(ErrorKind::Unavailable, what)
}

/// The error of a request for a replica that is still being opened or made.
fn still_opening(group: u32) -> Error {
    let what = format!("the replica of group {group} on this server is still being made; try again later");
    Error::new(ErrorKind::Unavailable, what)
}

/// Answers the calls of other servers, which number the groups from the default log on.
pub(super) struct Hosted(pub(super) Weak<Inner>);

impl Hosting for Hosted {
    fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        Groups { inner: running(&self.0)? }.host(group - 1, log)
    }

    fn view(&self, group: u32, log: LogId, of: &[LogNumber]) -> chiplog::Result<GroupView> {
        let groups = Groups { inner: running(&self.0)? };
        let logs = groups
            .inner
            .slot
            .named()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "this server has no catalogue yet"))?;
        groups.own_view(logs, group - 1, log, of)
    }

    fn allow_system_log(&self, from: NodeId, term: Term) -> chiplog::Result<()> {
        Groups { inner: running(&self.0)? }.allow_system_log(from, term)
    }
}
