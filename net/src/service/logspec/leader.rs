//! Leader: the redirect for a client that should use another replica, and the answers for the log's other errors.

use super::LogspecService;
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

impl LogspecService {
    /// Waits until a leader is known, for up to `leader_wait`.
    pub(super) async fn await_leader(&self, log: &Log) {
        self.hold(|| log.leader()).await;
    }

    /// Returns the client address of another replica that leads, if one becomes known within `leader_wait`. This
    /// replica rejected the call: it does not lead, or is handing over, whatever its state shows.
    async fn await_another_leader(&self) -> Option<String> {
        self.hold(|| self.host.another_leader()).await
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
    pub(super) async fn answer_to(&self, log: &Log, error: &Error) -> Answered {
        match error.kind() {
            // Only the leader knows whether there is room.
            ErrorKind::Full if leads(log) => Answered::Full(self.host.status_of(error)),
            ErrorKind::NotLeader | ErrorKind::Removed | ErrorKind::Full => {
                match self.await_another_leader().await {
                    Some(host) => Answered::Redirect(Redirect { host }),
                    None => {
                        let what = format!("{error}; no leader to redirect to is known yet; try again");
                        Answered::Failed(self.host.status_of(&Error::new(ErrorKind::Unavailable, what)))
                    }
                }
            }
            // The call was not answered in time here; another replica that leads by now may answer it.
            ErrorKind::Unavailable | ErrorKind::Busy => match self.host.another_leader() {
                Some(host) => Answered::Redirect(Redirect { host }),
                None => Answered::Failed(self.host.status_of(error)),
            },
            _ => Answered::Failed(self.host.status_of(error)),
        }
    }
}
