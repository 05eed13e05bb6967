//! Survey: a whole cluster as its servers see it. Asks all servers that are known at once, and those that they name.
//!
//! Invariants:
//! - A round takes no longer than a server may take twice: once for those that are known, once for those they name.
//! - A replica is told once, by whatever addresses it was asked.
//!
//! Must not know: how anything is shown.

use crate::cluster::{Dialled, Dialler, TOKEN_ADVICE, advice, tls_advice};
use crate::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::proto::v1::admin_client::AdminClient;
use chiplog_net::proto::v1::{Member, Role, StatusRequest, StatusResponse};
use chiplog_net::status::from_status;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// What is asked, and whom. Keeps connections from one round to the next.
pub(crate) struct Survey {
    dialler: Dialler,
    seeds: Vec<String>,
    channels: HashMap<String, Dialled>,
    /// As the last round that was answered told.
    members: BTreeMap<u64, Member>,
}

/// What a round brought.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Each replica that answered, in the order of their numbers, and where it did.
    pub(crate) answers: Vec<(String, StatusResponse)>,
    /// Those that did not.
    pub(crate) silent: Vec<Silent>,
}

/// A server that did not answer.
#[derive(Debug)]
pub(crate) struct Silent {
    pub(crate) server: String,
    /// What the others say of it.
    pub(crate) member: Option<Member>,
    pub(crate) why: String,
    /// It refuses who asks, which trying again does not mend.
    pub(crate) refuses: bool,
}

impl Found {
    /// Who leads. Two can believe that they do; the one of the later term does.
    pub(crate) fn leader(&self) -> Option<&StatusResponse> {
        let leads = |s: &&StatusResponse| s.role() == Role::Leader && s.poison.is_empty();
        self.answers.iter().map(|(_, s)| s).filter(leads).max_by_key(|s| s.term)
    }

    /// The log's id, if a server that answered is part of a cluster.
    pub(crate) fn log_id(&self) -> Option<String> {
        self.answers.iter().map(|(_, s)| s.log_id.clone()).find(|id| !id.is_empty())
    }

    /// Entries that a replica lacks, as the leader knows.
    pub(crate) fn lag(&self, node: u64) -> Option<u64> {
        let leader = self.leader()?;
        if leader.node == node {
            return Some(0);
        }
        leader.peers.iter().find(|p| p.node == node).map(|p| p.lag)
    }

    /// # Errors
    /// `Unavailable`: nobody answered. `Unauthenticated`: one of them refused who asks.
    pub(crate) fn somebody(self) -> Result<Self> {
        if !self.answers.is_empty() {
            return Ok(self);
        }
        let refuses = self.silent.iter().any(|s| s.refuses);
        let all: Vec<String> = self.silent.into_iter().map(|s| format!("{}: {}", s.server, s.why)).collect();
        let all = all.join("; ");
        Err(match refuses {
            true => Failure::new(ErrorKind::Unauthenticated, format!("{all}{TOKEN_ADVICE}")),
            false => Failure::new(ErrorKind::Unavailable, format!("no server answers: {all}")),
        })
    }
}

impl Survey {
    /// Of the cluster of these servers.
    pub(crate) fn new(dialler: Dialler, seeds: &[String]) -> Self {
        Self { dialler, seeds: seeds.to_vec(), channels: HashMap::new(), members: BTreeMap::new() }
    }

    /// Asks all; each server has so long.
    pub(crate) async fn round(&mut self, patience: Duration) -> Found {
        let mut ask = self.seeds.clone();
        ask.extend(self.members.values().map(|m| m.client_address.clone()));
        let (mut found, mut silent) = (Found::default(), Vec::new());
        let mut members = BTreeMap::new();
        let (mut asked, mut under_way) = (BTreeSet::new(), JoinSet::new());
        loop {
            for server in ask.drain(..).filter(|s| !s.is_empty()) {
                if asked.insert(server.clone()) {
                    let (dialler, channel) = (self.dialler.clone(), self.channels.get(&server).cloned());
                    under_way.spawn(async move {
                        let late =
                            |_| Err(Status::deadline_exceeded(format!("no answer within {patience:?}")));
                        let answer = tokio::time::timeout(patience, status(&dialler, &server, channel)).await;
                        (server, answer.unwrap_or_else(late))
                    });
                }
            }
            let Some(done) = under_way.join_next().await else { break };
            let Ok((server, answer)) = done else { continue };
            match answer {
                Ok((channel, status)) => {
                    self.channels.insert(server.clone(), channel);
                    for member in &status.members {
                        ask.push(member.client_address.clone());
                        members.insert(member.node, member.clone());
                    }
                    let same = |(_, a): &(_, StatusResponse)| {
                        (a.node, &a.directory) == (status.node, &status.directory)
                    };
                    if !found.answers.iter().any(same) {
                        found.answers.push((server, status));
                    }
                }
                Err(status) => {
                    self.channels.remove(&server);
                    silent.push((server, status));
                }
            }
        }
        if !members.is_empty() {
            self.members = members;
        }
        found.answers.sort_by_key(|(_, s)| s.node);
        for (server, status) in silent {
            let member = self.members.values().find(|m| m.client_address == server).cloned();
            // It answered elsewhere.
            if !member.as_ref().is_some_and(|m| found.answers.iter().any(|(_, a)| a.node == m.node)) {
                let refuses = matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied);
                // Where others answer, one that does not is most likely down, which is what is to be shown.
                let mends = if found.answers.is_empty() { advice(&status) } else { tls_advice(&status) };
                let why = format!("{}{mends}", from_status(&status));
                found.silent.push(Silent { server, member, why, refuses });
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
) -> Result<(Dialled, StatusResponse), Status> {
    let channel = match channel {
        Some(channel) => channel,
        None => dialler.dial(server).await?,
    };
    let status = AdminClient::new(channel.clone()).status(StatusRequest::default()).await?;
    Ok((channel, status.into_inner()))
}

/// What a replica does, in one word.
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
