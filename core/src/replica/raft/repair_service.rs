//! Repair service: sends other replicas the entries that they need for a repair, and receives the entries for a repair
//! here.
//!
//! The archive checks every byte before it is sent, and the receiver checks it again, so damage does not spread.

use super::Replica;
use crate::error::ErrorKind;
use crate::record::batch::Malformed;
use crate::replica::wire::raft_message::{HeadKind, body_bytes};
use crate::replica::wire::repair_message::{
    BLOCKS_MAX, Fetch, encode_blocks, encode_damaged, encode_gone, parse_blocks, parse_damaged,
};
use crate::store::read::entry_lookup::Archive;
use crate::store::recovery::gap::BlockCopy;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The number of answers that a peer gets in a heartbeat interval. An answer costs as much as a message to a replica
/// that catches up.
const ANSWERS_A_HEARTBEAT: u32 = 8;

/// The state of requests from other replicas, and of the answers to our own.
#[derive(Debug, Default)]
pub(super) struct RepairService {
    /// When a peer may get its next answer.
    next: BTreeMap<NodeId, Moment>,
    /// Received entries.
    received: Vec<BlockCopy>,
    /// The replicas that reported an entry as damaged since the last call, and that entry.
    damaged: BTreeMap<NodeId, EntryIndex>,
}

impl Replica {
    /// The replicas that can be asked.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let node = self.node();
        self.membership.members().map(|m| m.node).filter(|n| *n != node).collect()
    }

    /// Those of them that are voters.
    pub(crate) fn other_voters(&self) -> Vec<NodeId> {
        let node = self.node();
        self.membership.members().filter(|m| m.is_voter() && m.node != node).map(|m| m.node).collect()
    }

    /// Requests entries from another replica.
    pub(crate) fn request_blocks(&mut self, from: NodeId, fetch: &Fetch) {
        self.post(from, fetch.encode());
    }

    /// Takes the entries received since the last call.
    pub(crate) fn take_received(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.repair_service.received)
    }

    /// Takes the reports of entries that are damaged at other replicas as well, since the last call.
    pub(crate) fn take_damaged(&mut self) -> BTreeMap<NodeId, EntryIndex> {
        std::mem::take(&mut self.repair_service.damaged)
    }

    /// Receives a report that the requested entry is damaged at another replica as well.
    pub(super) fn on_damaged(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        self.repair_service.damaged.insert(from, parse_damaged(body)?);
        Ok(())
    }

    /// Receives an answer.
    pub(super) fn on_blocks(&mut self, body: &[u8], bodies: Vec<Bytes>) -> Result<(), Malformed> {
        let spares = parse_blocks(body, bodies)?;
        if self.repair_service.received.len() > BLOCKS_MAX {
            return Err("more entries than were requested");
        }
        self.repair_service.received.extend(spares);
        Ok(())
    }

    /// Answers another replica's request with the entries that this one can vouch for. With the anchor: up to the last
    /// requested entry. Without it: up to the last entry that it knows to be committed. If it knows none of them to be
    /// committed, it sends only its last committed entry, which shows the requester that the cluster has committed no
    /// further. For a request for committed entries, the anchor does not matter.
    pub(super) fn on_fetch(
        &mut self,
        to: NodeId,
        question: HeadKind,
        body: &[u8],
        now: Moment,
    ) -> Result<(), Malformed> {
        let fetch = Fetch::parse(body)?;
        if self.repair_service.next.get(&to).is_some_and(|next| now < *next) {
            return Err("request too soon after the last one");
        }
        let archive = self.raw.store().archive();
        let base = archive.first().raft;
        if fetch.first <= base || planted!(70) {
            self.repair_service.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
            self.post(to, encode_gone(if planted!(70) { fetch.first } else { base }));
            return Ok(());
        }
        let answer = match question {
            HeadKind::FetchCommitted => HeadKind::Committed,
            _ => HeadKind::Blocks,
        };
        let has_anchor = answer == HeadKind::Blocks
            && archive.term(fetch.anchor.0).is_ok_and(|term| term == Some(fetch.anchor.1));
        let committed = self.sequencer.committed().raft;
        let last = if has_anchor || planted!(71) { fetch.last } else { fetch.last.min(committed) };
        let wanted = fetch.first;
        let fetch = Fetch { first: fetch.first.min(last), last, ..fetch };
        let bytes_max = fetch.bytes_max.min(self.cluster.message_bytes_max) as usize;
        let found = collect(archive, &fetch, bytes_max);
        if let Err(error) = &found.1 {
            self.raw.store().note(error.clone());
        }
        if found.0.is_empty() {
            let is_damaged = found.1.is_err_and(|error| error.kind() == ErrorKind::Corrupt);
            let archive = self.raw.store().archive();
            let is_its_own = || archive.leads_to(wanted).unwrap_or(false);
            if is_damaged && fetch.first == wanted && answer == HeadKind::Blocks && is_its_own() {
                self.repair_service.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
                self.post(to, encode_damaged(wanted));
                return Ok(());
            }
            return Err("request for entries that are not here");
        }
        self.repair_service.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
        let head = encode_blocks(answer, found.0.iter().map(|(header, _)| header));
        let bodies = found.0.into_iter().flat_map(|(_, body)| body).collect();
        self.post_as(to, head, bodies, false);
        Ok(())
    }
}

/// The requested entries, up to `bytes_max`; and the error that prevented more.
fn collect(archive: &Archive, fetch: &Fetch, bytes_max: usize) -> (Vec<BlockCopy>, crate::error::Result<()>) {
    let mut spares: Vec<BlockCopy> = Vec::new();
    let mut bytes = 0;
    let mut next = fetch.first;
    while next <= fetch.last && spares.len() < BLOCKS_MAX {
        let (header, body) = match archive.body(next) {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(error) => return (spares, Err(error)),
        };
        bytes += body_bytes(&header);
        if bytes > bytes_max && !spares.is_empty() {
            break;
        }
        spares.push((header, if body.is_empty() { Vec::new() } else { vec![body] }));
        next = next.next();
    }
    (spares, Ok(()))
}
