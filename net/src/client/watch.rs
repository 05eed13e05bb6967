//! Watch: how the log stands, now and whenever that changes.

use super::backoff::Backoff;
use super::{Client, ErrorClass};
use crate::proto::v1::{InfoResponse, WatchRequest, WatchResponse};
use crate::status::{from_status, leader_of};
use chiplog::{Error, ErrorKind, Index, LogId, NodeId, Result};
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
    stream: Option<(String, Streaming<WatchResponse>)>,
    backoff: Backoff,
}

impl Watch {
    pub(super) fn new(client: Client, interval: Duration) -> Self {
        let backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
        Self { client, interval, stream: None, backoff }
    }

    /// How the log stands, at once the first time, then when it has changed. Waits for that as long as it takes; for
    /// a server that answers, as long as `options.timeout`. Can be cancelled.
    ///
    /// # Errors
    /// As [`Client::info`]. It can be called again.
    #[allow(clippy::should_implement_trait, reason = "it waits")]
    pub async fn next(&mut self) -> Result<RemoteInfo> {
        let mut deadline = None;
        loop {
            let (error, leader, hint) = match &mut self.stream {
                Some((leader, stream)) => match stream.message().await {
                    Ok(Some(WatchResponse { info: Some(info) })) => {
                        self.backoff.reset();
                        return Ok(info.into());
                    }
                    Ok(_) => (
                        Error::new(ErrorKind::Unavailable, "the server ended the watch"),
                        leader.clone(),
                        None,
                    ),
                    Err(status) => (from_status(&status), leader.clone(), leader_of(&status)),
                },
                None => {
                    let deadline = *deadline.get_or_insert_with(|| self.client.deadline());
                    match self.open(deadline).await? {
                        None => continue,
                        Some((error, leader)) => (error, leader, None),
                    }
                }
            };
            self.stream = None;
            if ErrorClass::of(error.kind()) == ErrorClass::Fatal {
                return Err(error);
            }
            self.client.servers().doubt(&leader);
            if let Some(hint) = hint {
                self.client.servers().suggest(&hint);
            }
            let wait = self.backoff.next();
            if Instant::now() + wait >= *deadline.get_or_insert_with(|| self.client.deadline()) {
                return Err(error);
            }
            sleep(wait).await;
        }
    }

    /// Some: who was asked, and what the matter is.
    async fn open(&mut self, deadline: Instant) -> Result<Option<(Error, String)>> {
        let leader = self.client.servers().leader(deadline).await?;
        let mut client = self.client.servers().client(&leader)?;
        let interval_millis = self.interval.as_millis().min(u32::MAX.into()) as u32;
        let request = WatchRequest { log: self.client.log_name(), interval_millis };
        match timeout(self.client.options().attempt_timeout, client.watch(request)).await {
            Ok(Ok(stream)) => self.stream = Some((leader, stream.into_inner())),
            Ok(Err(status)) => return Ok(Some((from_status(&status), leader))),
            Err(_) => return Ok(Some((Error::new(ErrorKind::Unavailable, "no answer in time"), leader))),
        }
        Ok(None)
    }
}
