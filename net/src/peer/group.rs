//! Group: the transport of one of a server's groups, over the listener, the threads and the certificates of its
//! [`PeerTransport`](super::PeerTransport).

use super::{Me, PeerTraffic, Shared};
use chiplog::cluster::Member;
use chiplog::transport::{Envelope, Inbox, Transport};
use chiplog::{DirectoryId, LogId, NodeId};
use std::sync::Arc;

/// The transport of one group: see [`PeerTransport::group`](super::PeerTransport::group). `Send + Sync`. It ends with
/// the transport that it is part of.
#[derive(Debug)]
pub struct GroupTransport {
    pub(super) shared: Arc<Shared>,
}

impl GroupTransport {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// As [`PeerTransport::identify`](super::PeerTransport::identify), for the replica of this group.
    pub fn identify(&self, log: LogId, directory: DirectoryId) {
        self.shared.write().me = Some(Me { log, directory });
    }

    /// The traffic with each peer, of this group.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        self.shared.traffic()
    }
}

impl Transport for GroupTransport {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.shared.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.shared.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        self.shared.send(envelope);
    }

    fn backlog(&self, to: NodeId) -> usize {
        self.shared.backlog(to)
    }

    fn members(&self, members: &[Member]) {
        self.shared.members(members);
    }
}
