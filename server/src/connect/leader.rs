//! Leader: finds the leader and queries it.
//!
//! Invariants:
//! - A change is sent again only after an answer that says that it was not made.
//! - A server of another log at the address of a member is not taken for the leader.

use crate::common::failure::{Failure, Result};
use crate::connect::cluster::{Admin, Asker, REPORT_AFTER, failure, waits};
use crate::connect::cluster_status::{ClusterQuery, Found};
use chiplog::ErrorKind;
use chiplog_net::wire::proto::v1::StatusResponse;
use chiplog_net::wire::status::{from_status, leader_of};
use std::time::{Duration, Instant};
use tonic::Status;

/// How long to search for a leader.
const SEARCH: Duration = Duration::from_secs(15);
/// How long a server may take to report its status.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long other servers have to contradict, once a server says that it leads.
const GRACE: Duration = Duration::from_secs(1);

impl Asker {
    /// The leader's address and status, found from any of `servers`.
    ///
    /// # Errors
    /// `Unavailable`: no leader was found in time, or no server can be used and waiting does not help; the
    /// message says why. `Unauthenticated`: the servers refuse the token. `Membership`: every server that
    /// answers belongs to another log.
    pub(crate) fn leader(&self, servers: &[String]) -> Result<(String, StatusResponse)> {
        let begun = Instant::now();
        let mut reported = false;
        let mut query = ClusterQuery::for_leader(self.dialler().clone(), servers, GRACE);
        loop {
            let found = self.wait(query.round(PATIENCE));
            if let Some((server, status)) = found.leading() {
                return Ok((server.clone(), status.clone()));
            }
            let refuses = found.silent.iter().any(|s| s.refuses);
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
                self.say(&format!("waiting up to {} s for a leader: {why}", SEARCH.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Queries the leader; tries again if it answers that it does not lead.
    pub(crate) fn ask_leader<T, F>(
        &self,
        servers: &[String],
        patience: Duration,
        mut question: impl FnMut(Admin) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let begun = Instant::now();
        let mut servers = servers.to_vec();
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
            servers.extend(leader_of(&status).filter(|l| !servers.contains(l)));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
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
