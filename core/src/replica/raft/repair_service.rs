//! Lending: what other replicas need to mend damage, and what they bring to mend ours.
//!
//! Every byte is checked before it leaves, by the archive, and when it arrives: damage does not travel.

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

/// An answer costs as much as a message to a replica that catches up: a peer gets so many in a heartbeat.
const ANSWERS_A_HEARTBEAT: u32 = 8;

/// What is lent, and borrowed.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// When a peer gets its next answer.
    next: BTreeMap<NodeId, Moment>,
    /// What came.
    brought: Vec<BlockCopy>,
    /// Which replicas have which entry damaged as well, as they said since the last time.
    damaged: BTreeMap<NodeId, EntryIndex>,
}

impl Replica {
    /// Whom this replica can ask.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let node = self.node();
        self.membership.members().map(|m| m.node).filter(|n| *n != node).collect()
    }

    /// Those of them that vote.
    pub(crate) fn other_voters(&self) -> Vec<NodeId> {
        let node = self.node();
        self.membership.members().filter(|m| m.is_voter() && m.node != node).map(|m| m.node).collect()
    }

    /// Asks another replica for entries.
    pub(crate) fn borrow(&mut self, from: NodeId, fetch: &Fetch) {
        self.post(from, fetch.encode());
    }

    /// What other replicas have brought since the last time.
    pub(crate) fn take_brought(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.lending.brought)
    }

    /// Which replicas have said since the last time that they have an entry damaged as well.
    pub(crate) fn take_damaged(&mut self) -> BTreeMap<NodeId, EntryIndex> {
        std::mem::take(&mut self.lending.damaged)
    }

    /// Another replica has what it was asked for damaged as well.
    pub(super) fn has_it_damaged(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        self.lending.damaged.insert(from, parse_damaged(body)?);
        Ok(())
    }

    /// Takes an answer.
    pub(super) fn brought(&mut self, body: &[u8], bodies: Vec<Bytes>) -> Result<(), Malformed> {
        let spares = parse_blocks(body, bodies)?;
        if self.lending.brought.len() > BLOCKS_MAX {
            return Err("more entries than anybody asked for");
        }
        self.lending.brought.extend(spares);
        Ok(())
    }

    /// Answers another replica's question, as far as this one can stand for the answer: through the last entry wanted if
    /// it has the anchor, else through the last one that it knows committed. If it knows none of them, it gives that last
    /// committed one alone, which tells the asker that the cluster is no further. To a question for committed entries
    /// the anchor does not matter.
    pub(super) fn lend(
        &mut self,
        to: NodeId,
        question: HeadKind,
        body: &[u8],
        now: Moment,
    ) -> Result<(), Malformed> {
        let fetch = Fetch::parse(body)?;
        if self.lending.next.get(&to).is_some_and(|next| now < *next) {
            return Err("a question too soon after the last one");
        }
        let archive = self.raw.store().archive();
        let base = archive.first().raft;
        if fetch.first <= base || planted!(70) {
            self.lending.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
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
                self.lending.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
                self.post(to, encode_damaged(wanted));
                return Ok(());
            }
            return Err("a question for entries that are not here");
        }
        self.lending.next.insert(to, now.plus(self.cluster.heartbeat / ANSWERS_A_HEARTBEAT));
        let head = encode_blocks(answer, found.0.iter().map(|(header, _)| header));
        let bodies = found.0.into_iter().flat_map(|(_, body)| body).collect();
        self.post_as(to, head, bodies, false);
        Ok(())
    }
}

/// The entries asked for, as many as may go, and what stood in the way of more.
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
