//! Leader: the redirect for a client that should use another replica, and the answers for the log's other errors.

use super::{LogspecService, ServedLog};
use crate::served::log_slot::{another_leader, status_of};
use crate::wire::address::Address;
use crate::wire::proto::logspec::Redirect;
use chiplog::{Error, ErrorKind, Log};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// How often a request that waits for a leader checks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The answer to a client when the log rejects a call.
pub(super) enum Answered {
    /// Use this replica.
    Redirect(Redirect),
    /// The capacity is used up; a status, for replies without a field for it.
    Full(Status),
    /// Any other error.
    Failed(Status),
}

/// Whether this replica leads, as far as it knows.
pub(super) fn leads(log: &Log) -> bool {
    let replica = log.status().replica;
    replica.leader == Some(replica.node)
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

impl ServedLog {
    /// The address for clients of another replica that leads, with the port of this log. None, too, if that is this
    /// server's own address: on one host the servers cannot have the same port.
    fn another_leader(&self) -> Option<String> {
        let leader = another_leader(&self.log)?;
        let Some(port) = self.port else { return Some(leader) };
        let replica = self.log.status().replica;
        let own = replica.members.into_iter().find(|member| member.node == replica.node);
        let own = own.and_then(|member| Some(member.address.parse::<Address>().ok()?.client));
        let host = host_of(&leader);
        (own.as_deref().map(host_of) != Some(host)).then(|| format!("{host}:{port}"))
    }
}

impl LogspecService {
    /// Waits until a leader is known, for up to `leader_wait`.
    pub(super) async fn await_leader(&self, log: &Log) {
        self.hold(|| log.leader()).await;
    }

    /// Returns the client address of another replica that leads, if one becomes known within `leader_wait`. This
    /// replica rejected the call: it does not lead, or is handing over, whatever its state shows.
    async fn await_another_leader(&self, log: &ServedLog) -> Option<String> {
        self.hold(|| log.another_leader()).await
    }

    async fn hold<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        let until = Instant::now() + self.limits.leader_wait;
        loop {
            let found = look();
            if found.is_some() || Instant::now() >= until {
                return found;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// The answer for a call that the log rejected with `error`.
    pub(super) async fn answer_to(&self, log: &ServedLog, error: &Error) -> Answered {
        match error.kind() {
            // Only the leader knows whether there is room.
            ErrorKind::Full if leads(log) => Answered::Full(status_of(log, error)),
            ErrorKind::NotLeader | ErrorKind::Removed | ErrorKind::Full => {
                match self.await_another_leader(log).await {
                    Some(host) => Answered::Redirect(Redirect { host }),
                    None => {
                        let what = format!("{error}; no leader to redirect to is known yet; try again");
                        Answered::Failed(status_of(log, &Error::new(ErrorKind::Unavailable, what)))
                    }
                }
            }
            // The call was not answered in time here; another replica that leads by now may answer it.
            ErrorKind::Unavailable | ErrorKind::Busy => match log.another_leader() {
                Some(host) => Answered::Redirect(Redirect { host }),
                None => Answered::Failed(status_of(log, error)),
            },
            _ => Answered::Failed(status_of(log, error)),
        }
    }
}
