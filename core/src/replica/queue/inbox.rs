//! Inbox: the events of a replica other than appends and commands: messages of other replicas, requests of the program.
//!
//! Must not know: the thread that reads it.

use crate::cluster::membership::Change;
use crate::cluster::transport::Envelope;
use crate::options::log_options::LogOption;
use crate::sync::completer::Completer;
use crate::types::{LogNumber, NodeId};
use std::time::Duration;

/// One event.
#[derive(Debug)]
pub(crate) enum InboxEvent {
    /// A message of another replica.
    Message(Envelope),
    /// A request of the program, to be answered within this time.
    AdminRequest(AdminRequest, Duration, Completer),
    /// A background job has ended; the node knows where its result is.
    JobEnded,
}

/// Whether the request skips a check that would refuse it.
pub(crate) type Forced = bool;

/// A request of the program to its replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminRequest {
    /// Read barrier: returns how far the log was committed at some moment after the request. Answered once this replica
    /// has committed that far.
    Barrier,
    /// Change the membership; leader only. Forced: also if the leader does not hear a majority of the new voters, or if
    /// the change takes the vote of a node that is heard while another voter is not.
    Change(Vec<Change>, Forced),
    /// Transfer leadership to this node; leader only.
    Transfer(NodeId),
    /// Set options of a log, or (None) unset them; leader only. Log 0: the directory's own, or the whole group.
    SetOptions(LogNumber, Vec<(LogOption, Option<u64>)>),
    /// Wait until all other members have reported that they read this version of the format; leader only. Changes nothing.
    AwaitVersion(u32),
}
