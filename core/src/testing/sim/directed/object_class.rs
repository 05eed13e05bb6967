//! Scenarios of the durability class `object`: objects that arrive damaged, slices of entries that are lost or stay, references that cannot
//! be read.

use super::{Check, OWN, Stage};
use crate::backup::{slices, tail};
use crate::error::{Error, ErrorKind};
use crate::record::batch::{Batch, BatchBuilder};
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId, Reference};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, digest_of_batches};
use crate::store::format::segment::digest_of_bytes;
use crate::store::format::slices::{Block, Slice};
use crate::store::objects::payloads::{PayloadHead, payload_name, resolve};
use crate::store::objects::slice_names::SliceName;
use crate::store::segment::Base;
use crate::testing::sim::history::record_of;
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::vault::SimVault;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The smallest records.
const SMALLEST_BYTES: usize = 16;
/// Appends whose payload each has a slice of its own.
const APPENDS: usize = 5;

impl Stage {
    /// Appends with payload, one after the other.
    pub(super) fn append_payload(&mut self) -> Check {
        for _ in 0..APPENDS {
            let ticket = self.begin()?;
            self.is_answered(&ticket)?;
        }
        Ok(())
    }

    /// Has an object stored that arrives damaged, whose payload is in several slices; without one of them it cannot be made again. Returns
    /// its name.
    fn spoil_object(&mut self, vault: &SimVault) -> Check<String> {
        self.append_payload()?;
        vault.spoil_object();
        let leader = self.leader()?;
        self.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
        self.until("an object arrives damaged", |_| vault.spoiled().is_some())?;
        vault.spoiled().ok_or_else(|| "no object is damaged".to_owned())
    }

    /// A batch that is no larger than a reference to it.
    fn smallest_batch(&mut self) -> Check<Batch> {
        while record_of(self.records + 1).len() > SMALLEST_BYTES {
            self.records += 1;
        }
        self.batch(0)
    }

    fn is_stored_again(&mut self, vault: &SimVault) -> Check {
        self.until("the damaged object is stored again", |_| vault.spoiled().is_none())
    }
}

/// An object arrives damaged, and all replicas stop before it was read. Another one leads next, with no payload in memory: the object does
/// not count as stored, and is made again of the payload in the object store.
pub(super) fn object_counts_as_stored_once_it_was_read() -> Check {
    let (mut stage, vault) = with_rare_scrub(3)?;
    let leader = stage.leader()?;
    let spoiled = stage.spoil_object(&vault)?;
    vault.hide_objects(true);
    stage.advance(Duration::from_secs(5))?;
    let all = stage.world.voters();
    all.iter().try_for_each(|node| stage.cut_power(*node))?;
    vault.hide_objects(false);
    for node in all.into_iter().filter(|node| *node != leader) {
        stage.world.start(node)?;
    }
    stage.until("another one leads", |w| w.leader().is_some_and(|now| now != leader))?;
    stage.append_payload()?;
    stage.is_stored_again(&vault)?;
    stage.until("the object counts as stored", |w| {
        let node = w.leader();
        node.and_then(|node| w.machine(node)).is_some_and(|machine| machine.objects().0.contains(&spoiled))
    })
}

/// A cluster whose appends go to payload slices, and in which no pass over all objects comes to one that is damaged.
pub(super) fn with_rare_scrub(voters: u64) -> Check<(Stage, Arc<SimVault>)> {
    Stage::with_payloads_of(voters, 0, |plan| Plan { object_scrub: Duration::from_secs(3_600), ..plan })
}

/// Small appends alone: they are replicated whole, and slices of entries go once objects have them.
pub(super) fn slices_go_while_no_payload_is_appended() -> Check {
    const ROUNDS: usize = 40;
    let (mut stage, vault) = Stage::with_payloads(1, 0)?;
    let leader = stage.leader()?;
    for _ in 0..ROUNDS {
        let batch = stage.smallest_batch()?;
        if let Some(error) = stage.submit(leader, Request::Append(OWN, batch))? {
            return Err(format!("an append fails: {error:?}"));
        }
        stage.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
        stage.advance(Duration::from_millis(500))?;
    }
    let slices = vault.names().into_iter().filter(|name| name.contains("/s/")).count();
    if slices < ROUNDS / 2 { Ok(()) } else { Err(format!("{slices} slices of entries are left")) }
}

const LOG: LogId = LogId(3);
const TERM: Term = Term(4);

/// A batch with a record of this size.
pub(super) fn batch(bytes: usize) -> Check<Batch> {
    let mut builder = BatchBuilder::new();
    let built = builder.push(&vec![7; bytes]).and_then(BatchBuilder::build);
    built.map_err(|error| error.to_string())
}

/// An entry of one batch, or without any.
pub(super) fn entry(raft: u64, batch: Option<(u32, Bytes)>) -> Block {
    let (crc, body) = batch.unwrap_or_default();
    let count = u32::from(!body.is_empty());
    let header = BlockHeader {
        length: (BLOCK_HEADER_BYTES + body.len()) as u32,
        batch_count: count,
        raft_index: EntryIndex(raft),
        term: TERM,
        first: Index(if raft > 11 { 8 } else { 7 }),
        timestamp: Timestamp(0),
        record_count: count,
        durable_upto: 0,
        body_digest: if count == 0 { digest_of_bytes(&[b""]) } else { digest_of_batches([crc]) },
        kind: if count == 0 { Kind::NoOp } else { Kind::Data },
    };
    (header, body)
}

/// The reference to a batch that is alone in its payload slice.
fn reference_to(batch: &Batch, slice: PayloadId, offset: u32) -> (u32, Bytes) {
    let length = batch.as_bytes().len() as u32;
    let reference =
        Reference { slice, offset, length, crc: batch.header().crc, slice_bytes: offset + length + 4 };
    let (header, bytes) = reference.encode(batch.header());
    (header.crc, Bytes::copy_from_slice(&bytes))
}

/// Raft makes an entry without an effect in the middle of a term, of a change of members that it refuses. Payload goes on behind the last
/// reference all the same, and does not begin again.
pub(super) fn payload_begins_behind_the_first_entry_of_its_term() -> Check {
    let wrong = |error: Error| error.to_string();
    let (vault, batch) = (MemoryVault::default(), batch(500)?);
    for sequence in 1..=2 {
        let id = PayloadId { term: TERM, sequence };
        let end = (PAYLOAD_HEADER_BYTES + batch.as_bytes().len()) as u32;
        let head = PayloadHead { batches: 1, time: Timestamp(0), end, ..PayloadHead::default() };
        let (begin, end) = head.encode(LOG, id);
        let pieces = [Bytes::copy_from_slice(&begin), batch.as_bytes().clone(), end.into()];
        vault.put(&payload_name(LOG, id), &pieces).map_err(wrong)?;
    }
    let first = PayloadId { term: TERM, sequence: 1 };
    let referring = entry(11, Some(reference_to(&batch, first, PAYLOAD_HEADER_BYTES as u32)));
    let base = Base { raft: EntryIndex(9), term: Term(2), next: Index(7) };
    let slice =
        Slice { log: LOG, base, opening: None, entries: vec![entry(10, None), referring, entry(12, None)] };
    let (last, term) = slice.last();
    let name = SliceName { log: LOG, first: base.raft.next(), last, term, begins: false };
    vault.put(&name.to_string(), &[slice.encode(name.salt()).concat().into()]).map_err(wrong)?;
    let names = slices::names(&vault, LOG).map_err(wrong)?;
    let payloads = tail::payload_names(&vault, LOG).map_err(wrong)?;
    let object = Some((base.raft, base.term));
    let chain = slices::longest(&vault, &names, object, &mut |_| {}).map_err(wrong)?;
    let found = tail::behind(&vault, LOG, &payloads, &names, &chain, object).map_err(wrong)?;
    let places: Vec<_> = found.parts.iter().map(|part| part.slice.sequence).collect();
    match (&places[..], found.fault) {
        ([2], None) => Ok(()),
        (places, fault) => {
            Err(format!("payload slices {places:?} follow, and not the second one: {fault:?}"))
        }
    }
}

/// A reference that cannot be read is damage, and not a batch like others: no object is made of its block.
pub(super) fn reference_that_cannot_be_read_is_damage() -> Check {
    let (header, body) =
        entry(11, Some(reference_to(&batch(500)?, PayloadId { term: TERM, sequence: 1 }, 64)));
    match resolve(header, body, |_, _| Err(Error::new(ErrorKind::NotFound, "no slice"))) {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        found => Err(format!("a block with a reference that cannot be read is {found:?}")),
    }
}
