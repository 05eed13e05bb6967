//! Bare: messages of 1 MiB over gRPC on this machine, from a server that has them in memory: the rate of the library
//! when no process does anything else. The server is a process of its own, as the log's is. The messages are those of a
//! service whose generated code is available, one field of bytes.

use super::process::{Own, Running, free_addresses};
use anyhow::{Result, ensure};
use bytes::Bytes;
use chiplog_net::listener;
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::log_server::{Log, LogServer};
use chiplog_net::wire::proto::logspec::read_reply::{Ok as Entries, Reply};
use chiplog_net::wire::proto::logspec::{
    AppendReply, DiscardReply, DiscardRequest, Entry, InfoReply, InfoRequest, ReadReply, ReadRequest,
};
use std::path::Path;
use std::pin::Pin;
use std::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status, Streaming};

const MESSAGE_BYTES: usize = 1 << 20;
/// The same as the log's client requests.
const FRAME_BYTES: u32 = 256 << 10;
const WINDOW_BYTES: u32 = 4 << 20;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Bare {
    message: Bytes,
}

#[tonic::async_trait]
impl Log for Bare {
    type AppendStream = Replies<AppendReply>;
    type ReadStream = Replies<ReadReply>;
    type InfoStreamStream = Replies<InfoReply>;

    /// The number of messages is in the request.
    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let data = self.message.clone();
        let reply = move |index| {
            let entries = vec![Entry { index, skip: false, data: data.clone() }];
            Ok(ReadReply { reply: Some(Reply::Ok(Entries { entries })) })
        };
        let count = request.into_inner().next_index;
        Ok(Response::new(Box::pin(tokio_stream::iter((0..count).map(reply)))))
    }

    async fn append(
        &self,
        _: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        Err(Status::unimplemented("it only sends"))
    }

    async fn discard(&self, _: Request<DiscardRequest>) -> Result<Response<DiscardReply>, Status> {
        Err(Status::unimplemented("it only sends"))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoReply>, Status> {
        Err(Status::unimplemented("it only sends"))
    }

    async fn info_stream(&self, _: Request<InfoRequest>) -> Result<Response<Self::InfoStreamStream>, Status> {
        Err(Status::unimplemented("it only sends"))
    }
}

/// Serves messages at this address until the process ends.
///
/// # Errors
/// Errors of the listener.
pub(crate) fn serve(address: &str) -> Result<()> {
    super::block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let message = fastrand_bytes();
        let service = LogServer::new(Bare { message }).max_encoding_message_size(usize::MAX);
        listener::server().add_service(service).serve_with_incoming(listener::incoming(listener)).await?;
        Ok(())
    })
}

fn fastrand_bytes() -> Bytes {
    let mut bytes = vec![0; MESSAGE_BYTES];
    fastrand::fill(&mut bytes);
    bytes.into()
}

/// A server of bare messages.
#[derive(Debug)]
pub(crate) struct BareServer {
    address: String,
    _running: Running,
}

impl BareServer {
    /// # Errors
    /// The server does not start.
    pub(crate) fn start(own: &Own, dir: &Path) -> Result<Self> {
        let address = free_addresses(1)?.remove(0);
        let mut running = Running::start_own(own, "bare-messages", [&address], dir.join("said-bare"))?;
        running.listens(&address)?;
        Ok(Self { address, _running: running })
    }

    /// Receives about this many bytes; returns bytes a second.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(crate) fn receive(&self, bytes: u64) -> Result<f64> {
        let count = bytes.div_ceil(MESSAGE_BYTES as u64);
        super::block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?
                .tcp_nodelay(true)
                .max_frame_size(FRAME_BYTES)
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(2 * WINDOW_BYTES);
            let mut client = LogClient::new(endpoint.connect().await?).max_decoding_message_size(usize::MAX);
            let begun = Instant::now();
            let mut stream = client.read(ReadRequest { next_index: count }).await?.into_inner();
            let mut received = 0;
            while let Some(reply) = stream.next().await {
                if let Some(Reply::Ok(Entries { entries })) = reply?.reply {
                    received += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
                }
            }
            ensure!(received == count * MESSAGE_BYTES as u64, "{received} bytes came");
            Ok(received as f64 / begun.elapsed().as_secs_f64())
        })
    }
}
