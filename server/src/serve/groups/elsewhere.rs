//! Elsewhere: groups that run on other servers: their state as their leaders see it, and the end of a replica here whose
//! group was moved to other servers.
//!
//! Invariants:
//! - A replica here is removed only if the group's leader, confirmed by a majority, does not count this server among the
//!   members, and then a majority confirms that the catalogue does not place the group here.
//! - No other replica is made meanwhile, and none is named to the group's leader since it was asked: that is seen under the lock, which the
//!   majorities are asked without. So one that is made later is made for a later decision, in a directory of its own; and a later
//!   decision that it is to run here again does not find the old one.
//! - A replica is closed, and its files are removed, on a thread of its own, and without that lock: its disk can hang for ever. Until that is
//!   done, its group is neither opened nor made here; others are, unless it hangs while it notes that the directory has another name
//!   (`directories.rs`). Nothing else waits for the thread; the next start does the rest.

use super::{Groups, HOST_TIMEOUT, NAMED, SYSTEM, label};
use chiplog::cluster::{Member, Role};
use chiplog::{Error, ErrorKind, Log, LogId, LogNumber, Logs, NodeId};
use chiplog_net::peer::GroupOn;
use chiplog_net::served::elsewhere::GroupView;
use chiplog_net::wire::address::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

/// The time limit of one server's answer about a group.
const VIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the servers that are to run a group have to answer before all others are asked.
const FURTHER_AFTER: Duration = Duration::from_millis(200);
/// How often the leader of a group that was moved is asked whether this server is still a member.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// A directory whose group was moved is renamed to this extension, and a number, before its files are removed.
const MOVED: &str = "moved-";
/// A file in such a directory: the server itself has renamed it, and may remove it.
const REMOVABLE: &str = "chiplog.moved";
/// How often the leaders of groups that do not run here are asked which deleted logs are gone.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);
/// The deleted logs in one question.
const DELETED_MAX: usize = 1000;

impl Groups {
    /// Groups as their leaders see them, wherever those are. All are asked at the same time; groups of which no leader answers are left
    /// out. Blocks.
    pub(super) fn views(
        &self,
        logs: &Logs,
        asked: impl IntoIterator<Item = u32>,
    ) -> BTreeMap<u32, GroupView> {
        Handle::current().block_on(async {
            let mut asking = JoinSet::new();
            for group in asked {
                let leads = logs.group(group).ok().filter(|replica| replica.role() == Role::Leader);
                let Some(id) = leads.map(|replica| replica.log_id()) else {
                    self.ask_others(group, Vec::new(), &mut asking);
                    continue;
                };
                let (groups, logs) = (self.clone(), logs.clone());
                asking.spawn_blocking(move || (group, groups.own_view(&logs, group, id, &[])));
            }
            let mut views = BTreeMap::new();
            while let Some(answer) = asking.join_next().await {
                let Ok((group, Ok(view))) = answer else { continue };
                views.extend(view.leads.then_some((group, view)));
            }
            views
        })
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
        let running =
            if group == SYSTEM { Some(logs.system().clone()) } else { logs.groups().remove(&group) };
        let replica = running.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("group {group} does not run on this server"))
        })?;
        if replica.log_id() != id {
            let what = format!("group {group} of this server has log {}", replica.log_id());
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        let is_confirmed = replica.role() == Role::Leader;
        if is_confirmed {
            replica.barrier(VIEW_TIMEOUT)?;
        }
        let mut view = GroupView::of(&replica);
        view.leads &= is_confirmed; // no majority has confirmed one that was elected since
        if view.leads {
            view.unhosted = self.unhosted(group);
        }
        if group != SYSTEM {
            view.lacks_catalogue = self.lacks_catalogue(logs);
            (view.logs, view.gone) = logs.in_group(group, of)?;
        }
        Ok(view)
    }

    /// The views of the leaders of groups on other servers, and of these logs of them. All groups are asked about at the same time, so one
    /// without a leader delays nothing. Blocks.
    ///
    /// # Errors
    /// For each group, `Unavailable`: none leads, or none answers.
    pub(super) fn views_elsewhere(
        &self,
        asked: BTreeMap<u32, Vec<LogNumber>>,
    ) -> BTreeMap<u32, chiplog::Result<GroupView>> {
        let panicked = |group: &u32| (*group, Err(unanswered(*group, "a question panicked")));
        let mut views: BTreeMap<_, _> = asked.keys().map(panicked).collect();
        Handle::current().block_on(async {
            let mut asking = JoinSet::new();
            asked.into_iter().for_each(|(group, of)| self.ask_others(group, of, &mut asking));
            while let Some(answer) = asking.join_next().await {
                views.extend(answer);
            }
        });
        views
    }

    /// Begins to ask the others about a group.
    fn ask_others(
        &self,
        group: u32,
        of: Vec<LogNumber>,
        asking: &mut JoinSet<(u32, chiplog::Result<GroupView>)>,
    ) {
        let (groups, others) = (self.clone(), self.others(group));
        asking.spawn(async move {
            let view = match others {
                Ok(others) => groups.view_of_leader(group, others, &of).await,
                Err(error) => Err(error),
            };
            (group, view)
        });
    }

    /// The other servers, of which one leads a group.
    ///
    /// # Errors
    /// `Unavailable`: the catalogue does not have it, as far as is known here. Those of reading the system log.
    fn others(&self, group: u32) -> chiplog::Result<Others> {
        let slot = &self.inner.slot;
        let (Some(logs), Some(default)) = (slot.named(), slot.opened()) else {
            return Err(unanswered(group, "this server has no catalogue yet"));
        };
        let id = match group {
            SYSTEM => Some(logs.system().log_id()), // the catalogue does not have itself
            group => logs.group_id(group)?,
        };
        let Some(id) = id else {
            return Err(unanswered(group, "there is no such group"));
        };
        let (place, cluster) = (logs.group_place(group)?, default.status().replica);
        let others = cluster.members.into_iter().filter(|server| server.node != cluster.node);
        let (placed, further) =
            others.partition(|server: &Member| place.is_empty() || place.contains(&server.node));
        Ok(Others { id, placed, further })
    }

    /// Asks the servers that are to run a group, until its leader answers, and then all others: while a group moves, its leader can
    /// be one that is not to run it any more. Servers are asked at the same time, so one that vanished delays nothing.
    ///
    /// # Errors
    /// `Unavailable`: none leads, or none answers.
    async fn view_of_leader(
        &self,
        group: u32,
        Others { id, placed, mut further }: Others,
        of: &[LogNumber],
    ) -> chiplog::Result<GroupView> {
        let unavailable = |why: &str| unanswered(group, why);
        let mut asked = JoinSet::new();
        self.ask_each(placed, group, id, of, &mut asked);
        let until = tokio::time::Instant::now() + FURTHER_AFTER;
        let mut last = unavailable("no other server runs it");
        loop {
            let answer = match further.is_empty() {
                true => asked.join_next().await,
                false => timeout_at(until, asked.join_next()).await.unwrap_or(None),
            };
            last = match answer {
                Some(Ok(Ok(view))) if view.leads => return Ok(view),
                Some(Ok(Ok(_))) => unavailable("those that answer do not lead it"),
                Some(Ok(Err(error))) => unavailable(&error.to_string()),
                Some(Err(_)) => unavailable("a question panicked"),
                None if further.is_empty() => return Err(last),
                None => {
                    self.ask_each(std::mem::take(&mut further), group, id, of, &mut asked);
                    last
                }
            };
        }
    }

    /// Asks each of these servers about a group.
    fn ask_each(
        &self,
        servers: Vec<Member>,
        group: u32,
        id: LogId,
        of: &[LogNumber],
        asked: &mut JoinSet<chiplog::Result<GroupView>>,
    ) {
        for server in servers {
            let (groups, of) = (self.clone(), of.to_vec());
            asked.spawn(async move { groups.ask_view(&server, group, id, &of).await });
        }
    }

    /// Whether a member of a group gave up leadership lately because its disk was slow, or lacks room or the newest catalogue now. One that
    /// does not answer may have.
    pub(super) fn has_bad_disk(&self, group: u32, replica: &Log, node: NodeId) -> bool {
        let members = replica.status().replica.members;
        let Some(member) = members.iter().find(|member| member.node == node) else { return false };
        let asking = self.ask_view(member, group, replica.log_id(), &[]);
        Handle::current()
            .block_on(asking)
            .map_or(true, |view| view.slow_disk || view.lacks_room || view.lacks_catalogue)
    }

    pub(super) async fn ask_view(
        &self,
        server: &Member,
        group: u32,
        log: LogId,
        of: &[LogNumber],
    ) -> chiplog::Result<GroupView> {
        let address = address_of(server)?;
        let on = GroupOn { node: server.node, address: &address.peer, group: group + 1, log };
        let _place = self.inner.questions.acquire().await; // it is never closed
        self.inner.transport.ask_view(on, of, VIEW_TIMEOUT).await
    }

    /// Begins to close and to remove the replicas here whose groups were moved to other servers, once the groups do without them.
    pub(super) fn leave_moved(&self, logs: &Logs) {
        let is_moved = |group: u32, replica: &Log| {
            let own = replica.status().replica.node;
            logs.group_place(group).is_ok_and(|place| !place.is_empty() && !place.contains(&own))
                && replica.role() != Role::Leader
        };
        let mut moved = logs.groups();
        moved.retain(|group, replica| is_moved(*group, replica) && self.is_due(*group, ASK_AGAIN));
        let mut views = self.views_elsewhere(moved.keys().map(|group| (*group, Vec::new())).collect());
        for (group, replica) in moved {
            let own = replica.status().replica.node;
            let Some(view) = views.remove(&group) else { continue };
            let left = view.and_then(|view| match view.members.contains(&own) {
                true => Ok(()),
                false => self.leave(logs, group, &replica, own),
            });
            if let Err(error) = left {
                tracing::debug!(group = %label(group), %error, "a group that was moved to other servers still runs here");
            }
        }
    }

    /// Forgets deleted logs of groups that do not run here, once the leaders find them gone.
    pub(super) fn forget_deleted(&self, logs: &Logs) {
        let here = logs.groups();
        let mut asked = BTreeMap::new();
        for group in logs.known_groups().unwrap_or_default() {
            let mut deleted = logs.deleted_in(group).unwrap_or_default();
            deleted.truncate(DELETED_MAX);
            if !here.contains_key(&group) && !deleted.is_empty() && self.is_due(group, FORGET_INTERVAL) {
                asked.insert(group, deleted);
            }
        }
        for (group, view) in self.views_elsewhere(asked) {
            let gone = view.map(|view| view.gone).unwrap_or_default();
            gone.into_iter().for_each(|log| _ = logs.forget_dropped(group, log));
        }
    }

    /// Whether nothing was asked about a group for this time. Notes that it is asked now.
    pub(super) fn is_due(&self, group: u32, after: Duration) -> bool {
        let mut asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = asked.get(&group).is_none_or(|at| at.elapsed() >= after);
        if is_due {
            asked.insert(group, Instant::now());
        }
        is_due
    }

    /// Begins to close one and to remove its files, if the catalogue does not place it here and its leader does without it.
    fn leave(&self, logs: &Logs, group: u32, replica: &Log, own: NodeId) -> chiplog::Result<()> {
        let hosted = self.hosted(group);
        // The view that led here can be old: the groups before this one took their time.
        let view = self.views_elsewhere([(group, Vec::new())].into()).remove(&group);
        if view.transpose()?.is_some_and(|view| !view.members.contains(&own)) {
            self.leave_here(logs, group, replica, hosted)?;
        }
        Ok(())
    }

    /// Does that of [`Groups::leave`] which waits for no other server. `hosted`: how often the leader had been told of this directory before it
    /// was asked. Returns whether the replica is being closed.
    pub(super) fn leave_here(
        &self,
        logs: &Logs,
        group: u32,
        replica: &Log,
        hosted: u64,
    ) -> chiplog::Result<bool> {
        let own = logs.system().status().replica.node;
        logs.system().barrier(HOST_TIMEOUT)?; // without the lock: other servers answer
        let _one = self.opening();
        if self.inner.slot.is_draining() {
            return Ok(false); // the shutdown closes it
        }
        if self.hosted(group) != hosted {
            return Ok(false); // the leader was told of this directory since, and may have added it
        }
        let place = logs.group_place(group)?;
        if place.is_empty() || place.contains(&own) {
            return Ok(false); // it is to run here again
        }
        let directory = |log: &Log| log.status().directory_id;
        if logs.groups().get(&group).map(directory) != Some(directory(replica)) {
            return Ok(false); // another replica of the group runs here by now
        }
        self.close_apart(logs, group, replica, move |groups, replica| {
            if let Some(aside) = groups.set_moved(group, replica.path())? {
                remove(&aside);
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Closes a replica on a thread of its own, and then does the rest there. Its group is not served here from now on, and until that is done
    /// neither opened nor made. Called under the lock.
    ///
    /// # Errors
    /// `Io`: there is no thread for it; nothing was done.
    pub(super) fn close_apart(
        &self,
        logs: &Logs,
        group: u32,
        replica: &Log,
        rest: impl FnOnce(&Self, &Log) -> chiplog::Result<()> + Send + 'static,
    ) -> chiplog::Result<()> {
        let (groups, closing) = (self.clone(), replica.clone());
        let close = move || {
            if let Err(error) = closing.close().and_then(|()| rest(&groups, &closing)) {
                tracing::warn!(group = %label(group), %error, "the replica of a group could not be closed and removed; it is tried again");
            }
            drop(closing); // first: it can be opened again from then on
            groups.leaving().remove(&group);
        };
        self.leaving().insert(group);
        if let Err(error) = std::thread::Builder::new().name("chiplog-leave".into()).spawn(close) {
            self.leaving().remove(&group);
            let what = format!("no thread that closes a replica of group {group}: {error}");
            return Err(Error::new(ErrorKind::Io, what));
        }
        drop(logs.remove_group(group));
        Ok(())
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.inner.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a replica of this group is being closed, or its files are being removed.
    pub(super) fn is_leaving(&self, group: u32) -> bool {
        self.leaving().contains(&group)
    }

    /// Renames the directory of a group that was moved, and returns its new path. From then on a new replica can be made.
    fn set_moved(&self, group: u32, path: &Path) -> chiplog::Result<Option<PathBuf>> {
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot mark {}, whose group was moved: {e}", path.display()))
        };
        let sign = || {
            std::fs::File::create(path.join(REMOVABLE))?.sync_all()?;
            std::fs::File::open(path)?.sync_all()
        };
        sign().map_err(failed)?;
        let Some(aside) = self.rename_aside(group, path, MOVED)? else { return Ok(None) };
        tracing::info!(group = %label(group), path = %path.display(), "a group of named logs was moved to other servers: its files here are removed");
        Ok(Some(aside))
    }

    /// Removes the directories of groups that were moved: the server ended while it removed them.
    pub(super) fn remove_moved(&self) {
        let config = &self.inner.config;
        let all = std::iter::once(config.data.join(NAMED)).chain(config.group_directories.iter().cloned());
        let entries = all.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| is_moved(path)) {
            tracing::info!(path = %path.display(), "the files of a group that was moved to other servers are removed");
            remove(&path);
        }
    }
}

/// The other servers of the cluster, for questions about a group.
struct Others {
    /// The group's log.
    id: LogId,
    /// Those that are to run the group.
    placed: Vec<Member>,
    /// All others.
    further: Vec<Member>,
}

/// The error of a question about a group.
pub(super) fn unanswered(group: u32, why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no leader of group {group} answers: {why}"))
}

/// Whether this is a directory that [`Groups::leave`] has renamed, and no other one.
fn is_moved(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let numbers = name.strip_prefix("group-").and_then(|rest| rest.split_once('.'));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let is_named = numbers
        .is_some_and(|(group, aside)| is_number(group) && aside.strip_prefix(MOVED).is_some_and(is_number));
    is_named && path.join(REMOVABLE).is_file()
}

/// Removes such a directory. The file that allows it goes last, so that the rest is removed later if this is interrupted.
fn remove(path: &Path) {
    let files = || {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name() != REMOVABLE {
                std::fs::remove_file(entry.path())?;
            }
        }
        std::fs::remove_dir_all(path)
    };
    if let Err(error) = files() {
        tracing::warn!(path = %path.display(), %error, "the files of a group that was moved cannot be removed");
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::super::tests::{asked_to_host, with_system};
    use super::*;
    use chiplog::cluster::Bootstrap;

    #[test]
    fn replica_that_the_leader_was_told_of_since_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let groups = with_system(dir.path());
        let logs = groups.inner.slot.named().unwrap();
        let log = groups.start(1, Bootstrap::Init).unwrap();
        logs.register_group(1, &log).unwrap();
        groups.serve(1, &log).unwrap();
        let before = groups.hosted(1);
        groups.host(1, log.log_id()).unwrap();
        let left = |hosted| groups.leave_here(logs, 1, &log, hosted).unwrap();
        assert!(!left(groups.hosted(1)), "the catalogue places it on all servers");
        logs.place_group(1, &[NodeId(1), NodeId(2)]).unwrap();
        assert!(!left(groups.hosted(1)), "the catalogue places it here");
        logs.place_group(1, &[NodeId(2)]).unwrap();
        assert!(!left(before));
        assert!(log.path().exists() && logs.groups().contains_key(&1) && !groups.is_leaving(1));
        assert!(left(groups.hosted(1)));
        assert!(!logs.groups().contains_key(&1));
        has_left(&groups, 1);
        let entries = std::fs::read_dir(dir.path().join(NAMED)).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("group-")), "{names:?}");
        let old = log.directory_id();
        assert_ne!(asked_to_host(&groups, 1, log.log_id()).unwrap(), old, "a new replica in a new directory");
    }

    #[track_caller]
    fn has_left(groups: &Groups, group: u32) {
        let begun = Instant::now();
        while groups.is_leaving(group) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is still being closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A group was moved away from a disk that hung: its replica was not closed, and no group of the server followed anything any more.
    #[test]
    fn replica_that_does_not_close_holds_its_group_alone() {
        let dir = tempfile::tempdir().unwrap();
        let groups = with_system(dir.path());
        let logs = groups.inner.slot.named().unwrap();
        let made = |group: u32| {
            let log = groups.start(group, Bootstrap::Init).unwrap();
            logs.register_group(group, &log).unwrap();
            groups.serve(group, &log).unwrap();
            log
        };
        let (log, other) = (made(1), made(2));
        logs.set_ready_groups([(1, 10)].into());
        let begun = Instant::now();
        while log.role() != Role::Leader {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not lead");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (goes_on, goes) = std::sync::mpsc::channel::<()>();
        let (told, is_held) = std::sync::mpsc::channel();
        let named = logs.create("a").unwrap();
        named.submit(b"x").unwrap().on_complete(move |_| {
            told.send(()).unwrap();
            let _ = goes.recv(); // as a disk that does not answer: the replica cannot be closed
        });
        is_held.recv().unwrap();

        logs.place_group(1, &[NodeId(2)]).unwrap();
        assert!(groups.leave_here(logs, 1, &log, groups.hosted(1)).unwrap());
        assert_eq!(groups.host(1, log.log_id()).unwrap_err().kind(), ErrorKind::Unavailable);
        groups.open_known();
        assert!(groups.is_leaving(1) && !logs.groups().contains_key(&1) && log.path().exists());
        assert_eq!(groups.host(2, other.log_id()).unwrap(), other.directory_id());
        assert_eq!(groups.replicas().len(), 2, "a shutdown waits for the others");

        goes_on.send(()).unwrap();
        has_left(&groups, 1);
        assert!(!log.path().exists());
        asked_to_host(&groups, 1, log.log_id()).unwrap();
    }

    /// `chiplog member remove` believed a poisoned replica of the system log on its own server.
    #[test]
    fn others_are_asked_about_the_system_log_too() {
        let dir = tempfile::tempdir().unwrap();
        let groups = with_system(dir.path());
        let default = chiplog::Options::with_segment_bytes(1 << 20);
        groups.inner.slot.open(Log::open(dir.path().join("default"), default).unwrap());
        let system = groups.replicas()[0].log_id();
        assert_eq!(groups.others(SYSTEM).unwrap().id, system);
        assert_eq!(groups.others(1).map(|others| others.id).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    /// A directory that an operator had renamed was removed at the next start.
    #[test]
    fn only_directories_that_the_server_renamed_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, removable: bool| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("00000000000000000001.seg"), "x").unwrap();
            if removable {
                std::fs::write(path.join(REMOVABLE), "").unwrap();
            }
            path
        };
        for (name, removable, is) in [
            ("group-1.moved-1", true, true),
            ("group-2.moved-12", true, true),
            ("group-3.moved-1", false, false),
            ("group-4.moved", true, false),
            ("group-5.moved-away-by-operator", true, false),
            ("group-6", true, false),
            ("group-x.moved-1", true, false),
            ("other.moved-1", true, false),
        ] {
            let path = made(name, removable);
            assert_eq!(is_moved(&path), is, "{name}");
            if is {
                remove(&path);
                assert!(!path.exists());
            }
        }
    }
}
