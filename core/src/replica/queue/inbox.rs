//! Mail: what comes to a replica besides appends and commands: messages of others, and questions of the program.
//!
//! Must not know: who reads it.

use crate::cluster::membership::Change;
use crate::cluster::transport::Envelope;
use crate::options::log_options::LogOption;
use crate::sync::completer::Completer;
use crate::types::NodeId;
use std::time::Duration;

/// One piece of mail.
#[derive(Debug)]
pub(crate) enum InboxEvent {
    /// From another replica.
    Message(Envelope),
    /// From the program: to be answered within this time.
    AdminRequest(AdminRequest, Duration, Completer),
    /// An errand has been run; the node knows where to look.
    BackgroundJob,
}

/// Whether what a check would refuse is wanted all the same.
pub(crate) type Forced = bool;

/// What a program asks of its replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminRequest {
    /// How far was the log committed, at some moment after the question? Answered once this replica is as far.
    Barrier,
    /// Change the membership; of the leader. Forced: also where nothing is heard of a majority of the voters that it leads to, or
    /// where it takes the vote of a node that is heard while nothing is heard of another voter.
    Change(Vec<Change>, Forced),
    /// Let this node lead; of the leader.
    Transfer(NodeId),
    /// Set options of the log, or (None) have them set no more; of the leader.
    SetOptions(Vec<(LogOption, Option<u64>)>),
}
