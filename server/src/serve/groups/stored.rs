//! Stored: the list of the cluster's logs in the object store, beside the default log's objects. With it the named logs come back if all
//! servers are lost.
//!
//! The leader of the system log keeps it, while a majority of the default log confirms that it is a member.
//!
//! Invariants:
//! - nothing waits for the object store here. A store that is down is asked again later;
//! - the flag that the list is not stored is set by what the object store answers, and by nothing else: a cluster without a majority
//!   says nothing about the store. After a panic it is set.
//!
//! Must not know: services, clients.

use super::{Groups, HOST_TIMEOUT, SYSTEM, Task};
use chiplog::backup::ClusterLogs;
use chiplog::cluster::Role;
use chiplog::{Error, Log, Logs, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often to compare with the list that was stored last.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the list that this process stored, or found, counts as being there.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// How far the list in the object store is known.
#[derive(Debug)]
enum Known {
    /// The object store has it, since then.
    There(ClusterLogs, Instant),
    /// This server is not to store it.
    NotMine,
    /// It could not be found out whether this server is to store it.
    Unknown(Error),
    /// The object store does not have it, or has another one.
    NotThere(Error),
    /// The program failed.
    Panicked,
}

impl Known {
    /// Whether the list is known not to be there. None: the same as before.
    fn is_unstored(&self) -> Option<bool> {
        match self {
            Self::There(..) | Self::NotMine => Some(false),
            Self::Unknown(_) => None,
            Self::NotThere(_) | Self::Panicked => Some(true),
        }
    }

    /// The text for the server's log. Empty: none.
    fn report(&self) -> String {
        match self {
            Self::There(..) | Self::NotMine => String::new(),
            Self::Unknown(error) => {
                format!("the list of the cluster's logs is not compared with the object store now: {error}")
            }
            Self::NotThere(error) => {
                format!("the object store does not have the list of the cluster's logs: {error}")
            }
            Self::Panicked => {
                "the list of the cluster's logs could not be stored: a thread panicked".to_owned()
            }
        }
    }
}

impl Groups {
    /// Whether this server is to store the list, and the object store does not have it. The flag of this process.
    pub(in crate::serve) fn has_unstored_list(&self) -> Arc<AtomicBool> {
        self.inner.has_unstored_list.clone()
    }

    /// Keeps the list in the object store, until the server ends.
    pub(super) async fn keep_stored(self, mut ending: watch::Receiver<bool>) {
        if self.inner.vault.is_none() {
            return;
        }
        let mut known: Option<(ClusterLogs, Instant)> = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                _ = ending.wait_for(|ending| *ending) => return,
            }
            let groups = self.clone();
            let stored = tokio::task::spawn_blocking(move || groups.store_list(known)).await;
            let stored = match stored {
                Err(ended) if !ended.is_panic() => return, // the server ends
                stored => stored.unwrap_or(Known::Panicked),
            };
            if let Some(is_unstored) = stored.is_unstored() {
                self.inner.has_unstored_list.store(is_unstored, Ordering::Relaxed);
            }
            self.report(SYSTEM, Task::Store, &stored.report());
            known = match stored {
                Known::There(list, since) => Some((list, since)),
                _ => None,
            };
        }
    }

    /// Stores the list if it is not the one that is `known` to be there.
    fn store_list(&self, known: Option<(ClusterLogs, Instant)>) -> Known {
        let Some(vault) = &self.inner.vault else { return Known::NotMine };
        let list = match self.list_to_store(known) {
            Ok(Ok(list)) => list,
            Ok(Err(known)) => return known,
            Err(error) => return Known::Unknown(error),
        };
        match list.store(&**vault) {
            Err(error) => return Known::NotThere(error),
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(
                    groups = list.groups.len(),
                    "the object store has the list of the cluster's logs"
                );
            }
        }
        Known::There(list, Instant::now())
    }

    /// The list, if this server is to store it, and it is not the one that is `known` to be there.
    fn list_to_store(
        &self,
        known: Option<(ClusterLogs, Instant)>,
    ) -> Result<std::result::Result<ClusterLogs, Known>> {
        let (Some(logs), Some(default)) = (self.inner.slot.named(), self.inner.slot.opened()) else {
            return Ok(Err(Known::NotMine));
        };
        if logs.system().role() != Role::Leader {
            return Ok(Err(Known::NotMine));
        }
        let list = list_of(logs, default)?;
        if let Some((known, since)) = known.filter(|(known, at)| *known == list && at.elapsed() < LOOK_AGAIN)
        {
            return Ok(Err(Known::There(known, since)));
        }
        // A server that was removed from the cluster can have a system log of its own.
        default.barrier(HOST_TIMEOUT)?;
        logs.system().barrier(HOST_TIMEOUT)?;
        let replica = default.status().replica;
        let is_member = replica.members.iter().any(|member| member.node == replica.node);
        Ok(if is_member { Ok(list) } else { Err(Known::NotMine) })
    }
}

fn list_of(logs: &Logs, default: &Log) -> Result<ClusterLogs> {
    let mut groups = BTreeMap::new();
    for group in logs.known_groups()? {
        groups.extend(logs.group_id(group)?.map(|id| (group, id)));
    }
    Ok(ClusterLogs::new(default.log_id(), logs.system().log_id(), groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::ErrorKind;

    /// Only what the object store answers says whether it has the list.
    #[test]
    fn cluster_without_a_majority_says_nothing_about_the_store() {
        let error = || Error::new(ErrorKind::Unavailable, "no majority");
        assert_eq!(Known::Unknown(error()).is_unstored(), None);
        assert!(!Known::Unknown(error()).report().contains("does not have"));
        assert_eq!(Known::NotThere(error()).is_unstored(), Some(true));
        assert_eq!(Known::Panicked.is_unstored(), Some(true));
        assert_eq!(Known::NotMine.is_unstored(), Some(false));
    }
}
