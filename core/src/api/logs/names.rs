//! Names: logs are created and deleted, in the catalogue first, then in their groups.
//!
//! Invariants:
//! - a name decides only once a majority has confirmed it: a new leader can lack the newest records of the catalogue;
//! - no creation succeeds, and none says that the log exists, while a deleted log of the name may still accept appends: a client could find
//!   that one, and lose what it appends. If that one's group runs elsewhere, the caller of [`Logs::register`] asks there. A deleted log
//!   whose name the catalogue does not know, from a snapshot of an earlier version or of a backup that lacks it, counts as one of every
//!   name that no log has: the creation of one that exists awaited it;
//! - creations beside each other get no more places than a group has; one whose outcome is unknown keeps its place until it is known;
//! - a creation that is repeated after an unknown outcome makes no second log: of two records with one name the first counts.

use super::{
    CONFIRM_TIMEOUT, GROUP_TIMEOUT, LOOK_INTERVAL, LogInfo, Logs, drop_in, info, is_for_later, meant,
    pass_over_in,
};
use crate::api::catalogue::{CatalogueEntry, CatalogueRecord, check_name};
use crate::api::log::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::pause;
use crate::types::{Index, LogId, LogNumber};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a group that could not drop a deleted log is left alone by a call that waits for that.
const FAILED_INTERVAL: Duration = Duration::from_millis(50);

impl Logs {
    /// Creates a log. Blocks until that is durable. In a cluster the leaders of group 0 and of the log's group accept
    /// this.
    ///
    /// # Errors
    /// `AlreadyExists`. `InvalidArgument`: the name is not allowed. `Full`: the group has no room for more logs. `Busy`: no
    /// group is [ready](Self::set_ready_groups), or a deleted log of this name is still in its group. `Unavailable`: the log
    /// may have been created; if the message says so, the leader of its group opens it with the next [`Logs::settle`], and
    /// [`Logs::find`] waits for that; or a deleted log of this name is still in its group, and has to be gone before the name
    /// is used. `NotFound`: it was created, and another call has
    /// deleted it. `Timeout`: the system log gave no answer within 5 s, and the log may still be created. Those of [`Log::append`]; it is
    /// safe to retry, and a log that was created is then reported as existing.
    pub fn create(&self, name: &str) -> Result<Log> {
        self.create_in(name, None)
    }

    /// Checks a name before there is a log of that name: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, then perhaps `/`
    /// and a partition's number; names that begin with `_` are reserved.
    ///
    /// ```
    /// assert!(chiplog::Logs::check_name("orders/3").is_ok());
    /// assert!(chiplog::Logs::check_name("two words").is_err());
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_name(name: &str) -> Result<()> {
        check_new_name(name)
    }

    /// As [`Logs::create`], in the group of another log: so that both can be appended to together.
    ///
    /// # Errors
    /// As [`Logs::create`]. `NotFound`: the other log does not exist.
    pub fn create_beside(&self, name: &str, other: &str) -> Result<Log> {
        self.create_in(name, Some(other))
    }

    fn create_in(&self, name: &str, beside: Option<&str>) -> Result<Log> {
        let entry = self.add_entry(name, beside, false)?;
        match self.open_entry(&entry) {
            // It is created. The leader of its group opens it, or the next one.
            Err(error) if is_for_later(&error) || error.kind() == ErrorKind::Full => {
                self.find(name, Some(entry.id), CONFIRM_TIMEOUT).map_err(|error| half_created(name, &error))
            }
            opened => opened.map_err(|error| half_created(name, &error)),
        }
    }

    /// The first half of [`Logs::create`]: the log is in the catalogue, and the leader of its group opens it with the
    /// next [`Logs::settle`]. For a cluster in which another replica leads the group; [`Logs::find`] waits until it is
    /// open. In a cluster the leader of group 0 accepts this. Returns the log's id. A deleted log of this name can still accept appends in
    /// a group that runs elsewhere: [`Logs::predecessor`] returns it.
    ///
    /// # Errors
    /// As [`Logs::create`].
    pub fn register(&self, name: &str) -> Result<LogId> {
        self.add_entry(name, None, true).map(|entry| entry.id)
    }

    /// As [`Logs::register`], in the group of another log.
    ///
    /// # Errors
    /// As [`Logs::create_beside`].
    pub fn register_beside(&self, name: &str, other: &str) -> Result<LogId> {
        self.add_entry(name, Some(other), true).map(|entry| entry.id)
    }

    /// Appends to the catalogue. If that has no room, the cause is the source of the error: it is another one if a group has no room.
    ///
    /// # Errors
    /// `Timeout`: its disk hangs, and the record may still be appended. Those of [`Log::append`].
    pub(super) fn append_record(&self, record: &CatalogueRecord) -> Result<Index> {
        self.append_holding(record, ())
    }

    /// As [`Self::append_record`], and drops `held` once the outcome is known, which can be after the return.
    fn append_holding(&self, record: &CatalogueRecord, held: impl Send + 'static) -> Result<Index> {
        let system = &self.inner.system;
        system.may_wait()?;
        let ticket = system.submit(&record.encode()[..]).map_err(without_room)?;
        match ticket.wait_timeout(GROUP_TIMEOUT) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                ticket.on_complete(move |_| drop(held));
                Err(in_doubt())
            }
            answer => answer.map_err(without_room),
        }
    }

    /// Adds a log to the catalogue. `asks`: the caller itself asks for a deleted log of the name whose group runs elsewhere.
    fn add_entry(&self, name: &str, beside: Option<&str>, asks: bool) -> Result<CatalogueEntry> {
        check_new_name(name)?;
        self.may_wait()?;
        self.check_leads()?;
        let group =
            beside.map(|other| self.entry_confirmed(other, None)).transpose()?.map(|entry| entry.group);
        let system = &self.inner.system;
        let exists = || Error::new(ErrorKind::AlreadyExists, format!("log {name:?} exists already"));
        if self.catalogue()?.get(name).is_some() {
            match self.entry_confirmed(name, None) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => {
                    found?;
                    self.await_predecessor(name, asks)?;
                    return Err(exists());
                }
            }
        }
        self.catch_up()?;
        self.await_predecessor(name, false)?;
        let group = group.map_or_else(|| self.emptiest_group(), Ok)?;
        let here = self.running(group);
        if let Some(here) = &here {
            self.drop_deleted_in(group, here, true)?; // they take places
        }
        let place = self.reserve(group)?;
        if let Some(here) = here {
            self.note_group(group, &here)?; // a group is in the catalogue before its logs
        }
        let id = system.random_id()?;
        // The place is given back once the log itself is counted.
        let index =
            self.append_holding(&CatalogueRecord::Create { name: name.to_owned(), id, group }, place)?;
        let created = {
            let catalogue = self.catalogue()?;
            debug_assert!(catalogue.next() > index, "an acknowledged record can be read");
            catalogue.get(name).copied()
        };
        self.keep_system_short();
        match created {
            Some(entry) if entry.id == id || planted!(138) => {
                // The name can have been another log's meanwhile.
                self.await_predecessor(name, asks).map_err(|error| created_beside(name, &error))?;
                Ok(entry)
            }
            Some(_) => {
                self.await_predecessor(name, asks)?;
                Err(exists())
            }
            None => Err(deleted_meanwhile(name)),
        }
    }

    /// The log that had this name before, was deleted, and may still be in its group: it can accept appends until its group has dropped
    /// it. If no log has the name now, also a deleted log whose name is not known: a server of an earlier version deleted it, and did not
    /// keep its name; or the cluster was restored of a backup that has the log and not its name. `None`: there is none.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn predecessor(&self, name: &str) -> Result<Option<LogId>> {
        Ok(self.catalogue()?.deleted_as(name))
    }

    /// Waits until no deleted log of this name accepts appends. `asks`: except one whose group runs elsewhere, where the caller asks.
    ///
    /// # Errors
    /// `Busy`: its group has not dropped it yet. Those of reading the system log.
    fn await_predecessor(&self, name: &str, asks: bool) -> Result<()> {
        while let Some(id) = self.predecessor(name)? {
            let dropped = self.await_dropped(id, CONFIRM_TIMEOUT);
            if asks && dropped.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotLeader) {
                return Ok(());
            }
            dropped.map_err(|error| match error.kind() {
                ErrorKind::Timeout | ErrorKind::NotLeader | ErrorKind::Unavailable => {
                    let what = format!(
                        "a deleted log was called {name:?}, or by a name that is not known here, and can still accept appends; try \
                         again once it is gone: {error}"
                    );
                    Error::with_source(ErrorKind::Busy, what, &error)
                }
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Checks that this replica leads the system log: only then its catalogue decides.
    ///
    /// # Errors
    /// `NotLeader`.
    fn check_leads(&self) -> Result<()> {
        if self.inner.system.replica_leads() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotLeader,
            "another replica leads the system log, which has the names of logs",
        ))
    }

    /// Has the catalogue know all that was acknowledged before this replica led the system log: once in each term.
    ///
    /// # Errors
    /// Those of [`Log::barrier`].
    fn catch_up(&self) -> Result<()> {
        let system = &self.inner.system;
        let term = system.replica_term();
        if self.inner.current_in.load(Ordering::Relaxed) != term.0 {
            system.barrier(CONFIRM_TIMEOUT)?;
            self.inner.current_in.store(term.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks that this thread may wait for all groups: nothing is half done because it may not.
    ///
    /// # Errors
    /// `InvalidArgument`: this is the writer thread of one.
    pub(super) fn may_wait(&self) -> Result<()> {
        self.groups().values().chain([&self.inner.system]).try_for_each(Log::may_wait)
    }

    /// Reserves a place for one more log in a group, before the catalogue names it. Other calls create logs meanwhile.
    fn reserve(&self, number: u32) -> Result<Reserved> {
        let here = self.running(number);
        let most =
            here.as_ref().map(Log::named_logs_max).or_else(|| self.ready_groups().get(&number).copied());
        let most = most.ok_or_else(|| {
            let what = format!("group {number} has no leader that is known here; try again later");
            Error::new(ErrorKind::Busy, what)
        })?;
        let mut reserved = self.inner.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let places = reserved.entry(number).or_default();
        // Before the catalogue, which has a log before its place is given back.
        let others = places.load(Ordering::Acquire);
        let count =
            here.map_or(0, |group| group.logs().len()).max(self.catalogue()?.logs_in(number)) + others;
        if count < most {
            places.fetch_add(1, Ordering::Relaxed);
            return Ok(Reserved(places.clone()));
        }
        let what = format!(
            "group {number} has {count} logs, and its segments have room for no more: delete some, or open the \
             directory with more groups"
        );
        Err(Error::new(ErrorKind::Full, what))
    }

    /// Deletes a log with all its records. Blocks until that is durable. Its handles append nothing from then on: they get `NotFound`, and
    /// so do its readers behind the last record. A handle that is open can still read records that are in files; what readers hold stays
    /// valid. The name can be created again: that is another log, with another number.
    ///
    /// # Errors
    /// `NotFound`: there is no such log; so says a repeated call, too, if the earlier one took effect. `Unavailable`: no majority confirms
    /// which log has the name; or it is deleted, as the message then says, and its group has yet to drop its records: it does not run here,
    /// or could not. Its leader does so with the next [`Logs::settle`], the next creation in that group, or once the directory is opened
    /// again. `Timeout`: the system log gave no answer within 5 s, and the log may still be deleted. Those of [`Log::append`]; it is safe
    /// to retry.
    pub fn delete(&self, name: &str) -> Result<()> {
        let CatalogueEntry { number, id, group, .. } = self.remove_entry(name, None)?;
        // It is deleted. The leader of its group drops its records.
        self.drop_now(group, number, id).map_err(|error| {
            let what =
                format!("log {name:?} is deleted, and group {group} has yet to drop its records: {error}");
            Error::with_source(ErrorKind::Unavailable, what, &error)
        })
    }

    /// The second half of [`Logs::delete`].
    fn drop_now(&self, group: u32, number: LogNumber, id: LogId) -> Result<()> {
        match drop_in(&self.group(group)?, number) {
            Err(error) if error.kind() == ErrorKind::NotLeader => self.await_dropped(id, CONFIRM_TIMEOUT),
            dropped => dropped,
        }
    }

    /// The first half of [`Logs::delete`]: the name is gone, and the leader of the log's group drops its records with the
    /// next [`Logs::settle`]. In a cluster the leader of group 0 accepts this. Returns the log's id.
    ///
    /// # Errors
    /// As [`Logs::delete`]. `NotFound`, too, if `id` is given and the name is that of another log now.
    pub fn unregister(&self, name: &str, id: Option<LogId>) -> Result<LogId> {
        self.remove_entry(name, id).map(|entry| entry.id)
    }

    /// The entry of a name. A majority confirms it, or that there is none, unless it is that of the log with this id: a
    /// new leader can lack the newest records until its first one is committed, and know an older log of this name.
    pub(super) fn entry_confirmed(&self, name: &str, id: Option<LogId>) -> Result<CatalogueEntry> {
        match self.entry(name) {
            Ok(entry) if id == Some(entry.id) => return Ok(entry),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => self.inner.system.barrier(CONFIRM_TIMEOUT)?,
        };
        self.entry(name).and_then(|entry| meant(name, entry, id))
    }

    /// Waits until a deleted log is gone from its group: no append to it is acknowledged from then on. Returns at once if
    /// there is no such log: it is gone, or was never deleted. Blocks for up to `timeout`.
    ///
    /// # Errors
    /// `Timeout`: its group has no leader, or this replica does not hear from it. `NotLeader`, `Unavailable`: the group does
    /// not run here. Those of reading the system log.
    pub fn await_dropped(&self, id: LogId, timeout: Duration) -> Result<()> {
        let deadline = pause::now() + timeout;
        let mut tells = true;
        loop {
            let place = self.catalogue()?.deleted_log(id);
            let Some((number, log)) = place else { return Ok(()) };
            let failed = self.drop_deleted_in(number, &self.group(number)?, tells)?;
            tells &= failed.is_none();
            if self.catalogue()?.deleted_log(id).is_none() {
                return Ok(());
            }
            if pause::now() > deadline {
                let what = format!(
                    "log {log} is deleted, but was not dropped in group {number} within {timeout:?}: the group has no \
                     leader, or this replica does not hear from it"
                );
                return Err(Error::new(ErrorKind::Timeout, what));
            }
            // Another leader may drop it at once. Any other failure is of a command, and is likely to be there again.
            let is_answered = failed.is_none_or(|kind| kind == ErrorKind::NotLeader);
            pause::sleep(if is_answered { LOOK_INTERVAL } else { FAILED_INTERVAL });
        }
    }

    /// The group and the number of a log that was deleted and may still be in its group. `None`: it is gone, or was never
    /// deleted.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn being_dropped(&self, id: LogId) -> Result<Option<(u32, LogNumber)>> {
        Ok(self.catalogue()?.deleted_log(id))
    }

    /// Of these logs of a group that runs here: the state of those that are in it, and the numbers of those that are not and
    /// can never be opened there again. As far as is committed here, so only the group's leader knows it all.
    ///
    /// # Errors
    /// `NotLeader`, `Unavailable`: the group does not run here. Those of reading the system log.
    pub fn in_group(&self, group: u32, logs: &[LogNumber]) -> Result<(Vec<LogInfo>, Vec<LogNumber>)> {
        let running = self.group(group)?;
        let gone = logs.iter().copied().filter(|log| never_again(&running, *log)).collect();
        let catalogue = self.catalogue()?;
        let here = logs.iter().filter_map(|log| catalogue.by_number(*log)).filter_map(|name| {
            let entry = catalogue.get(name).filter(|entry| entry.group == group)?;
            running.logs().get(entry.number).map(|_| info("", entry, Some(&running)))
        });
        Ok((here.collect(), gone))
    }

    /// The deleted logs that may still be in this group.
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn deleted_in(&self, group: u32) -> Result<Vec<LogNumber>> {
        Ok(self.catalogue()?.deleted_in(group))
    }

    /// Forgets a deleted log of a group that runs on other servers, once the leader there finds it gone: see
    /// [`Logs::in_group`].
    ///
    /// # Errors
    /// Those of reading the system log.
    pub fn forget_dropped(&self, group: u32, log: LogNumber) -> Result<()> {
        self.catalogue()?.forget(group, log);
        Ok(())
    }

    fn remove_entry(&self, name: &str, id: Option<LogId>) -> Result<CatalogueEntry> {
        self.may_wait()?;
        self.check_leads()?;
        let entry = self.entry_confirmed(name, id)?;
        let CatalogueEntry { number, id, .. } = entry;
        self.append_record(&CatalogueRecord::Delete { number, id })?;
        self.keep_system_short();
        Ok(entry)
    }

    /// Drops the logs in groups that a delete left there: it was interrupted between its two steps, or the group had its
    /// leader elsewhere. A group that cannot drop its logs now keeps them until a later call; `hanging` ones are not asked.
    pub(super) fn drop_deleted(&self, hanging: &BTreeSet<u32>) -> Result<()> {
        let groups = self.groups();
        let mut answering = groups.iter().filter(|(number, _)| !hanging.contains(number));
        answering.try_for_each(|(number, group)| self.drop_deleted_in(*number, group, true).map(drop))
    }

    /// As [`Self::drop_deleted`], in one group that runs here: it waits for no other one. Returns why the last one that could not be dropped was
    /// not; `tells`: each is a warning.
    fn drop_deleted_in(&self, number: u32, group: &Log, tells: bool) -> Result<Option<ErrorKind>> {
        let mut failed = None;
        let deleted = self.catalogue()?.deleted_in(number);
        for log in deleted {
            let is_there = group.logs().get(log).is_some();
            // One that was never opened, behind older ones that are: from then on it cannot be opened any more.
            if (is_there || log > group.logs().opened()) && group.replica_leads() {
                let older = LogNumber(log.0.saturating_sub(1));
                let pass = || self.open_up_to(group, number, older).and_then(|()| pass_over_in(group, log));
                let dropped = if is_there { drop_in(group, log) } else { pass() };
                if let Err(error) = dropped {
                    if tells {
                        tracing::warn!(group = number, %log, %error, "a deleted log could not be dropped; it is tried again");
                    }
                    failed = Some(error.kind());
                    if error.kind() == ErrorKind::Timeout {
                        return Ok(failed); // its disk may hang: the others would take as long, each
                    }
                }
            }
            if never_again(group, log) {
                self.catalogue()?.forget(number, log);
            }
        }
        Ok(failed)
    }
}

/// Whether a log is not in a group and never will be: no older log than the newest one can be opened any more.
fn never_again(group: &Log, log: LogNumber) -> bool {
    // In this order: a log that is opened between the two looks is found by the second one.
    log <= group.logs().opened() && group.logs().get(log).is_none()
}

/// A place in a group for a log that is being created. It can be given back on the writer thread, which waits for nothing then.
struct Reserved(Arc<AtomicUsize>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The error of an append to the catalogue that has no room.
fn without_room(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Full => {
            let what = format!("the catalogue of the named logs has no room: {error}");
            Error::with_source(ErrorKind::Full, what, &error)
        }
        _ => error,
    }
}

/// The error of an append to the catalogue that has no answer in time. Each such call can be repeated.
pub(super) fn in_doubt() -> Error {
    let what = format!(
        "the catalogue of the named logs gave no answer within {GROUP_TIMEOUT:?}: whether the change takes effect is not known; \
         it is safe to try again"
    );
    Error::new(ErrorKind::Timeout, what)
}

/// The error of a creation whose log was deleted by another call before it ended.
fn deleted_meanwhile(name: &str) -> Error {
    let what = format!("log {name:?} was created and deleted by another call meanwhile: create it again");
    Error::new(ErrorKind::NotFound, what)
}

/// The error of a creation that could not open its log. No refusal: the log is in the catalogue, and is opened later.
fn half_created(name: &str, error: &Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return deleted_meanwhile(name);
    }
    let what = format!(
        "log {name:?} was created, but is not open in its group yet: get it, and try again while it is not found: {error}"
    );
    Error::with_source(ErrorKind::Unavailable, what, error)
}

/// The error of a creation whose name a deleted log still has in its group. No refusal: the log is in the catalogue.
fn created_beside(name: &str, error: &Error) -> Error {
    let what = format!(
        "log {name:?} was created; do not use the name before the deleted log of that name is gone: {error}"
    );
    Error::with_source(ErrorKind::Unavailable, what, error)
}

/// Checks the name of a log that is to be created.
fn check_new_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.starts_with('_') {
        let what =
            format!("names that begin with '_' are kept for chiplog's own logs: call it other than {name:?}");
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::super::hanging::hang;
    use super::*;
    use crate::replica::queue::proposals::Command;
    use crate::{LogsOptions, Options};

    fn opened(dir: &std::path::Path) -> Logs {
        let options = Options::with_segment_bytes(256 << 10);
        Logs::open(dir, LogsOptions::default().options(options)).unwrap()
    }

    /// Adds a log as another creator does at the same time.
    fn added(logs: &Logs, name: &str, group: u32) -> LogId {
        let id = logs.inner.system.random_id().unwrap();
        logs.append_record(&CatalogueRecord::Create { name: name.to_owned(), id, group }).unwrap();
        id
    }

    /// The caller used the log, and could find the deleted one by its name.
    #[test]
    fn log_exists_only_once_the_deleted_one_of_its_name_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let logs = opened(dir.path());
        let deleted = logs.register("orders").unwrap();
        logs.unregister("orders", Some(deleted)).unwrap();
        let orders = added(&logs, "orders", 1);
        assert_eq!(logs.predecessor("orders").unwrap(), Some(deleted));
        assert_eq!(logs.create("orders").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(logs.predecessor("orders").unwrap(), None);
        assert_eq!(logs.info("orders").unwrap().log_id, orders);

        // That of a group which does not run here is not known to be gone.
        let deleted = added(&logs, "far", 9);
        logs.unregister("far", Some(deleted)).unwrap();
        added(&logs, "far", 1);
        for refused in [logs.create("far").map(drop), logs.register("far").map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        }
        logs.forget_dropped(9, logs.being_dropped(deleted).unwrap().unwrap().1).unwrap();
        assert_eq!(logs.create("far").unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    /// The name was given to another log once the server had started again from a snapshot.
    #[test]
    fn name_of_a_deleted_log_is_kept_over_a_snapshot() {
        for has_names in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let logs = opened(dir.path());
            let deleted = added(&logs, "far", 9);
            logs.unregister("far", Some(deleted)).unwrap();
            logs.create("there").unwrap();
            let parts = logs.catalogue().unwrap().snapshot(LogId(7));
            for part in parts.iter().filter(|part| has_names || !part.is_of_names()) {
                logs.inner.system.append(&part.encode()[..]).unwrap();
            }
            let first = logs.catalogue().unwrap().snapshot_next();
            logs.inner.system.command(Command::Discard { first }).unwrap();
            drop(logs);
            let logs = opened(dir.path());
            assert!(logs.inner.system.first_index() == first && first > Index(2));
            assert_eq!(logs.predecessor("far").unwrap(), Some(deleted));
            for refused in [logs.create("far").map(drop), logs.register("far").map(drop)] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
            }
            // Without its name it can be that of every log.
            assert_eq!(logs.create("near").is_ok(), has_names);
            // Not of one that exists: its creation awaited the deleted log.
            for exists in [logs.create("there").map(drop), logs.register("there").map(drop)] {
                assert_eq!(exists.unwrap_err().kind(), ErrorKind::AlreadyExists);
            }
            logs.forget_dropped(9, logs.being_dropped(deleted).unwrap().unwrap().1).unwrap();
            logs.create("far").unwrap();
        }
    }

    /// The caller was told to get the log by its name, and to try again.
    #[test]
    fn log_that_is_created_beside_a_deleted_one_is_not_to_be_used() {
        let error = created_beside("orders", &Error::new(ErrorKind::Busy, "it hangs"));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(
            text.contains("was created; do not use the name before") && text.ends_with("it hangs"),
            "{text}"
        );
    }

    type Call = Box<dyn FnOnce(&Logs) -> Result<()> + Send>;

    /// Each call that changes the catalogue waited for ever for the disk of the system log.
    #[test]
    fn calls_about_names_end_while_the_system_log_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let logs = opened(&dir.path().join("logs"));
        logs.create("gone").unwrap();
        let gone = logs.info("gone").unwrap().log_id;
        let new = Log::open(dir.path().join("new"), Options::with_segment_bytes(256 << 10)).unwrap();
        let goes_on = hang(&logs);
        let (told, tells) = std::sync::mpsc::channel();
        let call = |call: Call| {
            let (logs, told) = (logs.clone(), told.clone());
            std::thread::spawn(move || _ = told.send(call(&logs)));
        };
        let group = new.clone();
        call(Box::new(move |logs| logs.register_group(3, &group)));
        call(Box::new(|logs| logs.place_group(1, &[crate::NodeId(1)])));
        call(Box::new(move |logs| logs.unregister("gone", Some(gone)).map(drop)));
        call(Box::new(|logs| logs.create("late").map(drop)));
        call(Box::new(|logs| logs.create("late").map(drop)));
        for _ in 0..5 {
            let answer = tells.recv_timeout(Duration::from_secs(60)).expect("a call waits for ever");
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(error.to_string().contains("it is safe to try again"), "{error}");
        }
        let reserved = || -> usize {
            logs.inner.reserved.lock().unwrap().values().map(|places| places.load(Ordering::Acquire)).sum()
        };
        assert_eq!(reserved(), 2, "both creations may still get their places");

        drop(goes_on);
        assert_eq!(logs.create("late").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(reserved(), 0);
        logs.get("late").unwrap().append(b"x").unwrap();
        assert_eq!(logs.list().unwrap().len(), 1, "the other one is deleted");
        let late = logs.info("late").unwrap();
        assert_eq!(logs.catalogue().unwrap().logs_in(late.group), 1);
        assert_eq!(logs.unregister("gone", Some(gone)).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(logs.group_place(1).unwrap(), [crate::NodeId(1)]);
        logs.register_group(3, &new).unwrap();
        assert_eq!(logs.group_id(3).unwrap(), Some(new.log_id()));
    }
}
