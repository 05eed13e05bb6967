//! Host: the call by which the leader of a group gets an empty replica of it on another server.
//!
//! Invariants:
//! - Only a member of the default log of the same cluster gets a replica here. Under TLS its certificate names it.
//! - One replica is made at a time, also if a caller has stopped waiting for its own.
//! - A call makes no state for a group: only the callback does, for the numbers that a server's groups can have.

use super::certificate::check_node;
use super::{Common, DEFAULT_GROUP, GROUPS_MAX, PROTOCOL, Shared};
use crate::listener::connection_info::ConnectionInfo;
use crate::wire::connect_error::causes;
use crate::wire::ids;
use crate::wire::proto::v1::peer_client::PeerClient;
use crate::wire::proto::v1::{HostRequest, HostResponse};
use crate::wire::status::{from_status, to_status};
use chiplog::{DirectoryId, Error, ErrorKind, LogId, NodeId};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tonic::{Request, Status};

/// Makes an empty replica of a group's log, or returns the one that is there: called with the number of the group and the
/// id of its log, on a thread that may block.
pub type Host = Box<dyn Fn(u32, LogId) -> chiplog::Result<DirectoryId> + Send + Sync>;

/// Asks a server for a replica.
pub(super) async fn ask(
    shared: &Shared,
    node: NodeId,
    address: &str,
    group: u32,
    log: LogId,
    timeout: Duration,
) -> chiplog::Result<DirectoryId> {
    let of = match group - DEFAULT_GROUP {
        1 => "the system log".to_owned(),
        number => format!("group {}", number.saturating_sub(1)), // as commands and files number the groups
    };
    let unavailable = |why: String| {
        Error::new(
            ErrorKind::Unavailable,
            format!("node {node} at {address} makes no replica of {of}: {why}"),
        )
    };
    let Some(me) = shared.read().me else {
        return Err(unavailable("the default log is not open here".into()));
    };
    let request = HostRequest {
        protocol: PROTOCOL,
        cluster: ids::to_bytes(me.log.get()),
        from: shared.node.get(),
        to: node.get(),
        group,
        log_id: ids::to_bytes(log.get()),
    };
    let asking = async {
        let endpoint =
            shared.endpoint(node, address, shared.silence()).map_err(|e| unavailable(causes(&e)))?;
        let channel = endpoint.connect_with_connector(shared.connector()).await;
        let mut client = PeerClient::new(channel.map_err(|e| unavailable(causes(&e)))?);
        client.host(request).await.map_err(|status| {
            let error = from_status(&status);
            Error::new(error.kind(), format!("node {node} at {address} makes no replica of {of}: {error}"))
        })
    };
    let late = |_| {
        let what = format!("node {node} at {address} made no replica of {of} within {timeout:?}");
        Error::new(ErrorKind::Timeout, what)
    };
    let HostResponse { directory } = tokio::time::timeout(timeout, asking).await.map_err(late)??.into_inner();
    ids::from_bytes(&directory)
        .filter(|directory| *directory != 0)
        .map(DirectoryId)
        .ok_or_else(|| unavailable("its answer has no directory".into()))
}

/// Answers such a call.
pub(super) async fn answer(
    common: &Arc<Common>,
    request: Request<HostRequest>,
) -> Result<HostResponse, Status> {
    let arrival = request.extensions().get::<ConnectionInfo>().cloned();
    let request = request.into_inner();
    check_node(common, NodeId(request.from), arrival.as_ref())?;
    let log = check(common, &request).inspect_err(|status| {
        tracing::debug!(
            from = request.from,
            group = request.group,
            why = status.message(),
            "hosts no replica"
        );
    })?;
    if let Some(arrival) = &arrival {
        arrival.prove();
    }
    let one = common.hosting.clone().lock_owned().await;
    let (common, group) = (common.clone(), request.group);
    let made = tokio::task::spawn_blocking(move || {
        let _one = one; // this goes on if the caller stops waiting
        let host = common.host.read().unwrap_or_else(PoisonError::into_inner).clone();
        match host {
            Some(host) => host(group, log),
            None if common.is_closing() => Err(Error::new(ErrorKind::Unavailable, "this server ends")),
            None => Err(Error::new(ErrorKind::Unsupported, "this server keeps no groups of named logs")),
        }
    });
    let made = made.await.map_err(|_| Status::internal("making the replica panicked, or the server ends"))?;
    let directory = made.map_err(|e| to_status(&e, None))?;
    Ok(HostResponse { directory: ids::to_bytes(directory.get()) })
}

/// Checks that a server of this cluster asks, and means this server.
///
/// # Errors
/// FAILED_PRECONDITION with the reason; UNAVAILABLE: the default log is not open, or does not know its members yet.
pub(super) fn check(common: &Common, request: &HostRequest) -> Result<LogId, Status> {
    let HostRequest { protocol, cluster, from, to, group, log_id } = request;
    let refuse = |what: String| Err(to_status(&Error::new(ErrorKind::Membership, what), None));
    let id = |bytes: &[u8]| ids::from_bytes(bytes).filter(|id| *id != 0);
    let (Some(cluster), Some(log)) = (id(cluster), id(log_id)) else {
        return refuse("an id must have 16 bytes, and not be 0".into());
    };
    if *protocol != PROTOCOL {
        return refuse(format!("the caller uses protocol {protocol}; this server uses {PROTOCOL}"));
    }
    if *group == DEFAULT_GROUP {
        return refuse("group 0 is the default log, whose replicas are made by `chiplog member add`".into());
    }
    if *group > GROUPS_MAX + 1 {
        return refuse(format!("group {group}: a server has the groups 1 to {}", GROUPS_MAX + 1));
    }
    let unavailable = |what: &str| to_status(&Error::new(ErrorKind::Unavailable, what), None);
    let default = common.known_group(DEFAULT_GROUP).ok_or_else(|| unavailable("this server ends"))?;
    let state = default.read();
    let me = state.me.ok_or_else(|| unavailable("the default log of this server is not open"))?;
    if cluster != me.log.get() {
        let (theirs, ours) = (ids::to_hex(cluster), ids::to_hex(me.log.get()));
        return refuse(format!(
            "the caller is of the cluster of log {theirs}, this server of that of log {ours}"
        ));
    }
    if *to != common.node.get() {
        return refuse(format!("the call is for node {to}; this is node {}", common.node));
    }
    if state.members.is_empty() {
        return Err(unavailable("this server does not know the members of its cluster yet"));
    }
    if !state.members.contains_key(&NodeId(*from)) {
        return refuse(format!("node {from} is no member of the cluster, as far as is known here"));
    }
    Ok(LogId(log))
}
