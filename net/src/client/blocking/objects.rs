//! Served objects: a log's objects in the object store, read through its servers.
//!
//! Each request goes to one server after another, from the one that answered last, until one answers. If none did, and one may later,
//! all are asked again after a wait.
//!
//! The log that reads the bytes checks them. Must not know: what is in an object.

use super::Runtime;
use crate::client::retry::backoff::Backoff;
use crate::client::retry::deadline::within;
use crate::client::{Client, ClientOptions, ClientTls, ErrorClass, Shown};
use crate::wire::address::check_host_port;
use crate::wire::proto::v1::follow_client::FollowClient;
use crate::wire::proto::v1::{ListObjectsRequest, ObjectSizeRequest, ReadObjectRequest};
use crate::wire::status::from_status;
use bytes::{Bytes, BytesMut};
use chiplog::vault::{ObjectInfo, Vault, check_name, check_prefix, check_range};
use chiplog::{Error, ErrorKind, Result};
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;

/// The most bytes of one request.
const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// The object store of a log, read through the log's servers, for a program that cannot reach the store itself, or has no credentials.
/// Writing is refused.
///
/// `Send + Sync`. Calls block, for [`ClientOptions::timeout`] at most, and work on any thread, with or without an async runtime. The
/// servers are not asked before the first call. Each request is of up to 4 MiB; a server reads them from the store, and does not keep
/// them.
///
/// # Errors
/// Those of [`Vault`]. `PermissionDenied`: also a write, and a token or credentials that are refused. `Unsupported`: no server has an
/// object store. `Unavailable`, `Timeout`: no server answers. In a forked child, calls fail as `Forked`.
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
    servers: Vec<String>,
    options: ClientOptions,
    /// Once a server has answered.
    client: OnceCell<Client>,
    /// The server that answered last.
    preferred: Mutex<Option<String>>,
}

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
        let shared = Shared { servers, options, client: OnceCell::new(), preferred: Mutex::default() };
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
        told.recv()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the thread that reads objects has ended")))
    }
}

impl Shared {
    /// Makes a call at one server after another, until one answers.
    async fn call<T, F>(&self, what: &str, call: impl Fn(FollowClient<Shown>) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let deadline = within(self.options.timeout);
        let mut backoff = Backoff::new(self.options.backoff_min, self.options.backoff_max);
        let connect = || Client::connect(self.servers.clone(), self.options.clone());
        let client = self.client.get_or_try_init(connect).await?;
        loop {
            let error = match self.round(client, deadline, &call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => Error::new(error.kind(), format!("{what} at the servers: {error}")),
            };
            let wait = backoff.next();
            if ErrorClass::of(error.kind()) == ErrorClass::Fatal || Instant::now() + wait >= deadline {
                return Err(error);
            }
            sleep(wait).await;
        }
    }

    /// Asks each server once.
    ///
    /// # Errors
    /// A wrong request, at once: all servers have the same store. Otherwise an error that may pass, if a server
    /// returned one; else that of the first server.
    async fn round<T, F>(
        &self,
        client: &Client,
        deadline: Instant,
        call: impl Fn(FollowClient<Shown>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let preferred = self.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut servers: Vec<String> = client.servers().all().into_iter().collect();
        fastrand::shuffle(&mut servers);
        servers.sort_by_key(|server| preferred.as_ref() != Some(server));
        let mut failed: Option<Error> = None;
        for server in servers {
            let until = deadline.min(within(self.options.attempt_timeout));
            let channel = client.servers().call_channel(&server)?;
            let error = match timeout_at(until, call(FollowClient::new(channel))).await {
                Ok(Ok(answer)) => {
                    *self.preferred.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
                    return Ok(answer);
                }
                Ok(Err(status)) => from_status(&status),
                Err(_) => Error::new(ErrorKind::Unavailable, "no answer in time"),
            };
            let error = Error::new(error.kind(), format!("{server}: {error}"));
            if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::OutOfRange) {
                return Err(error);
            }
            let may_pass = |error: &Error| ErrorClass::of(error.kind()) != ErrorClass::Fatal;
            if failed.as_ref().is_none_or(|failed| !may_pass(failed) && may_pass(&error)) {
                failed = Some(error);
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no server is known")))
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let mut read = BytesMut::new();
        let mut start = range.start;
        loop {
            let end = range.end.min(start.saturating_add(REQUEST_BYTES_MAX));
            let request =
                ReadObjectRequest { log: self.options.log.clone(), name: name.to_owned(), start, end };
            let what = format!("read object {name:?}");
            read.unsplit(self.call(&what, |client| part(client, request.clone())).await?); // the first part without a copy
            start = end;
            if start == range.end {
                return Ok(read.freeze());
            }
        }
    }
}

/// Reads the bytes of one request.
async fn part(
    mut client: FollowClient<Shown>,
    request: ReadObjectRequest,
) -> std::result::Result<BytesMut, Status> {
    let bytes = (request.end - request.start) as usize;
    let mut pieces = client.read_object(request).await?.into_inner();
    let mut read = BytesMut::with_capacity(bytes);
    while let Some(next) = pieces.message().await? {
        if next.piece.len() > bytes - read.len() {
            return Err(Status::unavailable("the server sent more bytes than the request is for"));
        }
        read.extend_from_slice(&next.piece);
    }
    if read.len() < bytes {
        return Err(Status::unavailable("the server sent fewer bytes than the request is for"));
    }
    Ok(read)
}

fn read_only() -> Error {
    let what = "objects that are read through servers cannot be written: only servers with the store do that";
    Error::new(ErrorKind::PermissionDenied, what)
}

impl Vault for ServedObjects {
    fn put(&self, _: &str, _: &[Bytes]) -> Result<()> {
        Err(read_only())
    }

    fn create(&self, _: &str, _: Bytes) -> Result<bool> {
        Err(read_only())
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        check_name(name)?;
        check_range(name, &range)?;
        let name = name.to_owned();
        self.wait(|shared| async move { shared.read(&name, range).await })
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        check_name(name)?;
        let request = ObjectSizeRequest { log: self.shared.options.log.clone(), name: name.to_owned() };
        let what = format!("size of object {name:?}");
        self.wait(|shared| async move {
            let size = shared.call(&what, |mut client| {
                let request = request.clone();
                async move { client.object_size(request).await }
            });
            Ok(size.await?.into_inner().bytes)
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        check_prefix(prefix)?;
        let request = ListObjectsRequest { log: self.shared.options.log.clone(), folder: prefix.to_owned() };
        let what = format!("list of objects {prefix:?}");
        self.wait(|shared| async move {
            let list = shared.call(&what, |mut client| {
                let request = request.clone();
                async move {
                    let mut pages = client.list_objects(request).await?.into_inner();
                    let mut found = Vec::new();
                    while let Some(page) = pages.message().await? {
                        found.extend(page.objects.into_iter().map(|o| ObjectInfo::new(o.name, o.bytes)));
                    }
                    Ok(found)
                }
            });
            list.await
        })
    }

    fn delete(&self, _: &str) -> Result<()> {
        Err(read_only())
    }
}
