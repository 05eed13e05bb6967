//! Admin: the service for operating a cluster. Passes its calls to the log, off the runtime's threads.
//!
//! A server without a replica waits. It gets one by `Init` (a new cluster) or by `Join` (an empty replica of an
//! existing log, whose leader must add it). Both create it once; a repeated call returns the existing one.

use crate::served::caller::Caller;
use crate::served::log_slot::{DEFAULT_LOG, LogSlot, meant, status_of};
use crate::service::groups;
use crate::service::named_logs::NamedLogs;
use crate::wire::address::Address;
use crate::wire::ids;
use crate::wire::proto::v1::admin_server::{Admin, AdminServer};
use crate::wire::proto::v1::member_change::Change as WireChange;
use crate::wire::proto::v1::{
    AddMember, ChangeMembersRequest, ChangeMembersResponse, CreateLogRequest, CreateLogResponse,
    CutObjectsRequest, CutObjectsResponse, DeleteLogRequest, DeleteLogResponse, InitRequest, InitResponse,
    JoinRequest, JoinResponse, ListLogsRequest, ListLogsResponse, LogOption as WireOption, LogOptionsRequest,
    LogOptionsResponse, Member, MemberChange, PeerProgress, Role, ScrubRequest, ScrubResponse,
    SealLogRequest, SealLogResponse, SetAddress, SetLogOptionsRequest, SetLogOptionsResponse, StatusRequest,
    StatusResponse, TransferLeaderRequest, TransferLeaderResponse,
};
use crate::wire::status::to_status;
use chiplog::cluster::Change;
use chiplog::inspect::{Event, Inspector, Report, Severity};
use chiplog::{DirectoryId, Error, ErrorKind, Index, Log, LogId, LogOption, NodeId, Ticket};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// The longest timeout that a caller can set.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// How long a leader may take to learn how far the log is confirmed.
const BARRIER: Duration = Duration::from_secs(10);
/// The limit of scrub findings sent as text; all are counted.
const FINDINGS_MAX: u64 = 10_000;
/// The bytes that a scrub reads between two responses.
const PROGRESS_BYTES: u64 = 16 << 20;

/// How a waiting server gets its replica.
///
/// ```
/// use chiplog_net::service::admin::Founding;
/// let join = Founding::Join { log: chiplog::LogId(7), first: chiplog::Index(1) };
/// assert_ne!(Founding::Init { force: true }, join);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Founding {
    /// As the first member of a new cluster.
    Init {
        /// Even if replicas of another log consider this server a member.
        force: bool,
    },
    /// As a replica that the leader of this log must add: an empty one, or what was a follower's copy.
    Join {
        /// The log.
        log: LogId,
        /// Where its leader has it begin. 0: not known; a copy is refused.
        first: Index,
    },
}

/// Creates the replica of this server: opens the log's directory, which is empty or has a follower's copy. May block.
pub type Found = Box<dyn Fn(Founding) -> chiplog::Result<Log> + Send + Sync>;

/// The service. See [`AdminService::new`].
pub struct AdminService {
    host: Arc<LogSlot>,
    node: NodeId,
    address: Address,
    version: String,
    found: Arc<Found>,
    /// Held while the replica is being created.
    founding: Arc<Mutex<()>>,
    scrubs: Arc<Semaphore>,
    named: NamedLogs,
}

impl fmt::Debug for AdminService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminService").field("node", &self.node).field("address", &self.address).finish()
    }
}

impl AdminService {
    /// Creates the service for the server's host. `node` and `address` are this server's, `version` is the program's.
    pub fn new(
        host: Arc<LogSlot>,
        node: NodeId,
        address: Address,
        version: impl Into<String>,
        found: Found,
    ) -> AdminServer<Self> {
        AdminServer::new(Self {
            named: NamedLogs::new(host.clone()),
            host,
            node,
            address,
            version: version.into(),
            found: Arc::new(found),
            founding: Arc::default(),
            scrubs: Arc::new(Semaphore::new(1)),
        })
    }

    /// Creates the replica unless there is one. Returns it, and whether it was created by this call. Continues to the
    /// end if the caller is gone: the created replica is served.
    async fn found(&self, founding: Founding) -> Result<(Log, bool), Status> {
        let (host, found, lock) = (self.host.clone(), self.found.clone(), self.founding.clone());
        let made = tokio::spawn(async move {
            let _one = lock.lock().await;
            if let Some(log) = host.opened() {
                return Ok((log.clone(), false));
            }
            if host.is_draining() {
                return Err(refusal(ErrorKind::Unavailable, "this server is shutting down"));
            }
            let log = blocking(move || found(founding)).await?.map_err(|e| to_status(&e, None))?;
            host.open(log.clone());
            Ok((log, true))
        });
        made.await.map_err(|_| Status::internal("the call panicked"))?
    }

    /// The replica that a call about replicas names, if it is of the log that the call means.
    async fn replica<T: Sync>(&self, request: &Request<T>, name: &str) -> Result<Log, Status> {
        let (caller, meant) = (Caller::of(request.extensions()), meant(request.metadata()));
        self.host.replica(&caller, name, meant.as_deref()).await
    }

    /// Waits for the log's answer; the log enforces the time limit.
    async fn answered(&self, log: &Log, asked: chiplog::Result<Ticket<()>>) -> Result<(), Status> {
        let answer = async { asked?.await };
        answer.await.map_err(|e| status_of(log, &e))
    }

    /// The status of one of the server's replicas, with what concerns the server itself.
    fn describe(&self, log: Option<&Log>) -> StatusResponse {
        let mut response = log.map_or_else(StatusResponse::default, describe);
        if log.is_none() {
            (response.role, response.node) = (Role::Waiting.into(), self.node.get());
            response.called_as = self.host.called_as().map_or(0, NodeId::get);
        }
        let Address { peer, client, zone } = self.address.clone();
        (response.peer_address, response.client_address, response.zone) = (peer, client, zone);
        response.version.clone_from(&self.version);
        response.draining = self.host.is_draining();
        response.read_bytes = Some(self.host.gauges().read_bytes());
        let full = log.and_then(|log| Some((self.host.fullness(log)?, self.host.group_with(log))));
        response.full = match full {
            Some((why, Some(group))) => format!("{group}: {why}"),
            full => full.map(|(why, _)| why).unwrap_or_default(),
        };
        if log.is_some_and(|log| self.host.opened().is_some_and(|own| own.log_id() == log.log_id())) {
            response.groups =
                self.host.named().map(|logs| groups::statuses(&self.host, logs)).unwrap_or_default();
            response.groups_wanted = self.host.groups_wanted();
        }
        response.damaged_objects = self.host.damaged_objects();
        if let Some(failure) = self.host.store_failure() {
            response.store_failure = failure.why;
            response.store_failing_since_nanos = failure.since.get().saturating_mul(1_000_000);
        }
        response
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(call).await.map_err(|_| Status::internal("the call panicked"))
}

fn refusal(kind: ErrorKind, what: impl Into<String>) -> Status {
    to_status(&Error::new(kind, what), None)
}

/// Says that a server belongs to a cluster, and what to do if it is one of its own by mistake.
fn already_part(log: &Log) -> String {
    let what =
        format!("this server is already part of the cluster of log {}", ids::to_hex(log.log_id().get()));
    let advice = "if that cluster was made by mistake and nothing in it is needed, stop the server, empty its directory and those of group_directories, and start it again without --init";
    // One that other servers know must not return under its number.
    let is_alone = log.status().replica.members.len() == 1;
    if is_alone { format!("{what}, as its only member; {advice}") } else { what }
}

fn timeout(millis: u32, default: Duration) -> Duration {
    if millis == 0 { default } else { Duration::from_millis(millis.into()).min(TIMEOUT_MAX) }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        let InitRequest { force } = request.into_inner();
        let (log, made) = self.found(Founding::Init { force }).await?;
        let log_id = ids::to_hex(log.log_id().get());
        if !made {
            return Err(refusal(ErrorKind::Membership, already_part(&log)));
        }
        tracing::info!(log_id, "created a new cluster");
        Ok(Response::new(InitResponse { log_id }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let JoinRequest { log_id, first } = request.into_inner();
        let wanted = ids::from_hex(&log_id).map_err(|e| to_status(&e, None))?;
        let (log, made) = self.found(Founding::Join { log: LogId(wanted), first: Index(first) }).await?;
        if log.log_id().get() != wanted {
            return Err(refusal(ErrorKind::Membership, already_part(&log)));
        }
        if log.role() == chiplog::cluster::Role::Removed {
            let what = format!(
                "node {} was removed from the cluster, and its directory cannot join again; start the server in an empty directory under a number that was never used",
                self.node
            );
            return Err(refusal(ErrorKind::Membership, what));
        }
        if made {
            tracing::info!(
                log_id = ids::to_hex(wanted),
                "joining a cluster; its leader must add this server"
            );
        }
        let Address { peer, client, zone } = self.address.clone();
        Ok(Response::new(JoinResponse {
            node: self.node.get(),
            directory: ids::to_hex(log.directory_id().get()),
            peer_address: peer,
            client_address: client,
            zone,
        }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let (caller, name) = (Caller::of(request.extensions()), &request.get_ref().log);
        // A waiting server, or one that shuts down, has a status, too.
        let log = match &**name {
            "" | DEFAULT_LOG => {
                caller.claim(name)?;
                self.host.opened().cloned()
            }
            name => Some(self.replica(&request, name).await?),
        };
        let status = self.describe(log.as_ref());
        Ok(Response::new(if caller.may_see_everything() { status } else { servers_of(status) }))
    }

    async fn change_members(
        &self,
        request: Request<ChangeMembersRequest>,
    ) -> Result<Response<ChangeMembersResponse>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        let ChangeMembersRequest { log: name, changes, timeout_millis, force } = request.into_inner();
        let of_servers = matches!(&*name, "" | DEFAULT_LOG);
        let servers = log.status().replica.voters();
        let leaves = |change: &MemberChange| match change.change {
            Some(WireChange::Remove(node) | WireChange::Demote(node)) => Some(NodeId(node)),
            _ => None,
        };
        let mut leaving: Vec<NodeId> = changes.iter().filter_map(leaves).collect();
        leaving.retain(|node| of_servers && servers.contains(node));
        if !leaving.is_empty() && !force {
            groups::check_follow(&self.host, &servers, &leaving).await?;
        }
        let known = log.status().replica.members;
        let removed = |change: &MemberChange| match change.change {
            Some(WireChange::Remove(node)) if of_servers => Some(NodeId(node)),
            _ => None,
        };
        let mut removed: Vec<NodeId> = changes.iter().filter_map(removed).collect();
        removed.retain(|node| known.iter().any(|member| member.node == *node));
        // Without a voter that stays or comes the log itself refuses the change.
        let one_stays = servers.iter().any(|server| !removed.contains(server))
            || changes.iter().any(|change| matches!(change.change, Some(WireChange::Promote(_))));
        if !removed.is_empty() && one_stays && !force {
            groups::check_has_others(&self.host, &removed).await?;
        }
        let changes: Vec<Change> = changes.into_iter().map(change).collect::<Result<_, _>>()?;
        let timeout = timeout(timeout_millis, Duration::from_secs(60));
        let asked = match force {
            false => log.submit_change_members(&changes, timeout),
            true => log.submit_force_members(&changes, timeout),
        };
        self.answered(&log, asked).await?;
        if !force {
            groups::await_left(&self.host, &leaving, timeout).await?;
        }
        Ok(Response::new(ChangeMembersResponse { members: members(&log.status().replica) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        let TransferLeaderRequest { to, timeout_millis, .. } = request.into_inner();
        let timeout = timeout(timeout_millis, Duration::from_secs(10));
        self.answered(&log, log.submit_transfer_leader(NodeId(to), timeout)).await?;
        Ok(Response::new(TransferLeaderResponse {}))
    }

    async fn log_options(
        &self,
        request: Request<LogOptionsRequest>,
    ) -> Result<Response<LogOptionsResponse>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        Ok(Response::new(LogOptionsResponse { options: options(&log) }))
    }

    async fn set_log_options(
        &self,
        request: Request<SetLogOptionsRequest>,
    ) -> Result<Response<SetLogOptionsResponse>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        let SetLogOptionsRequest { log: name, changes, timeout_millis } = request.into_inner();
        let changes: Vec<_> = changes.iter().map(option).collect::<Result<_, _>>()?;
        if changes.is_empty() {
            return Err(refusal(ErrorKind::InvalidArgument, "no option was given"));
        }
        let timeout = timeout(timeout_millis, Duration::from_secs(10));
        self.answered(&log, log.submit_set_log_options(&changes, timeout)).await?;
        let shown = if name.is_empty() { DEFAULT_LOG } else { &name };
        tracing::info!(log = shown, options = %log.log_options(), "the log's options were set");
        Ok(Response::new(SetLogOptionsResponse { options: options(&log) }))
    }

    async fn cut_objects(
        &self,
        request: Request<CutObjectsRequest>,
    ) -> Result<Response<CutObjectsResponse>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        let CutObjectsRequest { upto, .. } = request.into_inner();
        let cut = async {
            let upto = match upto {
                0 => log.submit_barrier(BARRIER)?.await?,
                upto => Index(upto),
            };
            log.cut_objects(upto).map(|()| upto.get())
        };
        let upto = cut.await.map_err(|e| status_of(&log, &e))?;
        Ok(Response::new(CutObjectsResponse { upto }))
    }

    type ScrubStream = ReceiverStream<Result<ScrubResponse, Status>>;

    async fn scrub(&self, request: Request<ScrubRequest>) -> Result<Response<Self::ScrubStream>, Status> {
        let log = self.replica(&request, &request.get_ref().log).await?;
        let Ok(permit) = self.scrubs.clone().try_acquire_owned() else {
            return Err(refusal(ErrorKind::Busy, "another scrub of this server is running"));
        };
        let (responses, stream) = mpsc::channel(4);
        tokio::task::spawn_blocking(move || scrub(&log, &responses, permit));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn create_log(
        &self,
        request: Request<CreateLogRequest>,
    ) -> Result<Response<CreateLogResponse>, Status> {
        let log = self.named.create(&Caller::of(request.extensions()), request.into_inner()).await?;
        tracing::info!(name = log.name, number = log.number, group = log.group, "created a named log");
        Ok(Response::new(CreateLogResponse { log: Some(log) }))
    }

    async fn delete_log(
        &self,
        request: Request<DeleteLogRequest>,
    ) -> Result<Response<DeleteLogResponse>, Status> {
        let (caller, request) = (Caller::of(request.extensions()), request.into_inner());
        let name = request.name.clone();
        self.named.delete(&caller, request).await?;
        tracing::info!(name, "deleted a named log");
        Ok(Response::new(DeleteLogResponse {}))
    }

    async fn seal_log(&self, request: Request<SealLogRequest>) -> Result<Response<SealLogResponse>, Status> {
        let (caller, request) = (Caller::of(request.extensions()), request.into_inner());
        let name = request.name.clone();
        self.named.seal(&caller, request).await?;
        tracing::info!(name, "sealed a named log");
        Ok(Response::new(SealLogResponse {}))
    }

    async fn list_logs(
        &self,
        request: Request<ListLogsRequest>,
    ) -> Result<Response<ListLogsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        self.named.list(&caller, request.into_inner()).await.map(Response::new)
    }
}

/// Reads all segments and reports progress, until the client leaves. Reports damage to the log, which counts and
/// repairs it at once.
fn scrub(log: &Log, responses: &mpsc::Sender<Result<ScrubResponse, Status>>, permit: OwnedSemaphorePermit) {
    let result = walk(log, responses);
    drop(permit);
    if let Err(error) = result {
        let _ = responses.blocking_send(Err(to_status(&error, None)));
    }
}

fn walk(log: &Log, responses: &mpsc::Sender<Result<ScrubResponse, Status>>) -> chiplog::Result<()> {
    let inspector = Inspector::open(log.path())?;
    let bytes_total = inspector.bytes()?;
    // The bytes of the segments before the current one, and including it.
    let (mut before, mut with, mut reported_bytes, mut findings_sent) = (0, 0, 0, 0);
    let (mut file, mut is_sound) = (String::new(), true);
    let mut next = ScrubResponse { bytes_total, ..ScrubResponse::default() };
    let mut gone = false;
    let report: Report = inspector.walk(&mut |event| {
        match event {
            Event::Segment(segment) => {
                (before, with) = (with, with + segment.bytes);
                (file, is_sound) = (segment.file.clone(), true);
            }
            Event::Block(block) => next.bytes = before + block.offset(),
            Event::SegmentEnd(_) => {
                next.bytes = with;
                if is_sound {
                    let _ = log.report_sound_at(&file);
                }
            }
            Event::Fault(fault) => {
                match fault.severity {
                    Severity::Corrupt => {
                        next.corrupt += 1;
                        is_sound = false;
                        // Discarded records cannot be requested.
                        if fault.records.is_none_or(|(_, last)| last >= log.first_index()) {
                            // This fails only in a forked child, and this process is none.
                            let _ = log.report_damage_at(&fault.file, fault.offset, &fault.what);
                        }
                    }
                    Severity::Undecodable => next.undecodable += 1,
                    _ => next.harmless += 1,
                }
                if findings_sent < FINDINGS_MAX {
                    findings_sent += 1;
                    next.findings.push(format!("{}: {fault}", fault.severity.name()));
                }
            }
            _ => {}
        }
        if next.bytes < reported_bytes + PROGRESS_BYTES && next.findings.len() < 100 {
            return ControlFlow::Continue(());
        }
        reported_bytes = next.bytes;
        let response = ScrubResponse { findings: std::mem::take(&mut next.findings), ..next.clone() };
        if responses.blocking_send(Ok(response)).is_err() {
            gone = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if !gone {
        let Report { bytes, corrupt, harmless, undecodable, .. } = report;
        let last = ScrubResponse { bytes, done: true, corrupt, harmless, undecodable, ..next };
        let _ = responses.blocking_send(Ok(last));
    }
    Ok(())
}

/// Returns the status of a replica.
fn describe(log: &Log) -> StatusResponse {
    let (status, metrics) = (log.status(), log.metrics());
    let replica = &status.replica;
    let disk = rustix::fs::statvfs(log.path()).ok();
    let peer = |p: &chiplog::cluster::PeerStatus| PeerProgress {
        node: p.node.get(),
        matched_raft: p.matched.get(),
        lag: p.lag,
        active: p.active,
    };
    StatusResponse {
        log_id: ids::to_hex(status.log_id.get()),
        node: replica.node.get(),
        directory: ids::to_hex(status.directory_id.get()),
        role: groups::role(replica.role).into(),
        term: replica.term.get(),
        leader_node: replica.leader.map_or(0, NodeId::get),
        first: status.first_index.get(),
        last: status.last_index.get(),
        committed_raft: replica.committed_entry.get(),
        last_raft: replica.last_entry.get(),
        bytes_used: status.bytes_used,
        capacity: status.bytes_capacity.unwrap_or(0),
        members: members(replica),
        peers: replica.peers.iter().map(peer).collect(),
        sync_median_micros: metrics.sync_latency(0.5).as_micros() as u64,
        sync_p99_micros: metrics.sync_latency(0.99).as_micros() as u64,
        scrubbed_bytes: metrics.scrubbed_bytes,
        damaged: metrics.damaged,
        repaired: metrics.repaired,
        damaged_places: log.damaged_places(),
        appends: metrics.appends,
        written_bytes: metrics.bytes,
        unstored_bytes: metrics.unstored_bytes,
        object_failures: metrics.object_failures,
        stored_index: metrics.stored_index,
        sliced_index: metrics.sliced_index,
        slice_failures: metrics.slice_failures,
        disk_bytes: disk.as_ref().map_or(0, |d| d.f_blocks.saturating_mul(d.f_frsize)),
        disk_free_bytes: disk.map_or(0, |d| d.f_bavail.saturating_mul(d.f_frsize)),
        shortage: log.shortage_cause().map_or_else(String::new, |cause| cause.to_string()),
        no_store: no_store(log),
        poison: log.poison_cause().map_or_else(String::new, |cause| cause.to_string()),
        ..StatusResponse::default()
    }
}

/// Why the server cannot read what is in an object store alone. Empty: the log has no objects, or it can.
fn no_store(log: &Log) -> String {
    let has_objects = log.log_options().get(LogOption::ObjectBytes).is_some();
    match has_objects && log.options().vault.is_none() {
        true => {
            "the log has objects in an object store, and object_store is not set at this server".to_owned()
        }
        false => String::new(),
    }
}

/// Of a status only the data with which a client finds the servers and the leader.
fn servers_of(status: StatusResponse) -> StatusResponse {
    StatusResponse {
        log_id: status.log_id,
        node: status.node,
        directory: status.directory,
        role: status.role,
        term: status.term,
        leader_node: status.leader_node,
        members: status.members,
        version: status.version,
        peer_address: status.peer_address,
        client_address: status.client_address,
        zone: status.zone,
        draining: status.draining,
        called_as: status.called_as,
        ..StatusResponse::default()
    }
}

fn members(replica: &chiplog::cluster::ReplicaStatus) -> Vec<Member> {
    let member = |m: &chiplog::cluster::Member| {
        // An address with another grammar is returned as the peer address: a program that embeds the log may use its
        // own.
        let address = m.address.parse().unwrap_or_else(|_| Address {
            peer: m.address.clone(),
            client: String::new(),
            zone: String::new(),
        });
        Member {
            node: m.node.get(),
            directory: ids::to_hex(m.directory.get()),
            voter: m.is_voter(),
            leaving: m.is_leaving(),
            peer_address: address.peer,
            client_address: address.client,
            zone: address.zone,
        }
    };
    replica.members.iter().map(member).collect()
}

/// Returns the options that are set for the log.
fn options(log: &Log) -> Vec<WireOption> {
    let wire =
        |(option, value): (LogOption, u64)| WireOption { name: option.name().to_owned(), value: Some(value) };
    log.log_options().iter().map(wire).collect()
}

/// Converts a change of an option for the log.
fn option(change: &WireOption) -> Result<(LogOption, Option<u64>), Status> {
    let option = LogOption::from_name(&change.name).ok_or_else(|| {
        let names = LogOption::ALL.map(LogOption::name).join(", ");
        let what = format!("{:?} is not an option of a log; the options are {names}", change.name);
        refusal(ErrorKind::InvalidArgument, what)
    })?;
    Ok((option, change.value))
}

/// Converts a change of members for the log.
fn change(change: MemberChange) -> Result<Change, Status> {
    let place = |peer: String, client: String, zone: String| {
        let address = Address::new(peer, client, zone);
        address.map(|a| a.to_string()).map_err(|e| refusal(ErrorKind::InvalidArgument, e.to_string()))
    };
    Ok(match change.change {
        Some(WireChange::Add(AddMember { node, directory, peer_address, client_address, zone })) => {
            let directory = ids::from_hex(&directory).map_err(|e| to_status(&e, None))?;
            let address = place(peer_address, client_address, zone)?;
            Change::AddLearner { node: NodeId(node), directory: DirectoryId(directory), address }
        }
        Some(WireChange::SetAddress(SetAddress { node, peer_address, client_address, zone })) => {
            Change::SetAddress { node: NodeId(node), address: place(peer_address, client_address, zone)? }
        }
        Some(WireChange::Promote(node)) => Change::Promote(NodeId(node)),
        Some(WireChange::Demote(node)) => Change::Demote(NodeId(node)),
        Some(WireChange::Remove(node)) => Change::Remove(NodeId(node)),
        None => {
            return Err(refusal(ErrorKind::InvalidArgument, "the change has neither a value nor a reset"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds are documented in admin.proto.
    #[test]
    fn caller_waits_at_most_600_s() {
        let default = Duration::from_secs(60);
        for (asked, millis) in
            [(0, 60_000), (1, 1), (599_999, 599_999), (600_000, 600_000), (600_001, 600_000)]
        {
            assert_eq!(timeout(asked, default), Duration::from_millis(millis), "{asked}");
        }
        assert_eq!(timeout(u32::MAX, default), Duration::from_secs(600));
    }
}
