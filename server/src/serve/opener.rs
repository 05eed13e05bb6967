//! How a server comes to its log: opens the replica that is there, or makes one as the command line or a call demands.
//!
//! Invariant: no new cluster is made where running replicas call this server as their member, unless that is forced.
//!
//! Must not know: clients, listeners.

use super::config::Config;
use super::data::check_data;
use super::groups::Groups;
use super::objects::warn_without_store;
use crate::common::failure::{Failure, Result};
use crate::connect::directory;
use crate::connect::open_log;
use chiplog::backup::Backup;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::vault::Vault;
use chiplog::{ErrorKind, FollowerLog, Index, Log, LogId, NodeId, Options};
use chiplog_net::peer::PeerTransport;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::admin::Founding;
use chiplog_net::wire::ids::to_hex;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a server without a replica checks whether a cluster calls it.
const CALLERS: Duration = Duration::from_millis(100);

/// The action if the directory holds no replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Wait for a command.
    Wait,
    /// Make a new cluster.
    Init,
    /// Make an empty replica of this log, to be added by its leader.
    Join(LogId),
}

/// Opens the log.
#[derive(Clone)]
pub(super) struct LogOpener {
    pub(super) config: Config,
    pub(super) address: String,
    pub(super) transport: Arc<PeerTransport>,
    pub(super) groups: Groups,
    /// The object store of the default log and the groups.
    pub(super) vault: Option<Arc<dyn Vault>>,
    /// When the server began to listen for other replicas.
    pub(super) started: Instant,
}

impl LogOpener {
    /// Makes the replica of a waiting server. Before it makes a new cluster it blocks for up to an election
    /// timeout, then as [`Self::open`].
    pub(super) fn found(&self, founding: Founding) -> chiplog::Result<Log> {
        // Again: it can have been filled while the server waited.
        check_data(&self.config)
            .map_err(|failure| chiplog::Error::new(failure.kind(), failure.to_string()))?;
        match founding {
            Founding::Init { force } => {
                if !force {
                    self.check_uncalled()?;
                }
                let log = self.open(Bootstrap::Init)?;
                self.groups.begin();
                Ok(log)
            }
            Founding::Join { log, first } => {
                // The cluster may have named logs, of which this server never hears.
                self.groups.mark_joined()?;
                self.take_copy(log, first)?;
                self.open(Bootstrap::Join(log))
            }
        }
    }

    /// Makes the copy in the directory, if there is one, the replica that the leader of its log is to add.
    fn take_copy(&self, log: LogId, first: Index) -> chiplog::Result<()> {
        let dir = &self.config.data;
        if FollowerLog::log_at(dir)?.is_none() {
            return Ok(());
        }
        let refused = |what| {
            let what = format!("{} holds {what}", dir.display());
            Err(chiplog::Error::new(ErrorKind::InvalidArgument, what))
        };
        if Backup::is_unfinished_copy(dir) {
            return refused(
                "a copy whose segments were not all fetched: finish it with `chiplog follow --segments`, or empty the directory",
            );
        }
        if first == Index(0) {
            return refused(
                "a follower's copy, and it is not known where its log begins: leave out --join, and let `chiplog member add` of this version make a replica of it",
            );
        }
        let options = self.options(Bootstrap::Existing)?;
        FollowerLog::make_replica(dir, log, NodeId(self.config.node), first, &options)
    }

    /// Checks that no cluster has this server as a member: on a disk that was emptied, a new cluster would
    /// answer in place of the old one. Running replicas call each other several times per election timeout,
    /// so the check listens that long.
    fn check_uncalled(&self) -> chiplog::Result<()> {
        let listen = Duration::from_millis(self.config.cluster.election_timeout_millis);
        loop {
            if let Some(caller) = self.transport.caller() {
                let log = to_hex(caller.log.get());
                let what = format!(
                    "node {} of log {log} calls this server, as node {} of its cluster: the directory was emptied, or is not mounted, and a new cluster here would replace that node. Give a server that lost its disk a new number there: `chiplog member add`, then `chiplog member remove {}`; `chiplog member init --force` makes a new cluster nevertheless",
                    caller.node, caller.as_node, caller.as_node
                );
                return Err(chiplog::Error::new(ErrorKind::Membership, what));
            }
            if self.started.elapsed() > listen {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn options(&self, bootstrap: Bootstrap) -> chiplog::Result<Options> {
        let refused = |f: Failure| chiplog::Error::new(ErrorKind::InvalidArgument, f.to_string());
        let options = self.config.options(bootstrap, self.transport.clone(), self.address.clone());
        Ok(options.map_err(refused)?.vault(self.vault.clone()))
    }

    /// Opens the log. Blocks during recovery.
    fn open(&self, bootstrap: Bootstrap) -> chiplog::Result<Log> {
        let options = self.options(bootstrap)?;
        let is_new = !directory::is_log(&self.config.data);
        let log = Log::open(&self.config.data, options).map_err(|e| match e.kind() {
            ErrorKind::Full if is_new => chiplog::Error::new(
                ErrorKind::Full,
                format!("{e}, such as by `--set log.segment_bytes=1MiB`, or choose another directory"),
            ),
            _ => e,
        })?;
        warn_of_mode(&self.config.data);
        warn_without_store(&log, self.vault.is_some());
        self.transport.identify(log.log_id(), log.directory_id());
        Ok(log)
    }
}

/// Opens the existing replica, or does what `first` demands.
pub(super) async fn open(opener: &LogOpener, first: First) -> Result<Option<Log>> {
    let dir = opener.config.data.as_path();
    if let Some(log) = FollowerLog::log_at(dir).unwrap_or_default() {
        if first != First::Wait {
            let what = format!(
                "{} holds a follower's copy of log {}: leave out --init and --join, and `chiplog member add` makes it a replica in that log's cluster",
                dir.display(),
                to_hex(log.get())
            );
            return Err(Failure::usage(what));
        }
        tracing::info!(
            data = %dir.display(), log = to_hex(log.get()),
            "the directory holds a follower's copy of this log: `chiplog member add` makes it a replica in that log's cluster"
        );
        return Ok(None);
    }
    let error = match opened(opener).await? {
        Ok(log) => return is_meant(&log, first, dir).map(|()| Some(log)),
        Err(error) => error,
    };
    match (error.kind(), first) {
        (ErrorKind::NotFound, First::Wait) => Ok(None),
        (ErrorKind::NotFound, First::Init) => {
            founded(opener, Founding::Init { force: false }).await?.map(Some).map_err(not_made)
        }
        (ErrorKind::NotFound, First::Join(log)) => {
            founded(opener, Founding::Join { log, first: Index(0) }).await?.map(Some).map_err(not_made)
        }
        _ => Err(open_log::refused(dir, error)),
    }
}

/// While there is no replica: notes whether a cluster calls this server as its member, and warns once.
pub(super) async fn watch_callers(host: Arc<LogSlot>, transport: Arc<PeerTransport>, own: NodeId) {
    let mut reported = None;
    while host.opened().is_none() {
        let caller = transport.caller();
        host.set_called_as(caller.map(|caller| caller.as_node));
        if let Some(caller) = caller.filter(|caller| reported != Some((caller.log, caller.as_node))) {
            reported = Some((caller.log, caller.as_node));
            let (log, node, lost) = (to_hex(caller.log.get()), caller.node, caller.as_node);
            if lost == own {
                tracing::warn!(
                    log,
                    "the directory holds no replica, but node {node} calls this server as node {lost} of its cluster: the directory was emptied, or is not mounted. Mount it. If it is lost, start a server with a new number and an empty directory, `chiplog member add` it, then `chiplog member remove {lost}`. Do not run `chiplog member init` here"
                );
            } else {
                tracing::warn!(
                    log,
                    "node {node} calls node {lost} at the address of this server, which is node {own}: to replace node {lost}, `chiplog member add` this server, then `chiplog member remove {lost}`. Do not run `chiplog member init` here"
                );
            }
        }
        tokio::time::sleep(CALLERS).await;
    }
}

/// The failure of making a log. Without the advice to discard, because the log has nothing to discard.
fn not_made(error: chiplog::Error) -> Failure {
    match error.kind() {
        ErrorKind::Full => Failure::new(ErrorKind::Full, error.to_string()),
        _ => error.into(),
    }
}

/// Whether this is a replica that its leader has not added yet, as far as it knows: it is none of the members.
pub(crate) fn awaits_its_leader(log: &Log) -> bool {
    let replica = log.status().replica;
    // A replica under repair may not know its members yet, nor may a removed one.
    replica.members.iter().all(|member| member.node != replica.node)
        && !matches!(replica.role, Role::Repairing | Role::Removed)
}

/// Checks that an existing replica agrees with what the command line demands for an empty directory.
/// Repeating the option is no mistake.
///
/// # Errors
/// `InvalidArgument`: the command line names another log.
fn is_meant(log: &Log, first: First, dir: &Path) -> Result<()> {
    let there = to_hex(log.log_id().get());
    let dir = dir.display();
    let what = match first {
        First::Init if awaits_its_leader(log) => format!(
            "--init makes a cluster in an empty directory, but {dir} holds a replica that was to join log {there} and was never added to it: leave out --init and add the replica (`chiplog member add`), or give another directory"
        ),
        First::Join(wanted) if wanted != log.log_id() => format!(
            "--join {}: {dir} already holds log {there}: leave out --join to continue with that log, or give another directory",
            to_hex(wanted.get())
        ),
        _ => return Ok(()),
    };
    Err(Failure::usage(what))
}

async fn opened(opener: &LogOpener) -> Result<chiplog::Result<Log>> {
    off_the_runtime(opener, |opener| opener.open(Bootstrap::Existing)).await
}

pub(super) async fn founded(opener: &LogOpener, founding: Founding) -> Result<chiplog::Result<Log>> {
    off_the_runtime(opener, move |opener| opener.found(founding)).await
}

async fn off_the_runtime<T: Send + 'static>(
    opener: &LogOpener,
    work: impl FnOnce(&LogOpener) -> T + Send + 'static,
) -> Result<T> {
    let opener = opener.clone();
    tokio::task::spawn_blocking(move || work(&opener))
        .await
        .map_err(|_| Failure::new(ErrorKind::Poisoned, "opening the log panicked"))
}

/// Warns of a data directory that every user of this machine can list. The files in it are still private.
fn warn_of_mode(data: &Path) {
    let mode = std::fs::metadata(data).map_or(0, |data| data.permissions().mode() & 0o777);
    if mode & 0o007 != 0 {
        tracing::warn!(
            data = %data.display(), mode = format!("{mode:o}"),
            "others can look into the log's directory, and files of earlier versions may be readable for all: run `chmod -R go= {}`, or `chmod -R g+rX,o=` if its group should read the log",
            data.display()
        );
    }
}
