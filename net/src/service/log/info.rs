//! Info: the state of the log and of the server, once or at each change.

use crate::served::elsewhere::Elsewhere;
use crate::served::log_slot::{LogSlot, status_of};
use crate::wire::address::Address;
use crate::wire::ids::to_hex;
use crate::wire::proto::v1::{InfoResponse, Server, ServerInfoResponse, WatchResponse};
use crate::wire::protocol::{
    FEATURE_FOLLOW, FEATURE_FOLLOW_LOG, FEATURE_FOLLOW_OBJECTS, FEATURE_FOLLOW_PLACES, PROTOCOL,
};
use chiplog::cluster::{Member, ReplicaStatus};
use chiplog::limits::BATCH_RECORDS_MAX;
use chiplog::{Error, ErrorKind, Index, Log, NodeId};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_stream::Stream;
use tonic::Status;

/// The features that a client can rely on.
const FEATURES: &[&str] = &[
    "append",
    "append.logs",
    "append.together",
    "sessions",
    "read",
    "read.min_index",
    "discard",
    "watch",
    FEATURE_FOLLOW,
    FEATURE_FOLLOW_PLACES,
    FEATURE_FOLLOW_LOG,
    FEATURE_FOLLOW_OBJECTS,
];

/// The default interval of a watch.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The state of the log, as this replica knows it.
///
/// # Errors
/// NOT_FOUND: it was deleted.
fn info(log: &Log) -> Result<InfoResponse, Status> {
    // A handle of a deleted log keeps its last state.
    if let Err(error) = log.check_room(0)
        && error.kind() == ErrorKind::NotFound
    {
        return Err(status_of(log, &error));
    }
    let status = log.status();
    let replica = &status.replica;
    Ok(InfoResponse {
        first: status.first_index.get(),
        last: status.last_index.get(),
        bytes_used: status.bytes_used,
        capacity: status.bytes_capacity.unwrap_or(0),
        log_id: to_hex(status.log_id.get()),
        node: replica.node.get(),
        leader_node: replica.leader.map_or(0, |n| n.get()),
        leader: leader(replica).map(|(_, address)| address.client).unwrap_or_default(),
        ..InfoResponse::default()
    })
}

/// The same once, with the first record in the files, if that is known; of a copy also whether its object store works. A server's status
/// has that of a server.
///
/// # Errors
/// NOT_FOUND: the log was deleted.
pub(super) fn info_of(host: &LogSlot, log: &Log, first_local: Option<Index>) -> Result<InfoResponse, Status> {
    let mut response = info(log)?;
    // The log can begin later by now.
    response.first_local = first_local.map_or(0, |first| first.get().max(response.first));
    if log.status().follows
        && let Some(failure) = host.store_failure()
    {
        response.store_failure = failure.why;
        response.store_failing_since_nanos = failure.since.get().saturating_mul(1_000_000);
    }
    Ok(response)
}

fn leader(replica: &ReplicaStatus) -> Option<(&Member, Address)> {
    let member = replica.members.iter().find(|m| Some(m.node) == replica.leader)?;
    Some((member, member.address.parse().ok()?))
}

/// The data of a server that does not run the log: where it runs.
pub(super) fn server_info_elsewhere(default: &Log, place: &Elsewhere) -> ServerInfoResponse {
    let mut response = server_info(Some(default));
    response.log_id = to_hex(place.log_id.get());
    let server = |(node, address): &(NodeId, Address)| Server {
        node: node.get(),
        address: address.client.clone(),
        zone: address.zone.clone(),
        leader: false,
    };
    response.servers = place.servers.iter().map(server).collect();
    (response.term, response.elsewhere) = (0, true);
    response
}

/// The data of the server, and of its cluster, if it belongs to one.
pub(super) fn server_info(log: Option<&Log>) -> ServerInfoResponse {
    let mut response = ServerInfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_min: *PROTOCOL.start(),
        protocol_max: *PROTOCOL.end(),
        features: FEATURES.iter().map(|f| (*f).to_owned()).collect(),
        batch_records_max: BATCH_RECORDS_MAX,
        ..Default::default()
    };
    let Some(log) = log else { return response };
    let (status, options) = (log.status(), log.options());
    let replica = &status.replica;
    response.log_id = to_hex(status.log_id.get());
    response.follows = status.follows;
    // A client of a follower wants this follower: it must not be sent to the cluster.
    for member in replica.members.iter().filter(|_| !status.follows) {
        // A log without a cluster has no address: its clients know the address that they used.
        let Ok(address) = member.address.parse::<Address>() else { continue };
        if member.node == replica.node {
            response.zone.clone_from(&address.zone);
        }
        let leader = Some(member.node) == replica.leader;
        let Address { client, zone, .. } = address;
        response.servers.push(Server { node: member.node.get(), address: client, zone, leader });
    }
    response.batch_bytes_max = options.batch_bytes_max;
    response.record_bytes_max = log.record_bytes_max();
    response.session_window = log.session_window().into();
    response.logs = vec![crate::served::log_slot::DEFAULT_LOG.to_owned()];
    response.node = replica.node.get();
    response.term = if status.follows { 0 } else { replica.term.get() };
    response
}

/// The changes of a log. It ends with NOT_FOUND when the log is deleted.
#[derive(Debug)]
pub struct WatchStream {
    host: Arc<LogSlot>,
    log: Log,
    /// The log shares a group.
    named: bool,
    interval: Interval,
    sent: Option<InfoResponse>,
}

pub(super) fn watch(host: Arc<LogSlot>, (log, named): (Log, bool), interval_millis: u32) -> WatchStream {
    let asked = Duration::from_millis(interval_millis.into());
    let period = if asked.is_zero() { WATCH_INTERVAL } else { asked.max(WATCH_INTERVAL_MIN) };
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    WatchStream { host, log, named, interval, sent: None }
}

impl WatchStream {
    /// Whether a state differs from the one that was sent. The size of a group is no change of a log in it.
    fn is_news(&self, now: &InfoResponse) -> bool {
        let Some(sent) = &self.sent else { return true };
        let bytes_used = if self.named { sent.bytes_used } else { now.bytes_used };
        InfoResponse { bytes_used, ..now.clone() } != *sent
    }
}

impl Stream for WatchStream {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.interval.poll_tick(context).is_pending() {
                return Poll::Pending;
            }
            if self.host.is_draining() {
                let error = Error::new(ErrorKind::Unavailable, "this server is shutting down");
                return Poll::Ready(Some(Err(status_of(&self.log, &error))));
            }
            // So does one of a group that has left this server.
            let is_closed = |error: Error| error.kind() == ErrorKind::Closed;
            if self.named && self.log.check_room(0).is_err_and(is_closed) {
                let error = Error::new(ErrorKind::Unavailable, "this server does not run the log any more");
                return Poll::Ready(Some(Err(status_of(&self.log, &error))));
            }
            let now = match info(&self.log) {
                Ok(now) => now,
                Err(status) => return Poll::Ready(Some(Err(status))),
            };
            if self.is_news(&now) {
                self.sent = Some(now.clone());
                return Poll::Ready(Some(Ok(WatchResponse { info: Some(now) })));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds are documented in log.proto.
    #[tokio::test]
    async fn watch_polls_at_most_every_10_ms() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        for (asked, period) in [(0, 100), (1, 10), (9, 10), (10, 10), (11, 11), (u32::MAX, u32::MAX)] {
            let watch = watch(LogSlot::new(), (log.clone(), false), asked);
            assert_eq!(watch.interval.period(), Duration::from_millis(period.into()), "{asked}");
        }
    }
}
