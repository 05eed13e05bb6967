//! Watch: how the log stands, now and whenever that changes: as the leader tells, or without one as another replica
//! knows. While it is another one, the leader is looked for.

use super::backoff::Backoff;
use super::{Client, ErrorClass};
use crate::proto::v1::{InfoResponse, WatchRequest, WatchResponse};
use crate::status::{from_status, leader_of};
use chiplog::{Error, ErrorKind, Index, LogId, NodeId, Result};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;

/// How a log stands, as a server tells.
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
    /// The log's name for ever; 0: not told.
    pub log_id: LogId,
    /// The first record that is not discarded; of an empty log, the first one to come.
    pub first: Index,
    /// The last committed record; of an empty log `first - 1`.
    pub last: Index,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`.
    pub bytes_capacity: Option<u64>,
    /// The replica that tells.
    pub node: NodeId,
    /// Who leads, if that is known.
    pub leader: Option<NodeId>,
    /// Where it serves clients, if that is known.
    pub leader_address: Option<String>,
}

impl From<InfoResponse> for RemoteInfo {
    fn from(told: InfoResponse) -> Self {
        Self {
            log_id: LogId(u128::from_str_radix(&told.log_id, 16).unwrap_or(0)),
            first: Index(told.first),
            last: Index(told.last),
            bytes_used: told.bytes_used,
            bytes_capacity: (told.capacity > 0).then_some(told.capacity),
            node: NodeId(told.node),
            leader: (told.leader_node > 0).then_some(NodeId(told.leader_node)),
            leader_address: (!told.leader.is_empty()).then_some(told.leader),
        }
    }
}

/// Follows how a log stands. Made by [`Client::watch`].
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
    backoff: Backoff,
    /// Failed lately.
    avoid: BTreeSet<String>,
}

#[derive(Debug)]
struct Open {
    server: String,
    stream: Streaming<WatchResponse>,
    /// The server says that it leads.
    leads: bool,
}

/// How often a watch at another replica looks whether there is a leader.
const LOOK: Duration = Duration::from_secs(1);

impl Watch {
    pub(super) fn new(client: Client, interval: Duration) -> Self {
        let backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
        Self { client, interval, stream: None, backoff, avoid: BTreeSet::new() }
    }

    /// How the log stands, at once the first time, then when it has changed. Waits for that as long as it takes; for
    /// a server that answers, as long as `options.timeout`. Can be cancelled. When it goes on at another replica, that
    /// one can be a moment behind the one before.
    ///
    /// # Errors
    /// As [`Client::info_stale`]. It can be called again.
    #[allow(clippy::should_implement_trait, reason = "it waits")]
    pub async fn next(&mut self) -> Result<RemoteInfo> {
        let mut deadline = None;
        loop {
            let broken = match &mut self.stream {
                None => {
                    let deadline = *deadline.get_or_insert_with(|| self.client.deadline());
                    match self.open(deadline).await? {
                        None => continue,
                        Some(broken) => broken,
                    }
                }
                Some(open) => {
                    let look = if open.leads { Duration::MAX } else { LOOK };
                    match timeout(look, open.stream.message()).await {
                        Err(_) => {
                            self.look_for_leader().await;
                            continue;
                        }
                        Ok(Ok(Some(WatchResponse { info: Some(info) }))) => {
                            open.leads = info.leader_node > 0 && info.leader_node == info.node;
                            if open.leads {
                                self.avoid.clear();
                            }
                            self.backoff.reset();
                            return Ok(info.into());
                        }
                        Ok(Ok(_)) => {
                            let error = Error::new(ErrorKind::Unavailable, "the server ended the watch");
                            (error, open.server.clone(), None)
                        }
                        Ok(Err(status)) => (from_status(&status), open.server.clone(), leader_of(&status)),
                    }
                }
            };
            let (error, server, hint) = broken;
            self.stream = None;
            if ErrorClass::of(error.kind()) == ErrorClass::Fatal {
                return Err(error);
            }
            self.client.servers().doubt(&server);
            self.avoid.insert(server);
            if let Some(hint) = hint {
                self.client.servers().suggest(&hint);
            }
            let wait = self.backoff.next();
            if Instant::now() + wait >= *deadline.get_or_insert_with(|| self.client.deadline()) {
                self.avoid.clear();
                return Err(error);
            }
            sleep(wait).await;
        }
    }

    /// Some: what the matter is, and with whom.
    async fn open(&mut self, deadline: Instant) -> Result<Option<(Error, String, Option<String>)>> {
        let server = self.client.servers().leader_or_any(&self.avoid, deadline).await?;
        let mut client = self.client.servers().client(&server)?;
        let interval_millis = self.interval.as_millis().min(u32::MAX.into()) as u32;
        let request = WatchRequest { log: self.client.log_name(), interval_millis };
        let wait =
            self.client.options().attempt_timeout.min(deadline.saturating_duration_since(Instant::now()));
        match timeout(wait, client.watch(request)).await {
            Ok(Ok(stream)) => {
                self.stream = Some(Open { server, stream: stream.into_inner(), leads: false });
                Ok(None)
            }
            Ok(Err(status)) => Ok(Some((from_status(&status), server, leader_of(&status)))),
            Err(_) => Ok(Some((Error::new(ErrorKind::Unavailable, "no answer in time"), server, None))),
        }
    }

    /// Leaves a replica that does not lead for one that does, if there is one.
    async fn look_for_leader(&mut self) {
        let Some(open) = &self.stream else { return };
        let servers = self.client.servers();
        servers.depose(&open.server);
        let soon = Instant::now() + self.client.options().probe_timeout;
        let found = servers.leader_or_any(&self.avoid, soon).await;
        if found.is_ok_and(|leader| servers.is_leader(&leader) && leader != open.server) {
            self.stream = None;
        }
    }
}
