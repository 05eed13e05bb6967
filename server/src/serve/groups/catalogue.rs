//! Catalogue: whether this server's replica of the system log follows the others. The leader of a group whose server does not know
//! the newest catalogue opens no new logs there, drops no deleted ones, and replaces no member: another server has to lead it.
//!
//! Invariant: a group is handed over only to a server that says that its own replica follows. If the system log has no majority,
//! none does, and the groups keep their leaders.

use super::members::successor;
use super::{Groups, HOST_TIMEOUT, label};
use chiplog::{ErrorKind, Index, Log, Logs, NodeId, Ticket};
use chiplog_net::served::elsewhere::GroupView;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// How long no majority has confirmed a replica of the system log before its server leads no group.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(10);
/// How often a majority is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// How often the other voters of a group are asked whether they can lead it instead.
const SUCCESSOR_INTERVAL: Duration = Duration::from_secs(2);

/// The barriers of this server's replica of the system log, one at a time.
#[derive(Default)]
pub(super) struct Confirmations {
    /// The last barrier, and when it began. None: it could not begin, or has its answer.
    asked: Option<(Instant, Ticket<Index>)>,
    last: Option<Instant>,
    unconfirmed: Unconfirmed,
}

/// How long no barrier has passed.
#[derive(Debug, Default)]
struct Unconfirmed {
    /// When the first one began that has not passed since another one did.
    since: Option<Instant>,
    /// How long after that it was last seen that none has.
    lasts: Duration,
}

impl Unconfirmed {
    /// Notes whether a barrier that began at `asked` passed. None: it has no answer yet. One that failed did so in its time: it says
    /// nothing about what came later.
    fn note(&mut self, asked: Instant, passed: Option<bool>, now: Instant) {
        let until = match passed {
            Some(true) => {
                *self = Self::default();
                return;
            }
            Some(false) => now.min(asked + HOST_TIMEOUT),
            None => now,
        };
        // Nothing was asked for long: that time says nothing either.
        self.since.take_if(|since| asked.saturating_duration_since(*since + self.lasts) >= UNCONFIRMED_MAX);
        let since = *self.since.get_or_insert(asked);
        self.lasts = until.saturating_duration_since(since);
    }
}

impl Confirmations {
    /// Looks at the last barrier, and begins another one. Never blocks. Returns for how long none has passed.
    fn look(&mut self, system: &Log) -> Duration {
        if let Some((begun, ticket)) = self.asked.take() {
            let answer = ticket.wait_timeout(Duration::ZERO).map_err(|error| error.kind());
            let is_under_way = answer == Err(ErrorKind::Timeout);
            self.unconfirmed.note(begun, (!is_under_way).then_some(answer.is_ok()), Instant::now());
            if is_under_way {
                self.asked = Some((begun, ticket));
            }
        }
        if self.asked.is_none() && self.last.is_none_or(|last| last.elapsed() >= ASK_INTERVAL) {
            let now = Instant::now();
            self.last = Some(now);
            match system.submit_barrier(HOST_TIMEOUT) {
                Ok(ticket) => self.asked = Some((now, ticket)),
                Err(_) => self.unconfirmed.note(now, Some(false), now),
            }
        }
        self.unconfirmed.lasts
    }
}

impl Groups {
    /// Whether the catalogue here is behind, or will be. Never blocks.
    pub(super) fn lacks_catalogue(&self, logs: &Logs) -> bool {
        let system = logs.system();
        let unconfirmed =
            self.inner.confirmations.lock().unwrap_or_else(PoisonError::into_inner).look(system);
        system.poison_cause().is_some() || system.lacks_room() || unconfirmed >= UNCONFIRMED_MAX
    }

    /// Transfers the leadership of a group to a server whose catalogue is not behind. Returns whether there is one.
    pub(super) fn hand_over_for_catalogue(&self, group: u32, replica: &Log) -> bool {
        if !self.is_due(group, SUCCESSOR_INTERVAL) {
            return false;
        }
        let Some(next) = self.able_successor(group, replica, |_| true) else { return false };
        match replica.transfer_leader(next, HOST_TIMEOUT) {
            Ok(()) => {
                tracing::warn!(group = %label(group), to = %next, "another server leads a group of named logs: the replica of the system log here does not follow the others");
                true
            }
            Err(error) => {
                tracing::info!(group = %label(group), to = %next, %error, "leadership of a group was not transferred");
                false
            }
        }
    }

    /// The voter that is to lead a group instead of this server, and can. Those that `may` are asked. None: there is none.
    pub(super) fn able_successor(
        &self,
        group: u32,
        replica: &Log,
        may: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let have = replica.status().replica;
        let heard = have.peers.iter().filter(|peer| peer.active && may(peer.node)).map(|peer| peer.node);
        let view = |node| {
            let member = have.members.iter().find(|member| member.node == node && member.is_voter())?;
            let asking = self.ask_view(member, group, replica.log_id(), &[]);
            Some((node, Handle::current().block_on(asking).ok()?))
        };
        let able = able(&heard.filter_map(view).collect());
        successor(&have, |node| able.contains(&node))
    }
}

/// The servers that can lead a group: those that have room for it, and a catalogue that follows. One with a slow disk only if no other one
/// is left.
fn able(views: &BTreeMap<NodeId, GroupView>) -> Vec<NodeId> {
    let able = views.iter().filter(|(_, view)| !view.lacks_catalogue && !view.lacks_room);
    let fast = able.clone().filter(|(_, view)| !view.slow_disk).map(|(node, _)| *node);
    let fast: Vec<NodeId> = fast.collect();
    if fast.is_empty() { able.map(|(node, _)| *node).collect() } else { fast }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_barriers_that_fail_one_after_the_other_count() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.note(at(0), None, at(2));
        assert_eq!(unconfirmed.lasts, Duration::from_secs(2));
        unconfirmed.note(at(0), Some(true), at(3));
        assert_eq!(unconfirmed.lasts, Duration::ZERO);
        // A minute passed without a look. One failure says nothing about that time, whether its barrier began before or after.
        unconfirmed.note(at(5), Some(false), at(65));
        assert_eq!(unconfirmed.lasts, HOST_TIMEOUT);
        unconfirmed.note(at(65), None, at(65));
        assert_eq!(unconfirmed.lasts, Duration::ZERO);
        unconfirmed.note(at(65), Some(true), at(66));
        unconfirmed.note(at(67), Some(false), at(70));
        assert_eq!(unconfirmed.lasts, Duration::from_secs(3));
        unconfirmed.note(at(72), Some(false), at(77));
        assert_eq!(unconfirmed.lasts, UNCONFIRMED_MAX);
        unconfirmed.note(at(79), Some(true), at(80));
        assert_eq!(unconfirmed.lasts, Duration::ZERO);
        // The replica here has given no answer for a minute.
        unconfirmed.note(at(80), None, at(140));
        assert_eq!(unconfirmed.lasts, Duration::from_secs(60));
    }

    #[test]
    fn server_with_a_slow_disk_leads_only_if_no_other_one_can() {
        let view = |slow_disk, lacks_room, lacks_catalogue| {
            let mut view = GroupView::default();
            (view.slow_disk, view.lacks_room, view.lacks_catalogue) =
                (slow_disk, lacks_room, lacks_catalogue);
            view
        };
        let mut views: BTreeMap<_, _> = [
            (NodeId(1), view(true, false, false)),
            (NodeId(2), view(false, true, false)),
            (NodeId(3), view(false, false, true)),
            (NodeId(4), view(false, false, false)),
        ]
        .into();
        assert_eq!(able(&views), [NodeId(4)]);
        views.remove(&NodeId(4));
        assert_eq!(able(&views), [NodeId(1)]);
        views.remove(&NodeId(1));
        assert!(able(&views).is_empty());
    }
}
