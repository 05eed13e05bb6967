//! Cluster status: a whole cluster as its servers see it. Queries all known servers at once, and then the servers
//! that they name.
//!
//! Invariants:
//! - A round takes up to twice the time that one server may take: once for the known servers, once for those
//!   they name.
//! - A replica is reported once, even if it was queried at several addresses.
//! - The report of a server of another log is never used as information about the cluster.
//!
//! Must not know: how anything is shown.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::connect::cluster::{Dialled, Dialler, TOKEN_ADVICE, advice, exit_of, tls_advice};
use crate::connect::target::Servers;
use chiplog::ErrorKind;
use chiplog_net::wire::connect_error::TlsMismatch;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::{Member, Role, StatusRequest, StatusResponse};
use chiplog_net::wire::status::{from_first_status, is_stranger, leader_of};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// How often a server that does not run the log's group is asked for one that does, until one answers.
const ATTEMPTS_MAX: u32 = 8;

/// The queries to a cluster. Keeps connections from one round to the next.
pub(crate) struct ClusterQuery {
    dialler: Dialler,
    seeds: Vec<String>,
    /// The log whose replicas are meant. Empty: the default one.
    log: String,
    channels: HashMap<String, Dialled>,
    /// The members according to the last round with an answer.
    members: Vec<Member>,
    /// How long to wait for the other servers once a leader has answered. None: as long as each server may
    /// take.
    grace: Option<Duration>,
}

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Each replica of the log that answered, and each waiting server, sorted by number, with the address.
    pub(crate) answers: Vec<(String, StatusResponse)>,
    /// Servers of another log.
    pub(crate) others: Vec<(String, StatusResponse)>,
    /// Servers that did not answer.
    pub(crate) silent: Vec<Silent>,
    /// The cluster's members, according to its leader or else to the most recent replica.
    pub(crate) members: Vec<Member>,
}

/// A server that did not answer.
#[derive(Debug)]
pub(crate) struct Silent {
    pub(crate) server: String,
    /// Its entry in the member list of the others.
    pub(crate) member: Option<Member>,
    pub(crate) why: String,
    /// It refuses our token. Trying again does not help.
    pub(crate) refuses: bool,
    /// It and our options do not agree on TLS. Trying again does not help.
    pub(crate) mistrusts: Option<TlsMismatch>,
    /// Something else than a chiplog server for clients answers there.
    pub(crate) is_stranger: bool,
    /// It has no log of the name that is meant. Trying again does not help.
    pub(crate) lacks_log: bool,
}

impl Found {
    /// The leader. If two replicas believe that they lead, it is the one of the later term.
    pub(crate) fn leader(&self) -> Option<&StatusResponse> {
        self.leading().map(|(_, status)| status)
    }

    /// The leader, and the address at which it answered.
    pub(crate) fn leading(&self) -> Option<&(String, StatusResponse)> {
        let leads = |s: &StatusResponse| s.role() == Role::Leader && s.poison.is_empty();
        self.answers.iter().filter(|(_, s)| leads(s)).max_by_key(|(_, s)| s.term)
    }

    /// The log's id, if a server that answered belongs to a cluster.
    pub(crate) fn log_id(&self) -> Option<String> {
        self.answers.iter().map(|(_, s)| s.log_id.clone()).find(|id| !id.is_empty())
    }

    /// The number of entries that a replica lacks, according to the leader. None: there is no leader, or it
    /// hears nothing from the replica.
    pub(crate) fn lag(&self, node: u64) -> Option<u64> {
        let leader = self.leader()?;
        if leader.node == node {
            return Some(0);
        }
        leader.peers.iter().find(|p| p.node == node && p.active).map(|p| p.lag)
    }

    /// The cluster's member at this address.
    pub(crate) fn member_at(&self, server: &str, status: &StatusResponse) -> Option<&Member> {
        self.members.iter().find(|m| stands_at(m, server, status))
    }

    /// The member that a replica is, or whose address it has, according to the leader. The replica's own
    /// report does not count: if it lost its directory, it knows nothing of its vote, which the majority
    /// still counts.
    pub(crate) fn seat_of(&self, status: &StatusResponse) -> Option<&Member> {
        if self.log_id().is_some_and(|log| log == status.log_id) {
            return self.members.iter().find(|m| m.node == status.node);
        }
        self.member_at("", status).filter(|member| member.node == status.node)
    }

    /// Explains a server of another log: it took the address of a member, or belongs to another cluster.
    pub(crate) fn strangeness(&self, server: &str, status: &StatusResponse) -> String {
        let theirs = &status.log_id;
        match self.member_at(server, status) {
            Some(member) => format!(
                "it belongs to another log, {theirs}, and is at the address of node {} of this cluster: that node lost its directory, and a new cluster was made in its place; stop it, and replace node {} by a new server",
                member.node, member.node
            ),
            None => format!("it belongs to another log, {theirs}: name the servers of one cluster only"),
        }
    }

    /// Whether any server reported its status.
    pub(crate) fn is_answered(&self) -> bool {
        !self.answers.is_empty() || !self.others.is_empty()
    }

    /// The exit code if no server answers and all of them disagree with the options on TLS.
    pub(crate) fn mistrusted(&self) -> Option<Exit> {
        if self.is_answered() {
            return None;
        }
        let exits: Option<Vec<Exit>> = self.silent.iter().map(|s| s.mistrusts.map(exit_of)).collect();
        exits?.first().copied()
    }

    /// Fails if no server answered.
    ///
    /// # Errors
    /// `Unavailable`: no server answered. `Unauthenticated`: a server refused the token. `NotFound`: a server
    /// has no log of the name that is meant, and no other one has it.
    pub(crate) fn somebody(self) -> Result<Self> {
        if !self.answers.is_empty() {
            return Ok(self);
        }
        let refuses = self.silent.iter().any(|s| s.refuses);
        if let Some(silent) = self.silent.iter().find(|s| s.lacks_log) {
            return Err(Failure::new(ErrorKind::NotFound, format!("{}: {}", silent.server, silent.why)));
        }
        let mistrusted = self.mistrusted();
        let all: Vec<String> = self.silent.into_iter().map(|s| format!("{}: {}", s.server, s.why)).collect();
        let all = all.join("; ");
        Err(match refuses {
            true => Failure::new(ErrorKind::Unauthenticated, format!("{all}{TOKEN_ADVICE}")),
            false => {
                let failure = Failure::new(ErrorKind::Unavailable, format!("no server answers: {all}"));
                let exit = mistrusted.unwrap_or(failure.exit());
                failure.with_exit(exit)
            }
        })
    }

    /// Separates the servers of other logs from those of the log that is meant.
    ///
    /// Log A is older than log B if A lists a member where a replica of B answers, and not the other way
    /// round: a server that lost its directory and was made a new cluster knows no other server. The older
    /// log is meant. Of unrelated logs, the log of the first given server is meant.
    fn part_logs(&mut self, first_seed: Option<&String>) {
        let logs: BTreeSet<&String> =
            self.answers.iter().map(|(_, s)| &s.log_id).filter(|id| !id.is_empty()).collect();
        if logs.len() < 2 {
            return;
        }
        let is_usurped = |log: &String| {
            logs.iter().any(|other| *other != log && self.lists(other, log) && !self.lists(log, other))
        };
        let of = |log: &String| self.answers.iter().filter(|(_, s)| s.log_id == *log).count();
        let is_first = |log: &String| {
            self.answers.iter().any(|(server, s)| s.log_id == *log && Some(server) == first_seed)
        };
        let meant = logs.iter().max_by_key(|log| (!is_usurped(log), is_first(log), of(log)));
        let Some(meant) = meant.map(|log| (*log).clone()) else { return };
        let is_other = |(_, s): &mut (String, StatusResponse)| !s.log_id.is_empty() && s.log_id != meant;
        self.others = self.answers.extract_if(.., is_other).collect();
    }

    /// Whether `log` has a member at the address of a server of `other`.
    fn lists(&self, log: &String, other: &String) -> bool {
        let members = || self.answers.iter().filter(|(_, s)| s.log_id == *log).flat_map(|(_, s)| &s.members);
        let others = self.answers.iter().filter(|(_, s)| s.log_id == *other);
        others.into_iter().any(|(server, s)| members().any(|m| stands_at(m, server, s)))
    }

    fn learn_members(&mut self) {
        let knows_most = || {
            let known = self.answers.iter().filter(|(_, s)| !s.members.is_empty());
            known.max_by_key(|(_, s)| (s.committed_raft, s.term)).map(|(_, s)| s)
        };
        self.members = self.leader().or_else(knows_most).map_or_else(Vec::new, |s| s.members.clone());
    }
}

/// Whether a member's address is the one at which this answer came.
fn stands_at(member: &Member, server: &str, answer: &StatusResponse) -> bool {
    let known = |address: &String| !address.is_empty();
    (known(&member.client_address)
        && (member.client_address == server || member.client_address == answer.client_address))
        || (known(&member.peer_address) && member.peer_address == answer.peer_address)
}

impl ClusterQuery {
    /// The queries to the cluster of these servers, about the replicas of the log that is meant.
    pub(crate) fn new(dialler: Dialler, target: &Servers) -> Self {
        let Servers { addresses: seeds, log } = target.clone();
        Self { dialler, seeds, log, channels: HashMap::new(), members: Vec::new(), grace: None }
    }

    /// Queries that look for the leader: once a leader has answered, the other servers have `grace` to
    /// contradict.
    pub(crate) fn for_leader(dialler: Dialler, target: &Servers, grace: Duration) -> Self {
        Self { grace: Some(grace), ..Self::new(dialler, target) }
    }

    /// Queries all servers. Each has `patience` to answer.
    pub(crate) async fn round(&mut self, patience: Duration) -> Found {
        let mut ask = self.seeds.clone();
        ask.extend(self.members.iter().map(|m| m.client_address.clone()));
        let (mut found, mut silent) = (Found::default(), Vec::new());
        let (mut asked, mut under_way) = (BTreeSet::new(), JoinSet::new());
        // Servers that do not run the log's group. Each names one that does, at random: it can be down.
        let (mut without, mut attempts) = (Vec::new(), 1);
        loop {
            for server in ask.drain(..).filter(|s| !s.is_empty()) {
                if asked.insert(server.clone()) {
                    let (dialler, channel) = (self.dialler.clone(), self.channels.get(&server).cloned());
                    let log = self.log.clone();
                    under_way.spawn(async move {
                        let late =
                            |_| Err(Status::deadline_exceeded(format!("no answer within {patience:?}")));
                        let answer =
                            tokio::time::timeout(patience, status(&dialler, &server, channel, log)).await;
                        (server, answer.unwrap_or_else(late))
                    });
                }
            }
            let late = self.grace.filter(|_| found.leader().is_some()).unwrap_or(patience * 2);
            let Ok(next) = tokio::time::timeout(late, under_way.join_next()).await else { break };
            let Some(done) = next else {
                if !found.answers.is_empty() || without.is_empty() || attempts == ATTEMPTS_MAX {
                    break;
                }
                attempts += 1;
                without.iter().for_each(|server| _ = asked.remove(server));
                silent.retain(|(server, _)| !without.contains(server));
                ask.append(&mut without);
                continue;
            };
            let Ok((server, answer)) = done else { continue };
            match answer {
                Ok((channel, status)) => {
                    self.channels.insert(server.clone(), channel);
                    ask.extend(status.members.iter().map(|m| m.client_address.clone()));
                    let same = |(_, a): &(_, StatusResponse)| {
                        (a.node, &a.log_id, &a.directory) == (status.node, &status.log_id, &status.directory)
                    };
                    if !found.answers.iter().any(same) {
                        found.answers.push((server, status));
                    }
                }
                Err(status) => {
                    self.channels.remove(&server);
                    if let Some(other) = leader_of(&status) {
                        without.push(server.clone());
                        ask.push(other);
                    }
                    silent.push((server, status));
                }
            }
        }
        found.answers.sort_by_key(|(_, s)| s.node);
        found.part_logs(self.seeds.first());
        found.learn_members();
        if !found.members.is_empty() {
            self.members.clone_from(&found.members);
        }
        for (server, status) in silent {
            let member = self.members.iter().find(|m| m.client_address == server).cloned();
            let is_asked_for = member.is_some() || self.seeds.contains(&server);
            // It answered at another address.
            let is_it = |a: &StatusResponse, m: &Member| a.node == m.node && !a.log_id.is_empty();
            let answered = member.as_ref().is_some_and(|m| found.answers.iter().any(|(_, a)| is_it(a, m)));
            let is_elsewhere = leader_of(&status).is_some() && !found.answers.is_empty();
            if is_asked_for && !answered && !is_elsewhere {
                let refuses = matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied);
                // If other servers answer, a silent one is most likely down. That is reported without advice
                // on the address.
                let advised = if found.answers.is_empty() { advice(&status) } else { tls_advice(&status) };
                let error = from_first_status(&status);
                let why = format!("{error}{advised}");
                let lacks_log = error.kind() == ErrorKind::NotFound;
                let is_stranger = is_stranger(&status);
                let mistrusts = TlsMismatch::of(&status);
                found.silent.push(Silent { server, member, why, refuses, mistrusts, is_stranger, lacks_log });
            }
        }
        found.silent.sort_by_key(|s| s.member.as_ref().map_or(u64::MAX, |m| m.node));
        found
    }
}

async fn status(
    dialler: &Dialler,
    server: &str,
    channel: Option<Dialled>,
    log: String,
) -> Result<(Dialled, StatusResponse), Status> {
    let channel = match channel {
        Some(channel) => channel,
        None => dialler.dial(server).await?,
    };
    let status = AdminClient::new(channel.clone()).status(StatusRequest { log }).await?;
    Ok((channel, status.into_inner()))
}

/// The role of a replica, in one word.
pub(crate) fn role_name(status: &StatusResponse) -> &'static str {
    match status.role() {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Repairing => "repairing",
        Role::Removed => "removed",
        Role::Waiting => "waiting",
        Role::Unspecified => "unknown",
    }
}
