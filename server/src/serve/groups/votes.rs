//! Votes: which member of a group gets a vote or loses it, and how long the latter waits for the vote of the server in its place.
//!
//! Invariant: except in one change with a promotion, no member loses its vote while the group awaits another one, up to [`JOIN_PATIENCE`]
//! without a sign of that. It is awaited from a server that is to run the group and does not vote in it, and in place of one on which the
//! group is placed and that does not vote in the cluster any more: the catalogue names another one in a moment. The sign of a server that
//! copies the group's files is that it has more of them than before: one that is heard can lack the room for them. More of them are no sign
//! once it was refused a vote for its options, its version or its room.

use super::Groups;
use chiplog::cluster::{Change, Member};
use chiplog::{EntryIndex, Error, Log, NodeId};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long a vote that is awaited keeps the others from being taken away without a sign of it.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// How long a promotion that failed for the first time is not tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// How long that which was seen of a vote is told to others: the group may not be looked at for a while.
const SEEN_FOR: Duration = Duration::from_secs(30);

/// The votes that a group awaits, and for how long there has been no sign of each.
pub(super) type Awaited = BTreeMap<NodeId, Duration>;

/// How far a server is whose vote is awaited, or the vote in place of which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It does not vote in the cluster: the group is to have another one instead.
    Leaves,
    /// It is asked to host a replica.
    Asked,
    /// It is a member without a vote, and has the group's entries up to this one.
    Copies(EntryIndex),
    /// It has them, and is refused a vote for what it is.
    Refused,
}

/// A vote that is awaited.
#[derive(Debug)]
struct Wait {
    stage: Stage,
    /// Since when the stage is that.
    since: Instant,
    /// When it was last looked at.
    seen: Instant,
}

impl Wait {
    /// How long the stage was that, when it was last looked at.
    fn lasts(&self) -> Duration {
        self.seen.saturating_duration_since(self.since)
    }
}

/// A promotion that failed.
#[derive(Debug)]
struct Refusal {
    error: Error,
    /// Whether the learner is the reason.
    is_its: bool,
    /// How often it has.
    count: u32,
    /// When it did last.
    at: Instant,
}

impl Refusal {
    /// How long it is not tried again: the groups wait for each other's promotions. The second attempt is within [`JOIN_PATIENCE`].
    fn lasts(&self) -> Duration {
        AGAIN.saturating_mul(1 << self.count.saturating_sub(1).min(3))
    }
}

/// The votes that the groups await which this server leads.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: BTreeMap<(u32, NodeId), Wait>,
    refusals: BTreeMap<(u32, NodeId), Refusal>,
}

impl Waits {
    /// Notes how far the servers are whose votes a group awaits. Each step begins the clock of that server again.
    fn look(&mut self, group: u32, stages: &BTreeMap<NodeId, Stage>, now: Instant) -> Awaited {
        self.waits.retain(|(of, node), _| *of != group || stages.contains_key(node));
        let copies = |node: &NodeId| matches!(stages.get(node), Some(Stage::Copies(_)));
        self.refusals.retain(|(of, node), _| *of != group || copies(node));
        let mut waited = |node: NodeId, stage: Stage| {
            let is_refused = self.refusals.get(&(group, node)).is_some_and(|refusal| refusal.is_its);
            let stage = if is_refused { Stage::Refused } else { stage };
            let new = || Wait { stage, since: now, seen: now };
            let wait = self.waits.entry((group, node)).or_insert_with(new);
            if wait.stage != stage {
                *wait = new();
            }
            wait.seen = now;
            wait.lasts()
        };
        stages.iter().map(|(node, stage)| (*node, waited(*node, *stage))).collect()
    }

    /// Forgets a group that this server does not lead.
    pub(super) fn forget(&mut self, group: u32) {
        self.waits.retain(|(of, _), _| *of != group);
        self.refusals.retain(|(of, _), _| *of != group);
    }

    /// Notes that a member of a group could not be promoted. `is_its`: it is the reason itself.
    fn refuse(&mut self, (group, node): (u32, NodeId), error: Error, is_its: bool, now: Instant) {
        let count = self.refusals.get(&(group, node)).map_or(1, |before| before.count.saturating_add(1));
        self.refusals.insert((group, node), Refusal { error, is_its, count, at: now });
    }

    /// Whether the promotion of a member of a group has not failed a moment ago.
    fn may_promote(&self, group: u32, node: NodeId, now: Instant) -> bool {
        let refusal = self.refusals.get(&(group, node));
        refusal.is_none_or(|last| now.saturating_duration_since(last.at) >= last.lasts())
    }

    /// Notes that a server became a member of a group. Its disk may make one replica after the other, so the clocks of the groups for which
    /// it has made none yet begin again.
    fn joins(&mut self, node: NodeId) {
        self.waits.retain(|(_, of), wait| *of != node || wait.stage != Stage::Asked);
    }

    /// The servers that are to run a group and have failed for long to make a replica of it, or to copy its files.
    fn unhosted(&self, group: u32, now: Instant) -> Vec<NodeId> {
        let is_recent = |wait: &Wait| now.saturating_duration_since(wait.seen) < SEEN_FOR;
        let fails =
            |wait: &Wait| wait.stage != Stage::Leaves && wait.lasts() >= JOIN_PATIENCE && is_recent(wait);
        let of_group = self.waits.iter().filter(|((of, _), wait)| *of == group && fails(wait));
        of_group.map(|((_, node), _)| *node).collect()
    }
}

impl Groups {
    /// The votes that a group awaits, as far as this server, its leader, has looked.
    pub(super) fn awaited(
        &self,
        group: u32,
        replica: &Log,
        servers: &[Member],
        place: &[NodeId],
        members: &[Member],
    ) -> Awaited {
        let peers = replica.status().replica.peers;
        let is_member = |node| members.iter().any(|member| member.node == node);
        let matched =
            |node| peers.iter().find(|peer| peer.node == node && is_member(node)).map(|p| p.matched);
        let of = |node| (node, stage(servers, node, matched(node)));
        let stages = awaited(servers, place, members).into_iter().map(of).collect();
        let mut waits = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        waits.look(group, &stages, Instant::now())
    }

    /// Notes that a server became a member of a group, see [`Waits::joins`].
    pub(super) fn joins(&self, node: NodeId) {
        self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner).joins(node);
    }

    /// Notes that a member of a group could not be promoted. `is_its`: it is the reason itself, by its options, its version or its room.
    pub(super) fn refused(&self, group: u32, node: NodeId, error: &Error, is_its: bool) {
        let mut waits = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        waits.refuse((group, node), error.clone(), is_its, Instant::now());
    }

    /// Whether the promotion of a member of a group has not failed a moment ago.
    pub(super) fn may_promote(&self, group: u32, node: NodeId) -> bool {
        let waits = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        waits.may_promote(group, node, Instant::now())
    }

    /// Why a member of a group gets no vote, as far as this server has tried.
    pub(super) fn refusal(&self, group: u32) -> Option<Error> {
        let waits = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_group = waits.refusals.iter().filter(|((of, _), _)| *of == group);
        of_group.next().map(|(_, refusal)| refusal.error.clone())
    }

    /// The servers that are to run a group which this server leads, and have failed for long, as far as it has looked.
    pub(super) fn unhosted(&self, group: u32) -> Vec<NodeId> {
        self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner).unhosted(group, Instant::now())
    }
}

/// How far a server is whose vote, or the vote in place of which, a group awaits. `matched`: the last entry that it is known to have, if
/// it is a member.
fn stage(servers: &[Member], node: NodeId, matched: Option<EntryIndex>) -> Stage {
    match matched {
        _ if !votes(servers, node) => Stage::Leaves,
        Some(entry) => Stage::Copies(entry),
        None => Stage::Asked,
    }
}

/// A server that is heard, and is a member without a vote that copies no more of the group's files.
pub(super) fn stuck(awaited: &Awaited, members: &[Member], heard: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let is_learner = |node| members.iter().any(|m| m.node == node && !m.is_voter());
    let mut late = awaited.iter().filter(|(_, waited)| **waited >= JOIN_PATIENCE).map(|(node, _)| *node);
    late.find(|node| is_learner(*node) && heard(*node))
}

/// Whether a server votes, of the cluster or of a group.
fn votes(members: &[Member], node: NodeId) -> bool {
    members.iter().any(|member| member.node == node && member.is_voter() && !member.is_leaving())
}

/// Whether the group is placed on a server. `place` empty: on all.
fn is_placed(place: &[NodeId], node: NodeId) -> bool {
    place.is_empty() || place.contains(&node)
}

/// The servers whose votes, or the votes in place of which, a group awaits. `servers`: the members of the default log; `place`: the servers
/// on which the catalogue places the group; `members`: those that it has.
fn awaited(servers: &[Member], place: &[NodeId], members: &[Member]) -> Vec<NodeId> {
    let replaced = place.iter().copied().filter(|node| !votes(servers, *node));
    let joins = |node: &NodeId| is_placed(place, *node) && votes(servers, *node) && !votes(members, *node);
    replaced.chain(servers.iter().map(|server| server.node).filter(joins)).collect()
}

/// Whether a group may not lose a vote yet.
pub(super) fn is_joining(awaited: &Awaited) -> bool {
    awaited.values().any(|waited| *waited < JOIN_PATIENCE)
}

/// The changes that give a member its vote. A silent voter that is to lose its own one loses it in the same change: of one voter more, most
/// would include the new one, although fewer can fail than before.
pub(super) fn promotion(
    node: NodeId,
    servers: &[Member],
    place: &[NodeId],
    members: &[Member],
    is_heard: impl Fn(NodeId) -> bool,
) -> Vec<Change> {
    let is_placed = |node| is_placed(place, node);
    let leaves = |m: &&Member| !(is_placed(m.node) && votes(servers, m.node));
    let silent = members.iter().filter(|m| votes(members, m.node) && !is_heard(m.node)).find(leaves);
    let is_server = |node| servers.iter().any(|server| server.node == node);
    let lost = silent.map(|m| match is_placed(m.node) && is_server(m.node) {
        true => Change::Demote(m.node),
        false => Change::Remove(m.node),
    });
    [Change::Promote(node)].into_iter().chain(lost).collect()
}

/// The next member that is removed, as its server left the cluster, or demoted, as its server lost its vote there. None: there
/// is none, or the group awaits a vote.
pub(super) fn loses_vote(
    servers: &[Member],
    place: &[NodeId],
    members: &[Member],
    awaited: &Awaited,
) -> Option<Change> {
    if is_joining(awaited) {
        return None;
    }
    let gone = members.iter().find(|m| !servers.iter().any(|server| server.node == m.node));
    let is_learner = |node| servers.iter().any(|server| server.node == node && !server.is_voter());
    let demoted = members.iter().find(|m| m.is_voter() && is_placed(place, m.node) && is_learner(m.node));
    gone.map(|m| Change::Remove(m.node)).or_else(|| demoted.map(|m| Change::Demote(m.node)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::{DirectoryId, ErrorKind};

    fn members(voters: &[u64], learners: &[u64]) -> Vec<Member> {
        let of = |node: &u64| (NodeId(*node), DirectoryId((*node).into()), "a:1");
        let voter = |(node, directory, address)| Member::voter(node, directory, address);
        let learner = |(node, directory, address)| Member::learner(node, directory, address);
        voters.iter().map(of).map(voter).chain(learners.iter().map(of).map(learner)).collect()
    }

    /// The decision if nothing has been heard for `waited` of each server whose vote is awaited.
    fn decided(servers: &[Member], place: &[u64], have: &[Member], waited: Duration) -> Option<Change> {
        let place: Vec<NodeId> = place.iter().map(|node| NodeId(*node)).collect();
        let awaited = awaited(servers, &place, have).into_iter().map(|node| (node, waited)).collect();
        loses_vote(servers, &place, have, &awaited)
    }

    /// A group of three that lost a server had two voters while another one copied its files.
    #[test]
    fn vote_counts_until_that_of_the_server_in_its_place_does() {
        let (soon, late) = (Duration::ZERO, JOIN_PATIENCE);
        let (removed, demoted) = (Some(Change::Remove(NodeId(3))), Some(Change::Demote(NodeId(3))));
        let have = members(&[1, 2, 3], &[]);
        // Server 3 has left, or lost its vote; the catalogue does not name another one yet.
        let (left, lost) = (members(&[1, 2, 4], &[]), members(&[1, 2, 4], &[3]));
        assert_eq!(decided(&left, &[1, 2, 3], &have, soon), None);
        assert_eq!(decided(&left, &[1, 2, 3], &have, late), removed);
        assert_eq!(decided(&lost, &[1, 2, 3], &have, soon), None);
        assert_eq!(decided(&lost, &[1, 2, 3], &have, late), demoted);
        // It names server 4, which could not make a replica yet.
        assert_eq!(decided(&left, &[1, 2, 4], &have, soon), None);
        assert_eq!(decided(&left, &[1, 2, 4], &have, late), removed);
        // That copies, and then votes.
        assert_eq!(decided(&left, &[1, 2, 4], &members(&[1, 2, 3], &[4]), soon), None);
        assert_eq!(decided(&left, &[1, 2, 4], &members(&[1, 2, 3, 4], &[]), soon), removed);
        // A group that moved away from a server is not demoted there: it is removed once all others are up to date.
        assert_eq!(decided(&lost, &[1, 2, 4], &members(&[1, 2, 3, 4], &[]), late), None);
        // All servers run the group, or no other one is left.
        assert_eq!(decided(&members(&[1, 2], &[3]), &[], &have, soon), demoted);
        assert_eq!(decided(&members(&[1, 2], &[]), &[1, 2], &have, soon), removed);
        assert_eq!(decided(&members(&[1, 2, 3], &[]), &[], &have, soon), None);
    }

    /// A learner whose disk was full was awaited for ever, because it was heard.
    #[test]
    fn clock_of_a_vote_runs_while_its_server_comes_no_further() {
        let begin = Instant::now();
        let mut waits = Waits::default();
        let look = |waits: &mut Waits, stage, at| {
            let stages = [(NodeId(4), stage)].into();
            waits.look(1, &stages, begin + Duration::from_secs(at))[&NodeId(4)].as_secs()
        };
        let told = |waits: &Waits, group, at| waits.unhosted(group, begin + Duration::from_secs(at));
        let copies = |entry| Stage::Copies(EntryIndex(entry));
        for (at, stage, waited) in [
            (0, Stage::Asked, 0),
            (29, Stage::Asked, 29),
            (30, copies(0), 0),
            (50, copies(0), 20),
            (51, copies(7), 0),
            (80, copies(7), 29),
        ] {
            assert_eq!(look(&mut waits, stage, at), waited, "{at}");
            assert!(told(&waits, 1, at).is_empty(), "{at}");
        }
        look(&mut waits, copies(7), 81);
        assert_eq!(told(&waits, 1, 110), [NodeId(4)]);
        assert!(told(&waits, 1, 111).is_empty(), "it was not looked at any more");
        assert!(told(&waits, 2, 81).is_empty());
        look(&mut waits, copies(8), 82);
        assert!(told(&waits, 1, 82).is_empty());
        // A server that left the cluster, or lost its vote there, has not failed.
        look(&mut waits, Stage::Leaves, 83);
        assert_eq!(look(&mut waits, Stage::Leaves, 120), 37);
        assert!(told(&waits, 1, 120).is_empty());
        look(&mut waits, Stage::Asked, 121);
        look(&mut waits, Stage::Asked, 160);
        waits.look(1, &BTreeMap::new(), begin + Duration::from_secs(161));
        assert!(told(&waits, 1, 161).is_empty(), "it votes");
    }

    /// A learner that could not be promoted was awaited for ever: its group appended, and each entry was a sign of it. Each attempt held all
    /// groups for 30 s.
    #[test]
    fn learner_that_cannot_be_promoted_is_awaited_no_longer() {
        let begin = Instant::now();
        let mut waits = Waits::default();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let look = |waits: &mut Waits, seconds: u64| {
            let stages = [(NodeId(4), Stage::Copies(EntryIndex(seconds)))].into();
            waits.look(1, &stages, at(seconds))[&NodeId(4)].as_secs()
        };
        let refuse = |waits: &mut Waits, seconds| {
            let error = Error::new(ErrorKind::InvalidArgument, "its files are smaller");
            waits.refuse((1, NodeId(4)), error, true, at(seconds));
        };
        let tries = |waits: &Waits, group, seconds| waits.may_promote(group, NodeId(4), at(seconds));
        assert_eq!([look(&mut waits, 1), look(&mut waits, 2)], [0, 0]);
        refuse(&mut waits, 2);
        assert_eq!([look(&mut waits, 3), look(&mut waits, 9)], [0, 6]);
        assert!(!tries(&waits, 1, 11) && tries(&waits, 1, 12) && tries(&waits, 2, 3));
        refuse(&mut waits, 12);
        assert!(!tries(&waits, 1, 31) && tries(&waits, 1, 32), "each time later");
        assert_eq!(look(&mut waits, 32), 29);
        assert!(waits.unhosted(1, at(32)).is_empty());
        assert_eq!(look(&mut waits, 33), 30);
        assert_eq!(waits.unhosted(1, at(33)), [NodeId(4)]);
        // It votes, and is a learner again later.
        waits.look(1, &BTreeMap::new(), at(34));
        assert!(tries(&waits, 1, 34));
        assert_eq!([look(&mut waits, 35), look(&mut waits, 70)], [0, 0]);
        // Any other failure is the leader's, or another voter's: the learner still gets its time.
        let full = Error::new(ErrorKind::Full, "the leader's disk");
        waits.refuse((1, NodeId(4)), full, false, at(71));
        assert_eq!([look(&mut waits, 72), look(&mut waits, 79), look(&mut waits, 200)], [0, 0, 0]);
        assert!(waits.unhosted(1, at(200)).is_empty());
        waits.look(1, &BTreeMap::new(), at(201));
        refuse(&mut waits, 202);
        waits.forget(1);
        assert!(tries(&waits, 1, 202));
    }

    /// Of voters 1 to 3 and 4, of which 3 was down for good, 4 had to record its own promotion: until it did, no other change could be made.
    #[test]
    fn silent_voter_that_leaves_goes_with_the_promotion() {
        let have = members(&[1, 2, 3], &[4]);
        let changes = |servers: &[Member], place: &[u64], silent: u64| {
            let place: Vec<NodeId> = place.iter().map(|node| NodeId(*node)).collect();
            promotion(NodeId(4), servers, &place, &have, |node| node != NodeId(silent))
        };
        let (promote, remove) = (Change::Promote(NodeId(4)), Change::Remove(NodeId(3)));
        let (all, left, lost) =
            (members(&[1, 2, 3, 4], &[]), members(&[1, 2, 4], &[]), members(&[1, 2, 4], &[3]));
        let (alone, both) = (vec![promote.clone()], [promote.clone(), remove]);
        assert_eq!(changes(&left, &[], 3), both, "it left the cluster");
        assert_eq!(changes(&left, &[1, 2, 3], 3), both, "the catalogue names no other one yet");
        assert_eq!(changes(&all, &[1, 2, 4], 3), both, "the group moves");
        assert_eq!(changes(&lost, &[], 3), [promote, Change::Demote(NodeId(3))]);
        assert_eq!(changes(&lost, &[1, 2, 4], 3), both);
        assert_eq!(changes(&left, &[], 9), alone, "it is heard, and can confirm");
        assert_eq!(changes(&all, &[], 3), alone, "it stays");
    }

    #[test]
    fn member_of_one_group_has_its_time_for_each_other_one() {
        let begin = Instant::now();
        let mut waits = Waits::default();
        let told = |waits: &Waits, group| waits.unhosted(group, begin + JOIN_PATIENCE);
        let look = |waits: &mut Waits, group, stage| {
            let stages = [(NodeId(4), stage), (NodeId(5), Stage::Asked)].into();
            waits.look(group, &stages, begin);
            waits.look(group, &stages, begin + JOIN_PATIENCE);
        };
        for group in [1, 3] {
            look(&mut waits, group, Stage::Asked);
        }
        look(&mut waits, 2, Stage::Copies(EntryIndex(7)));
        assert_eq!(told(&waits, 1), [4, 5].map(NodeId));
        waits.joins(NodeId(4));
        assert_eq!(told(&waits, 1), [NodeId(5)]);
        assert_eq!(told(&waits, 2), [4, 5].map(NodeId), "it copies that one, and comes no further");
        assert_eq!(told(&waits, 3), [NodeId(5)]);
        waits.forget(1);
        assert!(told(&waits, 1).is_empty());
        assert_eq!(told(&waits, 3), [NodeId(5)]);
    }

    #[test]
    fn each_vote_that_is_awaited_counts_by_itself() {
        let have = members(&[1, 2, 3], &[4]);
        let (left, place) = (members(&[1, 2, 4, 5], &[]), [1, 4, 5].map(NodeId));
        let loses =
            |of_4, of_5| loses_vote(&left, &place, &have, &[(NodeId(4), of_4), (NodeId(5), of_5)].into());
        let (soon, late) = (Duration::ZERO, JOIN_PATIENCE);
        assert_eq!(awaited(&left, &place, &have), [4, 5].map(NodeId));
        assert_eq!((loses(soon, late), loses(late, soon)), (None, None));
        assert_eq!(loses(late, late), Some(Change::Remove(NodeId(3))));
    }

    #[test]
    fn server_that_copies_and_comes_no_further_is_told() {
        let servers = members(&[1, 2, 4], &[3]);
        assert_eq!(stage(&servers, NodeId(4), None), Stage::Asked);
        assert_eq!(stage(&servers, NodeId(4), Some(EntryIndex(7))), Stage::Copies(EntryIndex(7)));
        // It appends with the others, and does not get its vote back.
        assert_eq!(stage(&servers, NodeId(3), Some(EntryIndex(7))), Stage::Leaves);
        assert_eq!(stage(&servers, NodeId(5), None), Stage::Leaves);

        let (soon, late) = (Duration::ZERO, JOIN_PATIENCE);
        let found =
            |waited, have: &[Member], is_heard| stuck(&[(NodeId(4), waited)].into(), have, |_| is_heard);
        let copies = members(&[1, 2], &[4]);
        assert_eq!(found(late, &copies, true), Some(NodeId(4)));
        assert_eq!(found(soon, &copies, true), None);
        assert_eq!(found(late, &copies, false), None, "it is down");
        assert_eq!(found(late, &members(&[1, 2], &[]), true), None, "it makes no replica, and says why");
    }
}
