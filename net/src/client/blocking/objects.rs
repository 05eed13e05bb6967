//! Served objects: a log's objects in the object store, read through its servers.
//!
//! Each request goes to one server after another, from the one that answered last, until one answers. If none did, and one may later,
//! the servers are asked which servers there are, and then all again after a wait. A read that breaks off goes on behind what came.
//!
//! The log that reads the bytes checks them. Must not know: what is in an object.

use super::Runtime;
use crate::client::cluster::discovery::Servers;
use crate::client::retry::backoff::Backoff;
use crate::client::retry::deadline::within;
use crate::client::{ClientOptions, ClientTls, ErrorClass, Shown};
use crate::wire::address::check_host_port;
use crate::wire::proto::v1::follow_client::FollowClient;
use crate::wire::proto::v1::{ObjectSizeRequest, ReadObjectRequest};
use crate::wire::status::from_status;
use bytes::{Bytes, BytesMut};
use chiplog::vault::{ObjectInfo, Vault, check_name, check_range};
use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;

/// The most bytes of one request.
const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// The object store of a log, read through the log's servers, for a program that cannot reach the store itself, or has no credentials.
/// Writing is refused, and so are lists.
///
/// `Send + Sync`. Calls block, and work on any thread, with or without an async runtime. They fail once nothing has arrived for
/// [`ClientOptions::timeout`]. The servers are not asked before the first call. Each request is of up to 4 MiB; a server reads them from
/// the store, and does not keep them.
///
/// # Errors
/// Those of [`Vault`]. `PermissionDenied`: also a write, and a token or credentials that are refused. `Unsupported`: a list; or no server
/// has an object store. `Diverged`: the object is not one of the servers' log. `Unavailable`, `Timeout`, `Busy`: no server answers. In a
/// forked child, calls fail as `Forked`.
///
/// ```
/// use chiplog::vault::Vault;
/// use chiplog_net::client::ClientOptions;
/// use chiplog_net::client::blocking::ServedObjects;
/// let objects = ServedObjects::new(["log1:7411", "log2:7411"], ClientOptions::default())?;
/// assert!(objects.delete("00000000000000000000000000000007/o/00000000000000000000").is_err());
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Debug)]
pub struct ServedObjects {
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
}

#[derive(Debug)]
struct Shared {
    servers: Servers,
    options: ClientOptions,
    /// The server that answered last.
    preferred: Mutex<Option<String>>,
}

/// One attempt at one server. Its error is that of the server's answer, or of the connection.
type Attempt<T> = std::result::Result<T, Status>;

impl ServedObjects {
    /// The objects of the log that `options` names, at these servers, `host:port`; one is enough. Does not block.
    ///
    /// # Errors
    /// `InvalidArgument`: no address, or an invalid one; no certificates or no key in `options.tls`. `Io`: no thread could be started.
    pub fn new<S: Into<String>>(
        servers: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        let servers: Vec<String> = servers.into_iter().map(Into::into).collect();
        let invalid = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        if servers.is_empty() {
            return Err(invalid("no server address was given; objects are read through at least one".into()));
        }
        for server in &servers {
            check_host_port(server).map_err(|e| invalid(e.to_string()))?;
        }
        options.tls.as_ref().map_or(Ok(()), ClientTls::check)?;
        let servers = Servers::alone(servers, options.clone());
        let shared = Shared { servers, options, preferred: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), runtime: Runtime::start()? })
    }

    /// Runs work on the runtime's thread, and waits for it.
    fn wait<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.runtime.check_fork()?;
        let (tell, told) = mpsc::sync_channel(1);
        let work = work(self.shared.clone());
        self.runtime.handle.spawn(async move { tell.send(work.await) });
        let ended = |_| Err(Error::new(ErrorKind::Closed, "the thread that reads objects has ended"));
        told.recv().unwrap_or_else(ended)
    }
}

/// The wait for a call: until when, and how long before another attempt.
struct Patience {
    deadline: Instant,
    backoff: Backoff,
}

impl Patience {
    fn new(options: &ClientOptions) -> Self {
        let backoff = Backoff::new(options.backoff_min, options.backoff_max);
        Self { deadline: within(options.timeout), backoff }
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// The one that was given: another attempt does not help, or there is no time for it.
    async fn wait(&mut self, error: Error) -> Result<()> {
        let wait = self.backoff.next();
        if !may_pass(&error) || Instant::now() + wait >= self.deadline {
            return Err(error);
        }
        sleep(wait).await;
        Ok(())
    }
}

/// Whether the same request can succeed later.
fn may_pass(error: &Error) -> bool {
    error.kind() != ErrorKind::Diverged && ErrorClass::of(error.kind()) != ErrorClass::Fatal
}

/// A part of an object, or its size: the wish, and the answer as far as it came.
struct Wanted {
    name: String,
    /// None: the object's size.
    range: Option<Range<u64>>,
    read: BytesMut,
    /// None: there is no such object.
    size: Option<u64>,
}

impl Wanted {
    fn size(name: &str) -> Self {
        Self { name: name.to_owned(), range: None, read: BytesMut::new(), size: None }
    }

    fn bytes(name: &str, range: Range<u64>) -> Self {
        let read = BytesMut::with_capacity((range.end - range.start) as usize);
        Self { range: Some(range), read, ..Self::size(name) }
    }
}

impl Shared {
    fn preferred(&self) -> MutexGuard<'_, Option<String>> {
        self.preferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the servers until one answers.
    async fn call(&self, wanted: &mut Wanted) -> Result<()> {
        let mut patience = Patience::new(&self.options);
        loop {
            let before = wanted.read.len();
            let Err(error) = self.round(wanted).await else { return Ok(()) };
            if wanted.read.len() > before {
                patience = Patience::new(&self.options); // it goes on
            }
            let what = format!("object {:?} at the servers: {error}", wanted.name);
            let error = Error::new(error.kind(), what);
            // Servers may have been added since. Without an answer those that are known are asked again.
            let _ = timeout_at(patience.deadline, self.servers.learn_all()).await;
            patience.wait(error).await?;
        }
    }

    /// Asks one server after another, each once.
    ///
    /// # Errors
    /// `OutOfRange`, at once: all servers have the same store. Otherwise an error that may pass, if a server returned one; else that of
    /// the first server.
    async fn round(&self, wanted: &mut Wanted) -> Result<()> {
        let preferred = self.preferred().clone();
        let mut servers: Vec<String> = self.servers.all().into_iter().collect();
        fastrand::shuffle(&mut servers);
        servers.sort_by_key(|server| preferred.as_ref() != Some(server));
        let mut failed: Option<Error> = None;
        for server in servers {
            let error = match self.servers.call_channel(&server) {
                Ok(channel) => match self.attempt(FollowClient::new(channel), wanted).await {
                    Ok(()) => {
                        *self.preferred() = Some(server);
                        return Ok(());
                    }
                    Err(status) => from_status(&status),
                },
                // A token is not sent to this server, for example.
                Err(error) => error,
            };
            let error = Error::new(error.kind(), format!("{server}: {error}"));
            if error.kind() == ErrorKind::OutOfRange {
                return Err(error);
            }
            if failed.as_ref().is_none_or(|failed| !may_pass(failed) && may_pass(&error)) {
                failed = Some(error);
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no server is known")))
    }

    /// Asks one server. The bytes that came stay, also if the rest does not.
    async fn attempt(&self, mut client: FollowClient<Shown>, wanted: &mut Wanted) -> Attempt<()> {
        let log = self.options.log.clone();
        let Wanted { name, range, read, size } = wanted;
        let Some(range) = range else {
            let request = ObjectSizeRequest { log, name: name.clone() };
            *size = self.in_time(client.object_size(request)).await?.into_inner().bytes;
            return Ok(());
        };
        let bytes = (range.end - range.start) as usize;
        let start = range.start + read.len() as u64;
        let request = ReadObjectRequest { log, name: name.clone(), start, end: range.end };
        let mut pieces = self.in_time(client.read_object(request)).await?.into_inner();
        while let Some(next) = self.in_time(pieces.message()).await? {
            if next.piece.len() > bytes - read.len() {
                return Err(Status::unavailable("the server sent more bytes than the request is for"));
            }
            read.extend_from_slice(&next.piece);
        }
        if read.len() < bytes {
            return Err(Status::unavailable("the server sent fewer bytes than the request is for"));
        }
        Ok(())
    }

    /// Waits for the next part of an answer: as long as for the whole call, because the server can wait for the store that long. A dead
    /// connection is found by its keep-alive.
    async fn in_time<T>(&self, part: impl Future<Output = Attempt<T>>) -> Attempt<T> {
        let late = |_| Status::unavailable("no answer in time");
        timeout_at(within(self.options.timeout), part).await.map_err(late)?
    }
}

fn refused(kind: ErrorKind, what: &str) -> Error {
    Error::new(kind, format!("objects that are read through servers {what}: use the object store itself"))
}

impl Vault for ServedObjects {
    fn put(&self, _: &str, _: &[Bytes]) -> Result<()> {
        Err(refused(ErrorKind::PermissionDenied, "cannot be written"))
    }

    fn create(&self, _: &str, _: Bytes) -> Result<bool> {
        Err(refused(ErrorKind::PermissionDenied, "cannot be written"))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        check_name(name)?;
        check_range(name, &range)?;
        let name = name.to_owned();
        self.wait(|shared| async move {
            let mut read = BytesMut::new();
            let mut start = range.start;
            loop {
                let end = range.end.min(start.saturating_add(REQUEST_BYTES_MAX));
                let mut wanted = Wanted::bytes(&name, start..end);
                shared.call(&mut wanted).await?;
                read.unsplit(wanted.read); // the first part without a copy
                start = end;
                if start == range.end {
                    return Ok(read.freeze());
                }
            }
        })
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        check_name(name)?;
        let name = name.to_owned();
        self.wait(|shared| async move {
            let mut wanted = Wanted::size(&name);
            shared.call(&mut wanted).await?;
            Ok(wanted.size)
        })
    }

    fn list(&self, _: &str) -> Result<Vec<ObjectInfo>> {
        Err(refused(ErrorKind::Unsupported, "cannot be listed"))
    }

    fn delete(&self, _: &str) -> Result<()> {
        Err(refused(ErrorKind::PermissionDenied, "cannot be written"))
    }
}
