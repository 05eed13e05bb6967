//! Servers: which servers of a log exist, and which of them leads.
//!
//! Asks servers about themselves: first the given ones, later also those that these name. If two name different
//! leaders, the one with the higher term is right: a leader that was cut off considers itself the leader for a while.
//! Without a leader the servers are known all the same: reading needs no leader.
//!
//! Invariants:
//! - One round of requests runs at a time, however many callers ask; waiting callers use its result.
//! - Only servers of one log: the first answers decide which; see [`meant_log`]. Each call carries the log's id, and a
//!   server with another log rejects it.
//! - The lock is not held across an await.

use super::connections::{Connection, Connections, separate};
use super::logs::meant_log;
use super::missing_log::MissingLog;
use super::wait_notice::WaitNotice;
use crate::client::credentials::token::{Bearer, LogMark, Shown};
use crate::client::retry::backoff::Backoff;
use crate::client::{ClientOptions, ReadFrom};
use crate::wire::connect_error::TlsMismatch;
use crate::wire::proto::v1::log_client::LogClient;
use crate::wire::proto::v1::{Server, ServerInfoRequest, ServerInfoResponse};
use crate::wire::protocol::PROTOCOL;
use crate::wire::status::{from_first_status, is_stranger, without_replica};
use chiplog::limits::BATCH_BYTES_MAX;
use chiplog::{Error, ErrorKind, NodeId, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// One reply and its frame.
pub(crate) const MESSAGE_BYTES_MAX: usize = BATCH_BYTES_MAX + (2 << 20);

/// The service on a connection.
pub(crate) type Stub = LogClient<Shown>;

/// The limits that a server reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) batch_bytes_max: usize,
    pub(crate) record_bytes_max: usize,
    pub(crate) session_window: u16,
}

impl From<&ServerInfoResponse> for Limits {
    fn from(info: &ServerInfoResponse) -> Self {
        let records = if info.record_bytes_max == 0 { info.batch_bytes_max } else { info.record_bytes_max };
        Self {
            batch_bytes_max: info.batch_bytes_max as usize,
            record_bytes_max: records as usize,
            session_window: info.session_window.clamp(1, u16::MAX.into()) as u16,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Servers {
    options: ClientOptions,
    seeds: Vec<String>,
    /// The same id as [`Known::log_id`], for connections.
    log: LogMark,
    connections: Arc<Connections>,
    known: Mutex<Known>,
    asking: tokio::sync::Mutex<()>,
    /// See [`WaitNotice`].
    noticed: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// A server of the log has answered.
    answered: bool,
    /// The log's id, once a server has reported it.
    log_id: String,
    servers: Vec<Server>,
    /// Followers that serve reads.
    copies: BTreeSet<String>,
    /// The node at each address: the same server can be reachable at several addresses.
    nodes: HashMap<String, u64>,
    leader: Option<String>,
    /// The term of the newest answer that named a leader.
    term: u64,
    /// Since when only leaders of earlier terms were named.
    outdated: Option<Instant>,
    /// A server that was the leader, and did not answer as one.
    doubted: Option<String>,
    limits: Option<Limits>,
}

impl Known {
    /// The node that answers at an address, or is listed there. None: unknown.
    fn node_at(&self, address: &str) -> Option<u64> {
        let named = || self.servers.iter().find(|s| s.address == address).map(|s| s.node);
        self.nodes.get(address).copied().or_else(named).filter(|node| *node != 0)
    }

    /// Whether this is the server that was found to lead: compares numbers, or addresses if the number is unknown.
    fn is(&self, address: &str, found: &Found) -> bool {
        match self.node_at(address) {
            Some(node) if found.node != 0 => node == found.node,
            _ => address == found.leader,
        }
    }
}

/// The leader that a server names. The greatest is the most credible.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    term: u64,
    /// The leader names itself, and nothing contradicts it.
    sure: bool,
    /// The leader's address.
    leader: String,
    /// The leader's node; 0: unknown.
    node: u64,
}

/// Whether a retry cannot change the error.
fn is_final(kind: ErrorKind) -> bool {
    use ErrorKind::{NotFound, PermissionDenied, Unauthenticated, Unsupported};
    matches!(kind, Unsupported | NotFound | Unauthenticated | PermissionDenied)
}

/// Servers that failed recently, in the order of their failures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Avoid(Vec<String>);

impl Avoid {
    /// The server failed just now.
    pub(crate) fn insert(&mut self, server: String) {
        self.0.retain(|other| *other != server);
        self.0.push(server);
    }

    pub(crate) fn contains(&self, server: &str) -> bool {
        self.rank(server) > 0
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// 0: it did not fail. Otherwise lower for an older failure: when all have failed, each gets its turn.
    fn rank(&self, server: &str) -> usize {
        self.0.iter().position(|other| other == server).map_or(0, |n| n + 1)
    }
}

/// The answer or error of one server.
pub(crate) struct Answer {
    pub(crate) address: String,
    pub(crate) info: Result<ServerInfoResponse>,
    /// The TLS settings of server and client do not match: waiting does not help.
    pub(crate) hopeless: bool,
}

/// Why a round of requests found no result.
struct Unfound {
    error: Error,
    /// No server can be reached, and waiting does not help.
    hopeless: bool,
}

impl From<Error> for Unfound {
    fn from(error: Error) -> Self {
        Self { error, hopeless: false }
    }
}

/// Whether the server leads the log about which it answers.
pub(crate) fn leads(info: &ServerInfoResponse) -> bool {
    info.servers.iter().any(|server| server.leader && server.node == info.node)
}

/// Moves the answers of leaders to the end, from where they are judged: the first one that is judged decides which log it is, if a name has
/// another one now. A server that lags behind can still answer with a deleted one.
fn leaders_last(answers: &mut [Answer]) {
    answers.sort_by_key(|answer| answer.info.as_ref().ok().map(|info| (leads(info), info.term)));
}

/// Removes the answers of servers that have another log than the chosen one.
fn leave_usurpers(answers: &mut Vec<Answer>, name: &str) {
    let has_log = |info: &ServerInfoResponse| name.is_empty() || info.logs.iter().any(|log| log == name);
    let info = answers.iter().filter_map(|a| Some((a.address.as_str(), a.info.as_ref().ok()?)));
    let info = info.filter(|(_, info)| has_log(info)); // without the name it is about another log
    let Some(meant) = meant_log(&info.collect::<Vec<_>>()) else { return };
    answers.retain(|answer| {
        let other =
            answer.info.as_ref().ok().filter(|t| has_log(t) && !t.log_id.is_empty() && t.log_id != meant);
        if let Some(other) = other {
            let (address, log_id) = (&answer.address, &other.log_id);
            tracing::warn!(address, log_id, meant, "ignored a server of another log at a member's address");
        }
        other.is_none()
    });
}

fn of_large_messages(channel: Shown) -> Stub {
    LogClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

impl Servers {
    pub(crate) fn new(seeds: Vec<String>, options: ClientOptions, connections: Arc<Connections>) -> Self {
        let (log, known, asking, noticed) = Default::default();
        Self { options, seeds, log, connections, known, asking, noticed }
    }

    /// As [`Self::new`], with connections of its own.
    pub(crate) fn alone(seeds: Vec<String>, options: ClientOptions) -> Self {
        let connections = Connections::new(options.clone());
        Self::new(seeds, options, connections)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once a server of the log has answered, whether it knows the leader or not; retries until `deadline`.
    /// Waits briefly for all given servers, to check that they have the same log.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: no server answered; contains the last error. `Unsupported`, `NotFound`: no server that
    /// answered can be used. `InvalidArgument`: the servers have different logs, or an address or option is invalid.
    pub(crate) async fn found(&self, deadline: Instant) -> Result<()> {
        self.until(deadline, true, |known| known.answered.then_some(())).await
    }

    /// Returns the leader's address; retries until `deadline`.
    ///
    /// # Errors
    /// `Unavailable`: no server named a leader; contains the last error. `Unsupported`.
    pub(crate) async fn leader(&self, deadline: Instant) -> Result<String> {
        self.until(deadline, false, |known| known.leader.clone()).await
    }

    async fn until<T>(
        &self,
        deadline: Instant,
        thorough: bool,
        is: impl Fn(&Known) -> Option<T>,
    ) -> Result<T> {
        let mut backoff = Backoff::searching(self.options.backoff_min, self.options.backoff_max);
        let mut notice = WaitNotice::new(&self.noticed, deadline);
        let mut before = None;
        loop {
            if let Some(found) = is(&self.known()) {
                return Ok(found);
            }
            let asked = match timeout_at(deadline, self.ask(thorough)).await {
                Ok(asked) => asked,
                Err(_) => {
                    let who = if thorough { "server" } else { "leader" };
                    let why = before.map_or_else(String::new, |error: Error| format!("; before: {error}"));
                    let what = format!("no {who} found in time; asked {}{why}", self.seeds.join(", "));
                    return Err(Error::new(ErrorKind::Unavailable, what));
                }
            };
            let Err(Unfound { error, hopeless }) = asked else { continue };
            if thorough && (hopeless || error.kind() == ErrorKind::InvalidArgument) {
                return Err(error);
            }
            if let Some(found) = is(&self.known()) {
                return Ok(found);
            }
            let wait = backoff.next();
            if is_final(error.kind()) || Instant::now() + wait >= deadline {
                return Err(error);
            }
            let missing = || match thorough {
                true => format!("not connected yet to any of {}", self.seeds.join(", ")),
                false => "no leader was found yet".to_owned(),
            };
            notice.failed(missing, &error);
            before = Some(error);
            sleep(wait).await;
        }
    }

    /// All known servers, including the given ones.
    pub(crate) fn all(&self) -> BTreeSet<String> {
        let known = self.known();
        self.seeds.iter().cloned().chain(known.servers.iter().map(|s| s.address.clone())).collect()
    }

    /// The id of the servers' log, in hexadecimal; empty: unknown.
    pub(crate) fn log_id(&self) -> String {
        self.known().log_id.clone()
    }

    /// The leader's limits, as it last reported them.
    pub(crate) fn limits(&self) -> Limits {
        let cautious = Limits { batch_bytes_max: 1 << 20, record_bytes_max: 1 << 20, session_window: 1 };
        self.known().limits.unwrap_or(cautious)
    }

    /// The server did not act as the leader, or did not answer.
    pub(crate) fn depose(&self, leader: &str) {
        let mut known = self.known();
        if known.leader.as_deref() == Some(leader) {
            known.doubted = known.leader.take();
        }
    }

    /// Whether the server is considered the leader.
    pub(crate) fn is_leader(&self, address: &str) -> bool {
        self.known().leader.as_deref() == Some(address)
    }

    /// A server named this leader.
    pub(crate) fn suggest(&self, leader: &str) {
        if crate::wire::address::check_host_port(leader).is_ok() {
            self.known().leader = Some(leader.to_owned());
        }
    }

    /// Returns the leader, if one is known after one round of requests and it is not in `avoid`; otherwise any server.
    ///
    /// # Errors
    /// As [`Self::found`].
    pub(crate) async fn leader_or_any(&self, avoid: &Avoid, deadline: Instant) -> Result<String> {
        self.found(deadline).await?;
        let _ = timeout_at(deadline, self.ask(false)).await;
        let leader = self.known().leader.clone().filter(|leader| !avoid.contains(leader));
        match leader {
            Some(leader) => Ok(leader),
            None => self.pick(&ReadFrom::Any, avoid, true, deadline).await,
        }
    }

    /// Asks one server about itself and the others. Returns the leader that it names.
    pub(crate) async fn learn(&self, address: &str) -> Option<String> {
        let mut client = self.client(address).ok()?;
        let asked = client.server_info(ServerInfoRequest { log: self.options.log.clone() });
        let info = timeout(self.options.probe_timeout, asked).await.ok()?.ok()?.into_inner();
        Some(
            self.judge(Answer { address: address.to_owned(), info: Ok(info), hopeless: false }).ok()??.leader,
        )
    }

    /// Asks all known servers about themselves and the others.
    pub(crate) async fn learn_all(&self) {
        let mut asked = JoinSet::new();
        self.ask_each(self.all(), &mut asked);
        while let Some(Ok(answer)) = asked.join_next().await {
            let _ = self.judge(answer); // one that answers is enough
        }
    }

    /// Whether another server names another leader: of a later term, or one that was learned meanwhile.
    pub(crate) async fn is_deposed(&self, server: &str) -> bool {
        let (term, leader) = {
            let known = self.known();
            (known.term, known.leader.clone())
        };
        let mut asked = JoinSet::new();
        self.ask_each(self.all().into_iter().filter(|other| other != server), &mut asked);
        while let Some(Ok(answer)) = asked.join_next().await {
            let Ok(Some(found)) = self.judge(answer) else { continue };
            let known = self.known();
            let as_known =
                found.term == term && leader.as_ref().is_some_and(|leader| known.is(leader, &found));
            if !known.is(server, &found) && (found.term > term || as_known) {
                return true;
            }
        }
        false
    }

    /// The servers of `zone`, if `server` is not one of them.
    pub(crate) fn nearer(&self, zone: &str, server: &str) -> Vec<String> {
        let known = self.known();
        let near = || known.servers.iter().filter(|s| s.zone == zone);
        if near().any(|s| s.address == server) {
            return Vec::new();
        }
        near().map(|s| s.address.clone()).collect()
    }

    /// Whether this is a follower's copy, while servers with the log itself are known.
    pub(crate) fn is_mere_copy(&self, address: &str) -> bool {
        let known = self.known();
        known.copies.contains(address) && !known.servers.is_empty()
    }

    /// Returns a server to read from, one that is not in `avoid` if possible. `copies`: a follower will do; otherwise a
    /// follower is used only if nothing else is known.
    ///
    /// # Errors
    /// As [`Self::found`]; from the leader, as [`Self::leader`].
    pub(crate) async fn pick(
        &self,
        from: &ReadFrom,
        avoid: &Avoid,
        copies: bool,
        deadline: Instant,
    ) -> Result<String> {
        self.found(deadline).await?;
        if *from == ReadFrom::Leader {
            return self.leader(deadline).await;
        }
        let named: Vec<String> = self.known().servers.iter().map(|s| s.address.clone()).collect();
        if !named.is_empty() && named.iter().all(|address| avoid.contains(address)) {
            // Other servers may have been added since.
            self.known().leader = None;
            let _ = timeout_at(deadline, self.ask(false)).await;
        }
        let known = self.known();
        let mut all = self.readable(&known, copies);
        fastrand::shuffle(&mut all);
        let far = |zone: &str| matches!(from, ReadFrom::Nearest(near) if near != zone);
        let best = all.iter().min_by_key(|(address, zone, copy)| (avoid.rank(address), *copy, far(zone)));
        best.map(|(address, ..)| (*address).to_owned())
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "no server is known"))
    }

    /// The servers that can be read from: address, zone, and whether it is a follower.
    fn readable<'a>(&'a self, known: &'a Known, copies: bool) -> Vec<(&'a str, &'a str, bool)> {
        let mut all: Vec<_> = known.servers.iter().map(|s| (&*s.address, &*s.zone, false)).collect();
        if copies || all.is_empty() {
            all.extend(known.copies.iter().map(|copy| (&**copy, "", true)));
        }
        if all.is_empty() {
            all.extend(known.leader.as_deref().or(self.seeds.first().map(|s| &**s)).map(|s| (s, "", false)));
        }
        all
    }

    /// Whether [`Self::pick`] would return a server that is not in `avoid`, judged by what is known.
    pub(crate) fn has_other(&self, from: &ReadFrom, avoid: &Avoid, copies: bool) -> bool {
        let known = self.known();
        *from != ReadFrom::Leader && self.readable(&known, copies).iter().any(|(a, ..)| !avoid.contains(a))
    }

    /// Runs one round of requests, unless the result is known. `thorough`: any server will do, but all are asked.
    ///
    /// # Errors
    /// No leader was found; or, in a thorough round, `InvalidArgument`: the servers have different logs.
    async fn ask(&self, thorough: bool) -> Result<(), Unfound> {
        let _one_at_a_time = self.asking.lock().await;
        {
            let known = self.known();
            if known.leader.is_some() || (thorough && known.answered) {
                return Ok(());
            }
        }
        let (all, mut asked) = (self.all(), JoinSet::new());
        self.ask_each(all.clone(), &mut asked);
        let (mut failures, mut missing, mut answered) = (Vec::new(), MissingLog::default(), false);
        let mut best: Option<Found> = None;
        let mut answers = Vec::new();
        if thorough {
            // With several logs, the choice is possible only once all have answered.
            while let Some(Ok(answer)) = asked.join_next().await {
                answers.push(answer);
            }
            leave_usurpers(&mut answers, &self.options.log);
            leaders_last(&mut answers);
        }
        let hopeless = !answers.is_empty() && answers.iter().all(|answer| answer.hopeless);
        loop {
            let answer = match answers.pop() {
                Some(answer) => answer,
                None => match asked.join_next().await {
                    Some(Ok(answer)) => answer,
                    _ => break,
                },
            };
            let said = answer.info.as_ref().ok().map(|info| (answer.address.clone(), info.clone()));
            match self.judge(answer) {
                Ok(Some(found)) => {
                    let sure = found.sure;
                    best = best.max(Some(found));
                    if sure && !thorough {
                        break;
                    }
                }
                Ok(None) => answered = true,
                Err(error) if thorough && error.kind() == ErrorKind::InvalidArgument => {
                    return Err(error.into());
                }
                Err(error) => {
                    if let (ErrorKind::NotFound, Some((address, info))) = (error.kind(), said) {
                        missing.note(&address, &info);
                    }
                    failures.push(error);
                }
            }
        }
        match best {
            Some(Found { term, leader, .. }) => {
                let mut known = self.known();
                if term < known.term {
                    // A leader that was cut off considers itself the leader for a while. If no server names a later one
                    // for long, another cluster was created, whose terms started again.
                    let since = *known.outdated.get_or_insert_with(Instant::now);
                    if since.elapsed() < self.options.timeout / 2 {
                        let what =
                            format!("{leader} leads in an earlier term, and no server leads in a later one");
                        return Err(Error::new(ErrorKind::Unavailable, what).into());
                    }
                }
                (known.term, known.outdated) = (term, None);
                known.leader = Some(leader);
                known.doubted = None;
                Ok(())
            }
            None => Err(match failure_of(failures, missing.is_believed(&all)) {
                Some(error) if !answered => Unfound { error, hopeless },
                failed => {
                    let more = failed.map_or_else(String::new, |error| format!("; {error}"));
                    let what = without_leader(&self.known());
                    Error::new(ErrorKind::Unavailable, format!("{what}{more}")).into()
                }
            }),
        }
    }

    /// Asks each of these servers about itself. Needs no leader.
    pub(crate) fn ask_each(&self, all: impl IntoIterator<Item = String>, asked: &mut JoinSet<Answer>) {
        for address in all {
            let connection = self.connections.for_calls(&address);
            let shown = connection.and_then(|c| Ok((self.shown(&address, c.channel.clone())?, c)));
            let connections = self.connections.clone();
            let timeout = self.options.probe_timeout;
            let about = ServerInfoRequest { log: self.options.log.clone() };
            asked.spawn(async move {
                let mut hopeless = false;
                let info = match shown {
                    Ok((channel, connection)) => {
                        let (mut client, asked) = (LogClient::new(channel), Instant::now());
                        match tokio::time::timeout(timeout, client.server_info(about)).await {
                            Ok(Ok(info)) => Ok(info.into_inner()),
                            Ok(Err(status)) => {
                                hopeless = TlsMismatch::of(&status).is_some() || is_stranger(&status);
                                Err(from_first_status(&status))
                            }
                            Err(_) => {
                                connections.retire_made_before(&connection, asked); // it may be dead
                                Err(Error::new(ErrorKind::Timeout, format!("no answer within {timeout:?}")))
                            }
                        }
                    }
                    Err(error) => Err(error),
                };
                Answer { address, info, hopeless }
            });
        }
    }

    /// Returns the leader that the answer names.
    fn judge(&self, Answer { address, info, .. }: Answer) -> Result<Option<Found>> {
        let info = info.map_err(|e| Error::new(e.kind(), format!("{address}: {e}")))?;
        if info.protocol_min > *PROTOCOL.end() || info.protocol_max < *PROTOCOL.start() {
            let what = format!(
                "{address} supports revisions {} to {} of the service, and this client {} to {}",
                info.protocol_min,
                info.protocol_max,
                PROTOCOL.start(),
                PROTOCOL.end()
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if info.node == 0 && !info.follows {
            let what = match info.called_as {
                0 => format!(
                    "{address} is not part of a cluster yet; `chiplog member init {address}` makes one"
                ),
                node => without_replica(&address, NodeId(node)),
            };
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        let log = &self.options.log;
        if !log.is_empty() && !info.logs.contains(log) {
            let what = format!("{address} has no log {log:?}");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let leads = info.servers.is_empty() || leads(&info);
        let mut known = self.known();
        if known.log_id.is_empty() {
            known.log_id.clone_from(&info.log_id); // empty if the server is older
            if let Some(id) = info.log_id.parse().ok().filter(|_| !info.log_id.is_empty()) {
                let _ = self.log.set(id);
            }
        } else if !log.is_empty() && info.log_id != known.log_id {
            let what = format!("{address}: log {log:?} was deleted; another log has its name now");
            return Err(Error::new(ErrorKind::NotFound, what));
        } else if !info.log_id.is_empty() && info.log_id != known.log_id {
            let what = format!(
                "{address} has log {}, and another given server has log {}; give servers of one cluster",
                info.log_id, known.log_id
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        known.answered = true;
        let named =
            |a: &str| info.servers.iter().any(|s| s.address == a) || self.seeds.iter().any(|s| s == a);
        known.nodes.retain(|a, _| named(a));
        known.nodes.insert(address.clone(), info.node);
        if info.follows {
            known.copies.insert(address); // for reading, if there is no other server
            return Ok(None);
        }
        if info.elsewhere {
            // Servers that run the log know better which these are.
            let is_new = |server: &Server| !known.servers.iter().any(|other| other.address == server.address);
            let new: Vec<Server> = info.servers.iter().filter(|server| is_new(server)).cloned().collect();
            known.servers.extend(new);
            return Ok(None);
        }
        if info.term >= known.term {
            known.servers.clone_from(&info.servers);
            // The leader's limits count: it receives the batches.
            if leads || known.limits.is_none() {
                known.limits = Some(Limits::from(&info));
            }
        }
        if info.servers.is_empty() {
            // A log without a cluster.
            let (term, leader, node) = (info.term, address, info.node);
            let itself = Server { node, address: leader.clone(), zone: String::new(), leader: true };
            known.servers = vec![itself];
            return Ok(Some(Found { term, sure: true, leader, node }));
        }
        let Some(leader) = info.servers.into_iter().find(|s| s.leader) else { return Ok(None) };
        let (term, node, itself) = (info.term, leader.node, leader.node == info.node);
        // This address has just been reachable.
        let leader = if itself { address } else { leader.address };
        let sure = itself && term >= known.term && known.doubted.as_ref() != Some(&leader);
        Ok(Some(Found { term, sure, leader, node }))
    }

    /// Returns the log's service for calls to a server.
    ///
    /// # Errors
    /// `InvalidArgument`: the address is invalid.
    pub(crate) fn client(&self, address: &str) -> Result<Stub> {
        self.call_channel(address).map(LogClient::new)
    }

    /// Returns the connection for calls to a server.
    ///
    /// # Errors
    /// `InvalidArgument`: the address is invalid, or the token must not be sent there.
    pub(crate) fn call_channel(&self, address: &str) -> Result<Shown> {
        self.shown(address, self.connections.for_calls(address)?.channel.clone())
    }

    /// Returns the log's service for one append stream to a server, and the connection, which the stream's user holds as
    /// long as it is open.
    ///
    /// # Errors
    /// As [`Self::call_channel`].
    pub(crate) fn append_client(&self, address: &str) -> Result<(Stub, Arc<Connection>)> {
        let connection = self.connections.for_appends(address)?;
        let channel = self.shown(address, connection.channel.clone())?;
        Ok((of_large_messages(channel), connection))
    }

    /// Returns the log's service on a connection that nobody else uses.
    ///
    /// # Errors
    /// As [`Self::call_channel`].
    pub(crate) fn separate_client(&self, address: &str) -> Result<Stub> {
        self.separate_channel(address).map(of_large_messages)
    }

    /// Returns a connection that nobody else uses, which is opened at its first use.
    ///
    /// # Errors
    /// As [`Self::call_channel`].
    pub(crate) fn separate_channel(&self, address: &str) -> Result<Shown> {
        self.shown(address, separate(&self.options, address)?)
    }

    /// The connection with what each call on it carries.
    pub(crate) fn shown(&self, address: &str, channel: Channel) -> Result<Shown> {
        let bearer = Bearer::new(&self.options, address)?.meaning(self.log.clone());
        Ok(InterceptedService::new(channel, bearer))
    }

    /// The connections, which another log of the same servers shares.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }
}

/// Why none of the servers that answered named a leader.
fn without_leader(known: &Known) -> String {
    match known.copies.first() {
        Some(copy) if known.servers.is_empty() => format!(
            "no leader is known: {copy} is a copy that follows the log, which takes no appends and does not say what a majority has \
             confirmed; give servers of the log itself, or read the copy as it is"
        ),
        _ => "no leader is known: an election is in progress, or too few servers are running".to_owned(),
    }
}

/// The failure that a round of questions reports, of those that were answered. `is_missing`: there is no such log; see [`MissingLog`].
fn failure_of(failures: Vec<Error>, is_missing: bool) -> Option<Error> {
    let (missing, mut others): (Vec<_>, Vec<_>) =
        failures.into_iter().partition(|error| error.kind() == ErrorKind::NotFound);
    match missing.last() {
        Some(error) if is_missing => Some(error.clone()),
        Some(error) if others.is_empty() => {
            Some(Error::new(ErrorKind::Unavailable, format!("{error}; and the others know no leader")))
        }
        Some(error) => others.pop().map(|other| Error::new(other.kind(), format!("{other}; {error}"))),
        None => others.pop(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_log_is_reported_only_if_it_is_believed() {
        let of = |kinds: &[ErrorKind], is_missing| {
            let failures = kinds.iter().map(|kind| Error::new(*kind, "x")).collect();
            failure_of(failures, is_missing).map(|error| error.kind())
        };
        let (missing, refused) = (ErrorKind::NotFound, ErrorKind::Unavailable);
        assert_eq!(of(&[], false), None);
        assert_eq!(of(&[missing, refused], true), Some(missing));
        assert_eq!(of(&[refused, refused, missing], false), Some(refused));
        assert_eq!(of(&[missing], false), Some(refused));
        assert_eq!(of(&[ErrorKind::Unsupported, missing], false), Some(ErrorKind::Unsupported));
    }

    /// The message said that an election is in progress, or that too few servers are running.
    #[test]
    fn copy_is_named_where_only_copies_answer() {
        let mut known = Known::default();
        assert!(without_leader(&known).contains("an election is in progress"));
        known.copies.insert("c:1".to_owned());
        assert!(without_leader(&known).contains("c:1 is a copy that follows the log"));
        known.servers.push(Server::default());
        assert!(without_leader(&known).contains("an election is in progress"));
    }

    /// The last server that answered decided. If it lagged behind, the client was tied to a deleted log for its whole life.
    #[test]
    fn leader_says_which_log_has_the_name() {
        let answer = |node: u64, log_id: &str, leader: u64| {
            let servers =
                (1..=3).map(|n| Server { node: n, leader: n == leader, ..Server::default() }).collect();
            let info = ServerInfoResponse { node, log_id: log_id.into(), servers, ..Default::default() };
            Answer { address: format!("{node}:1"), info: Ok(info), hopeless: false }
        };
        let lost = || {
            let error = Error::new(ErrorKind::Unavailable, "no answer");
            Answer { address: "4:1".to_owned(), info: Err(error), hopeless: false }
        };
        let mut answers = vec![answer(1, "new", 1), answer(2, "new", 1), lost(), answer(3, "old", 2)];
        for _ in 0..answers.len() {
            leaders_last(&mut answers);
            let first = answers.last().and_then(|answer| answer.info.as_ref().ok());
            assert_eq!(first.map(|info| &*info.log_id), Some("new"));
            answers.rotate_left(1);
        }
    }
}
