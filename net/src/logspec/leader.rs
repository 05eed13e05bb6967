//! Leader: where a client goes that should ask another replica, and what else an error of the log comes to.

use super::LogspecService;
use crate::address::Address;
use crate::proto::logspec::Redirect;
use chiplog::{Error, ErrorKind, Log, NodeId};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// How often somebody who waits for a leader looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What a client is answered when the log refuses.
pub(super) enum Answered {
    /// Ask this one.
    Redirect(Redirect),
    /// The capacity is used up; for those whose reply has no arm for it, a status.
    Full(Status),
    /// Anything else.
    Failed(Status),
}

/// Whether this replica leads, as far as it knows.
pub(super) fn leads(log: &Log) -> bool {
    let status = log.status();
    status.leader == Some(status.node)
}

impl LogspecService {
    /// The leader, if one is known, and where it serves clients, if that can be said.
    fn leader(log: &Log) -> Option<(NodeId, Option<String>)> {
        let status = log.status();
        let leader = status.leader?;
        let member = status.members.into_iter().find(|m| m.node == leader);
        let client = member.and_then(|m| m.address.parse().ok()).map(|a: Address| a.client);
        Some((leader, client))
    }

    /// Waits until somebody is known to lead, for the moment that a request is held.
    pub(super) async fn await_leader(&self, log: &Log) -> Option<(NodeId, Option<String>)> {
        let until = Instant::now() + self.limits.leader_wait;
        loop {
            let leader = Self::leader(log);
            if leader.is_some() || Instant::now() >= until {
                return leader;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// What to say when the log refused with `error`.
    pub(super) async fn answer_to(&self, log: &Log, error: &Error) -> Answered {
        match error.kind() {
            // Whether there is room is the leader's to say.
            ErrorKind::Full if leads(log) => Answered::Full(self.host.status_of(error)),
            ErrorKind::NotLeader | ErrorKind::Removed | ErrorKind::Full => match self.await_leader(log).await
            {
                Some((_, Some(host))) => Answered::Redirect(Redirect { host }),
                _ => {
                    let what = format!("{error}; there is nobody to redirect to yet, try again");
                    Answered::Failed(self.host.status_of(&Error::new(ErrorKind::Unavailable, what)))
                }
            },
            // Not in time here: perhaps at the leader, if that is another one.
            ErrorKind::Unavailable => match Self::leader(log) {
                Some((node, Some(host))) if node != log.status().node => {
                    Answered::Redirect(Redirect { host })
                }
                _ => Answered::Failed(self.host.status_of(error)),
            },
            _ => Answered::Failed(self.host.status_of(error)),
        }
    }
}
