//! Host: the calls between servers about a group: for an empty replica of it, for the members that its leader
//! knows, and for leave to make the system log.
//!
//! Invariants:
//! - Only a member of the default log of the same cluster gets an answer. Under TLS its certificate names it.
//! - One replica is made at a time, also if a caller has stopped waiting for its own.
//! - A call makes no state for a group: only the callback does, for the numbers that a server's groups can have.

use super::certificate::check_node;
use super::{Common, DEFAULT_GROUP, GROUPS_MAX, PROTOCOL, Shared, VIEW_WAIT};
use crate::listener::connection_info::ConnectionInfo;
use crate::served::elsewhere::GroupView;
use crate::wire::connect_error::causes;
use crate::wire::ids;
use crate::wire::log_info::{from_wire, to_wire};
use crate::wire::proto::v1::peer_client::PeerClient;
use crate::wire::proto::v1::{
    AllowSystemLogRequest, AllowSystemLogResponse, HostRequest, HostResponse, ViewRequest, ViewResponse,
};
use crate::wire::status::{from_status, to_status};
use chiplog::{DirectoryId, Error, ErrorKind, LogId, LogNumber, NodeId, Term};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Request, Status};

/// The limit of logs that a call asks for: those of one page of the catalogue.
const LOGS_MAX: usize = 10_001;

/// Answers the calls of other servers about groups, on threads that may block. A closure that makes replicas answers no
/// other call.
pub trait Hosting: Send + Sync {
    /// Makes an empty replica of a group's log, or returns the one that is there. `group`: its number.
    ///
    /// # Errors
    /// Any; the caller gets it.
    fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId>;

    /// Describes a group, and these logs of it.
    ///
    /// # Errors
    /// Any; the caller gets it.
    fn view(&self, group: u32, log: LogId, logs: &[LogNumber]) -> chiplog::Result<GroupView> {
        let _ = (log, logs);
        Err(Error::new(ErrorKind::Unsupported, format!("this server does not describe group {group}")))
    }

    /// Lets the leader of the default log in this term make the system log, or refuses.
    ///
    /// # Errors
    /// Any; the caller gets it.
    fn allow_system_log(&self, from: NodeId, term: Term) -> chiplog::Result<()> {
        let _ = term;
        Err(Error::new(ErrorKind::Unsupported, format!("node {from} may not make the system log")))
    }
}

impl<F: Fn(u32, LogId) -> chiplog::Result<DirectoryId> + Send + Sync> Hosting for F {
    fn host(&self, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        self(group, log)
    }
}

/// As [`Hosting`], for [`PeerTransport::on_host`](super::PeerTransport::on_host).
pub type Host = Box<dyn Hosting>;

/// The group that a call is about, and the server that is asked.
///
/// ```
/// use chiplog::{LogId, NodeId};
/// use chiplog_net::peer::GroupOn;
/// let of = GroupOn { node: NodeId(2), address: "h:7412", group: 4, log: LogId(7) };
/// assert_eq!(of.to_string(), "group 3 on node 2 at h:7412");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GroupOn<'a> {
    /// The server.
    pub node: NodeId,
    /// Its address for peers, `host:port`.
    pub address: &'a str,
    /// The group, as [`PeerTransport::group`](super::PeerTransport::group) numbers it.
    pub group: u32,
    /// The id of the group's log.
    pub log: LogId,
}

impl fmt::Display for GroupOn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group - DEFAULT_GROUP {
            1 => f.write_str("the system log")?,
            number => write!(f, "group {}", number.saturating_sub(1))?, // as commands and files number the groups
        }
        write!(f, " on node {} at {}", self.node, self.address)
    }
}

/// Asks a server for a replica.
pub(super) async fn ask(shared: &Shared, of: GroupOn<'_>, timeout: Duration) -> chiplog::Result<DirectoryId> {
    let request = request(shared, of)?;
    let asking = async { Ok(client(shared, of).await?.host(request).await) };
    let HostResponse { directory } = answered(of, "got no replica", timeout, asking).await?;
    ids::from_bytes(&directory).filter(|directory| *directory != 0).map(DirectoryId).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, format!("{of} got no replica: the answer has no directory"))
    })
}

/// Asks a server for the members of a group, and the state of some of its logs.
pub(super) async fn ask_view(
    shared: &Shared,
    of: GroupOn<'_>,
    logs: &[LogNumber],
    timeout: Duration,
) -> chiplog::Result<GroupView> {
    let numbers = logs.iter().map(|log| log.get()).collect();
    let request = ViewRequest { group: Some(request(shared, of)?), logs: numbers };
    let asking = async { Ok(client(shared, of).await?.view(request).await) };
    let answer = answered(of, "is not known", timeout, asking).await?;
    let nodes = |nodes: Vec<u64>| nodes.into_iter().map(NodeId).collect();
    let mut view = GroupView::default();
    (view.leads, view.term) = (answer.leads, answer.term);
    view.logs_max = usize::try_from(answer.logs_max).unwrap_or(usize::MAX);
    view.slow_disk = answer.slow_disk;
    view.lacks_room = answer.lacks_room;
    view.lacks_catalogue = answer.lacks_catalogue;
    view.unhosted = nodes(answer.unhosted);
    view.logs = answer.logs.into_iter().map(from_wire).collect::<chiplog::Result<_>>()?;
    view.gone = answer.gone.into_iter().map(LogNumber).collect();
    view.leader = Some(NodeId(answer.leader_node)).filter(|node| !node.is_none());
    (view.voters, view.members) = (nodes(answer.voters), nodes(answer.members));
    Ok(view)
}

/// Asks a server to let this one make the system log, as the leader of the default log in this term.
pub(super) async fn ask_to_allow_system_log(
    shared: &Shared,
    of: GroupOn<'_>,
    term: Term,
    timeout: Duration,
) -> chiplog::Result<()> {
    let request = AllowSystemLogRequest { group: Some(request(shared, of)?), term: term.get() };
    let asking = async { Ok(client(shared, of).await?.allow_system_log(request).await) };
    answered(of, "is not allowed to be made", timeout, asking).await.map(drop)
}

fn request(shared: &Shared, of: GroupOn<'_>) -> chiplog::Result<HostRequest> {
    let me = shared.read().me.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, format!("cannot ask for {of}: the default log is not open here"))
    })?;
    Ok(HostRequest {
        protocol: PROTOCOL,
        cluster: ids::to_bytes(me.log.get()),
        from: shared.node.get(),
        to: of.node.get(),
        group: of.group,
        log_id: ids::to_bytes(of.log.get()),
    })
}

async fn client(
    shared: &Shared,
    of: GroupOn<'_>,
) -> Result<PeerClient<tonic::transport::Channel>, tonic::transport::Error> {
    let endpoint = shared.endpoint(of.node, of.address, shared.silence())?;
    Ok(PeerClient::new(endpoint.connect_with_connector(shared.connector()).await?))
}

/// Waits for the answer to a call. `failure`: says what is the matter if there is none.
async fn answered<T>(
    of: GroupOn<'_>,
    failure: &str,
    timeout: Duration,
    asking: impl Future<Output = Result<Result<tonic::Response<T>, Status>, tonic::transport::Error>>,
) -> chiplog::Result<T> {
    let failed = |kind, why: String| Error::new(kind, format!("{of} {failure}: {why}"));
    match tokio::time::timeout(timeout, asking).await {
        Ok(Ok(Ok(answer))) => Ok(answer.into_inner()),
        Ok(Ok(Err(status))) => {
            let error = from_status(&status);
            Err(failed(error.kind(), error.to_string()))
        }
        Ok(Err(error)) => Err(failed(ErrorKind::Unavailable, causes(&error))),
        Err(_) => Err(failed(ErrorKind::Timeout, format!("no answer within {timeout:?}"))),
    }
}

/// Answers a call for a replica.
pub(super) async fn answer(
    common: &Arc<Common>,
    request: Request<HostRequest>,
) -> Result<HostResponse, Status> {
    let arrival = request.extensions().get::<ConnectionInfo>().cloned();
    let request = request.into_inner();
    let log = admit(common, &request, arrival.as_ref())?;
    let one = common.hosting.clone().lock_owned().await;
    let (common, group) = (common.clone(), request.group);
    let made = tokio::task::spawn_blocking(move || {
        let _one = one; // this goes on if the caller stops waiting
        hosting(&common)?.host(group, log)
    });
    let made = made.await.map_err(|_| Status::internal("making the replica panicked, or the server ends"))?;
    let directory = made.map_err(|e| to_status(&e, None))?;
    Ok(HostResponse { directory: ids::to_bytes(directory.get()) })
}

/// Answers a call for the members of a group.
pub(super) async fn answer_view(
    common: &Arc<Common>,
    request: Request<ViewRequest>,
) -> Result<ViewResponse, Status> {
    let arrival = request.extensions().get::<ConnectionInfo>().cloned();
    let ViewRequest { group, logs } = request.into_inner();
    let group = group.unwrap_or_default();
    let log = admit(common, &group, arrival.as_ref())?;
    if logs.len() > LOGS_MAX {
        let what = format!("{} logs are asked for; {LOGS_MAX} are allowed", logs.len());
        return Err(to_status(&Error::new(ErrorKind::InvalidArgument, what), None));
    }
    let logs: Vec<LogNumber> = logs.into_iter().map(LogNumber).collect();
    // Each of the other servers may ask as many questions at a time as there are places.
    let Ok(Ok(permit)) = timeout(VIEW_WAIT, common.viewing.clone().acquire_owned()).await else {
        return Err(to_status(
            &Error::new(ErrorKind::Busy, "other servers ask for many groups already"),
            None,
        ));
    };
    let (common, group) = (common.clone(), group.group);
    let seen = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        hosting(&common)?.view(group, log, &logs)
    });
    let seen =
        seen.await.map_err(|_| Status::internal("looking at the group panicked, or the server ends"))?;
    let view = seen.map_err(|e| to_status(&e, None))?;
    let nodes = |nodes: Vec<NodeId>| nodes.into_iter().map(NodeId::get).collect();
    Ok(ViewResponse {
        leads: view.leads,
        leader_node: view.leader.map_or(0, NodeId::get),
        term: view.term,
        voters: nodes(view.voters),
        members: nodes(view.members),
        logs: view.logs.into_iter().map(to_wire).collect(),
        gone: view.gone.into_iter().map(LogNumber::get).collect(),
        logs_max: view.logs_max as u64,
        slow_disk: view.slow_disk,
        lacks_room: view.lacks_room,
        lacks_catalogue: view.lacks_catalogue,
        unhosted: nodes(view.unhosted),
    })
}

/// Answers a call for leave to make the system log.
pub(super) async fn answer_allow_system_log(
    common: &Arc<Common>,
    request: Request<AllowSystemLogRequest>,
) -> Result<AllowSystemLogResponse, Status> {
    let arrival = request.extensions().get::<ConnectionInfo>().cloned();
    let AllowSystemLogRequest { group, term } = request.into_inner();
    let group = group.unwrap_or_default();
    admit(common, &group, arrival.as_ref())?;
    let one = common.hosting.clone().lock_owned().await;
    let common = common.clone();
    let answered = tokio::task::spawn_blocking(move || {
        let _one = one;
        hosting(&common)?.allow_system_log(NodeId(group.from), Term(term))
    });
    let answered = answered.await.map_err(|_| Status::internal("the call panicked, or the server ends"))?;
    answered.map(|()| AllowSystemLogResponse {}).map_err(|e| to_status(&e, None))
}

fn hosting(common: &Common) -> chiplog::Result<Arc<Host>> {
    let host = common.host.read().unwrap_or_else(PoisonError::into_inner).clone();
    host.ok_or_else(|| match common.is_closing() {
        true => Error::new(ErrorKind::Unavailable, "this server ends"),
        false => Error::new(ErrorKind::Unsupported, "this server keeps no groups of named logs"),
    })
}

/// Checks a caller, and what it asks for.
fn admit(common: &Common, request: &HostRequest, arrival: Option<&ConnectionInfo>) -> Result<LogId, Status> {
    check_node(common, NodeId(request.from), arrival)?;
    let log = check(common, request).inspect_err(|status| {
        tracing::debug!(
            from = request.from,
            group = request.group,
            why = status.message(),
            "refused a call about a group"
        );
    })?;
    if let Some(arrival) = arrival {
        arrival.prove();
    }
    Ok(log)
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
