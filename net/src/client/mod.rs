//! Client: a log over the network. Finds and follows the leader, appends exactly once, reads from any replica.
//!
//! ```text
//! Client ─┬─ calls (info, discard, sessions) ──> the leader, retried until it answers or the deadline passes
//!         ├─ append_together ──> the leader of the logs' group; retried only while it is certain that nothing was appended
//!         ├─ Producer: accumulator ──> sender ──> append stream ──> the leader; unacknowledged batches are sent again
//!         └─ RemoteReader <── read stream <── one replica; after a failure another one, at the same index
//! ```
//!
//! Every wait has a deadline. A call that needs the leader waits for one until then. A call that only reads needs no
//! leader: `info_stale`, readers and watches also work without a majority. Must not know: how a server works; the log's
//! files.

pub(crate) mod cluster;
pub(crate) mod credentials;
pub(crate) mod own_thread;
pub(crate) mod retry;

pub mod blocking;
mod log_options;
mod named_logs;
mod producer;
mod reader;
mod together;

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
use chiplog::{Error, ErrorKind, Index, Result, SessionId, Start, options};
use cluster::connections::{Connections, check_window};
use cluster::discovery::Servers;
use cluster::leader_watchdog::LeaderWatchdog;
use retry::backoff::Backoff;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Response, Status};

options! {
    /// Deadlines and limits of a [`Client`].
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = chiplog_net::client::ClientOptions::default().timeout(Duration::from_secs(3));
    /// ```
    #[derive(Clone, Debug)]
    pub struct ClientOptions {
        /// The log's name; empty, the default: the log "default", which every server has. See [`Client::create_log`].
        pub log: String,
        /// The time limit of a call with all its attempts, default 30 s.
        pub timeout: Duration,
        /// The time limit of one attempt, default 10 s.
        pub attempt_timeout: Duration,
        /// The time limit of connecting, default 2 s.
        pub connect_timeout: Duration,
        /// How long to wait for servers when all are asked for the leader, default 1 s. If a leader does not answer for
        /// this long, the client asks the other servers. When they name another leader, it stops waiting for this one.
        pub probe_timeout: Duration,
        /// The wait after a first failure, default 10 ms. It doubles after each further failure, with jitter; during a
        /// search for the leader it grows by an eighth each time.
        pub backoff_min: Duration,
        /// The longest wait between attempts, default 1 s.
        pub backoff_max: Duration,
        /// A connection that receives nothing for this long is tested, and closed if it stays silent for the same time
        /// again. Default 5 s.
        pub keep_alive: Duration,
        /// Bytes that a server may send ahead on a stream, 64 KiB to 2 GiB - 1, default 4 MiB.
        pub window_bytes: u32,
        /// TLS settings; default: no TLS.
        pub tls: Option<ClientTls>,
        /// The token that is sent with every call, if servers require one; default: none.
        pub token: Option<Secret>,
        /// Whether the token may be sent to other machines without TLS; default: no, calls to them fail.
        pub token_in_plain_text: bool,
    }
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

/// A call does not begin another attempt with less time than this, or than half of an attempt's: it would fail, and nothing would be known
/// of it.
const ATTEMPT_MIN: Duration = Duration::from_millis(200);

/// A log over the network. Cheap to clone, `Send + Sync`. Must be used within a tokio runtime with time and I/O
/// enabled. Without a runtime, see [`blocking`].
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
/// let record = reader.next_record().await?.expect("the reader follows");
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
    /// The client of the system log, once it was needed.
    system: OnceCell<Box<Client>>,
}

/// How an attempt of a call failed.
enum Failed<'a> {
    /// No server got it.
    Unsent,
    /// With this status.
    Answered(&'a Status),
    /// The server did not answer.
    Unanswered,
}

/// A call in progress.
type Call<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

impl Client {
    /// Connects to the cluster of these servers, `host:port`. One that answers is enough, whether it knows a leader or
    /// not; the client learns the others from it. A wait for a server, or later for a leader, is a warning in the log
    /// after a second, with the reason.
    ///
    /// # Errors
    /// `InvalidArgument`: no address, or an invalid one; `options.window_bytes` is out of bounds; no certificates or no
    /// key in `options.tls`; or the servers have different logs, and it is unclear which one to use. `Unauthenticated`, `PermissionDenied`: the token was
    /// rejected. `Unavailable`, `Timeout`: no server answered within `options.timeout`; at once, if the TLS settings of
    /// no server fit `options.tls`. `NotFound`: the servers have no log of that name. `Unsupported`: the servers use
    /// another revision of the protocol.
    pub async fn connect<S: Into<String>>(
        servers: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        let seeds: Vec<String> = servers.into_iter().map(Into::into).collect();
        let connections = Connections::new(options.clone());
        Self::connect_over(connections, seeds, options).await
    }

    /// As [`Self::connect`], over connections that other logs share.
    async fn connect_over(
        connections: Arc<Connections>,
        seeds: Vec<String>,
        options: ClientOptions,
    ) -> Result<Self> {
        if seeds.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "no server address was given; a client needs at least one",
            ));
        }
        for seed in &seeds {
            check_host_port(seed).map_err(|e| Error::new(ErrorKind::InvalidArgument, e.to_string()))?;
        }
        check_window(options.window_bytes)?;
        options.tls.as_ref().map_or(Ok(()), ClientTls::check)?;
        let servers = Servers::new(seeds, options.clone(), connections);
        let client = Self { inner: Arc::new(Inner { options, servers, system: OnceCell::new() }) };
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

    /// Creates a producer: it collects records into batches and appends them, by default exactly once.
    ///
    /// # Errors
    /// `InvalidArgument`: an option is invalid; those of [`Self::info`].
    pub async fn producer(&self, options: ProducerOptions) -> Result<Producer> {
        Producer::start(self.clone(), options).await
    }

    /// Creates a reader that follows the log from `start`. It connects at its first call.
    pub fn reader(&self, start: Start, from: ReadFrom) -> RemoteReader {
        self.reader_with(start, ReaderOptions::default().from(from))
    }

    /// Creates a reader with these options.
    pub fn reader_with(&self, start: Start, options: ReaderOptions) -> RemoteReader {
        RemoteReader::new(self.clone(), start, options)
    }

    /// The largest batch that the servers accept, in bytes, as they last reported.
    pub fn batch_bytes_max(&self) -> usize {
        self.servers().limits().batch_bytes_max
    }

    /// Returns the state of the log, with every append that was acknowledged before the call.
    ///
    /// # Errors
    /// `Timeout`, `Unavailable`: no leader answered in time. Any error that the leader returns.
    pub async fn info(&self) -> Result<RemoteInfo> {
        let request = InfoRequest { log: self.log_name(), allow_stale: false };
        let info = self
            .at_leader(request, |mut leader, request| Box::pin(async move { leader.info(request).await }));
        Ok(RemoteInfo::from(info.await?))
    }

    /// Returns the state of the log as the replicas know it; needs no majority. If a server answers as the leader, this
    /// is its answer. Otherwise it is the answer with the highest last index, among those that arrive within
    /// `options.probe_timeout` of the first. It can be outdated by an election; without a majority it is the best state
    /// known.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: no server answered in time. An error that all servers return.
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

    /// Watches the state of the log: returns it now and at each change, from the leader, or without a leader from
    /// another replica. The bytes of a named log are those of its group: a change of them alone is not reported.
    /// [`Watch::next`] fails with `NotFound` once the log is deleted.
    pub fn watch(&self, interval: Duration) -> Watch {
        Watch::new(self.clone(), interval)
    }

    /// Opens a session, for a producer that continues in it after a restart of the program: see
    /// [`ProducerOptions::session`]. It expires when it is unused for long. Other producers open their own sessions.
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

    /// Calls the leader's log service, and that of any new leader, until one answers or the deadline passes.
    async fn at_leader<Q: Clone, A>(
        &self,
        request: Q,
        call: impl Fn(LogClient<Shown>, Q) -> Call<A>,
    ) -> Result<A> {
        self.call_leader(request, |channel, request| call(LogClient::new(channel), request)).await
    }

    /// The same over a connection to the leader.
    async fn call_leader<Q: Clone, A>(&self, request: Q, call: impl Fn(Shown, Q) -> Call<A>) -> Result<A> {
        self.call_leader_for(self.options().attempt_timeout, request, call).await
    }

    /// The same, for a call of which one attempt may take `attempt`, even if that is longer than the client's time limits.
    async fn call_leader_for<Q: Clone, A>(
        &self,
        attempt: Duration,
        request: Q,
        call: impl Fn(Shown, Q) -> Call<A>,
    ) -> Result<A> {
        self.call_leader_while(attempt, request, call, |error, _| Ok(error)).await
    }

    /// The same, for a call that may not be repeated after every failure. `judge` returns the error of a failed attempt,
    /// after which there may be another one, or as `Err` the error of the call.
    async fn call_leader_while<Q: Clone, A>(
        &self,
        attempt: Duration,
        request: Q,
        call: impl Fn(Shown, Q) -> Call<A>,
        judge: impl Fn(Error, Failed<'_>) -> Result<Error>,
    ) -> Result<A> {
        let deadline = retry::deadline::within(self.options().timeout.max(attempt));
        let (min, max) = (self.options().backoff_min, self.options().backoff_max);
        let (mut backoff, mut search) = (Backoff::new(min, max), Backoff::searching(min, max));
        let mut before: Option<Error> = None;
        loop {
            let leader = match self.servers().leader(deadline).await {
                Ok(leader) => leader,
                Err(error) => return Err(judge(error, Failed::Unsent)?),
            };
            if Instant::now() + ATTEMPT_MIN.min(attempt / 2) >= deadline {
                let late =
                    || Error::new(ErrorKind::Unavailable, format!("{leader} was found too late to ask it"));
                return Err(match before.take() {
                    Some(error) => error,
                    None => judge(late(), Failed::Unsent)?,
                });
            }
            let until = deadline.min(retry::deadline::within(attempt));
            let connection = self.servers().connections().for_calls(&leader)?;
            let channel = self.servers().shown(&leader, connection.channel.clone())?;
            let (asked, mut watchdog) = (Some(leader.clone()), LeaderWatchdog::default());
            let answered = tokio::select! {
                answered = timeout_at(until, call(channel, request.clone())) => answered.ok(),
                () = watchdog.is_deposition(self, &asked, Instant::now()) => None,
            };
            let mut wait = &mut backoff;
            let status = match answered {
                Some(Ok(answer)) => return Ok(answer.into_inner()),
                Some(Err(status)) => Some(status),
                // A silent server: the connection is dead, or the leader was cut off.
                None => {
                    self.servers().connections().retire(&connection);
                    None
                }
            };
            let (error, hint, failed) = match &status {
                Some(status) => (from_status(status), leader_of(status), Failed::Answered(status)),
                None => {
                    let silent =
                        Error::new(ErrorKind::Unavailable, format!("{leader} did not answer in time"));
                    (silent, None, Failed::Unanswered)
                }
            };
            // The next call looks for the leader again.
            let error = judge(error, failed).inspect_err(|_| self.servers().depose(&leader))?;
            match ErrorClass::of(error.kind()) {
                ErrorClass::Fatal => return Err(error),
                ErrorClass::Retriable => {}
                ErrorClass::RefreshMetadata => {
                    wait = &mut search;
                    self.servers().depose(&leader);
                    if let Some(hint) = hint {
                        self.servers().suggest(&hint);
                    }
                }
            }
            let wait = wait.next().max(error.retry_after().unwrap_or_default());
            if Instant::now() + wait >= deadline {
                return Err(error);
            }
            before = Some(error);
            sleep(wait).await;
        }
    }
}
