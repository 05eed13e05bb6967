//! Directories: where the replicas of a server are. The system log is in the data directory; a group is there, or in one of
//! `group_directories`.
//!
//! Invariants:
//! - A group that was in a directory that cannot be used now is reported. It is neither opened nor made; others are.
//! - A server with a wrong path in `group_directories` does not start. One whose disk is not mounted starts.
//! - Looking for a group reads all directories, and each can hang. So once the server follows groups, the lock of the directories is taken
//!   only by threads that open, make or leave replicas, or let another server make the system log, and not under the lock `opening`. While
//!   one of them hangs in a directory, the others wait: no replica is opened, made or left meanwhile, whichever disk it is on. Those that
//!   run go on, and a shutdown does not wait.
//! - A directory has its new name durably before its group is made again: a power cut brings no second one back.

use super::{Groups, NAMED, SYSTEM, Task};
use crate::connect::directory;
use chiplog::internal::GroupDirectories;
use chiplog::{Error, ErrorKind, Logs};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

impl Groups {
    /// The directories of groups. One thread at a time looks for a group or changes where it is.
    pub(super) fn directories(&self) -> MutexGuard<'_, GroupDirectories> {
        self.inner.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Durably renames the directory of a group that is not to be opened any more, to this extension and a number. Returns its new
    /// path; `None`: there are too many.
    pub(super) fn rename_aside(
        &self,
        group: u32,
        path: &Path,
        extension: &str,
    ) -> chiplog::Result<Option<PathBuf>> {
        let directories = self.directories();
        let aside =
            (1..).map(|n| path.with_extension(format!("{extension}{n}"))).find(|aside| !aside.exists());
        let Some(aside) = aside else { return Ok(None) };
        // First: if the server ends in between, the directory is found and noted again.
        directories.forget(group)?;
        let sync = |parent: &Path| std::fs::File::open(parent)?.sync_all();
        let renamed = std::fs::rename(path, &aside).and_then(|()| path.parent().map_or(Ok(()), sync));
        renamed.map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot rename {} to {}: {e}", path.display(), aside.display()))
        })?;
        Ok(Some(aside))
    }

    /// Checks the directories that never had groups.
    ///
    /// # Errors
    /// One cannot be used.
    pub(super) fn check_directories(&self) -> chiplog::Result<()> {
        // If the list of those that were used cannot be read, each group is reported.
        let faults = self.directories().faults().unwrap_or_default();
        let Some(fault) = faults.into_iter().find(|fault| !fault.was_used) else { return Ok(()) };
        let what = format!("group_directories: {}", fault.error);
        Err(Error::with_source(fault.error.kind(), what, &fault.error))
    }

    /// Reports directories of groups that cannot be used now.
    pub(super) fn report_directories(&self) {
        let faults = self.directories().faults().map_or_else(
            |error| vec![error.to_string()],
            |faults| faults.into_iter().map(|fault| fault.error.to_string()).collect(),
        );
        self.report(SYSTEM, Task::Directories, &faults.join("; "));
    }

    /// The directory of a replica in the data directory.
    pub(super) fn path(&self, group: u32) -> PathBuf {
        Logs::group_path(self.inner.config.data.join(NAMED), group)
    }

    /// The directory of the replica that is there. An error: it may be in a directory that cannot be used now.
    pub(super) fn find(&self, group: u32) -> chiplog::Result<Option<PathBuf>> {
        let found = match group {
            SYSTEM => Some(self.path(SYSTEM)),
            group => self.directories().find(group)?,
        };
        Ok(found.filter(|path| directory::is_log(path)))
    }

    /// The directory of the replica that is there, or one for a new replica.
    pub(super) fn directory(&self, group: u32) -> chiplog::Result<PathBuf> {
        match group {
            SYSTEM => Ok(self.path(SYSTEM)),
            group => self.directories().place(group),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::super::tests::{asked_to_host, over, with_system};
    use super::*;
    use chiplog::cluster::Bootstrap;
    use std::fs;

    fn made(groups: &Groups, group: u32) -> PathBuf {
        let log = groups.start(group, Bootstrap::Init).unwrap();
        groups.inner.slot.named().unwrap().register_group(group, &log).unwrap();
        groups.serve(group, &log).unwrap();
        log.path().to_owned()
    }

    fn disks(dir: &Path) -> Vec<PathBuf> {
        let disks = vec![dir.join("disk-1"), dir.join("disk-2")];
        disks.iter().for_each(|disk| fs::create_dir_all(disk).unwrap());
        disks
    }

    fn close(groups: Groups) {
        groups.replicas().iter().for_each(|log| log.close().unwrap());
    }

    #[test]
    fn groups_are_spread_over_directories_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (data, disks) = (dir.path().join("data"), disks(dir.path()));
        let before = with_system(&data);
        let old = made(&before, 1);
        assert!(old.starts_with(&data));
        close(before);
        let groups = over(&data, &disks).unwrap();
        groups.open_system();
        groups.open_known();
        assert_eq!(groups.replicas()[1].path(), old);
        let expected: Vec<PathBuf> =
            [(0, 2), (1, 3), (0, 4)].map(|(n, group)| disks[n].join(format!("group-{group}"))).into();
        assert_eq!((2..=4).map(|group| made(&groups, group)).collect::<Vec<_>>(), expected);
        close(groups);
        let again = over(&data, &disks).unwrap();
        again.open_system();
        again.open_known();
        let paths: Vec<PathBuf> = again.replicas().iter().skip(2).map(|log| log.path().to_owned()).collect();
        assert_eq!(paths, expected);
    }

    /// A disk that is not mounted looks empty: its groups are neither opened nor made there.
    #[test]
    fn server_does_without_the_groups_of_a_disk_that_is_not_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let (data, disks) = (dir.path().join("data"), disks(dir.path()));
        let groups = with_system(&data);
        close(groups);
        let groups = over(&data, &disks).unwrap();
        groups.open_system();
        let (one, two) = (made(&groups, 1), made(&groups, 2));
        let id = groups.replicas()[1].log_id();
        close(groups);
        let away = dir.path().join("away");
        fs::rename(&disks[0], &away).unwrap();
        fs::create_dir(&disks[0]).unwrap();

        let groups = over(&data, &disks).unwrap();
        groups.open_system();
        groups.report_directories();
        groups.open_known();
        assert_eq!(
            groups.replicas().iter().map(|log| log.path()).collect::<Vec<_>>(),
            [groups.path(SYSTEM), two]
        );
        let reported = groups.inner.reported.lock().unwrap();
        for key in [(SYSTEM, Task::Directories), (1, Task::Open)] {
            assert!(reported[&key].what.contains("mount the right one"), "{}", reported[&key].what);
        }
        drop(reported);
        let refused = asked_to_host(&groups, 1, id).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Diverged, "{refused}");
        assert_eq!(fs::read_dir(&disks[0]).unwrap().count(), 0);

        // It is mounted while the server runs.
        fs::remove_dir(&disks[0]).unwrap();
        fs::rename(&away, &disks[0]).unwrap();
        groups.inner.unopened.lock().unwrap().clear();
        groups.open_known();
        assert_eq!(groups.replicas()[1].path(), one);
    }

    /// A power cut brought the directory back, and its group was in two directories from then on.
    #[test]
    fn directory_that_is_set_aside_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (data, disks) = (dir.path().join("data"), disks(dir.path()));
        close(with_system(&data));
        let groups = over(&data, &disks).unwrap();
        groups.open_system();
        let (one, two) = (made(&groups, 1), made(&groups, 2));
        groups.replicas()[1].close().unwrap();
        assert_eq!(groups.directories().groups().unwrap(), [1, 2].into());
        groups.set_aside(1, &one, "a test").unwrap();
        assert!(!one.exists() && disks[0].join("group-1.unused-1").exists());
        assert_eq!(groups.directories().groups().unwrap(), [2].into(), "it is not missed on that disk");
        assert_eq!((groups.find(1).unwrap(), groups.find(2).unwrap()), (None, Some(two)));
    }

    #[test]
    fn wrong_path_is_refused_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (data, missing) = (dir.path().join("data"), dir.path().join("missing"));
        let error = over(&data, std::slice::from_ref(&missing)).err().unwrap();
        assert!(error.to_string().contains("group_directories: directory"), "{error}");
        assert!(!missing.exists());
    }
}
