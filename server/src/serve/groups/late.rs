//! Late: the system log of a cluster that was made without `groups`, or whose first start a crash interrupted.
//!
//! A server that is its cluster alone makes it before it serves clients: nobody can add a member meanwhile. In a cluster of
//! several, the leader of the default log makes it, once every other member has let it: each notes the leader's term, and
//! lets no leader of an earlier term do it from then on.
//!
//! Invariants:
//! - No member has, or had, a system log: a second one would replace the names of all logs.
//! - Of two leaders that try, one fails. A member of both their clusters lets the later one only if it has no replica of a
//!   system log; and the earlier one, if it is a member, only if it has not made the system log, and then does not make it.
//! - A leader that was removed from the cluster meanwhile may have made a second system log. It gets no other replica, because
//!   a majority of the default log confirms its place before it asks for one (`members.rs`). So it has no named logs: those
//!   are created only once most servers vote in the system log (`readiness.rs`).

use super::elsewhere::address_of;
use super::marker::Marker;
use super::{Groups, HOST_TIMEOUT, NAMED, SYSTEM, Task, unmade};
use crate::connect::directory;
use chiplog::cluster::Role;
use chiplog::{Error, ErrorKind, Log, NodeId, Term};
use chiplog_net::peer::GroupOn;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The directories of groups begin with this.
const GROUP: &str = "group-";

impl Groups {
    /// Makes the system log of a cluster that has no other server and never had named logs. Called under the lock.
    pub(super) fn begin_late(&self, default: &Log) {
        // This server can have joined a cluster with a system log, of which it never heard.
        let heard_of = || match Marker::read(&self.inner.config.data)? {
            Marker::Nothing | Marker::Let(_) => Ok(()),
            Marker::Joined | Marker::Had => Err(self.told_by(&Marker::path(&self.inner.config.data))),
        };
        let made = self
            .leads_alone(default)
            .and_then(|()| heard_of())
            .and_then(|()| self.check_never_had())
            .and_then(|()| self.check_no_groups())
            .and_then(|()| {
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
        let (data, named) = (&self.inner.config.data, self.inner.config.data.join(NAMED));
        let io = |path: &Path, e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display()))
        };
        let system = self.path(SYSTEM);
        let mut sign = (Marker::read(data)? == Marker::Had).then(|| Marker::path(data));
        if directory::is_log(&system) {
            sign = Some(system.clone()); // it is damaged, or of another cluster
        }
        match std::fs::read_dir(&named) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|e| io(&named, e))?.path();
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    // Not what a file system puts there, such as lost+found.
                    if path != system && (name.starts_with(GROUP) || directory::is_log(&path)) {
                        sign = Some(path);
                    }
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(&named, e)),
        }
        sign.map_or(Ok(()), |sign| Err(self.told_by(&sign)))
    }

    /// Checks that no directory has groups, or had any, as far as the data directory tells. Called without the lock once the server follows
    /// groups: their disks can hang.
    ///
    /// # Errors
    /// `Diverged`. `Corrupt`, `Io`: the files about the directories.
    fn check_no_groups(&self) -> chiplog::Result<()> {
        let directories = self.directories();
        let Some(group) = directories.groups()?.first().copied() else { return Ok(()) };
        let found = directories.find(group)?;
        drop(directories);
        Err(self.told_by(&found.unwrap_or_else(|| self.path(group))))
    }

    /// The error if a file or directory tells of an earlier system log.
    fn told_by(&self, sign: &Path) -> Error {
        let (data, system) = (&self.inner.config.data, self.path(SYSTEM));
        let what = format!(
            "{} shows that there were named logs, or that this server joined a cluster that may have some, and {} has no system log that opens: put that directory back, or replace this server if others have it. If the cluster never had named logs, or to give up all of them on its only server, move {} and {} away, and restart the server",
            sign.display(),
            system.display(),
            data.join(NAMED).display(),
            Marker::path(data).display()
        );
        Error::new(ErrorKind::Diverged, what)
    }

    /// Notes for later starts that there is a system log.
    pub(super) fn mark(&self) -> chiplog::Result<()> {
        self.inner.slot.set_had_named();
        Marker::Had.write(&self.inner.config.data)
    }

    /// Notes that this server joins a cluster, which may have a system log.
    pub(in crate::serve) fn mark_joined(&self) -> chiplog::Result<()> {
        Marker::Joined.write(&self.inner.config.data)
    }

    /// Lets the leader of the default log in `term` make the system log, unless there is one.
    ///
    /// # Errors
    /// `Diverged`: this server has a system log, or had one. `Membership`: it has let the leader of a later term.
    /// `Unavailable`: as far as is known here, `from` does not lead in this term.
    pub(super) fn allow_system_log(&self, from: NodeId, term: Term) -> chiplog::Result<()> {
        let known = self.inner.slot.opened().map(|default| default.status().replica);
        if !known.is_some_and(|known| known.leader == Some(from) && known.term == term) {
            let what =
                format!("node {from} does not lead the default log in term {term}, as far as is known here");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        self.check_serves_none()?;
        self.check_never_had()?;
        self.check_no_groups()?;
        let _one = self.opening();
        self.note_allowed(term)
    }

    /// Checks that no system log is served here.
    ///
    /// # Errors
    /// `Diverged`.
    fn check_serves_none(&self) -> chiplog::Result<()> {
        if self.inner.slot.named().is_none() {
            return Ok(());
        }
        let what = format!("{} has the system log of this cluster", self.path(SYSTEM).display());
        Err(Error::new(ErrorKind::Diverged, what))
    }

    /// Notes that a leader of this term was let. Called under the lock, after [`Self::check_no_groups`]: groups come only once a system log
    /// is served here, and that is looked at again.
    fn note_allowed(&self, term: Term) -> chiplog::Result<()> {
        let data = &self.inner.config.data;
        self.check_serves_none()?;
        self.check_never_had()?;
        self.inner.slot.expect_named();
        match Marker::read(data)? {
            Marker::Let(later) if later > term => {
                let what =
                    format!("another server leads since, in term {later}, and may make the system log");
                Err(Error::new(ErrorKind::Membership, what))
            }
            Marker::Let(same) if same == term => Ok(()),
            _ => Marker::Let(term).write(data),
        }
    }

    /// Makes the system log of a cluster of several servers that has none, on the leader of the default log. Called without
    /// the lock: other servers answer meanwhile.
    ///
    /// # Errors
    /// `Diverged`: a server has one, or had one. `Unavailable`, `Timeout`: a server does not answer. `Membership`: another
    /// server leads, or the members have changed. Those of [`Log::barrier`].
    pub(super) fn make_system_log_among(&self, default: &Log) -> chiplog::Result<()> {
        let led = default.status().replica;
        default.barrier(HOST_TIMEOUT)?; // a majority confirms the term and the members
        self.allow_system_log(led.node, led.term)?;
        for server in led.members.iter().filter(|server| server.node != led.node) {
            let address = address_of(server)?;
            let on = GroupOn {
                node: server.node,
                address: &address.peer,
                group: SYSTEM + 1,
                log: default.log_id(),
            };
            Handle::current().block_on(self.inner.transport.ask_to_allow_system_log(
                on,
                led.term,
                HOST_TIMEOUT,
            ))?;
        }
        default.barrier(HOST_TIMEOUT)?;
        let now = default.status().replica;
        if now.role != Role::Leader || now.term != led.term || now.members != led.members {
            let what = "the members or the leader of the cluster have changed meanwhile";
            return Err(Error::new(ErrorKind::Membership, what));
        }
        let _one = self.opening();
        if self.inner.slot.named().is_some() {
            return Ok(());
        }
        // It can have let a later leader meanwhile.
        self.note_allowed(led.term)?;
        self.make_system()?;
        // A restored backup has no named logs either, and its operator may expect some.
        tracing::warn!("this cluster has a new catalogue of named logs, and none in it yet");
        Ok(())
    }
}

/// Whether this server is the only member of its cluster, and votes.
pub(super) fn is_alone(default: &Log) -> bool {
    let replica = default.status().replica;
    matches!(replica.members.as_slice(), [only] if only.node == replica.node && only.is_voter() && !only.is_leaving())
}
