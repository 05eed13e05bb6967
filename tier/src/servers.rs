//! Servers as a store: the objects of a log, read over plain HTTP through a server that has the object store; and the files of sealed
//! segments of a log that has none.
//!
//! ```text
//! list ──> GET /v1/objects          names, sizes, checksums, as the log itself says them
//! get  ──> GET /v1/objects/NAME     with a range; an answer that breaks off goes on behind what came
//! ```
//!
//! The same with `/v1/segments`: there a name is that of a file, and checksums are in the answers alone.
//!
//! A log that the server does not serve is in the list of all with the reason, so that it hides no other one.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `connection` | how a server is reached; the HTTP client made of that |
//! | `requests`, `failures` | requests with their attempts; what one that failed means |
//! | `listing` | the lists of objects, and the small objects that follow from them |
//!
//! The invariants are in `requests` and `connection`.
//!
//! Must not know: raft, blocks.

mod connection;
mod failures;
mod listing;
mod options;
mod requests;

pub use crate::servers::options::ServerVaultOptions;

use crate::pieces::together;
use crate::runtime::Runtime;
use crate::servers::connection::Server;
use crate::servers::listing::{Kind, Listed, made_of};
use bytes::Bytes;
use chiplog::internal::branch_name;
use chiplog::vault::{ObjectInfo, Vault, check_name, check_prefix, check_range};
use chiplog::{Error, ErrorKind, LogId, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The objects of a server's logs, read over HTTP: for backups without credentials of the object store. Writing is refused.
///
/// The server reads them from the store. Lists have the objects of its logs: neither slices nor pins, and no log that has no
/// object. A branch that reads objects of another log is not served: the list of all logs has its object `branch` alone, whose size is
/// an error (`Unsupported`) that says so. `Send + Sync`; calls block, and work on any thread.
///
/// # Errors
/// Those of [`Vault`]. `InvalidArgument`: also certificates that client and server do not agree on. `PermissionDenied`: also a write, a
/// token with a scope, and a host that a server without TLS and tokens does not know; `Unauthenticated`: there is no token, or an unknown
/// one. `Unsupported`: the server has no object store, or an answer is not one of a chiplog server. `Corrupt`: an object is lost in the
/// store, or was read as a whole and is damaged there. In a forked child, calls fail as `Forked`.
///
/// ```
/// use chiplog::vault::Vault;
/// use chiplog_tier::{ServerVault, ServerVaultOptions};
/// let vault = ServerVault::open("https://log1:7411", ServerVaultOptions::default())?;
/// assert!(vault.delete("00000000000000000000000000000007/root").is_err());
/// # Ok::<(), chiplog::Error>(())
/// ```
pub struct ServerVault {
    server: Arc<Server>,
    runtime: Runtime,
    /// Why the server serves nothing of some logs, by the name of the object that says of a log in a store that it is a branch; as
    /// the last list of all logs said.
    not_served: Mutex<BTreeMap<String, String>>,
}

/// A log of the server of a [`ServerVault`].
///
/// ```
/// # fn show(log: &chiplog_tier::ServedLog) {
/// println!("{}: {}", log.name, log.not_served.as_deref().unwrap_or("served"));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedLog {
    /// Its name at the server: `default`, `_system` for the catalogue of the named logs, `_group-1` and so on.
    pub name: String,
    /// Its id.
    pub log_id: LogId,
    /// Whether an object of it is stored; of [`ServerVault::open_segments`], whether it has a sealed segment.
    pub has_objects: bool,
    /// Why the server serves nothing of it, if so: it is a branch; or segments are wanted, and it has an object store.
    pub not_served: Option<String>,
}

impl ServerVault {
    /// The objects of the logs of the server at `https://HOST:PORT` or `http://HOST:PORT`, its port for clients. Makes no request.
    ///
    /// # Errors
    /// `InvalidArgument`: it is no such URL; an option is out of its bounds; certificates or key are not PEM; they are given without
    /// TLS; the token would be sent to another machine in plain text, or has characters that no header may have. `Io`: TLS cannot be
    /// set up; no thread can be started.
    pub fn open(url: &str, options: ServerVaultOptions) -> Result<Self> {
        Self::open_kind(url, Kind::Objects, options)
    }

    /// The files of the sealed segments of a server's logs, of those that have no object store: for
    /// [`Backup::fetch_segments`](chiplog::backup::Backup::fetch_segments). Their names are `ID/NUMBER.seg`. Makes no request.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_segments(url: &str, options: ServerVaultOptions) -> Result<Self> {
        Self::open_kind(url, Kind::Segments, options)
    }

    fn open_kind(url: &str, kind: Kind, options: ServerVaultOptions) -> Result<Self> {
        let server = Arc::new(Server::open(url, kind, options)?);
        Ok(Self { server, runtime: Runtime::start()?, not_served: Mutex::default() })
    }

    /// The logs of the server, with those that have no object and those that it does not serve. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`], as above.
    pub fn logs(&self) -> Result<Vec<ServedLog>> {
        let served = |Listed { name, log_id, objects, not_served, .. }| ServedLog {
            name,
            log_id,
            has_objects: !objects.is_empty(),
            not_served,
        };
        Ok(self.listed(None)?.into_iter().map(served).collect())
    }

    fn listed(&self, log: Option<&str>) -> Result<Vec<Listed>> {
        let server = self.server.clone();
        let path = log.map_or_else(String::new, |log| format!("/{log}"));
        self.runtime.wait(async move { server.list(&path).await })
    }

    /// The contents of an object that is made of the list. None: it is another one, or is not there.
    fn made(&self, name: &str) -> Result<Option<Bytes>> {
        let Some((log, rest)) = name.split_once('/') else { return Ok(None) };
        if self.server.kind == Kind::Segments {
            return Ok(None);
        }
        if rest != "root" && !rest.starts_with("begin/") {
            return Ok(None);
        }
        let listed = self.listed(Some(log));
        let listed = match listed {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            listed => listed?,
        };
        Ok(listed.iter().flat_map(made_of).find(|(made, _)| made == name).map(|(_, text)| text.into()))
    }
}

impl fmt::Debug for ServerVault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerVault").field("server", &self.server.base).finish_non_exhaustive()
    }
}

impl Vault for ServerVault {
    fn put(&self, name: &str, _: &[Bytes]) -> Result<()> {
        Err(self.server.read_only(name))
    }

    fn create(&self, name: &str, _: Bytes) -> Result<bool> {
        Err(self.server.read_only(name))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        together(self, name, range)
    }

    fn get_pieces(
        &self,
        name: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        check_name(name)?;
        check_range(name, &range)?;
        if let Some(made) = self.made(name)? {
            let end = usize::try_from(range.end).ok().filter(|end| *end <= made.len());
            let end = end.ok_or_else(|| self.server.too_short(name, made.len() as u64, &range))?;
            return take(made.slice(range.start as usize..end));
        }
        let (server, name) = (self.server.clone(), name.to_owned());
        self.runtime.wait_taking(|pieces| async move { server.get(&name, range, &pieces).await }, take)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        check_name(name)?;
        if let Some(made) = self.made(name)? {
            return Ok(Some(made.len() as u64));
        }
        if let Some(why) = self.not_served.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Err(Error::new(ErrorKind::Unsupported, why.clone()));
        }
        let (server, name) = (self.server.clone(), name.to_owned());
        self.runtime.wait(async move { Ok(server.head(&name).await?.map(|object| object.bytes)) })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        check_prefix(prefix)?;
        let (log, rest) = prefix.split_once('/').map_or((None, ""), |(log, rest)| (Some(log), rest));
        // A server lists objects alone: a list that can be long is not downloaded to find no slice and no pin in it.
        if !["", "o/", "begin/"].contains(&rest) {
            return Ok(Vec::new());
        }
        let listed = match self.listed(log) {
            Err(error) if error.kind() == ErrorKind::NotFound && log.is_some() => Vec::new(),
            listed => listed?,
        };
        let has_made = self.server.kind == Kind::Objects;
        let made = listed.iter().filter(|_| has_made).flat_map(made_of);
        let made = made.map(|(name, text)| (name, text.len() as u64));
        let served = listed.iter().filter(|log| log.not_served.is_none());
        let objects = served.flat_map(|log| log.objects.iter().map(|(name, bytes)| (name.clone(), *bytes)));
        // Of a log that is not served only what says that it is there: `size` then says why there is no more.
        let not_served: BTreeMap<_, _> = listed
            .iter()
            .filter_map(|log| Some((branch_name(log.log_id), log.not_served.clone()?)))
            .collect();
        let branches: Vec<_> = not_served.keys().map(|name| (name.clone(), 0)).collect();
        if log.is_none() {
            *self.not_served.lock().unwrap_or_else(PoisonError::into_inner) = not_served;
        }
        let mut all: Vec<_> = made.chain(objects).chain(branches).collect();
        all.sort_unstable();
        all.retain(|(name, _)| name.starts_with(prefix));
        Ok(all.into_iter().map(|(name, bytes)| ObjectInfo::new(name, bytes)).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        Err(self.server.read_only(name))
    }
}
