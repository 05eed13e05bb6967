//! Client: a log over the network: finds and follows the leader, appends exactly once, reads from any replica.
//!
//! ```text
//! Client ─┬─ calls (info, discard, sessions) ──> the leader, again until it answers or the time is up
//!         ├─ Producer: accumulator ──> sender ──> append stream ──> the leader; what is not acknowledged is sent again
//!         └─ RemoteReader <── read stream <── one replica; another one when it fails, at the same index
//! ```
//!
//! Every wait has a deadline. What needs the leader waits for one until then; what only reads needs none: `info_stale`,
//! readers and watches also work where a majority is lost. Must not know: how a server works; the log's files.

pub(crate) mod cluster;
pub(crate) mod credentials;
pub(crate) mod own_thread;
pub(crate) mod retry;

pub mod blocking;
mod producer;
mod reader;

pub use cluster::watch::{RemoteInfo, Watch};
pub use credentials::tls::ClientTls;
pub(crate) use credentials::token::Shown;
pub use credentials::token::{Bearer, Secret};
pub use producer::Producer;
pub use producer::close_report::{Closed, Unacknowledged};
pub use producer::delivery::Delivery;
pub use producer::options::ProducerOptions;
pub use reader::{ReadFrom, ReaderOptions, RemoteReader};
pub use retry::class::ErrorClass;

use crate::wire::address::check_host_port;
use crate::wire::proto::v1::log_client::LogClient;
use crate::wire::proto::v1::{CloseSessionRequest, DiscardRequest, InfoRequest, OpenSessionRequest};
use crate::wire::status::{from_status, leader_of};
use chiplog::{Error, ErrorKind, Index, Result, SessionId, Start};
use cluster::discovery::Servers;
use cluster::leader_watchdog::Silence;
use retry::backoff::Backoff;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Response, Status};

/// Deadlines and limits of a [`Client`].
///
/// ```
/// use std::time::Duration;
/// let mut options = chiplog_net::client::ClientOptions::default();
/// options.timeout = Duration::from_secs(3);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Which log; empty, the default: the server's only one.
    pub log: String,
    /// How long a call may take with all its attempts, default 30 s.
    pub timeout: Duration,
    /// How long one attempt may take, default 10 s.
    pub attempt_timeout: Duration,
    /// How long a connection may take to come about, default 2 s.
    pub connect_timeout: Duration,
    /// How long a server is waited for when all are asked who leads, default 1 s. A leader that owes an answer for so
    /// long is asked after: when the others say that another one leads by now, it is not waited for any longer.
    pub probe_timeout: Duration,
    /// The wait after a first failure, default 10 ms; twice as long after each further one, with jitter. While a leader is
    /// looked for, an eighth longer each time.
    pub backoff_min: Duration,
    /// The longest such wait, default 1 s.
    pub backoff_max: Duration,
    /// After so long without a sign of the other side a connection is tested, and given up when it stays silent for as
    /// long again. Default 5 s.
    pub keep_alive: Duration,
    /// Bytes that a server may send ahead on a stream, default 4 MiB.
    pub window_bytes: u32,
    /// TLS; default: none.
    pub tls: Option<ClientTls>,
    /// The token that is shown with every call, where servers want one; default: none.
    pub token: Option<Secret>,
    /// Whether the token may go to other machines without TLS; default: no, such a server is not asked.
    pub token_in_plain_text: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            log: String::new(),
            timeout: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            probe_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            keep_alive: Duration::from_secs(5),
            window_bytes: 4 << 20,
            tls: None,
            token: None,
            token_in_plain_text: false,
        }
    }
}

/// A log over the network. Cheap to clone, `Send + Sync`; to be used within a tokio runtime that has time and I/O.
/// Without one, see [`blocking`].
///
/// ```
/// use chiplog::Start;
/// use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// let client = Client::connect([address], ClientOptions::default()).await?;
/// let producer = client.producer(ProducerOptions::default()).await?;
/// let index = producer.append(b"hello").await?.await?;
/// let mut reader = client.reader(Start::First, ReadFrom::Any);
/// let record = reader.next_record().await?.expect("it follows");
/// assert_eq!((record.index, &record.data[..]), (index, &b"hello"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ClientOptions,
    servers: Servers,
}

/// A call that was begun.
type Call<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

impl Client {
    /// Finds the cluster that these servers, `host:port`, are part of. One that answers is enough, whether it knows a
    /// leader or not; the others are learnt from it.
    ///
    /// # Errors
    /// `InvalidArgument`: no address, or not one; no certificates or no key in `options.tls`; or the servers are of different
    /// logs, and nothing tells which is meant. `Unauthenticated`,
    /// `PermissionDenied`: the token. `Unavailable`, `Timeout`: none answered within `options.timeout`; at once, if none of them
    /// means the same by TLS as `options.tls`. `NotFound`: they
    /// have no log of that name. `Unsupported`: they speak another revision.
    pub async fn connect<S: Into<String>>(
        servers: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        let seeds: Vec<String> = servers.into_iter().map(Into::into).collect();
        if seeds.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "no server address was given; a client needs at least one",
            ));
        }
        for seed in &seeds {
            check_host_port(seed).map_err(|e| Error::new(ErrorKind::InvalidArgument, e.to_string()))?;
        }
        options.tls.as_ref().map_or(Ok(()), ClientTls::check)?;
        let servers = Servers::new(seeds, options.clone());
        let client = Self { inner: Arc::new(Inner { options, servers }) };
        client.servers().found(client.deadline()).await?;
        Ok(client)
    }

    fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    fn servers(&self) -> &Servers {
        &self.inner.servers
    }

    fn deadline(&self) -> Instant {
        retry::deadline::within(self.options().timeout)
    }

    fn log_name(&self) -> String {
        self.options().log.clone()
    }

    /// A producer: gathers records into batches and appends them, by default once each.
    ///
    /// # Errors
    /// `InvalidArgument`: an option; those of a call.
    pub async fn producer(&self, options: ProducerOptions) -> Result<Producer> {
        Producer::start(self.clone(), options).await
    }

    /// A reader that follows the log from `start` on. It connects when it is first asked.
    pub fn reader(&self, start: Start, from: ReadFrom) -> RemoteReader {
        self.reader_with(start, ReaderOptions { from, ..ReaderOptions::default() })
    }

    /// A reader with these options.
    pub fn reader_with(&self, start: Start, options: ReaderOptions) -> RemoteReader {
        RemoteReader::new(self.clone(), start, options)
    }

    /// The largest batch that the servers take, in bytes, as they told last.
    pub fn batch_bytes_max(&self) -> usize {
        self.servers().limits().batch_bytes_max
    }

    /// How the log stands: with everything that was acknowledged before the call.
    ///
    /// # Errors
    /// Those of a call: `Timeout` or `Unavailable` when no leader answers in time, and whatever it refuses with.
    pub async fn info(&self) -> Result<RemoteInfo> {
        let request = InfoRequest { log: self.log_name(), allow_stale: false };
        let info = self
            .at_leader(request, |mut leader, request| Box::pin(async move { leader.info(request).await }));
        Ok(RemoteInfo::from(info.await?))
    }

    /// How the log stands as the replicas know it, without a majority: what the leader tells, if one answers as such;
    /// else whoever has most of those that answer within `options.probe_timeout` of the first. It can be late by an
    /// election; without a majority it is all that is left.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: no server answered in time; whatever all refuse with.
    pub async fn info_stale(&self) -> Result<RemoteInfo> {
        cluster::local_info::info(self, self.deadline()).await.map(RemoteInfo::from)
    }

    /// Discards all records below `first`.
    ///
    /// # Errors
    /// As [`Self::info`].
    pub async fn discard(&self, first: Index) -> Result<()> {
        let request = DiscardRequest { log: self.log_name(), first: first.get() };
        self.at_leader(request, |mut leader, request| Box::pin(async move { leader.discard(request).await }))
            .await
            .map(drop)
    }

    /// How the log stands, now and whenever that changes: as the leader tells, or without one as another replica knows.
    pub fn watch(&self, interval: Duration) -> Watch {
        Watch::new(self.clone(), interval)
    }

    /// Opens a session, for a producer that is to go on in it after a restart of the program: see
    /// [`ProducerOptions::session`]. It expires when it is not used for long. Other producers open their own.
    ///
    /// # Errors
    /// As [`Self::info`]; `TooManySessions`.
    pub async fn open_session(&self) -> Result<SessionId> {
        let request = OpenSessionRequest { log: self.log_name() };
        let opened = self
            .at_leader(request, |mut leader, request| {
                Box::pin(async move { leader.open_session(request).await })
            })
            .await?;
        Ok(SessionId(opened.session))
    }

    async fn close_session(&self, session: SessionId) -> Result<()> {
        let request = CloseSessionRequest { log: self.log_name(), session: session.get() };
        self.at_leader(request, |mut leader, request| {
            Box::pin(async move { leader.close_session(request).await })
        })
        .await
        .map(drop)
    }

    /// Asks the leader, and whoever comes to be it, until there is an answer or the time is up.
    async fn at_leader<Q: Clone, A>(
        &self,
        request: Q,
        call: impl Fn(LogClient<Shown>, Q) -> Call<A>,
    ) -> Result<A> {
        let deadline = self.deadline();
        let (min, max) = (self.options().backoff_min, self.options().backoff_max);
        let (mut backoff, mut search) = (Backoff::new(min, max), Backoff::searching(min, max));
        loop {
            let leader = self.servers().leader(deadline).await?;
            let until = deadline.min(retry::deadline::within(self.options().attempt_timeout));
            let client = self.servers().client(&leader)?;
            let (asked, mut silence) = (Some(leader.clone()), Silence::default());
            let answered = tokio::select! {
                answered = timeout_at(until, call(client, request.clone())) => answered.ok(),
                () = silence.is_deposition(self, &asked, Instant::now()) => None,
            };
            let mut wait = &mut backoff;
            let (error, hint) = match answered {
                Some(Ok(answer)) => return Ok(answer.into_inner()),
                Some(Err(status)) => (from_status(&status), leader_of(&status)),
                // Silence may be a dead connection or a leader that was cut off.
                None => {
                    (Error::new(ErrorKind::Unavailable, format!("{leader} did not answer in time")), None)
                }
            };
            match ErrorClass::of(error.kind()) {
                ErrorClass::Fatal => return Err(error),
                ErrorClass::Retriable => {}
                ErrorClass::RefreshMetadata => {
                    wait = &mut search;
                    self.servers().doubt(&leader);
                    if let Some(hint) = hint {
                        self.servers().suggest(&hint);
                    }
                }
            }
            let wait = wait.next();
            if Instant::now() + wait >= deadline {
                return Err(error);
            }
            sleep(wait).await;
        }
    }
}
