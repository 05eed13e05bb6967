//! Opening: the replicas of groups are opened and made, and served from then on.
//!
//! Invariants:
//! - The disk of a group can hang for ever. So while the server runs, a replica of a group is opened or made on a thread of its own, and
//!   without the lock `opening`. Nothing waits for that thread for long, except the other such threads while it looks for its directory
//!   (`directories.rs`): what follows the groups looks at its result later.
//! - One thread at a time opens or makes the replica of a group, and none while one is served or is being closed: it has claimed the group.
//! - A replica is served only while the server is not shutting down. That is looked at under the lock, which the shutdown takes before it
//!   closes those that are served; the thread closes any other one itself.
//! - The replica of the system log, and at the start all that are there, are opened under the lock: nothing follows groups before. The
//!   system log is on the disk of the default log.

use super::late::is_alone;
use super::{ALONE, Groups, HOST_TIMEOUT, Inner, SYSTEM, Task, label, unmade};
use crate::connect::directory;
use crate::serve::objects::warn_without_store;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::{Error, ErrorKind, Log, LogId, Logs};
use chiplog_net::peer::GROUPS_MAX;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a group that could not be opened, or that this server does not have, is left alone.
const OPEN_AGAIN: Duration = Duration::from_secs(30);
/// When a group is tried again whose disk has no more room than before.
const ROOM_AGAIN: Duration = Duration::from_secs(600);

/// A group that could not be made for lack of room.
pub(super) struct Unmade {
    at: Instant,
    error: Error,
    /// The bytes that were free on its disk then.
    free: u64,
}

impl Unmade {
    /// Whether another attempt would fail like this one: each attempt is a warning in the log. `segment`: the size of a file.
    fn is_still(&self, free: u64, segment: u64) -> bool {
        let since = self.at.elapsed();
        // Files that give way may have come meanwhile: cached objects, sorted copies.
        (free < segment && since < ROOM_AGAIN)
            || (since < OPEN_AGAIN && free < self.free.saturating_add(segment))
    }
}

/// A group whose replica one thread opens or makes, until this is dropped.
pub(super) struct Claim {
    groups: Groups,
    pub(super) group: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.groups.claimed().remove(&self.group);
    }
}

impl Groups {
    /// Opens the system log that is there. Called under the lock.
    pub(super) fn open_system(&self) {
        if self.inner.slot.named().is_none() && directory::is_log(&self.path(SYSTEM)) {
            let opened = self.start(SYSTEM, Bootstrap::Existing).and_then(|log| self.serve(SYSTEM, &log));
            if let Err(error) = opened {
                self.report(SYSTEM, Task::Open, &format!("the system log cannot be opened: {error}"));
            }
        }
    }

    /// Opens the replicas that are there, are groups in the catalogue, and are not open. A directory that the catalogue
    /// does not know yet waits: it is of a group that was being made, or the catalogue is behind. Called under the lock.
    pub(super) fn open_known(&self) {
        for (group, id) in self.due() {
            let opened = self.start_existing(group, id).and_then(|log| match log {
                Some(log) => self.serve(group, &log).map(|()| true),
                None => Ok(false),
            });
            self.note_opened(group, opened);
        }
    }

    /// As [`Self::open_known`], each on a thread of its own, and without the lock.
    pub(super) fn open_known_apart(&self) {
        for (group, id) in self.due() {
            let Some(claim) = self.claim(group) else { continue };
            let open = move |groups: &Self| groups.start_existing(group, id);
            let begun = self.apart(claim, open, move |groups, opened| groups.note_opened(group, opened));
            if let Err(error) = begun {
                self.note_opened(group, Err(error));
            }
        }
    }

    /// The groups that the catalogue has and that are to be opened now if they are here, and their logs.
    fn due(&self) -> Vec<(u32, LogId)> {
        let Some(logs) = self.inner.slot.named() else { return Vec::new() };
        let open = logs.groups();
        let closed = (1..=GROUPS_MAX).filter(|group| !open.contains_key(group) && !self.is_leaving(*group));
        let mut due = Vec::new();
        for group in closed {
            if let Some(since) = self.claimed_since(group) {
                if since.elapsed() >= OPEN_AGAIN {
                    self.report(
                        group,
                        Task::Open,
                        "it is still being opened or made: its disk may hang, or one of `group_directories`",
                    );
                }
                continue;
            }
            let last = self.unopened().get(&group).copied();
            if last.is_some_and(|last| last.elapsed() < OPEN_AGAIN) {
                continue;
            }
            match logs.group_id(group) {
                Ok(Some(id)) => due.push((group, id)),
                Ok(None) => self.note_opened(group, Ok(true)),
                Err(error) => self.note_opened(group, Err(error)),
            }
        }
        due
    }

    /// Notes whether a group was opened. `Ok(false)`: it is not here.
    fn note_opened(&self, group: u32, opened: chiplog::Result<bool>) {
        match opened {
            Ok(is_done) => {
                self.unopened().remove(&group);
                if !is_done {
                    self.unopened().insert(group, Instant::now());
                }
                self.report(group, Task::Open, "");
            }
            Err(error) => {
                if error.kind() != ErrorKind::Unavailable {
                    self.unopened().insert(group, Instant::now()); // else it only waits for the catalogue
                }
                self.report(group, Task::Open, &format!("it cannot be opened: {error}"));
            }
        }
    }

    fn unopened(&self) -> MutexGuard<'_, BTreeMap<u32, Instant>> {
        self.inner.unopened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeMap<u32, Instant>> {
        self.inner.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when a thread opens or makes the replica of a group.
    pub(super) fn claimed_since(&self, group: u32) -> Option<Instant> {
        self.claimed().get(&group).copied()
    }

    /// Claims a group. None: it is served, opened or closed already, or the server shuts down.
    pub(super) fn claim(&self, group: u32) -> Option<Claim> {
        let _one = self.opening();
        self.claim_here(group)
    }

    /// As [`Self::claim`]. Called under the lock.
    pub(super) fn claim_here(&self, group: u32) -> Option<Claim> {
        let is_open = self.inner.slot.named().is_none_or(|logs| logs.groups().contains_key(&group));
        if is_open || self.is_leaving(group) || self.inner.slot.is_draining() {
            return None;
        }
        let mut claimed = self.claimed();
        if claimed.contains_key(&group) {
            return None;
        }
        claimed.insert(group, Instant::now());
        Some(Claim { groups: self.clone(), group })
    }

    /// Opens or makes the replica of a group on a thread of its own, serves it, and then does the rest there with the outcome. `Ok(false)`:
    /// there is none to open.
    ///
    /// # Errors
    /// `Io`: there is no thread for it; nothing was done.
    pub(super) fn apart(
        &self,
        claim: Claim,
        open: impl FnOnce(&Self) -> chiplog::Result<Option<Log>> + Send + 'static,
        rest: impl FnOnce(&Self, chiplog::Result<bool>) + Send + 'static,
    ) -> chiplog::Result<()> {
        let (groups, group) = (self.clone(), claim.group);
        let work = move || {
            let opened = open(&groups).and_then(|log| match log {
                Some(log) => groups.serve_opened(group, &log).map(|()| true),
                None => Ok(false),
            });
            rest(&groups, opened);
            drop(claim); // last: the outcome is noted before another attempt
        };
        let begun = std::thread::Builder::new().name("chiplog-open".into()).spawn(work);
        begun.map(drop).map_err(|error| {
            Error::new(ErrorKind::Io, format!("no thread that opens a replica of group {group}: {error}"))
        })
    }

    /// Serves a replica that was opened without the lock. Closes it if that is too late.
    ///
    /// # Errors
    /// `Unavailable`: the server is shutting down. Those of [`Self::serve`].
    fn serve_opened(&self, group: u32, log: &Log) -> chiplog::Result<()> {
        let served = {
            let _one = self.opening();
            match self.inner.slot.is_draining() {
                true => Err(shutting_down()),
                false => self.serve(group, log),
            }
        };
        if served.is_err()
            && let Err(error) = log.close()
        {
            tracing::warn!(group = %label(group), %error, "the replica of a group that is not served could not be closed");
        }
        served
    }

    /// The replicas that are open once the server is shutting down: there will be no others. Waits for a system log that is being made.
    pub(in crate::serve) fn last_replicas(&self) -> Vec<Log> {
        let _one = self.opening();
        self.replicas()
    }

    pub(super) fn opening(&self) -> MutexGuard<'_, ()> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a replica. Called under the lock, or by the thread that has claimed the group.
    pub(super) fn start(&self, group: u32, bootstrap: Bootstrap) -> chiplog::Result<Log> {
        let directory = self.directory(group)?;
        self.start_in(&directory, group, bootstrap)
    }

    /// As [`Self::start`], in the directory that the group has got.
    fn start_in(&self, directory: &Path, group: u32, bootstrap: Bootstrap) -> chiplog::Result<Log> {
        let Inner { config, shared, address, transport, .. } = &*self.inner;
        let transport = transport.group(group + 1);
        let is_new = !matches!(bootstrap, Bootstrap::Existing);
        let mut options = config
            .groups_options(shared, bootstrap, transport.clone(), address.clone())
            .map_err(|failure| Error::new(ErrorKind::InvalidArgument, failure.to_string()))?;
        options.options.vault = self.inner.vault.clone();
        let options = options.of_group(group);
        let segment = u64::from(options.segment_bytes);
        let open = || Log::open(directory, options);
        let log = match is_new {
            true => self.with_room(group, directory, segment, open)?,
            false => open()?,
        };
        warn_without_store(&log, self.inner.vault.is_some());
        if self.inner.slot.is_draining() {
            log.close()?; // the shutdown does not wait for a replica that is being opened
            return Err(shutting_down());
        }
        transport.identify(log.log_id(), log.directory_id());
        Ok(log)
    }

    /// Makes a replica in a directory, unless an earlier attempt found no room for it, and there is no more room now.
    fn with_room(
        &self,
        group: u32,
        directory: &Path,
        segment: u64,
        open: impl FnOnce() -> chiplog::Result<Log>,
    ) -> chiplog::Result<Log> {
        let lock = || self.inner.unmade.lock().unwrap_or_else(PoisonError::into_inner);
        let free = free_bytes(directory);
        if let Some(unmade) = lock().get(&group).filter(|unmade| unmade.is_still(free, segment)) {
            return Err(unmade.error.clone());
        }
        let opened = open();
        match &opened {
            Err(error) if error.kind() == ErrorKind::Full => {
                let unmade = Unmade { at: Instant::now(), error: error.clone(), free: free_bytes(directory) };
                lock().insert(group, unmade);
            }
            _ => _ = lock().remove(&group),
        }
        opened
    }

    /// Serves a replica from now on. Called under the lock.
    pub(super) fn serve(&self, group: u32, log: &Log) -> chiplog::Result<()> {
        match self.inner.slot.named() {
            None => {
                self.mark()?;
                let logs = Logs::of(log.clone());
                logs.set_ready_groups(BTreeMap::new()); // until a look finds which are
                self.inner.slot.open_named(logs);
                self.inner.serves.notify_one();
            }
            Some(logs) => logs.add_group(group, log.clone())?,
        }
        tracing::info!(group = %label(group), path = %log.path().display(), "opened a group of named logs");
        if group == SYSTEM && self.inner.config.groups == 0 {
            tracing::warn!(
                "this cluster has named logs, and `groups` is 0 here: set it as on the other servers"
            );
        }
        Ok(())
    }

    /// Opens the replica that is there, if it is of this log; renames its directory otherwise. Called as [`Self::start`].
    pub(super) fn start_existing(&self, group: u32, wanted: LogId) -> chiplog::Result<Option<Log>> {
        let Some(path) = self.find(group)? else { return Ok(None) };
        let log = self.start(group, Bootstrap::Existing)?;
        if log.log_id() == wanted {
            return Ok(Some(log));
        }
        let here = log.log_id().get();
        log.close()?;
        drop(log);
        if group == SYSTEM {
            // Nothing says which of the two is right, and this one can have the only catalogue.
            let wanted = wanted.get();
            let what = format!(
                "{} has system log {here:032x}, and log {wanted:032x} is wanted: move the directory elsewhere if it is \
                 of another cluster",
                path.display()
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        self.set_aside(group, &path, "the catalogue has another group of this number")?;
        Ok(None)
    }

    /// Renames the directory of a group that the catalogue does not have: this server was making it when another one made
    /// the group of this number. Or of a replica without which the group does.
    pub(super) fn set_aside(&self, group: u32, path: &Path, why: &str) -> chiplog::Result<()> {
        let Some(aside) = self.rename_aside(group, path, "unused-")? else { return Ok(()) };
        tracing::warn!(
            group = %label(group),
            path = %aside.display(),
            why,
            "the directory of a group was renamed"
        );
        Ok(())
    }

    /// Makes the groups that are configured and missing, on the leader of the system log.
    ///
    /// # Errors
    /// They cannot be made, or not without a system log.
    pub(super) fn make_missing(&self, default: &Log) -> chiplog::Result<()> {
        if self.inner.slot.is_draining() {
            return Ok(());
        }
        let Some(logs) = self.inner.slot.named() else { return self.make_first(default) };
        self.report(SYSTEM, Task::Wait, "");
        self.open_known_apart();
        let open = logs.groups();
        let is_new = |group: &u32| logs.group_id(*group).is_ok_and(|id| id.is_none());
        let missing = || (1..=self.inner.config.groups).filter(is_new);
        if logs.system().role() != Role::Leader || !missing().any(|group| !open.contains_key(&group)) {
            self.failed().clear();
            return Ok(());
        }
        logs.system().barrier(HOST_TIMEOUT)?; // a majority confirms that this is the newest catalogue
        let missing: Vec<u32> = missing().collect();
        self.failed().retain(|group, _| missing.contains(group));
        self.make_apart(missing.into_iter().filter_map(|group| self.claim(group)).collect())?;
        self.failed().first_key_value().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Makes the system log, or says what keeps this server from that.
    ///
    /// # Errors
    /// It cannot be made, or not by this server.
    fn make_first(&self, default: &Log) -> chiplog::Result<()> {
        let wanted = self.inner.config.groups;
        let founds = || {
            is_alone(default) && default.role() == Role::Leader && self.inner.founds.load(Ordering::Relaxed)
        };
        let is_checked = founds();
        if is_checked {
            self.check_no_earlier()?;
        }
        let one = self.opening();
        if self.inner.slot.named().is_some() {
            return Ok(()); // another server asked for a replica of it meanwhile
        }
        if founds() {
            return if is_checked { self.make_system() } else { Ok(()) }; // else with the next look
        }
        let (is_alone, leads) = (is_alone(default), default.role() == Role::Leader);
        if wanted > 0 && leads && !is_alone {
            drop(one); // other servers answer meanwhile, and so does this one
            let made = self.make_system_log_among(default);
            self.report(SYSTEM, Task::Wait, &made.err().map(|e| unmade(&e)).unwrap_or_default());
            return Ok(());
        }
        let leader = default.leader().filter(|_| wanted > 0 && !leads && !is_alone);
        let waits = leader.map(|node| {
            format!("node {node} leads the default log: it makes the system log if it has `groups`, once all servers run")
        });
        self.report(SYSTEM, Task::Wait, &waits.unwrap_or_default());
        if wanted > 0 && leads && is_alone {
            let refusal = self.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let what = refusal.unwrap_or_else(|| ALONE.into());
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        Ok(())
    }

    /// Makes new groups. Each gets its directory after the other, and only once: one that has it and is not there is missed. It is made on a
    /// thread of its own: the others can be on other disks.
    ///
    /// # Errors
    /// `Io`: there is no thread for it; nothing was done.
    fn make_apart(&self, claims: Vec<Claim>) -> chiplog::Result<()> {
        if claims.is_empty() {
            return Ok(());
        }
        let groups = self.clone();
        let make = move || {
            for claim in claims {
                let group = claim.group;
                let begun = groups.directory(group).and_then(|directory| {
                    let make = move |groups: &Self| groups.make(&directory, group).map(Some);
                    groups.apart(claim, make, move |groups, made| groups.note_made(group, made.map(drop)))
                });
                if let Err(error) = begun {
                    groups.note_made(group, Err(error));
                }
            }
        };
        let begun = std::thread::Builder::new().name("chiplog-make".into()).spawn(make);
        begun.map(drop).map_err(|error| {
            Error::new(ErrorKind::Io, format!("no thread that makes groups of named logs: {error}"))
        })
    }

    /// Makes a new group in the directory that it has got, and notes it in the catalogue.
    fn make(&self, directory: &Path, group: u32) -> chiplog::Result<Log> {
        let logs = self
            .inner
            .slot
            .named()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "this server has no system log"))?;
        let log = self.start_in(directory, group, Bootstrap::Init)?;
        if let Err(error) = logs.register_group(group, &log) {
            // It is made again, or set aside.
            return Err(log.close().err().unwrap_or(error));
        }
        Ok(log)
    }

    /// Notes whether a new group was made.
    fn note_made(&self, group: u32, made: chiplog::Result<()>) {
        match made {
            Ok(()) => {
                self.failed().remove(&group);
                self.report(group, Task::Open, "");
            }
            Err(error) => _ = self.failed().insert(group, error),
        }
    }

    fn failed(&self) -> MutexGuard<'_, BTreeMap<u32, Error>> {
        self.inner.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of opening or making a replica while the server ends.
pub(super) fn shutting_down() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}

/// The free bytes of the disk of a directory that may be missing; `u64::MAX` if unknown.
fn free_bytes(directory: &Path) -> u64 {
    let there = directory.ancestors().find(|path| path.exists());
    let disk = there.and_then(|path| rustix::fs::statvfs(path).ok());
    disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::super::tests::{asked_to_host, with_system};
    use super::*;
    use chiplog::{NodeId, Options};
    use rustix::fs::{FileType, Mode, mknodat};
    use std::fs;
    use std::path::PathBuf;
    use std::sync::mpsc::channel;

    /// A directory of a group on a disk that answers nothing: reading its identity hangs.
    struct Hangs(PathBuf);

    impl Hangs {
        fn new(groups: &Groups, group: u32) -> Self {
            let path = groups.path(group);
            fs::create_dir_all(&path).unwrap();
            let file = path.join("chiplog.id");
            mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            Self(file)
        }

        /// The disk answers from now on: there is nothing in the directory.
        fn end(self) {
            let writer = fs::File::options().write(true).open(&self.0).unwrap(); // waits until it is being read
            fs::remove_file(&self.0).unwrap();
            drop(writer);
        }
    }

    /// A server with group 2, which asks for group 1 and others on a thread of its own.
    struct Rig {
        _dir: tempfile::TempDir,
        groups: Groups,
        default: Log,
        /// A replica of group 1 elsewhere.
        one: Log,
        two: Log,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let groups = with_system(&dir.path().join("data"));
            let options = || Options::with_segment_bytes(1 << 20);
            let default = Log::open(dir.path().join("default"), options()).unwrap();
            let one = Log::open(dir.path().join("elsewhere"), options()).unwrap();
            let two = groups.start(2, Bootstrap::Init).unwrap();
            groups.inner.slot.named().unwrap().register_group(2, &two).unwrap();
            groups.serve(2, &two).unwrap();
            Self { _dir: dir, groups, default, one, two }
        }

        /// Does this on a thread, which may not wait for the disk.
        #[track_caller]
        fn ends<T: Send + 'static>(&self, call: impl FnOnce(&Groups) -> T + Send + 'static) -> T {
            let (tell, told) = channel();
            let groups = self.groups.clone();
            std::thread::spawn(move || tell.send(call(&groups)));
            told.recv_timeout(Duration::from_secs(60)).expect("it waits for the disk of group 1")
        }

        /// The work for the groups goes on, although group 1 is still being made.
        #[track_caller]
        fn goes_on(&self) {
            let (two, default) = (self.two.log_id(), self.default.clone());
            assert_eq!(self.ends(move |groups| groups.host(2, two)).unwrap(), self.two.directory_id());
            self.ends(move |groups| groups.make_missing(&default)).unwrap();
            let logs = self.groups.inner.slot.named().unwrap().clone();
            let two = self.two.clone();
            assert!(!self.ends(move |groups| groups.leave_here(&logs, 2, &two, groups.hosted(2))).unwrap());
            assert!(self.groups.claimed_since(1).is_some());
        }
    }

    #[track_caller]
    fn is_soon(what: &str, is: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A leader asked for a replica on a disk that hung, and no group of the server followed anything any more.
    #[test]
    fn replica_on_a_disk_that_hangs_holds_its_group_alone() {
        let rig = Rig::new();
        let groups = &rig.groups;
        groups.inner.slot.named().unwrap().register_group(1, &rig.one).unwrap();
        let (hangs, one) = (Hangs::new(groups, 1), rig.one.log_id());
        for _ in 0..3 {
            let refused = rig.ends(move |groups| groups.host(1, one)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            rig.goes_on();
        }
        hangs.end();
        let directory = asked_to_host(groups, 1, one).unwrap();
        assert_eq!(groups.host(1, one).unwrap(), directory);
        is_soon("it is claimed for ever", || groups.claimed_since(1).is_none());
    }

    /// The same on the leader of the system log, which makes new groups.
    #[test]
    fn new_group_on_a_disk_that_hangs_holds_no_other_one() {
        let rig = Rig::new();
        let groups = &rig.groups;
        let hangs = Hangs::new(groups, 1);
        let default = rig.default.clone();
        rig.ends(move |groups| groups.make_missing(&default)).unwrap();
        rig.goes_on();
        assert_eq!(rig.ends(Groups::last_replicas).len(), 2, "a shutdown does not wait for it");
        hangs.end();
        let logs = groups.inner.slot.named().unwrap();
        is_soon("it is not made", || {
            _ = groups.make_missing(&rig.default); // perhaps it found half of a directory
            logs.groups().contains_key(&1)
        });
        assert_eq!(logs.group_id(1).unwrap(), Some(logs.groups()[&1].log_id()));
        is_soon("it is claimed for ever", || groups.claimed_since(1).is_none());
    }

    /// The default log was not closed in time if the lock was held for long.
    #[test]
    fn shutdown_closes_the_default_log_although_a_system_log_is_being_made() {
        let rig = Rig::new();
        let (groups, default) = (&rig.groups, rig.default.clone());
        groups.inner.slot.drain();
        let held = groups.opening();
        let closing = {
            let groups = groups.clone();
            std::thread::spawn(move || crate::serve::close_all(Some(&default), &groups))
        };
        is_soon("it waits for the lock", || {
            rig.default.append(b"x").is_err_and(|error| error.kind() == ErrorKind::Closed)
        });
        assert!(!closing.is_finished() && groups.replicas().iter().all(|log| log.role() == Role::Leader));
        drop(held);
        closing.join().unwrap().unwrap();
        assert_eq!(rig.two.barrier(HOST_TIMEOUT).unwrap_err().kind(), ErrorKind::Closed);
    }

    /// A majority was asked under the lock, and so a shutdown waited for it.
    #[test]
    fn group_is_not_left_while_the_server_ends() {
        let rig = Rig::new();
        let groups = &rig.groups;
        let logs = groups.inner.slot.named().unwrap();
        logs.place_group(2, &[NodeId(9)]).unwrap();
        let held = groups.opening();
        let (left, told) = channel();
        let leaving = {
            let (groups, logs, two) = (groups.clone(), logs.clone(), rig.two.clone());
            std::thread::spawn(move || left.send(groups.leave_here(&logs, 2, &two, groups.hosted(2))))
        };
        groups.inner.slot.drain();
        drop(held);
        assert!(!told.recv().unwrap().unwrap(), "the shutdown closes it");
        leaving.join().unwrap().unwrap();
        assert!(logs.groups().contains_key(&2) && !groups.is_leaving(2));

        // The majority is asked before the lock is taken: it is not, if it does not answer.
        logs.system().close().unwrap();
        let _held = groups.opening();
        let (logs, two) = (logs.clone(), rig.two.clone());
        let refused = rig.ends(move |groups| groups.leave_here(&logs, 2, &two, groups.hosted(2)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }

    /// One that was opened while the server ended stayed open, and was served.
    #[test]
    fn replica_that_comes_too_late_for_a_shutdown_is_closed() {
        let rig = Rig::new();
        let groups = &rig.groups;
        let ((is_open, opened), (goes_on, goes), (tell, told)) = (channel(), channel::<()>(), channel());
        let open = move |groups: &Groups| {
            let log = groups.start(1, Bootstrap::Init)?;
            is_open.send(()).unwrap();
            let _ = goes.recv();
            Ok(Some(log))
        };
        let claim = groups.claim(1).unwrap();
        assert!(groups.claim(1).is_none() && groups.claim(2).is_none());
        groups.apart(claim, open, move |_, made| tell.send(made).unwrap()).unwrap();
        opened.recv().unwrap();
        groups.inner.slot.drain();
        assert_eq!(groups.last_replicas().len(), 2);
        drop(goes_on);
        assert_eq!(told.recv().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(groups.replicas().len(), 2);
        is_soon("it is claimed for ever", || groups.claimed_since(1).is_none());
        assert!(groups.claim(1).is_none(), "the server ends");
        // Nothing holds its lock.
        assert_eq!(groups.start(1, Bootstrap::Existing).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
