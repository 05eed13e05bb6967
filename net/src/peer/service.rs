//! Service: receives the streams of the other replicas.

use super::certificate::check_node;
use super::link::{LAST_WORD, LOOK_INTERVAL};
use super::queue::Which;
use super::{
    Arriving, Caller, Common, FEATURES, IDLE, MESSAGE_BYTES_MAX, Me, PROTOCOL, SECOND_SILENCE, Shared,
    WINDOW_BYTES, host, peer_part,
};
use crate::listener;
use crate::listener::Settings;
use crate::listener::connection_info::ConnectionInfo;
use crate::listener::memory_budget;
use crate::wire::ids;
use crate::wire::proto::v1::peer_server::{Peer, PeerServer};
use crate::wire::proto::v1::{
    AllowSystemLogRequest, AllowSystemLogResponse, HostRequest, HostResponse, PeerEnvelope, PeerHello,
    PeerMessage, ViewRequest, ViewResponse, peer_message,
};
use chiplog::cluster::MEMBERS_MAX;
use chiplog::transport::{Envelope, Inbox};
use chiplog::{DirectoryId, LogId, NodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The limit of incoming connections: each replica has two, and some that it is closing.
const CONNECTIONS_MAX: usize = 8 * MEMBERS_MAX;
/// The limit of connections from one address: enough for a whole cluster of the largest size on one host. It keeps a
/// stranger on one host from blocking replicas of other hosts.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 2 * MEMBERS_MAX;
/// The limit of streams on one connection.
const STREAMS_MAX: u32 = 8;
/// A larger message is not urgent, whichever stream it came by.
const URGENT_BYTES_MAX: usize = 64 << 10;

/// Accepts streams until the transport is closed.
pub(super) async fn serve(shared: Arc<Common>, listener: TcpListener) {
    let service =
        PeerServer::new(PeerService { common: shared.clone() }).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let service = memory_budget::introduced(service, MESSAGE_BYTES_MAX);
    let mut settings = Settings::default();
    (settings.limits.connections, settings.limits.streams) = (CONNECTIONS_MAX, STREAMS_MAX);
    settings.limits.connections_per_address = CONNECTIONS_PER_ADDRESS_MAX;
    settings.tls = shared.tls.as_ref().map(|tls| tls.server.clone());
    settings.refusals = shared.refusals.clone();
    settings.unacknowledged = Some(shared.unacknowledged());
    let mut server = listener::server_with(&settings.limits)
        .accept_http1(false)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .http2_keepalive_interval(Some(shared.election_timeout / 2))
        .http2_keepalive_timeout(Some(SECOND_SILENCE.max(2 * shared.silence())));
    let mut closing = shared.closing.subscribe();
    let serving = async {
        let connections = listener::plain(listener, settings);
        if let Err(error) = server.add_service(service).serve_with_incoming(connections).await {
            tracing::error!(%error, "the listener for peers ended");
        }
        // This replica's own messages are still sent.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        () = async {
            let _ = closing.wait_for(|closing| *closing).await;
            let until = Instant::now() + LAST_WORD * 3;
            while shared.links.load(Ordering::Relaxed) > 0 && Instant::now() < until {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        } => {}
    }
}

struct PeerService {
    common: Arc<Common>,
}

/// A sender whose Hello was accepted.
struct Sender {
    me: Me,
    node: NodeId,
    directory: DirectoryId,
    which: Which,
    inbox: Inbox,
    replaced: oneshot::Receiver<()>,
}

#[tonic::async_trait]
impl Peer for PeerService {
    type MessagesStream = ReceiverStream<Result<PeerHello, Status>>;

    async fn messages(
        &self,
        request: Request<Streaming<PeerMessage>>,
    ) -> Result<Response<Self::MessagesStream>, Status> {
        let arrival = request.extensions().get::<ConnectionInfo>().cloned();
        let mut incoming = request.into_inner();
        let late = |_| Status::deadline_exceeded("no Hello arrived in time");
        let first = tokio::time::timeout(IDLE, incoming.message()).await.map_err(late)??;
        let Some(peer_message::Message::Hello(hello)) = first.and_then(|m| m.message) else {
            return Err(Status::failed_precondition("a stream must begin with a Hello"));
        };
        let admitted = check_node(&self.common, NodeId(hello.from), arrival.as_ref()).and_then(|()| {
            let not_open = || Status::unavailable("this replica is not open");
            let shared = self.common.known_group(hello.group).ok_or_else(not_open)?;
            admit(&shared, &hello).map(|sender| (shared, sender))
        });
        let (shared, sender) = admitted.inspect_err(|status| {
            tracing::debug!(
                from = hello.from,
                group = hello.group,
                why = status.message(),
                "rejected a peer"
            );
        })?;
        if let Some(arrival) = &arrival {
            arrival.prove();
        }
        let answer = PeerHello {
            protocol: PROTOCOL,
            log_id: hello.log_id,
            from: shared.node.get(),
            from_directory: ids::to_bytes(sender.me.directory.get()),
            to: hello.from,
            to_directory: hello.from_directory,
            from_address: shared.address.clone(),
            features: FEATURES,
            stream: hello.stream,
            group: hello.group,
        };
        let (answers, outgoing) = mpsc::channel(2);
        let _ = answers.try_send(Ok(answer));
        tokio::spawn(async move {
            let status = receive(&shared, sender, incoming).await;
            let _ = answers.try_send(Err(status));
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn host(&self, request: Request<HostRequest>) -> Result<Response<HostResponse>, Status> {
        host::answer(&self.common, request).await.map(Response::new)
    }

    async fn view(&self, request: Request<ViewRequest>) -> Result<Response<ViewResponse>, Status> {
        host::answer_view(&self.common, request).await.map(Response::new)
    }

    async fn allow_system_log(
        &self,
        request: Request<AllowSystemLogRequest>,
    ) -> Result<Response<AllowSystemLogResponse>, Status> {
        host::answer_allow_system_log(&self.common, request).await.map(Response::new)
    }
}

/// Checks a Hello, and ends earlier streams of the same sender. A first stream ends all of them.
///
/// # Errors
/// FAILED_PRECONDITION with the reason; UNAVAILABLE: the log is not open.
fn admit(shared: &Shared, hello: &PeerHello) -> Result<Sender, Status> {
    let refuse = |what: String| Err(Status::failed_precondition(what));
    let id = |bytes: &[u8]| {
        ids::from_bytes(bytes).ok_or_else(|| Status::failed_precondition("an id must have 16 bytes"))
    };
    if hello.protocol != PROTOCOL {
        return refuse(format!("the caller uses protocol {}; this replica uses {PROTOCOL}", hello.protocol));
    }
    let which = match hello.stream {
        0 => Which::First,
        1 => Which::Second,
        n => return refuse(format!("stream {n} is unknown; this replica accepts streams 0 and 1")),
    };
    let (log, directory) = (id(&hello.log_id)?, DirectoryId(id(&hello.from_directory)?));
    let (node, to_directory) = (NodeId(hello.from), id(&hello.to_directory)?);
    let mut state = shared.write();
    let (Some(inbox), Some(me)) = (state.inbox.clone(), state.me) else {
        let caller = Caller { log: LogId(log), node, as_node: NodeId(hello.to) };
        state.called = Some((caller, Instant::now()));
        return Err(Status::unavailable("this replica is not open"));
    };
    if log != me.log.get() {
        return refuse(format!(
            "the caller has log {}, this replica has log {}",
            ids::to_hex(log),
            ids::to_hex(me.log.get())
        ));
    }
    if hello.to != shared.node.get() {
        return refuse(format!("the stream is for node {}; this is node {}", hello.to, shared.node));
    }
    if node.is_none() || node == shared.node {
        return refuse(format!(
            "the caller is node {node}, which is the number of this node, or none: give each server its own"
        ));
    }
    if directory.get() == 0 {
        return refuse(format!("node {node} sent no directory id"));
    }
    if to_directory != 0 && to_directory != me.directory.get() {
        return refuse(format!(
            "the directory of node {} has another id: its disk was emptied or replaced",
            shared.node
        ));
    }
    match state.members.get(&node) {
        Some(known) if known.directory.get() != 0 && known.directory != directory => {
            return refuse(format!("node {node} has a directory id that the cluster does not know"));
        }
        Some(_) => {}
        None => {
            if let Some(address) = peer_part(&hello.from_address) {
                state.keep_address(node, address);
            }
        }
    }
    if state.arriving.len() >= 2 * MEMBERS_MAX && !state.arriving.contains_key(&node) {
        state.arriving.retain(|_, stream| !stream.is_closed());
        if state.arriving.len() >= 2 * MEMBERS_MAX {
            return Err(Status::resource_exhausted("too many streams of other nodes"));
        }
    }
    let (stream, replaced) = oneshot::channel();
    let arriving = state.arriving.entry(node).or_default();
    match which {
        Which::First => *arriving = Arriving { first: Some(stream), second: None },
        Which::Second => arriving.second = Some(stream),
    }
    Ok(Sender { me, node, directory, which, inbox, replaced })
}

/// Delivers messages until the stream ends; returns why it ended.
async fn receive(shared: &Shared, sender: Sender, mut incoming: Streaming<PeerMessage>) -> Status {
    let Sender { me, node, directory, which, inbox, mut replaced } = sender;
    let counters = {
        let mut state = shared.write();
        state.counters(node)
    };
    loop {
        let message = tokio::select! {
            biased;
            _ = &mut replaced => return Status::aborted("replaced by another stream of the same node"),
            message = incoming.message() => message,
        };
        let envelope = match message {
            Ok(Some(PeerMessage { message: Some(peer_message::Message::Envelope(envelope)) })) => envelope,
            Ok(Some(_)) => return Status::invalid_argument("only messages may follow the Hello"),
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        };
        let PeerEnvelope { head, bodies, to_directory } = envelope;
        let Some(to_directory) = ids::from_bytes(&to_directory) else {
            return Status::invalid_argument("an id must have 16 bytes");
        };
        let mut envelope = Envelope {
            log: LogId(me.log.get()),
            from: node,
            from_directory: directory,
            to: shared.node,
            to_directory: DirectoryId(to_directory),
            head,
            bodies,
            urgent: false,
        };
        let bytes = envelope.bytes();
        envelope.urgent = which == Which::First && bytes <= URGENT_BYTES_MAX;
        counters.received(bytes);
        inbox.deliver(envelope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `net/tests/secure` tests these bounds: `limits.rs` (connections, with the same code at every listener) and
    /// `peers.rs` (streams).
    #[test]
    fn limits_match_the_docs() {
        assert_eq!((CONNECTIONS_MAX, STREAMS_MAX, MEMBERS_MAX), (512, 8, 64));
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
        let page = std::fs::read_to_string(page).unwrap();
        for said in [
            format!("limits of its own: {CONNECTIONS_MAX} connections"),
            format!("{CONNECTIONS_PER_ADDRESS_MAX} of one address"),
            format!("{STREAMS_MAX} streams each"),
            format!("at most {MEMBERS_MAX} members"),
        ] {
            assert!(page.contains(&said), "docs/security.md does not say: {said}");
        }
    }
}
