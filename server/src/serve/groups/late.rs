//! Late: the system log of a cluster that was made without `groups`, or whose first start a crash interrupted.
//!
//! Invariants:
//! - Only a server that is its cluster alone makes one, before it serves clients: nobody can add a member meanwhile.
//! - Nothing in the data directory may tell of an earlier system log: a second one would replace the names of all logs.

use super::{Groups, HOST_TIMEOUT, NAMED, SYSTEM, Task, unmade};
use crate::connect::open_log;
use chiplog::cluster::Role;
use chiplog::{Error, ErrorKind, Log};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An empty file in the server's data directory: if the directory of the system log is lost, no second one is made. Made
/// before the system log is used, and by a server that joins a cluster, which may have one already.
const MARKER: &str = "chiplog.named";
/// The directories of groups begin with this.
const GROUP: &str = "group-";

impl Groups {
    /// Makes the system log of a cluster that has no other server and never had named logs. Called under the lock.
    pub(super) fn begin_late(&self, default: &Log) {
        let made = self.leads_alone(default).and_then(|()| self.check_never_had()).and_then(|()| {
            self.inner.founds.store(true, Ordering::Relaxed);
            self.make_system()
        });
        match made {
            // A restored backup has no named logs either, and its operator may expect some.
            Ok(()) => tracing::warn!("this cluster has a new catalogue of named logs, and none in it yet"),
            Err(error) => {
                self.report(SYSTEM, Task::Make, &unmade(&error));
                *self.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        }
    }

    /// Waits until this server leads the default log and its committed members are known.
    ///
    /// # Errors
    /// `Membership`: there are other members. `Unavailable`: it does not lead in time. Those of [`Log::barrier`].
    fn leads_alone(&self, default: &Log) -> chiplog::Result<()> {
        let election = Duration::from_millis(self.inner.config.cluster.election_timeout_millis);
        let (begun, patience) = (Instant::now(), 2 * election + HOST_TIMEOUT);
        while default.role() != Role::Leader {
            if begun.elapsed() > patience {
                let what = "this server does not lead the default log yet; restart it once `chiplog status` shows it as the leader";
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        default.barrier(HOST_TIMEOUT)?;
        match is_alone(default) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Membership, "the cluster has other members")),
        }
    }

    /// Checks that nothing in the data directory tells of an earlier system log. The files that a crash leaves while one is
    /// made are no such sign. The library refuses a directory with records and without an identity.
    ///
    /// # Errors
    /// `Diverged`. `Io`.
    pub(super) fn check_never_had(&self) -> chiplog::Result<()> {
        let (marker, named) = (self.marker(), self.inner.config.data.join(NAMED));
        let io = |path: &Path, e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display()))
        };
        let system = self.path(SYSTEM);
        let is_marked = marker.try_exists().map_err(|e| io(&marker, e))?;
        let mut sign = is_marked.then(|| marker.clone());
        if open_log::is_log(&system) {
            sign = Some(system.clone()); // it is damaged, or of another cluster
        }
        match std::fs::read_dir(&named) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|e| io(&named, e))?.path();
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    // Not what a file system puts there, such as lost+found.
                    if path != system && (name.starts_with(GROUP) || open_log::is_log(&path)) {
                        sign = Some(path);
                    }
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(&named, e)),
        }
        if sign.is_none()
            && let Some(group) = self.inner.directories.groups()?.first().copied()
        {
            sign = Some(self.inner.directories.find(group)?.unwrap_or_else(|| self.path(group)));
        }
        let Some(sign) = sign else { return Ok(()) };
        let what = format!(
            "{} shows that there were named logs, or that this server joined a cluster that may have some, and {} has no system log that opens: put that directory back, or replace this server if others have it. If the cluster never had named logs, or to give up all of them on its only server, move {} and {} away, and restart the server",
            sign.display(),
            system.display(),
            named.display(),
            marker.display()
        );
        Err(Error::new(ErrorKind::Diverged, what))
    }

    /// Notes for later starts that there is a system log.
    pub(in crate::serve) fn mark(&self) -> chiplog::Result<()> {
        let (marker, data) = (self.marker(), &self.inner.config.data);
        let made = std::fs::File::create(&marker).and_then(|file| file.sync_all());
        made.and_then(|()| std::fs::File::open(data)?.sync_all())
            .map_err(|e| Error::new(ErrorKind::Io, format!("cannot make {}: {e}", marker.display())))
    }

    fn marker(&self) -> PathBuf {
        self.inner.config.data.join(MARKER)
    }
}

/// Whether this server is the only member of its cluster, and votes.
pub(super) fn is_alone(default: &Log) -> bool {
    let replica = default.status().replica;
    matches!(replica.members.as_slice(), [only] if only.node == replica.node && only.is_voter() && !only.is_leaving())
}
