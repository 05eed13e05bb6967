//! Link: the streams to one other replica, reopened whenever one breaks. The second stream has its own connection. It
//! is opened once the first is up and the peer has announced that it accepts a second one; until then its messages
//! wait.
//!
//! Invariants:
//! - The first attempts follow each other quickly; later ones come at least four times per election timeout.
//! - Messages that wait when an attempt fails are dropped: they would be outdated when they arrived.
//! - A closed link ends within twice [`LAST_WORD`].

use super::queue::{Queue, Which};
use super::traffic::Counters;
use super::{
    DEFAULT_GROUP, FEATURES, IDLE, MESSAGE_BYTES_MAX, PROTOCOL, SECOND_SILENCE, SECOND_STREAM, Shared,
};
use crate::wire::connect_error::{causes, is_tls};
use crate::wire::ids;
use crate::wire::proto::v1::PeerHello;
use crate::wire::proto::v1::peer_client::PeerClient;
use chiplog::NodeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};

const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The time to send a leader's last messages, which save the other replicas an election timeout. Applies twice.
pub(super) const LAST_WORD: Duration = Duration::from_millis(100);
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The connection to one replica.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    /// `host:port`.
    pub(super) address: String,
    pub(super) queue: Arc<Queue>,
    counters: Arc<Counters>,
    closed: watch::Sender<bool>,
}

impl Link {
    pub(super) fn new(node: NodeId, address: String, bytes_max: usize, counters: Arc<Counters>) -> Self {
        let queue = Arc::new(Queue::new(bytes_max, counters.clone()));
        Self { node, address, queue, counters, closed: watch::Sender::new(false) }
    }

    /// Closes the link for good; waiting messages get a short time to be sent.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
        self.counters.disconnected(); // from here on the counters belong to the next link
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }
}

/// A link counts while this exists: until it has ended, or its runtime.
pub(super) struct Counted(Arc<Shared>);

impl Counted {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.links.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.links.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps the streams open until the link is closed.
pub(super) async fn run(counted: Counted, link: Arc<Link>) {
    let shared = &counted.0;
    let mut closed = link.closed.subscribe();
    let keep = async {
        // The last failure, so that each is logged once.
        let mut logged: Option<(Code, bool)> = None;
        let mut backoff = BACKOFF_MIN;
        loop {
            if !shared.is_member(link.node)
                && tokio::time::timeout(IDLE, link.queue.filled()).await.is_err()
                && shared.retire(&link)
            {
                return;
            }
            let begun = Instant::now();
            let mut stood = false;
            let end = match connect(shared, &link).await {
                Ok(greeted) => {
                    stood = true;
                    logged = None;
                    let end = run_streams(shared, &link, greeted).await;
                    if !link.is_closed() {
                        link.counters.disconnected();
                    }
                    match end {
                        Some(end) => end,
                        None => return,
                    }
                }
                Err(status) => status,
            };
            if link.is_closed() {
                return;
            }
            link.queue.end_streams();
            link.queue.clear();
            let what = (end.code(), is_tls(&end));
            if logged != Some(what) {
                logged = Some(what);
                say(shared.group, &link, &end);
            }
            if stood && begun.elapsed() > shared.election_timeout {
                backoff = BACKOFF_MIN;
            }
            tokio::time::sleep(backoff).await;
            let max = (shared.election_timeout / 4).clamp(BACKOFF_MIN, Duration::from_secs(1));
            backoff = (backoff * 2).min(max);
        }
    };
    let last_word = async {
        let _ = closed.wait_for(|closed| *closed).await;
        let left = async {
            while !link.queue.is_empty() {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORD, left).await;
        link.queue.end_streams();
        tokio::time::sleep(LAST_WORD).await; // the peer ends the stream once it has received everything
    };
    tokio::select! {
        () = keep => {}
        () = last_word => {}
    }
    link.queue.end_streams();
    link.queue.clear();
}

fn say(group: u32, link: &Link, status: &Status) {
    let (log, node, address, why) = (log_of(group), link.node, &link.address, status.message());
    match status.code() {
        _ if is_tls(status) => {
            let why = causes(status);
            tracing::warn!(log, %node, address, why, "cannot connect to a peer: TLS handshake failed")
        }
        Code::FailedPrecondition | Code::PermissionDenied => {
            tracing::warn!(log, %node, address, why, "a peer or this replica rejected the connection")
        }
        _ => tracing::info!(log, %node, address, why, "cannot connect to a peer"),
    }
}

/// The log that servers replicate by the messages of this group, by the name that they know it by.
fn log_of(group: u32) -> String {
    match group {
        DEFAULT_GROUP => "default".to_owned(),
        1 => "_system".to_owned(),
        more => format!("_group-{}", more - 1),
    }
}

/// A first stream whose Hello was answered.
struct Greeted {
    answers: Streaming<PeerHello>,
    /// This replica's own Hello.
    hello: PeerHello,
    takes_second: bool,
}

/// Connects and introduces this replica.
async fn connect(shared: &Shared, link: &Link) -> Result<Greeted, Status> {
    let (me, to_directory) = {
        let state = shared.read();
        (state.me, state.members.get(&link.node).map_or(0, |known| known.directory.get()))
    };
    let me = me.ok_or_else(|| Status::unavailable("this replica is not open yet"))?;
    let hello = PeerHello {
        protocol: PROTOCOL,
        log_id: ids::to_bytes(me.log.get()),
        from: shared.node.get(),
        from_directory: ids::to_bytes(me.directory.get()),
        to: link.node.get(),
        to_directory: ids::to_bytes(to_directory),
        from_address: shared.address.clone(),
        features: FEATURES,
        stream: Which::First as u32,
        group: shared.group,
    };
    let (answers, answer) = dial(shared, link, Which::First, hello.clone()).await?;
    Ok(Greeted { answers, hello, takes_second: answer.features & SECOND_STREAM != 0 })
}

/// Opens one of the streams, on its own connection, so that urgent messages do not wait behind a full buffer.
async fn dial(
    shared: &Shared,
    link: &Link,
    which: Which,
    hello: PeerHello,
) -> Result<(Streaming<PeerHello>, PeerHello), Status> {
    let unavailable = |e: tonic::transport::Error| {
        let mut status = Status::unavailable(causes(&e));
        status.set_source(Arc::new(e));
        status
    };
    let silence = match which {
        Which::First => shared.silence(),
        Which::Second => SECOND_SILENCE.max(shared.silence()),
    };
    let endpoint = shared.endpoint(link.node, &link.address, silence).map_err(unavailable)?;
    let channel = endpoint.connect_with_connector(shared.connector()).await.map_err(unavailable)?;
    let mut client = PeerClient::new(channel)
        .max_decoding_message_size(64 << 10) // the peer sends only Hellos back
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let log = hello.log_id.clone();
    let outgoing = match which {
        Which::First => link.queue.first(hello),
        Which::Second => link.queue.second(hello),
    };
    let begin = async {
        let mut answers = client.messages(outgoing).await?.into_inner();
        let answer = answers.message().await?;
        Ok::<_, Status>((answers, answer.ok_or_else(|| Status::unavailable("the peer sent no greeting"))?))
    };
    let late = |_| Status::deadline_exceeded("the peer did not answer the greeting in time");
    let (answers, answer) = tokio::time::timeout(2 * shared.silence(), begin).await.map_err(late)??;
    if answer.from != link.node.get() || answer.log_id != log {
        let what = match answer.from == link.node.get() {
            true => format!("node {} answers at this address, but it has another log", answer.from),
            false => format!(
                "node {} answers at this address, but node {} is expected: correct the address of the member",
                answer.from, link.node
            ),
        };
        return Err(Status::failed_precondition(what));
    }
    if answer.protocol != PROTOCOL {
        let what = format!("the peer uses protocol {}; this replica uses {PROTOCOL}", answer.protocol);
        return Err(Status::failed_precondition(what));
    }
    Ok((answers, answer))
}

/// Runs until a stream breaks, and returns why. None: it was idle, and ended.
async fn run_streams(shared: &Shared, link: &Arc<Link>, greeted: Greeted) -> Option<Status> {
    let Greeted { answers: mut first, hello, takes_second } = greeted;
    let mut second = None;
    if takes_second {
        let hello = PeerHello { stream: Which::Second as u32, ..hello };
        tokio::select! {
            end = ended(&mut first) => return Some(end),
            dialled = dial(shared, link, Which::Second, hello) => match dialled {
                Ok((answers, _)) => second = Some(answers),
                Err(status) => return Some(status),
            },
        }
    } else {
        link.queue.without_second();
    }
    if !link.is_closed() {
        link.counters.connected();
    }
    tracing::debug!(node = %link.node, address = link.address, takes_second, "connected to a peer");
    let mut ticks = tokio::time::interval(IDLE);
    ticks.tick().await;
    let mut sent = None;
    loop {
        tokio::select! {
            end = ended(&mut first) => return Some(end),
            end = async {
                match &mut second {
                    Some(second) => ended(second).await,
                    None => std::future::pending().await,
                }
            } => return Some(end),
            _ = ticks.tick() => {
                let now = link.counters.read(link.node, 0).sent;
                if sent == Some(now) && !shared.is_member(link.node) && shared.retire(link) {
                    return None;
                }
                sent = Some(now);
            }
        }
    }
}

/// Waits until a stream has ended, and returns why. Cancel-safe.
async fn ended(answers: &mut Streaming<PeerHello>) -> Status {
    loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::unavailable("the peer ended the stream"),
            Err(status) => return status,
        }
    }
}
