//! Leader: finds the leader and queries it.
//!
//! Invariants:
//! - A change is sent again only after an answer that says that it was not made; [`Asker::insist`] is for
//!   changes that a second request does not make twice.
//! - A server of another log at the address of a member is not taken for the leader.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::connect::cluster::{Admin, Asker, REPORT_AFTER, failure, waits};
use crate::connect::cluster_status::{ClusterQuery, Found};
use crate::connect::target::Servers;
use chiplog::ErrorKind;
use chiplog_net::served::log_slot::SYSTEM_LOG;
use chiplog_net::wire::proto::v1::StatusResponse;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::status::{from_status, leader_of};
use std::time::{Duration, Instant};
use tonic::Status;

/// How long to search for a leader.
const SEARCH: Duration = Duration::from_secs(15);
/// How long a server may take to report its status.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long other servers have to contradict, once a server says that it leads.
const GRACE: Duration = Duration::from_secs(1);
/// How long the servers of a new cluster, or a server that joined one, may take to make their groups of named logs.
const FOUNDING: Duration = Duration::from_secs(5);
/// How long a change that can be sent again may take, with all its requests, and one of these requests.
const INSIST: Duration = Duration::from_secs(30);
const ONE_REQUEST: Duration = Duration::from_secs(10);

/// The end of a change that can be sent again.
pub(crate) struct Insisted<T> {
    pub(crate) answer: Result<T>,
    /// Whether an earlier request had no answer: perhaps it was carried out.
    pub(crate) lost: bool,
}

impl Asker {
    /// The leader's address and status, found from any of `given`: the leader of the group of the log that is
    /// meant.
    ///
    /// # Errors
    /// `Unavailable`: no leader was found in time, or no server can be used and waiting does not help; the
    /// message says why. `Unauthenticated`: the servers refuse the token. `Membership`: every server that
    /// answers belongs to another log. `NotFound`: there is no log of this name.
    /// `Unsupported`: there are no named logs.
    pub(crate) fn leader(&self, given: &Servers) -> Result<(String, StatusResponse)> {
        let begun = Instant::now();
        let mut servers = given.clone();
        let mut reported = false;
        let mut query = ClusterQuery::for_leader(self.dialler().clone(), &servers, GRACE);
        loop {
            let found = self.wait(query.round(PATIENCE));
            if let Some((server, status)) = found.leading() {
                return Ok((server.clone(), status.clone()));
            }
            let lacks_log = found.silent.iter().any(|s| s.lacks_log);
            if servers.log == SYSTEM_LOG && lacks_log && found.answers.is_empty() {
                let members = self.members(&servers);
                let all = servers.addresses.len();
                let is_new = |address: &String| !servers.addresses.contains(address);
                let new: Vec<_> = members.iter().filter(|address| is_new(address)).cloned().collect();
                servers.addresses.extend(new);
                if servers.addresses.len() > all && begun.elapsed() < SEARCH {
                    query = ClusterQuery::for_leader(self.dialler().clone(), &servers, GRACE);
                    continue;
                }
                // A server that joined may get its replica of the system log soon. The only one of a cluster has it at once.
                if members.len() == 1 || begun.elapsed() > FOUNDING {
                    return Err(without_named_logs(given, &found, members.len()));
                }
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
            let refuses = found.silent.iter().any(|s| s.refuses || s.lacks_log);
            let hopeless = !found.silent.is_empty()
                && found.silent.iter().all(|s| s.mistrusts.is_some() || s.is_stranger);
            if found.answers.is_empty() && (refuses || hopeless) {
                // Waiting does not help.
                return found.somebody().and(Err(Failure::new(ErrorKind::Unavailable, "no server answers")));
            }
            let why = why_nobody(&found);
            if begun.elapsed() > SEARCH {
                return Err(Failure::new(ErrorKind::Unavailable, why));
            }
            if begun.elapsed() > REPORT_AFTER && !std::mem::replace(&mut reported, true) {
                // The error, if there is none, says what to do.
                let why = why.split("; ").next().unwrap_or_default();
                self.say(&format!("waiting up to {} s for a leader: {why}", SEARCH.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The addresses of the members of the default log. None: no server reports them.
    fn members(&self, servers: &Servers) -> Vec<String> {
        let mut query = ClusterQuery::for_leader(self.dialler().clone(), &servers.with_log(""), GRACE);
        let found = self.wait(query.round(PATIENCE));
        found.members.into_iter().map(|member| member.client_address).collect()
    }

    /// Queries the leader; tries again if it answers that it does not lead.
    pub(crate) fn ask_leader<T, F>(
        &self,
        servers: &Servers,
        patience: Duration,
        mut question: impl FnMut(Admin) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let begun = Instant::now();
        let mut servers = servers.clone();
        loop {
            let (leader, _) = self.leader(&servers)?;
            let status = match self.try_ask(&leader, patience, &mut question) {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let again = from_status(&status).kind() == ErrorKind::NotLeader;
            if !again || begun.elapsed() > SEARCH {
                return Err(failure(&leader, &status));
            }
            servers.addresses.extend(leader_of(&status).filter(|new| !servers.addresses.contains(new)));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends the leader a change until it answers whether it made it. The change is one that has no effect the
    /// second time.
    pub(crate) fn insist<T, F>(&self, servers: &Servers, question: impl Fn(Admin) -> F) -> Insisted<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let begun = Instant::now();
        let (mut servers, mut lost) = (servers.clone(), false);
        loop {
            let leader = match self.leader(&servers) {
                Ok((leader, _)) => leader,
                Err(failure) => return Insisted { answer: Err(failure), lost },
            };
            let (was_sent, answer) = self.wait(self.send(&leader, &question));
            let status = match answer {
                Ok(answer) => return Insisted { answer: Ok(answer), lost },
                Err(status) => status,
            };
            let kind = from_status(&status).kind();
            let was_made = was_sent && may_be_made(kind);
            let is_early = matches!(kind, ErrorKind::NotLeader | ErrorKind::Busy);
            let again = was_made || !was_sent || is_early;
            if !again || begun.elapsed() > INSIST {
                return Insisted { answer: Err(failure(&leader, &status)), lost: lost || was_made };
            }
            lost |= was_made;
            servers.addresses.extend(leader_of(&status).filter(|new| !servers.addresses.contains(new)));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends one request. Also returns whether there was a connection to send it on.
    async fn send<T, F>(&self, server: &str, question: impl Fn(Admin) -> F) -> (bool, Result<T, Status>)
    where
        F: Future<Output = Result<T, Status>>,
    {
        let client = match self.dialler().dial(server).await {
            Ok(dialled) => AdminClient::new(dialled),
            Err(status) => return (false, Err(status)),
        };
        let late = |_| Status::deadline_exceeded(format!("no answer within {ONE_REQUEST:?}"));
        let answer = tokio::time::timeout(ONE_REQUEST, question(client)).await.map_err(late);
        (true, answer.and_then(|answer| answer))
    }
}

/// Whether a request that failed like this may have been carried out.
fn may_be_made(kind: ErrorKind) -> bool {
    use ErrorKind::{Closed, Io, Poisoned, Timeout, Unavailable};
    matches!(kind, Closed | Io | Poisoned | Timeout | Unavailable)
}

/// The failure of a command about named logs at servers that keep none.
fn without_named_logs(servers: &Servers, found: &Found, members: usize) -> Failure {
    let all = servers.addresses.join(",");
    let lack = found.silent.iter().filter(|s| s.lacks_log).count();
    let what = match members {
        count if count > lack => format!(
            "{all}: no server that answers keeps named logs, and {lack} of {count} answer: start the others, or see in the servers' logs why they have no system log"
        ),
        count if count > 1 => format!(
            "{all} {} no named logs: restart all {count} servers with `groups`, one after the other, as in `chiplog serve --set groups=2`, or `groups = 2` in their configuration files; if they have it already, the log of the leader's server says why they keep none",
            if servers.addresses.len() == 1 { "keeps" } else { "keep" }
        ),
        _ => format!(
            "{all} keeps no named logs: restart it with `groups`, as in `chiplog serve --set groups=2`, or `groups = 2` in its configuration file; if it has them already, its log says why it keeps none"
        ),
    };
    Failure::new(ErrorKind::Unsupported, what).with_exit(Exit::Usage)
}

/// Explains why there is no leader.
fn why_nobody(found: &Found) -> String {
    // A poisoned leader of an earlier version claims leadership for ever.
    if let Some((server, status)) = found.answers.iter().find(|(_, s)| !s.poison.is_empty()) {
        return format!("{server} takes no more appends: {}", status.poison);
    }
    if let Some((server, status)) = found.others.first() {
        return format!("{server}: {}", found.strangeness(server, status));
    }
    let away = found.silent.first().map(|silent| format!("{}: {}", silent.server, silent.why));
    match (found.answers.first(), away) {
        (Some((server, status)), None) if status.log_id.is_empty() => waits(server, status),
        (None, Some(away)) => away,
        (_, Some(away)) => format!("the servers that answer know no leader; {away}"),
        (_, None) => "the servers know no leader".into(),
    }
}
