//! logspec: the service of existing clients. Its requests name no log: calls at a listener of a named log are about that
//! one ([`crate::listener::Incoming::with_log_port`]), and all others about the default log.
//!
//! | file | content |
//! |---|---|
//! | `request` | an append's content, as it was received |
//! | `append` | accepts requests, answers them in order |
//! | `read` | pushes committed records |
//! | `reply` | encodes one reply of records |
//! | `service` | the tonic service |
//! | `info` | the state of the log, once or at each change |
//! | `fullness` | the last rejections of a full log, for probes |
//! | `leader` | redirects to the leader |
//!
//! Invariants:
//! - nothing here blocks a runtime thread for longer than a memory access takes;
//! - one field of a reply's oneof is always set, and an `ok` has one index for each proposal;
//! - a redirect names a host: a server that knows none waits for a moment, then returns UNAVAILABLE.

mod append;
mod fullness;
mod info;
mod leader;
mod read;
mod reply;
mod service;

pub use crate::wire::logspec_request::AppendRequest;
pub use service::LogspecServer;

use crate::listener::connection_info::ConnectionInfo;
use crate::listener::memory_budget::Budget;
use crate::served::caller::Caller;
use crate::served::gauges::{Counted, Open};
use crate::served::log_slot::{DEFAULT_LOG, LogSlot};
use crate::wire::proto::logspec as proto;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, Index, Log, options};
use fullness::Fullness;
use futures_util::StreamExt as _;
use http::Extensions;
use leader::Answered;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, Streaming};

options! {
    /// The limits of the service.
    ///
    /// ```
    /// use chiplog_net::service::logspec::Limits;
    /// let limits = Limits::default().message_bytes_max(16 << 20);
    /// assert!(limits.stream_bytes_max >= limits.message_bytes_max);
    /// ```
    #[derive(Clone, Debug)]
    pub struct Limits {
        /// The largest request, default 64 MiB; above it OUT_OF_RANGE.
        pub message_bytes_max: usize,
        /// The limit of proposals in a request, default 4 Mi; above it INVALID_ARGUMENT.
        pub proposals_max: u32,
        /// Bytes of requests in flight on one stream, default 64 MiB; at the limit the stream is not read. One request
        /// may always be in flight.
        pub stream_bytes_max: usize,
        /// Requests in flight on one stream, default 4,096; at the limit the stream is not read.
        pub stream_requests_max: usize,
        /// The budget of all incoming requests and requests in flight; at the limit streams are not read, and are
        /// rejected if that lasts.
        pub budget: Budget,
        /// A reply to a reader ends at this size, default 1 MiB. A larger record is sent alone.
        pub reply_bytes: usize,
        /// A reply to a reader ends at this number of records, default 8,192.
        pub reply_entries: usize,
        /// How long a request waits while no leader is known, and how long the answer waits that there is no such log,
        /// default 500 ms.
        pub leader_wait: Duration,
        /// How long an info that is not stale waits for a majority, default 2 s.
        pub info_timeout: Duration,
        /// The minimal interval between replies of an info stream, default 20 ms.
        pub info_interval: Duration,
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 64 << 20,
            proposals_max: 4 << 20,
            stream_bytes_max: 64 << 20,
            stream_requests_max: 4096,
            budget: Budget::default(),
            reply_bytes: 1 << 20,
            reply_entries: 8192,
            leader_wait: Duration::from_millis(500),
            info_timeout: Duration::from_secs(2),
            info_interval: Duration::from_millis(20),
        }
    }
}

/// The service `logspec.Log`. [`LogspecService::into_server`] makes it one that tonic can route to.
///
/// ```no_run
/// use chiplog_net::served::log_slot::LogSlot;
/// use chiplog_net::listener;
/// use chiplog_net::service::logspec::{Limits, LogspecService};
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let host = LogSlot::new();
/// host.open(chiplog::Log::open("/var/lib/log", chiplog::Options::default())?);
/// let connections = listener::incoming(tokio::net::TcpListener::bind("[::]:7000").await?);
/// let service = LogspecService::new(host, Limits::default()).into_server();
/// listener::server().add_service(service).serve_with_incoming(connections).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LogspecService {
    host: Arc<LogSlot>,
    limits: Arc<Limits>,
    fullness: Arc<Fullness>,
}

/// The log of a call.
#[derive(Clone, Debug)]
struct ServedLog {
    log: Log,
    /// The port that is for this log alone, on every server.
    port: Option<u16>,
}

impl Deref for ServedLog {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

/// The result of a server-streaming method.
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl LogspecService {
    /// Creates the service over the log of `host`.
    pub fn new(host: Arc<LogSlot>, limits: Limits) -> Self {
        Self { host, limits: Arc::new(limits), fullness: Arc::default() }
    }

    /// Returns the tonic service. Replies are never compressed; the limits bound the size of requests.
    pub fn into_server(self) -> LogspecServer {
        LogspecServer::new(self)
    }

    /// Counts a stream while its client has it.
    fn counted<T: 'static>(&self, what: Open, replies: Replies<T>) -> Response<Replies<T>> {
        Response::new(Box::pin(Counted::new(replies, self.host.gauges(), what)))
    }

    /// The log of a call with these extensions.
    ///
    /// # Errors
    /// Those of [`LogSlot::find`].
    async fn log(&self, extensions: &Extensions) -> Result<ServedLog, Status> {
        let port = extensions.get::<ConnectionInfo>().and_then(ConnectionInfo::log_port).cloned();
        let name = port.as_ref().map_or(DEFAULT_LOG, |port| &port.log);
        if name != DEFAULT_LOG && self.host.opened().is_some() && self.host.named().is_none() {
            let what = "the named logs of this server are not open yet; try again";
            return Err(to_status(&Error::new(ErrorKind::Unavailable, what), None));
        }
        let found = self.host.find(&Caller::of(extensions), name, None).await;
        let log = match found {
            // Clients that find no log try again at once, and each attempt asks a majority.
            Err(status) if status.code() == Code::NotFound => {
                tokio::time::sleep(self.limits.leader_wait).await;
                return Err(status);
            }
            found => found?,
        };
        Ok(ServedLog { log, port: port.map(|port| port.port) })
    }
}

#[tonic::async_trait]
impl proto::log_server::Log for LogspecService {
    type AppendStream = Replies<proto::AppendReply>;
    type ReadStream = Replies<proto::ReadReply>;
    type InfoStreamStream = Replies<proto::InfoReply>;

    async fn append(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let log = self.log(request.extensions()).await?;
        Ok(self.counted(Open::Appends, append::answers(self.clone(), log, request)))
    }

    async fn discard(
        &self,
        request: Request<proto::DiscardRequest>,
    ) -> Result<Response<proto::DiscardReply>, Status> {
        use proto::discard_reply::{Ok as Discarded, Reply};
        let log = self.log(request.extensions()).await?;
        let first = Index(request.into_inner().first_index);
        self.await_leader(&log).await;
        let done = match log.submit_discard(first) {
            Ok(answer) => within(log.options().queue_timeout, answer).await,
            Err(error) => Err(error),
        };
        let reply = match done {
            Ok(_) => Reply::Ok(Discarded {}),
            Err(error) => match self.answer_to(&log, &error).await {
                Answered::Redirect(redirect) => Reply::Redirect(redirect),
                Answered::Full(status) | Answered::Failed(status) => return Err(status),
            },
        };
        Ok(Response::new(proto::DiscardReply { reply: Some(reply) }))
    }

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let log = self.log(request.extensions()).await?;
        let payer = self.limits.budget.payer_of(request.extensions());
        let replies = self.replies(log.log, request.get_ref(), payer);
        Ok(Response::new(Box::pin(replies.map(|reply| reply.map(proto::ReadReply::from)))))
    }

    async fn info(&self, request: Request<proto::InfoRequest>) -> Result<Response<proto::InfoReply>, Status> {
        let log = self.log(request.extensions()).await?;
        let reply = self.info_now(&log, request.into_inner().allow_stale).await?;
        Ok(Response::new(reply))
    }

    async fn info_stream(
        &self,
        request: Request<proto::InfoRequest>,
    ) -> Result<Response<Self::InfoStreamStream>, Status> {
        let log = self.log(request.extensions()).await?;
        let stale = request.into_inner().allow_stale;
        Ok(self.counted(Open::Watches, info::changes(self.clone(), log, stale)))
    }
}

fn about_to_end() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}

/// Returns the result of `answer`, if it arrives within `time`.
async fn within<T>(time: Duration, answer: impl Future<Output = chiplog::Result<T>>) -> chiplog::Result<T> {
    tokio::time::timeout(time, answer).await.unwrap_or_else(|_| {
        let what = format!("outcome unknown: no answer within {time:?}");
        Err(Error::new(ErrorKind::Unavailable, what))
    })
}
