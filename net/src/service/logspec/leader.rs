//! Leader: where a client goes that should ask another replica, and what else an error of the log comes to.

use super::LogspecService;
use crate::wire::proto::logspec::Redirect;
use chiplog::{Error, ErrorKind, Log};
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
    /// Waits until somebody is known to lead, for the moment that a request is held.
    pub(super) async fn await_leader(&self, log: &Log) {
        self.hold(|| log.status().leader).await;
    }

    /// Where another replica that leads serves clients, if that comes to be known in the moment that a request is held.
    /// This one has refused: it is no leader, or hands over just now, whatever it shows.
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

    /// What to say when the log refused with `error`.
    pub(super) async fn answer_to(&self, log: &Log, error: &Error) -> Answered {
        match error.kind() {
            // Whether there is room is the leader's to say.
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
            // Not in time here: perhaps at the leader, if that is another one.
            ErrorKind::Unavailable | ErrorKind::Busy => match self.host.another_leader() {
                Some(host) => Answered::Redirect(Redirect { host }),
                None => Answered::Failed(self.host.status_of(error)),
            },
            _ => Answered::Failed(self.host.status_of(error)),
        }
    }
}
