//! LogService: the service `chiplog.v1.Log`, as documented in its proto, over a [`LogSlot`].
//!
//! ```text
//! Append   requests ──> decode, verify ──> Log::try_submit ──> tickets, in order ──> responses
//! Read     Reader::next_stored ──> batches as they are in the log ──> responses of about 1 MiB
//! together one request and one answer: batches of several logs, all of them or none
//! others   one answer each; blocking calls run on the runtime's blocking threads, a limited number at a time
//! ```
//!
//! Invariants:
//! - No runtime thread blocks on the log or, while a reader catches up, on the disk.
//! - A stream owns everything it holds: when its client leaves, dropping it frees everything.
//! - [`NativeOptions`] limit what a stream holds; at the limit it stops reading, and HTTP/2 slows its client down.
//!
//! Must not know: listeners, TLS, the other services.

mod append;
mod info;
mod read;
mod service;
mod stream_logs;
mod together;
mod zero_copy;

use crate::listener::auth::tokens::Payer;
use crate::listener::memory_budget::{Budget, Ledger};
use crate::served::call_places::{CallPlace, CallPlaces};
use crate::served::caller::Caller;
use crate::served::gauges::{Counted, Open};
use crate::served::log_slot::{DEFAULT_LOG, LogSlot, abandoned, meant, status_of};
use crate::wire::proto::v1::log_server::Log as Service;
use crate::wire::proto::v1::{
    AppendRequest, AppendTogetherRequest, AppendTogetherResponse, CloseSessionRequest, CloseSessionResponse,
    DiscardRequest, DiscardResponse, InfoRequest, InfoResponse, OpenSessionRequest, OpenSessionResponse,
    ReadRequest, ServerInfoRequest, ServerInfoResponse, WatchRequest,
};
use append::AppendStream;
use chiplog::{Index, Log, NodeId, Sequence, SessionId, Ticket, options};
use info::WatchStream;
use read::{ReadStream, Replies};
pub use service::NativeServer;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Request, Response, Status, Streaming};

options! {
    /// The limits of a [`LogService`] service.
    ///
    /// ```
    /// let options = chiplog_net::service::log::NativeOptions::default();
    /// assert_eq!(options.reply_bytes, 1 << 20);
    /// ```
    #[derive(Clone, Debug)]
    pub struct NativeOptions {
        /// Bytes of batches that one append stream may have in flight, default 16 MiB; at the limit the stream is not
        /// read. The last batch can exceed it.
        pub append_inflight_bytes: usize,
        /// Batches that one append stream may have in flight, default 1,024.
        pub append_inflight_max: usize,
        /// How long a batch waits to be decompressed, if needed, and for room in the log's queue, before it is rejected
        /// as `Busy`, default 5 s. Meanwhile nothing behind it is read.
        pub room_timeout: Duration,
        /// The largest message that is accepted, default 33 MiB: a batch and its frame.
        pub message_bytes_max: usize,
        /// The budget of all incoming messages and messages in flight; at the limit streams are not read, and are
        /// rejected if that lasts.
        pub budget: Budget,
        /// The bytes of batches in one reply of a read, default 1 MiB. The last batch can exceed it.
        pub reply_bytes: usize,
        /// How long a linearizable `Info` waits for a majority, default 5 s.
        pub barrier_timeout: Duration,
        /// The limit of calls that wait for the log at a time, default 256; more are rejected as `Busy`. One token may have the share of them
        /// that `budget` gives it of other things.
        pub calls_max: usize,
    }
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            append_inflight_bytes: 16 << 20,
            append_inflight_max: 1024,
            room_timeout: Duration::from_secs(5),
            message_bytes_max: 33 << 20,
            budget: Budget::default(),
            reply_bytes: 1 << 20,
            barrier_timeout: Duration::from_secs(5),
            calls_max: 256,
        }
    }
}

/// The service `chiplog.v1.Log`.
///
/// ```
/// use chiplog_net::served::log_slot::LogSlot;
/// use chiplog_net::service::log::LogService;
/// # let dir = tempfile::tempdir()?;
/// let host = LogSlot::new();
/// host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?);
/// let server = tonic::transport::Server::builder().add_service(LogService::new(host).into_service());
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LogService {
    host: Arc<LogSlot>,
    options: NativeOptions,
    calls: Arc<CallPlaces>,
}

impl LogService {
    /// Creates the service with the default limits.
    pub fn new(host: Arc<LogSlot>) -> Self {
        Self::with(host, NativeOptions::default())
    }

    /// Creates the service with these limits.
    pub fn with(host: Arc<LogSlot>, options: NativeOptions) -> Self {
        let calls = CallPlaces::new(options.calls_max);
        host.set_share_percent(options.budget.share_percent());
        Self { host, options, calls }
    }

    /// Returns the tonic service.
    pub fn into_service(self) -> NativeServer {
        NativeServer::new(self)
    }

    async fn replies(
        &self,
        request: &ReadRequest,
        caller: &Caller,
        meant: Option<&[u8]>,
        payer: Arc<Payer>,
    ) -> Result<Replies, Status> {
        let log = self.host.find(caller, &request.log, meant).await?;
        let replies = read::stream(self.host.clone(), log, request, self.options.reply_bytes, payer)?;
        Ok(Box::pin(Counted::new(replies, self.host.gauges(), Open::Reads)))
    }

    /// Runs a blocking call on a blocking thread, if there are not too many.
    async fn waiting<T: Send + 'static>(
        &self,
        caller: &Caller,
        log: Log,
        work: impl FnOnce(&Log) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let place = self.place(caller)?;
        let of = log.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&log)
        });
        match done.await {
            Ok(result) => result.map_err(|e| status_of(&of, &e)),
            Err(_) => Err(abandoned()),
        }
    }
}

impl LogService {
    /// Waits for the log's answer without blocking a thread.
    async fn answer(
        &self,
        caller: &Caller,
        log: &Log,
        ask: impl FnOnce(&Log) -> chiplog::Result<Ticket<Index>>,
    ) -> Result<Index, Status> {
        let _place = self.place(caller)?;
        let answer = match ask(log) {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        answer.map_err(|e| status_of(log, &e))
    }

    /// The log that a request names, the caller, and the request.
    async fn named<R>(
        &self,
        request: Request<R>,
        name: impl Fn(&R) -> &String,
    ) -> Result<(Log, Caller, R), Status> {
        let (metadata, extensions, request) = request.into_parts();
        let caller = Caller::of(&extensions);
        let log = self.host.find(&caller, name(&request), meant(&metadata).as_deref()).await?;
        Ok((log, caller, request))
    }

    fn place(&self, caller: &Caller) -> Result<CallPlace, Status> {
        let place = self.calls.take(caller, self.host.share_percent(), "wait for the log");
        place.map_err(|error| self.host.status_of(&error))
    }
}

#[tonic::async_trait]
impl Service for LogService {
    type AppendStream = Counted<AppendStream>;
    type ReadStream = ReadStream;
    type WatchStream = Counted<WatchStream>;

    async fn append(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let (metadata, extensions, requests) = request.into_parts();
        let held = extensions.get::<Ledger>().cloned().unwrap_or_default();
        let payer = self.options.budget.payer_of(&extensions);
        let (host, caller) = (self.host.clone(), Caller::of(&extensions));
        let stream = AppendStream::new(host, &self.options, requests, held, payer, caller, meant(&metadata));
        Ok(Response::new(Counted::new(stream, self.host.gauges(), Open::Appends)))
    }

    async fn append_together(
        &self,
        request: Request<AppendTogetherRequest>,
    ) -> Result<Response<AppendTogetherResponse>, Status> {
        together::append(&self.host, &self.options, request).await.map(Response::new)
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadStream>, Status> {
        let payer = self.options.budget.payer_of(request.extensions());
        let (caller, meant) = (Caller::of(request.extensions()), meant(request.metadata()));
        let replies = self.replies(request.get_ref(), &caller, meant.as_deref(), payer).await?;
        Ok(Response::new(ReadStream(replies)))
    }

    async fn discard(&self, request: Request<DiscardRequest>) -> Result<Response<DiscardResponse>, Status> {
        let (log, caller, DiscardRequest { first, .. }) = self.named(request, |request| &request.log).await?;
        self.answer(&caller, &log, |log| log.submit_discard(Index(first))).await?;
        Ok(Response::new(DiscardResponse {}))
    }

    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let (log, caller, InfoRequest { allow_stale, log: name }) =
            self.named(request, |request| &request.log).await?;
        if !allow_stale {
            let timeout = self.options.barrier_timeout;
            self.answer(&caller, &log, |log| log.submit_barrier(timeout)).await?;
        }
        // Of a named log it is in a file. An answer without it is better than none.
        let first_local = match self.host.is_default(&name) || log.options().vault.is_none() {
            true => log.first_local_index().ok(),
            false => self.waiting(&caller, log.clone(), Log::first_local_index).await.ok(),
        };
        Ok(Response::new(info::info_of(&self.host, &log, first_local)?))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (log, _, WatchRequest { interval_millis, log: name }) =
            self.named(request, |request| &request.log).await?;
        let named = !self.host.is_default(&name);
        let stream = info::watch(self.host.clone(), (log, named), interval_millis);
        Ok(Response::new(Counted::new(stream, self.host.gauges(), Open::Watches)))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let (log, caller, _) = self.named(request, |request| &request.log).await?;
        let session = self.waiting(&caller, log, |log| Ok(log.open_session()?.id())).await?;
        Ok(Response::new(OpenSessionResponse { session: session.get() }))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let (log, caller, CloseSessionRequest { session, .. }) =
            self.named(request, |request| &request.log).await?;
        let session = SessionId(session);
        self.waiting(&caller, log, move |log| log.resume_session(session, Sequence(1)).close()).await?;
        Ok(Response::new(CloseSessionResponse {}))
    }

    async fn server_info(
        &self,
        request: Request<ServerInfoRequest>,
    ) -> Result<Response<ServerInfoResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let name = request.into_inner().log;
        caller.claim(&name)?; // also if the answer is about the default log
        let default = self.host.default_log().ok();
        let named = match &*name {
            "" | DEFAULT_LOG => None,
            name if default.is_some() => match self.host.replica(&caller, name, None).await {
                Err(status) if status.code() == Code::NotFound => None,
                Err(status) => match default.zip(self.host.elsewhere(name)) {
                    Some((default, place)) => {
                        let mut response = info::server_info_elsewhere(default, &place);
                        response.logs.push(name.to_owned());
                        return Ok(Response::new(response));
                    }
                    None => return Err(status),
                },
                found => Some(found?),
            },
            _ => None,
        };
        let mut response = info::server_info(named.as_ref().or(default));
        response.logs.extend(named.map(|_| name));
        response.called_as = self.host.called_as().map_or(0, NodeId::get);
        Ok(Response::new(response))
    }
}
