//! Watch: the state of the log, now and at each change, from the leader, or without a leader from another replica.
//! While it watches another replica, it looks for the leader.
//!
//! Invariants:
//! - Nothing that was returned is taken back: `first` and `last` never decrease.
//! - Slow work continues when a caller stops waiting.

use super::discovery::Avoid;
use crate::client::retry::backoff::Backoff;
use crate::client::retry::deadline::{after, within};
use crate::client::{Client, ErrorClass};
use crate::wire::proto::v1::{InfoResponse, WatchRequest, WatchResponse};
use crate::wire::status::{from_status, leader_of};
use chiplog::{Error, ErrorKind, Index, LogId, NodeId, Result, Timestamp};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Streaming;

/// The state of a log, as a server reports it.
///
/// ```
/// # use chiplog_net::client::RemoteInfo;
/// fn records(info: &RemoteInfo) -> u64 {
///     info.last.next().get() - info.first.get()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteInfo {
    /// The log's permanent id; 0: unknown.
    pub log_id: LogId,
    /// The first record that is not discarded; in an empty log, the first one to come.
    pub first: Index,
    /// The last committed record; in an empty log `first - 1`.
    pub last: Index,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`.
    pub bytes_capacity: Option<u64>,
    /// The replica that reported this.
    pub node: NodeId,
    /// The leader, if it is known.
    pub leader: Option<NodeId>,
    /// The leader's address for clients, if it is known.
    pub leader_address: Option<String>,
    /// The first record in the files of that replica. Those before it, from `first` on, are in the object store: a read fetches them from
    /// there. None: it did not say; in what [`Watch`] returns.
    pub first_local: Option<Index>,
    /// Of a copy that reads objects: why its requests to the object store fail now. Not in what [`Watch`] returns.
    pub store_failure: Option<String>,
    /// Since when.
    pub store_failing_since: Option<Timestamp>,
}

impl From<InfoResponse> for RemoteInfo {
    fn from(reported: InfoResponse) -> Self {
        Self {
            log_id: LogId(u128::from_str_radix(&reported.log_id, 16).unwrap_or(0)),
            first: Index(reported.first),
            last: Index(reported.last),
            bytes_used: reported.bytes_used,
            bytes_capacity: (reported.capacity > 0).then_some(reported.capacity),
            node: NodeId(reported.node),
            leader: (reported.leader_node > 0).then_some(NodeId(reported.leader_node)),
            leader_address: (!reported.leader.is_empty()).then_some(reported.leader),
            first_local: (reported.first_local > 0).then_some(Index(reported.first_local)),
            store_failing_since: (!reported.store_failure.is_empty())
                .then_some(Timestamp(reported.store_failing_since_nanos / 1_000_000)),
            store_failure: (!reported.store_failure.is_empty()).then_some(reported.store_failure),
        }
    }
}

/// Watches the state of a log. Made by [`Client::watch`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
/// let mut watch = client.watch(std::time::Duration::from_millis(100));
/// println!("now up to {}", watch.next().await?.last);
/// client.producer(Default::default()).await?.append(b"x").await?.await?;
/// println!("then up to {}", watch.next().await?.last);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    client: Client,
    interval: Duration,
    stream: Option<Open>,
    /// At most one, while there is no stream.
    opening: JoinSet<Opened>,
    backoff: Backoff,
    /// Servers that failed recently.
    avoid: Avoid,
    /// The last state that was returned.
    reported: Option<RemoteInfo>,
    /// Since when nothing has worked.
    failing: Option<Instant>,
    /// The earliest time for the next stream.
    not_before: Instant,
}

#[derive(Debug)]
struct Open {
    server: String,
    stream: Streaming<WatchResponse>,
    /// Whether the server leads.
    leads: bool,
    /// When to look for a leader, if the server does not lead.
    look_at: Instant,
    /// Whether another server leads; at most one job.
    looking: JoinSet<bool>,
}

/// The result of opening a stream.
enum Opened {
    Stream(String, Streaming<WatchResponse>),
    Failed(Broken),
}

/// The error, the server that caused it, and the leader that it names.
struct Broken {
    error: Error,
    server: Option<String>,
    hint: Option<String>,
}

/// How often a watch at a replica that does not lead looks for a leader.
const LOOK: Duration = Duration::from_secs(1);

impl Watch {
    pub(crate) fn new(client: Client, interval: Duration) -> Self {
        let backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
        Self {
            client,
            interval,
            stream: None,
            opening: JoinSet::new(),
            backoff,
            avoid: Avoid::default(),
            reported: None,
            failing: None,
            not_before: Instant::now(),
        }
    }

    /// Returns the state of the log: at once the first time, then when it has changed. Waits for a change without a
    /// time limit, but up to `options.timeout` for a server to answer. Can be cancelled. After a switch to a
    /// replica that is slightly behind, the earlier `first` and `last` are returned with that replica's other fields.
    ///
    /// # Errors
    /// As [`Client::info_stale`]. The call can be repeated.
    #[allow(clippy::should_implement_trait, reason = "it waits")]
    pub async fn next(&mut self) -> Result<RemoteInfo> {
        loop {
            let Broken { error, server, hint } = match self.step().await {
                Ok(Some(info)) => return Ok(info),
                Ok(None) => continue,
                Err(broken) => broken,
            };
            self.stream = None;
            let servers = self.client.servers();
            if let Some(server) = server {
                servers.depose(&server);
                self.avoid.insert(server);
            }
            if let Some(hint) = hint {
                servers.suggest(&hint);
            }
            self.failing.get_or_insert_with(Instant::now);
            self.not_before = within(self.backoff.next());
            if ErrorClass::of(error.kind()) == ErrorClass::Fatal || self.not_before >= self.deadline() {
                self.failing = None;
                self.avoid.clear();
                return Err(error);
            }
        }
    }

    /// When to give up if nothing works until then.
    fn deadline(&self) -> Instant {
        after(self.failing.unwrap_or_else(Instant::now), self.client.options().timeout)
    }

    /// Can be cancelled at every wait.
    async fn step(&mut self) -> Result<Option<RemoteInfo>, Broken> {
        let deadline = self.deadline();
        let Some(open) = &mut self.stream else {
            if self.opening.is_empty() {
                let (client, avoid) = (self.client.clone(), self.avoid.clone());
                let opening = open(client, avoid, self.interval, self.not_before, deadline);
                self.opening.spawn(opening);
            }
            match self.opening.join_next().await {
                Some(Ok(Opened::Stream(server, stream))) => {
                    let (look_at, looking) = (within(LOOK), JoinSet::new());
                    self.stream = Some(Open { server, stream, leads: false, look_at, looking });
                }
                Some(Ok(Opened::Failed(broken))) => return Err(broken),
                _ => {
                    let error = Error::new(ErrorKind::Unavailable, "the watch's task ended");
                    return Err(Broken { error, server: None, hint: None });
                }
            }
            return Ok(None);
        };
        let looks = !open.looking.is_empty();
        tokio::select! {
            biased;
            message = open.stream.message() => match message {
                Ok(Some(WatchResponse { info: Some(info) })) => {
                    open.leads = info.leader_node > 0 && info.leader_node == info.node;
                    if open.leads {
                        self.avoid.clear();
                    }
                    self.failing = None;
                    self.backoff.reset();
                    Ok(self.news(info.into()))
                }
                Ok(_) => {
                    let error = Error::new(ErrorKind::Unavailable, "the server ended the watch");
                    Err(Broken { error, server: Some(open.server.clone()), hint: None })
                }
                Err(status) => Err(Broken {
                    error: from_status(&status),
                    server: Some(open.server.clone()),
                    hint: leader_of(&status),
                }),
            },
            found = open.looking.join_next(), if looks => {
                if matches!(found, Some(Ok(true))) {
                    self.stream = None;
                    self.avoid.clear();
                }
                Ok(None)
            }
            () = sleep_until(open.look_at), if !open.leads && !looks => {
                open.look_at = within(LOOK);
                open.looking.spawn(leader_elsewhere(self.client.clone(), open.server.clone()));
                Ok(None)
            }
        }
    }

    /// Returns what changed. A replica that is behind takes nothing back.
    fn news(&mut self, mut info: RemoteInfo) -> Option<RemoteInfo> {
        if let Some(reported) = self.reported.as_ref().filter(|reported| reported.log_id == info.log_id) {
            info.first = info.first.max(reported.first);
            info.last = info.last.max(reported.last);
            if info == *reported {
                return None;
            }
        }
        self.reported = Some(info.clone());
        Some(info)
    }
}

async fn open(
    client: Client,
    avoid: Avoid,
    interval: Duration,
    not_before: Instant,
    deadline: Instant,
) -> Opened {
    sleep_until(not_before).await;
    let failed = |error, server, hint| Opened::Failed(Broken { error, server, hint });
    let found = client.servers().leader_or_any(&avoid, deadline).await;
    let (server, mut stub) =
        match found.and_then(|server| Ok((client.servers().separate_client(&server)?, server))) {
            Ok((stub, server)) => (server, stub),
            Err(error) => return failed(error, None, None),
        };
    let interval_millis = interval.as_millis().min(u32::MAX.into()) as u32;
    let request = WatchRequest { log: client.log_name(), interval_millis };
    let until = deadline.min(within(client.options().attempt_timeout));
    match timeout_at(until, stub.watch(request)).await {
        Ok(Ok(stream)) => Opened::Stream(server, stream.into_inner()),
        Ok(Err(status)) => failed(from_status(&status), Some(server), leader_of(&status)),
        Err(_) => failed(
            Error::new(ErrorKind::Unavailable, "the server did not answer in time"),
            Some(server),
            None,
        ),
    }
}

/// Whether a server other than this replica leads, and answers; includes servers that failed before.
async fn leader_elsewhere(client: Client, server: String) -> bool {
    let servers = client.servers();
    servers.depose(&server);
    let soon = within(client.options().probe_timeout);
    let found = servers.leader_or_any(&Avoid::default(), soon).await;
    match found {
        // Other servers can reach a leader that this client cannot.
        Ok(leader) if servers.is_leader(&leader) && leader != server => {
            servers.learn(&leader).await.as_ref() == Some(&leader)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::cluster::discovery::Servers;
    use crate::client::{ClientOptions, Inner};
    use std::sync::Arc;
    use tokio::sync::OnceCell;

    /// After a leader change a watch returned fewer records than before: the new leader did not yet know the last
    /// commit.
    #[tokio::test]
    async fn watch_never_goes_back() {
        let servers = Servers::alone(vec!["127.0.0.1:1".to_owned()], ClientOptions::default());
        let client = Client {
            inner: Arc::new(Inner { options: ClientOptions::default(), servers, system: OnceCell::new() }),
        };
        let mut watch = Watch::new(client, Duration::ZERO);
        let reported = |node, first, last| {
            let log_id = "1f".to_owned();
            RemoteInfo::from(InfoResponse { node, first, last, log_id, ..Default::default() })
        };
        assert_eq!(watch.news(reported(1, 2, 10)), Some(reported(1, 2, 10)));
        assert_eq!(watch.news(reported(2, 1, 7)), Some(reported(2, 2, 10)));
        assert_eq!(watch.news(reported(2, 1, 8)), None);
        assert_eq!(watch.news(reported(2, 2, 11)), Some(reported(2, 2, 11)));
    }
}
