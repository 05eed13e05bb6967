//! Membership: the members of the cluster, each with its part, directory and address. It is stored in configuration
//! blocks and in every segment's opening.
//!
//! Pure. A configuration block's body is raft's own change, whose context contains the resulting membership: so the
//! result can be read without raft. An empty body leaves a joint configuration.
//!
//! # Encoding
//!
//! Little-endian; every byte counts. An empty encoding means a log on its own: node 1 is the only voter.
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | version | 1 |
//! | 4 | 1 | flags: 1 = a joint configuration is left automatically; without members: a copy of one log of a shared group | 0, 1 |
//! | 5 | 1 | 0 | 0 |
//! | 6 | 2 | number of members | - |
//! | 8 | | the members, ascending by node | |
//!
//! A member:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | node | from 1, ascending |
//! | 8 | 16 | directory | 0: not known (the log was on its own) |
//! | 24 | 1 | parts: 1 voter, 2 voter of the outgoing half, 4 learner, 8 learner once the joint configuration is left | not 0 |
//! | 25 | 1 | 0 | 0 |
//! | 26 | 2 | length of the address | to 1024 |
//! | 28 | | address, UTF-8 | |
//!
//! Must not know: raft's types, files, threads.

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{Malformed, u64_at};
use crate::types::{DirectoryId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const VERSION: u32 = 1;
pub(crate) const MEMBERSHIP_BYTES: usize = 8;
pub(crate) const MEMBER_BYTES: usize = 28;
/// The longest address.
pub(crate) const ADDRESS_BYTES_MAX: usize = 1024;
/// The largest number of members. Votes are counted one by one, and each member costs the leader a stream.
pub const MEMBERS_MAX: usize = 64;

/// The node of a log on its own.
pub(crate) const ALONE: NodeId = NodeId(1);

const VOTER: u8 = 1;
const OUTGOING: u8 = 2;
const LEARNER: u8 = 4;
const LEARNER_NEXT: u8 = 8;

/// One replica, as the cluster knows it.
///
/// ```
/// use chiplog::cluster::Member;
/// use chiplog::{DirectoryId, NodeId};
/// let member = Member::voter(NodeId(1), DirectoryId(77), "10.0.0.1:7411");
/// assert!(member.is_voter() && !member.is_learner());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the cluster.
    pub node: NodeId,
    /// The id of the directory it must have. 0 if it is not known: the log was on its own.
    pub directory: DirectoryId,
    /// The address at which it is reached. Only the transport interprets it.
    pub address: String,
    parts: u8,
}

impl Member {
    /// A member that votes.
    pub fn voter(node: NodeId, directory: DirectoryId, address: impl Into<String>) -> Self {
        Self { node, directory, address: address.into(), parts: VOTER }
    }

    /// A member that receives entries and does not vote.
    pub fn learner(node: NodeId, directory: DirectoryId, address: impl Into<String>) -> Self {
        Self { node, directory, address: address.into(), parts: LEARNER }
    }

    /// Whether it votes, in either half of a joint configuration.
    pub fn is_voter(&self) -> bool {
        self.parts & (VOTER | OUTGOING) != 0
    }

    /// Whether it does not vote.
    pub fn is_learner(&self) -> bool {
        !self.is_voter()
    }

    /// Whether it is about to leave or to become a learner: it votes in the outgoing half only.
    pub fn is_leaving(&self) -> bool {
        self.parts & (VOTER | OUTGOING) == OUTGOING
    }
}

/// A change of membership, for [`Log::change_members`](crate::Log::change_members).
///
/// ```
/// use chiplog::cluster::Change;
/// use chiplog::{DirectoryId, NodeId};
/// let change = Change::AddLearner { node: NodeId(2), directory: DirectoryId(5), address: "b:1".into() };
/// assert_eq!(change.node(), NodeId(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Adds a replica that receives all entries and does not vote. Every replica starts this way.
    AddLearner {
        /// Its number, which no member may have had before.
        node: NodeId,
        /// The id of its directory: see [`Log::directory_id`](crate::Log::directory_id) of that replica.
        directory: DirectoryId,
        /// The address at which the others reach it.
        address: String,
    },
    /// Makes a learner that has caught up a voter.
    Promote(NodeId),
    /// Makes a voter a learner.
    Demote(NodeId),
    /// Removes the replica from the cluster permanently.
    Remove(NodeId),
    /// Changes the address of a replica.
    SetAddress {
        /// The replica.
        node: NodeId,
        /// Its new address.
        address: String,
    },
}

impl Change {
    /// The replica that it changes.
    pub fn node(&self) -> NodeId {
        match self {
            Self::AddLearner { node, .. } | Self::SetAddress { node, .. } => *node,
            Self::Promote(node) | Self::Demote(node) | Self::Remove(node) => *node,
        }
    }
}

/// The members of a cluster, and whether it is between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    members: BTreeMap<NodeId, Member>,
    auto_leave: bool,
}

/// Formats like `1 voter, 2 voter leaving, 3 learner`, for the operator's log.
impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, member) in self.members().enumerate() {
            let part = if member.is_voter() { "voter" } else { "learner" };
            let leaving = if member.is_leaving() { " leaving" } else { "" };
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{} {part}{leaving}", member.node)?;
        }
        Ok(())
    }
}

impl Membership {
    /// The membership of a log on its own.
    pub(crate) fn alone() -> Self {
        Self::of([Member::voter(ALONE, DirectoryId(0), "")])
    }

    /// The membership of a copy of one log of a shared group, which has no cluster. No cluster has this one: a joint configuration has
    /// members.
    pub(crate) fn of_one_log() -> Self {
        Self { members: BTreeMap::new(), auto_leave: true }
    }

    /// Whether this is the membership of a copy of one log of a shared group. Such copies number their entries each by itself.
    pub(crate) fn is_of_one_log(&self) -> bool {
        self.members.is_empty() && self.auto_leave
    }

    /// Whether this is the membership of a log whose entries have never changed it: that of its founder, or none, at a
    /// replica that joined later.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.members.len() <= 1
            && self.members.values().all(|m| *m == Member::voter(m.node, DirectoryId(0), ""))
            && !self.auto_leave
    }

    pub(crate) fn of(members: impl IntoIterator<Item = Member>) -> Self {
        Self { members: members.into_iter().map(|m| (m.node, m)).collect(), auto_leave: false }
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    fn with(&self, part: u8) -> Vec<u64> {
        self.members.values().filter(|m| m.parts & part != 0).map(|m| m.node.0).collect()
    }

    pub(crate) fn voters(&self) -> Vec<u64> {
        self.with(VOTER)
    }

    pub(crate) fn voters_outgoing(&self) -> Vec<u64> {
        self.with(OUTGOING)
    }

    pub(crate) fn learners(&self) -> Vec<u64> {
        self.with(LEARNER)
    }

    pub(crate) fn learners_next(&self) -> Vec<u64> {
        self.with(LEARNER_NEXT)
    }

    pub(crate) fn auto_leave(&self) -> bool {
        self.auto_leave
    }

    /// Whether it is between two configurations.
    pub(crate) fn is_joint(&self) -> bool {
        self.members.values().any(|m| m.parts & OUTGOING != 0)
    }

    /// Whether `node` is the only voter, so that whatever it has durably is committed.
    pub(crate) fn is_alone(&self, node: NodeId) -> bool {
        let mut voters = self.members.values().filter(|m| m.is_voter());
        voters.next().is_some_and(|m| m.node == node) && voters.next().is_none()
    }

    /// Whether these nodes are a majority of the voters, in both halves of a joint configuration.
    pub(crate) fn is_majority(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let of =
            |half: Vec<u64>| half.iter().filter(|n| nodes.contains(&NodeId(**n))).count() * 2 > half.len();
        let outgoing = self.voters_outgoing();
        of(self.voters()) && (outgoing.is_empty() || of(outgoing))
    }

    /// Returns the membership that results from `changes`. Several changes go through a joint configuration, which is
    /// left automatically.
    ///
    /// # Errors
    /// `Membership`, `InvalidArgument`: names the change and the reason.
    pub(crate) fn after(&self, changes: &[Change]) -> Result<Self> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Membership, what));
        if changes.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "no change of membership was given; name at least one",
            ));
        }
        if self.is_joint() {
            return refuse("another change of membership is under way; wait for it".into());
        }
        let mut next = self.clone();
        let joint = changes.len() > 1;
        if joint {
            for member in next.members.values_mut().filter(|m| m.parts & VOTER != 0) {
                member.parts |= OUTGOING;
            }
            next.auto_leave = true;
        }
        for (n, change) in changes.iter().enumerate() {
            let node = change.node();
            if node.is_none() {
                return refuse("node 0 does not exist: numbers begin at 1".into());
            }
            if changes[..n].iter().any(|c| c.node() == node) {
                return refuse(format!("node {node} is named twice: name it once"));
            }
            if let Change::AddLearner { address, .. } | Change::SetAddress { address, .. } = change
                && address.len() > ADDRESS_BYTES_MAX
            {
                return refuse(format!(
                    "the address of node {node} is longer than {ADDRESS_BYTES_MAX} bytes"
                ));
            }
            if let Change::AddLearner { directory, address, .. } = change {
                if next.members.contains_key(&node) {
                    return refuse(format!("node {node} is already a member"));
                }
                if next.members.values().any(|m| m.directory == *directory && directory.0 != 0) {
                    return refuse(format!("directory {directory} already belongs to another member"));
                }
                next.members.insert(node, Member::learner(node, *directory, address.as_str()));
                continue;
            }
            let Some(member) = next.members.get_mut(&node) else {
                return refuse(format!("node {node} is not a member"));
            };
            match change {
                Change::Promote(_) if member.is_voter() => {
                    return refuse(format!("node {node} is already a voter"));
                }
                Change::Promote(_) => member.parts = VOTER,
                Change::Demote(_) if !member.is_voter() => {
                    return refuse(format!("node {node} is already a learner"));
                }
                Change::Demote(_) if joint => member.parts = OUTGOING | LEARNER_NEXT,
                Change::Demote(_) => member.parts = LEARNER,
                Change::Remove(_) if member.parts & OUTGOING != 0 => member.parts = OUTGOING,
                Change::Remove(_) => drop(next.members.remove(&node)),
                Change::SetAddress { address, .. } => member.address.clone_from(address),
                Change::AddLearner { .. } => unreachable!("handled above"),
            }
        }
        if next.with(VOTER).is_empty() {
            return refuse("the cluster would have no voter left; promote another member first".into());
        }
        if next.members.len() > MEMBERS_MAX {
            return refuse(format!("a cluster has at most {MEMBERS_MAX} members"));
        }
        Ok(next)
    }

    /// Returns this membership with `directory` and `address` for `node`.
    pub(crate) fn with_identity(&self, node: NodeId, directory: DirectoryId, address: &str) -> Self {
        let mut next = self.clone();
        if let Some(member) = next.members.get_mut(&node) {
            member.directory = directory;
            member.address = address.to_owned();
        }
        next
    }

    /// Returns the membership after a joint configuration is left.
    pub(crate) fn left(&self) -> Self {
        let mut next = self.clone();
        next.auto_leave = false;
        next.members.retain(|_, m| {
            m.parts = match m.parts {
                p if p & VOTER != 0 => VOTER,
                p if p & (LEARNER | LEARNER_NEXT) != 0 => LEARNER,
                _ => 0,
            };
            m.parts != 0
        });
        next
    }

    /// Encodes the membership for a segment's opening.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if *self == Self::alone() { Vec::new() } else { self.encode_whole() }
    }

    /// Encodes the membership for a change: never empty.
    pub(crate) fn encode_whole(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(MEMBERSHIP_BYTES + self.members.len() * 64);
        b.extend_from_slice(&VERSION.to_le_bytes());
        b.extend_from_slice(&[u8::from(self.auto_leave), 0]);
        b.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        for member in self.members.values() {
            b.extend_from_slice(&member.node.0.to_le_bytes());
            b.extend_from_slice(&member.directory.0.to_le_bytes());
            b.extend_from_slice(&[member.parts, 0]);
            b.extend_from_slice(&(member.address.len() as u16).to_le_bytes());
            b.extend_from_slice(member.address.as_bytes());
        }
        b
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        const SHORT: Malformed = "membership is cut off";
        const NEWER: Malformed = "membership has fields of a newer format";
        if bytes.is_empty() {
            return Ok(Self::alone());
        }
        let (head, mut rest) = bytes.split_at_checked(MEMBERSHIP_BYTES).ok_or(SHORT)?;
        if head[..4] != VERSION.to_le_bytes() || head[4] > 1 || head[5] != 0 {
            return Err(NEWER);
        }
        let mut membership = Self { members: BTreeMap::new(), auto_leave: head[4] == 1 };
        for _ in 0..u16::from_le_bytes([head[6], head[7]]) {
            let (fixed, more) = rest.split_at_checked(MEMBER_BYTES).ok_or(SHORT)?;
            let length = usize::from(u16::from_le_bytes([fixed[26], fixed[27]]));
            let (address, more) = more.split_at_checked(length).ok_or(SHORT)?;
            rest = more;
            let node = NodeId(u64_at(fixed, 0));
            if node.is_none() || membership.members.last_key_value().is_some_and(|(last, _)| *last >= node) {
                return Err("membership is out of order");
            }
            if fixed[24] == 0 || fixed[24] > 15 || fixed[25] != 0 || length > ADDRESS_BYTES_MAX {
                return Err(NEWER);
            }
            let mut directory = [0; 16];
            directory.copy_from_slice(&fixed[8..24]);
            let address = std::str::from_utf8(address).map_err(|_| "an address is not UTF-8")?.to_owned();
            let directory = DirectoryId(u128::from_le_bytes(directory));
            membership.members.insert(node, Member { node, directory, address, parts: fixed[24] });
        }
        if rest.is_empty() { Ok(membership) } else { Err(NEWER) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Membership {
        Membership::of((1..=3).map(|n| Member::voter(NodeId(n), DirectoryId(n.into()), format!("h{n}:1"))))
    }

    #[test]
    fn decode_reads_what_encode_wrote_and_finds_every_cut() {
        let joint = three().after(&[Change::Remove(NodeId(1)), Change::Demote(NodeId(2))]).unwrap();
        for membership in [Membership::alone(), Membership::default(), three(), joint] {
            let bytes = membership.encode();
            assert_eq!(Membership::decode(&bytes).unwrap(), membership);
            for n in 1..bytes.len() {
                assert!(Membership::decode(&bytes[..n]).is_err(), "{n}");
            }
        }
    }

    #[test]
    fn display_names_every_part() {
        let add = Change::AddLearner { node: NodeId(4), directory: DirectoryId(4), address: "d".into() };
        let joint = three().after(&[add, Change::Remove(NodeId(1)), Change::Demote(NodeId(2))]).unwrap();
        assert_eq!(joint.to_string(), "1 voter leaving, 2 voter leaving, 3 voter, 4 learner");
    }

    #[test]
    fn several_changes_go_through_a_joint_configuration() {
        let add = Change::AddLearner { node: NodeId(4), directory: DirectoryId(4), address: "d".into() };
        let with = three().after(&[add]).unwrap();
        assert!(!with.is_joint());
        let joint = with.after(&[Change::Promote(NodeId(4)), Change::Remove(NodeId(1))]).unwrap();
        assert!(joint.is_joint() && joint.auto_leave());
        assert_eq!((joint.voters(), joint.voters_outgoing()), (vec![2, 3, 4], vec![1, 2, 3]));
        assert_eq!(joint.after(&[Change::Remove(NodeId(2))]).unwrap_err().kind(), ErrorKind::Membership);
        let left = joint.left();
        assert_eq!((left.voters(), left.get(NodeId(1))), (vec![2, 3, 4], None));
    }

    #[test]
    fn impossible_changes_are_refused() {
        let alone = Membership::alone();
        for wrong in [Change::Remove(ALONE), Change::Promote(ALONE), Change::Demote(NodeId(9))] {
            assert_eq!(alone.after(&[wrong]).unwrap_err().kind(), ErrorKind::Membership);
        }
    }

    #[test]
    fn members_are_limited_to_64() {
        let add = |n: u64| Change::AddLearner {
            node: NodeId(n),
            directory: DirectoryId(n.into()),
            address: format!("h{n}:1"),
        };
        let adds: Vec<Change> = (4..=64).map(add).collect();
        let full = three().after(&adds[..60]).unwrap().left().after(&adds[60..]).unwrap();
        assert_eq!(full.members().count(), 64);
        let refused = full.after(&[add(65)]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Membership);
        assert!(refused.to_string().contains("64 members"), "{refused}");
        // A removed member makes room: at once, unless the removal goes through a joint configuration.
        let one_less = full.after(&[Change::Remove(NodeId(64))]).unwrap();
        assert_eq!(one_less.after(&[add(65)]).unwrap().members().count(), 64);
    }
}
