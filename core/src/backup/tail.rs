//! The tail of a log with the durability class `object`, as a fetch takes it: payload behind the last entry that objects and slices of
//! entries give. Its references are in no slice yet.
//!
//! ```text
//!   objects, slices of entries | ... noop ... p1 | p2 | s |      the last reference up to the end: its place is where the tail begins
//!   payload slices               [ .. p1 p2 ][ p3 p4 ][ p5 | p6 ][ p7 ...      taken are p3, p4 and p5, up to the break
//! ```
//!
//! A leader puts payload in the order of its queue, and says where something else was in between. It acknowledges an append only if the
//! entries up to there are in slices, or follow those in slices in just that order: see `replica/node/tiering/placement.rs`, P6. So all
//! that was acknowledged is here. The last batches may be of appends that were not, as after any loss.
//!
//! Slices of entries can lead on behind the end, with a gap before them: one was lost, or an earlier version did not put them in order.
//! Then payload counts as far as these slices say that the log has it: see `gap`.
//!
//! Only payload of the term of the last entry counts: a leader acknowledges nothing before the first entry of its term is in a slice.
//!
//! Invariants:
//! - the tail follows the last entry: the place of the last reference before the end is known, because slices with all entries from there
//!   to the end were read. If they cannot be, that is a fault, because payload behind it may have been acknowledged;
//! - every byte was checked before it is used; a batch that is a retry within its session is left out by the log itself.
//!
//! Must not know: the network, which object store it is.

use super::gap::{Agreement, Placed, agree, is_of_queue};
use super::payloads::{READS_MAX, is_of_slice};
use super::slices::{End, SliceChain, leads_on, read};
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::record::batch::{BatchHeader, verify};
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId};
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::store::format::block::{Batches, Kind};
use crate::store::format::mixed::{RUN_BYTES, TABLE_FIXED_BYTES};
use crate::store::format::references::references;
use crate::store::objects::payloads::{PayloadHead, payload_id, payload_name, payloads};
use crate::store::objects::slice_names::SliceName;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Timestamp};
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The payload slices of a log, with their sizes.
pub(crate) type PayloadNames = BTreeMap<PayloadId, u64>;

/// The log of a batch, which is 0 if the log is alone, its header, and the batch.
pub(crate) type OneBatch = (LogNumber, BatchHeader, Bytes);

/// The bytes that a batch takes in a block, at most: one of a named log can need a table of its own.
pub(crate) fn bytes_in_block((log, header, _): &OneBatch) -> u32 {
    let table = if log.is_none() { 0 } else { TABLE_FIXED_BYTES + RUN_BYTES };
    header.length.saturating_add(table as u32)
}

/// Where batches behind the last entry are.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub(crate) parts: Vec<Part>,
    /// The records in them, and the bytes of their batches.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// The largest batch, as it is in a block.
    pub(crate) batch_bytes_max: u32,
    /// Whether some are of sessions.
    pub(crate) has_sessions: bool,
    /// Why it ends before a payload slice that is there, or that has to be.
    pub(crate) fault: Option<Error>,
    /// Whether there is payload that was left out: slices of entries lead on behind the end, and others before them cannot be read. So it
    /// is not known what the log has there.
    pub(crate) is_left_out: bool,
    /// Whether it has all records in slices of entries behind a gap.
    pub(crate) fills_gap: bool,
    /// Remarks for people, of what is no reason to say that the log ends early.
    pub(crate) notes: Vec<String>,
}

/// Batches of one payload slice.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) slice: PayloadId,
    pub(crate) begin: u32,
    pub(crate) end: u32,
    /// When their leader put them.
    pub(crate) time: Timestamp,
    bytes: u64,
}

/// The payload slices that a log has. To be listed before its slices of entries: so these are at least as new.
///
/// # Errors
/// Those of [`Vault`].
pub(crate) fn payload_names(vault: &dyn Vault, log: LogId) -> Result<PayloadNames> {
    let found = vault.list(&payloads(log))?;
    Ok(found.iter().filter_map(|at| Some((payload_id(log, &at.name)?, at.bytes))).collect())
}

/// The payload behind a chain of slices, or behind the object that ends there if no slice leads on. `slices`: all slices of entries.
///
/// # Errors
/// Those of [`Vault`], and `Unsupported`. Damage is none: the tail ends before it.
pub(crate) fn behind(
    vault: &dyn Vault,
    log: LogId,
    names: &PayloadNames,
    slices: &[(SliceName, u64)],
    chain: &SliceChain,
    object: Option<End>,
) -> Result<Tail> {
    let Some(end) = chain.end(object) else { return Ok(Tail::default()) };
    let found = find(vault, log, names, slices, end, chain.is_cut_off)?;
    if !chain.is_cut_off {
        return Ok(found.whole());
    }
    let beyond: Vec<_> = slices.iter().filter(|(name, _)| leads_on(name, Some(end))).copied().collect();
    // The entries in a damaged slice may have replaced that payload, or be before it.
    let is_damaged = beyond.iter().any(|(name, _)| chain.faults.contains_key(&name.to_string()));
    let agreement = match found.next.filter(|_| !is_damaged) {
        Some(_) if planted!(152) => Agreement { batches: found.batches.len(), is_whole: true },
        Some(next) => agree(vault, beyond, end, next, &found.batches)?,
        None => Agreement::default(),
    };
    Ok(found.up_to(agreement))
}

/// Payload behind an entry, however slices of entries lead on.
#[derive(Debug, Default)]
struct Found {
    tail: Tail,
    batches: Vec<Placed>,
    /// The record behind that entry. None: payload does not go on there, or it is not known where.
    next: Option<Index>,
    /// Whether there is more payload: of this term behind these batches, or of a later one.
    has_more: bool,
}

impl Found {
    /// All of it.
    fn whole(mut self) -> Tail {
        self.count();
        self.tail
    }

    fn count(&mut self) {
        self.tail.records = self.batches.iter().map(|batch| u64::from(batch.records)).sum();
        self.tail.bytes = self.batches.iter().map(|batch| u64::from(batch.bytes)).sum();
    }

    /// The same without batches that are not known to be in the log.
    fn up_to(mut self, Agreement { batches, is_whole }: Agreement) -> Tail {
        if is_whole {
            self.tail.fills_gap = true;
            return self.whole();
        }
        let cut = self.batches.get(batches).copied();
        self.batches.truncate(batches);
        self.count();
        let mut tail = self.tail;
        if let Some(cut) = cut {
            tail.parts.retain(|part| (part.slice, part.begin) < (cut.slice, cut.offset));
            if let Some(last) = tail.parts.last_mut().filter(|last| last.slice == cut.slice) {
                last.end = cut.offset;
            }
        }
        // These are about what is behind.
        (tail.fault, tail.notes) = (None, Vec::new());
        tail.is_left_out = cut.is_some() || self.has_more;
        tail
    }
}

/// The batches behind the entry `end`, which is the last one that objects and slices of entries give.
fn find(
    vault: &dyn Vault,
    log: LogId,
    names: &PayloadNames,
    slices: &[(SliceName, u64)],
    end: End,
    looks_on: bool,
) -> Result<Found> {
    let mut found = Found { has_more: names.keys().any(|id| id.term > end.1), ..Found::default() };
    if !names.keys().any(|id| id.term == end.1) {
        return Ok(found);
    }
    let (mut id, mut at) = match place_behind(vault, slices, end, looks_on)? {
        Place::At(id, at, next) => {
            found.next = Some(next);
            (id, at)
        }
        Place::Nowhere(last) => {
            let is_behind = |id: &PayloadId| last.is_none_or(|last| *id > last);
            found.has_more |= names.keys().any(|id| id.term == end.1 && is_behind(id));
            return Ok(found);
        }
        Place::Unset => {
            found.has_more = true;
            found.tail.notes.push(format!(
                "payload of term {} was left out: no entry behind the change that set payload_slices refers to it",
                end.1
            ));
            return Ok(found);
        }
        Place::Unknown(why) => {
            (found.tail.fault, found.has_more) = (Some(why), true);
            return Ok(found);
        }
    };
    let tail = &mut found.tail;
    loop {
        let has_later = || names.keys().any(|other| other.term == id.term && *other > id);
        let bytes = match names.get(&id) {
            Some(bytes) => *bytes,
            None if !has_later() => return Ok(found),
            None => match vault.size(&payload_name(log, id))? {
                // It was still being put.
                Some(bytes) => bytes,
                None => {
                    let name = payload_name(log, id);
                    let what = format!("payload slice {name} is not in the object store, and later ones are");
                    // That of the last reference stays as long as it is needed. A later one may never have been stored.
                    match at > PAYLOAD_HEADER_BYTES as u32 {
                        true => tail.fault = Some(Error::new(ErrorKind::NotFound, what)),
                        false => tail.notes.push(format!("{what}: it was never stored, or it is lost")),
                    }
                    found.has_more = true;
                    return Ok(found);
                }
            },
        };
        let (head, batches) = match part(vault, log, id, bytes, at..u32::MAX) {
            Ok(found) => found,
            Err(error) if is_of_slice(&error) => {
                (tail.fault, found.has_more) = (Some(error), true);
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        let stop = stop_of(&head, at);
        if !batches.is_empty() {
            let more = batches.iter().map(bytes_in_block).max().unwrap_or(0);
            tail.batch_bytes_max = tail.batch_bytes_max.max(more);
            tail.has_sessions |= batches.iter().any(|(_, header, _)| !header.stamp.session.is_none());
            tail.parts.push(Part { slice: id, begin: at, end: stop, time: head.time, bytes });
        }
        for (_, header, _) in &batches {
            found.batches.push(Placed::of(id, at, header));
            at += header.length;
        }
        if stop < head.end {
            found.has_more = true;
            return Ok(found);
        }
        (id.sequence, at) = (id.sequence + 1, PAYLOAD_HEADER_BYTES as u32);
    }
}

impl Part {
    /// Its batches, all of them checked.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`. Those of [`Vault`].
    pub(crate) fn batches(&self, vault: &dyn Vault, log: LogId) -> Result<Vec<OneBatch>> {
        Ok(part(vault, log, self.slice, self.bytes, self.begin..self.end)?.1)
    }
}

/// Where batches from this offset on end: with the slice, or before something else that was in the queue.
fn stop_of(head: &PayloadHead, at: u32) -> u32 {
    let found = head.breaks.iter().copied().find(|found| *found >= at);
    found.unwrap_or(head.end)
}

/// The batches of a payload slice from an offset on, up to a break. One that came damaged is read again.
fn part(
    vault: &dyn Vault,
    log: LogId,
    id: PayloadId,
    bytes: u64,
    range: std::ops::Range<u32>,
) -> Result<(PayloadHead, Vec<OneBatch>)> {
    let mut found = part_once(vault, log, id, bytes, &range);
    for _ in 1..READS_MAX {
        if !found
            .as_ref()
            .is_err_and(|error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::OutOfRange))
        {
            break;
        }
        found = part_once(vault, log, id, bytes, &range);
    }
    found
}

fn part_once(
    vault: &dyn Vault,
    log: LogId,
    id: PayloadId,
    bytes: u64,
    range: &std::ops::Range<u32>,
) -> Result<(PayloadHead, Vec<OneBatch>)> {
    let name = payload_name(log, id);
    let wrong = |at: u32, why: &str| Error::corrupt(Path::new(&name), at.into(), why);
    let slice = vault.get(&name, 0..bytes)?;
    let head = PayloadHead::parse(log, id, &slice).map_err(|why| wrong(0, why))?;
    let (begin, stop) = (range.start, stop_of(&head, range.start).min(range.end));
    let piece = slice.get(begin as usize..stop as usize).ok_or("payload slice has impossible offsets");
    let (mut at, mut found) = (begin, Vec::new());
    for batch in Batches::new(piece.map_err(|why| wrong(begin, why))?) {
        let (_, bytes) = batch.map_err(|why| wrong(begin, why))?;
        let header = verify(bytes).map_err(|why| wrong(begin, why))?;
        found.push((head.log_at(at), header, slice.slice_ref(bytes)));
        at += header.length;
    }
    Ok((head, found))
}

/// Whether an entry switches the durability class on or off.
fn sets_class(kind: Kind, body: &[u8]) -> bool {
    let is_set = |command| matches!(command, Command::SetOptions(options) if options.get(LogOption::PayloadSlices).is_some());
    kind == Kind::Command && parse_command(body).is_ok_and(is_set)
}

/// Where payload goes on behind an entry.
#[derive(Debug)]
enum Place {
    /// Here, and the record behind that entry.
    At(PayloadId, u32, Index),
    /// Something else was in the queue behind the last reference: payload behind it was never in the log. The slice of that reference, if
    /// it was looked for and found.
    Nowhere(Option<PayloadId>),
    /// The class was switched on, and nothing before is in slices of entries. So nothing was acknowledged by payload alone.
    Unset,
    /// Slices of entries do not say it, and why.
    Unknown(Error),
}

/// Where payload goes on behind the entry `end`: behind the last reference of its term up to there, or with the first slice of the term.
/// `looks_on`: that reference is looked for also if payload does not go on behind it.
fn place_behind(
    vault: &dyn Vault,
    slices: &[(SliceName, u64)],
    (end, term): End,
    looks_on: bool,
) -> Result<Place> {
    let (mut upto, mut left, mut fault) = (end, slices.to_vec(), None);
    let (mut begins, mut is_set, mut goes_on, mut next) = (false, false, true, None);
    loop {
        let has = |(name, _): &(SliceName, u64)| name.first <= upto && name.last >= upto;
        let Some(at) = left.iter().position(has) else {
            let lacking = || {
                let what = format!(
                    "no slice has entry {upto}, which is needed to see where payload goes on behind entry {end}"
                );
                Error::new(ErrorKind::NotFound, what)
            };
            return Ok(match fault {
                _ if !goes_on => Place::Nowhere(None),
                // Slices begin with the state of the log there. A leader acknowledges nothing by what is before the first one.
                None if begins => Place::Nowhere(None),
                None if is_set => Place::Unset,
                fault => Place::Unknown(fault.unwrap_or_else(lacking)),
            });
        };
        let (name, bytes) = left.swap_remove(at);
        let slice = match read(vault, &name, bytes) {
            Ok(slice) => slice,
            Err(error) if is_of_slice(&error) => {
                fault = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut entries =
            slice.entries.iter().rev().filter(|(header, _)| header.raft_index <= upto).peekable();
        // Of one term all entries are of one leader: then it is the same entry, and so are those before it.
        let Some((last, _)) =
            entries.peek().filter(|(header, _)| (header.raft_index, header.term) == (upto, term))
        else {
            continue;
        };
        let next = *next.get_or_insert(last.next_record());
        while let Some((header, body)) = entries.next() {
            if header.term != term {
                return Ok(Place::Nowhere(None));
            }
            let place = match references(header, body).last() {
                Some(Ok(last)) => Some((last.slice, last.offset + last.length)),
                Some(Err(why)) => {
                    return Ok(Place::Unknown(Error::corrupt(Path::new(&name.to_string()), 0, why)));
                }
                None => None,
            };
            // Raft also makes one in the middle of a term, of a change of members that it refuses.
            let before = entries.peek().map_or(slice.base.term, |(before, _)| before.term);
            let is_first = header.kind == Kind::NoOp && (before != term || planted!(147));
            let first = (PayloadId { term, sequence: 1 }, PAYLOAD_HEADER_BYTES as u32);
            match place.or(is_first.then_some(first)) {
                Some((slice, offset)) if goes_on => return Ok(Place::At(slice, offset, next)),
                Some((slice, _)) => return Ok(Place::Nowhere(Some(slice).filter(|_| !is_first))),
                None => {}
            }
            // Payload behind such an entry would begin with a break: what there is without one was never in the log.
            if is_of_queue(header.kind, body) {
                if !looks_on {
                    return Ok(Place::Nowhere(None));
                }
                goes_on = false;
            }
            is_set |= sets_class(header.kind, body);
        }
        (upto, begins) = (EntryIndex(name.first.0.saturating_sub(1)), name.begins);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, sample_header};
    use crate::store::format::segment::digest_of_bytes;
    use crate::store::format::slices::Slice;
    use crate::store::segment::Base;
    use crate::types::Term;
    use crate::vault::MemoryVault;

    const LOG: LogId = LogId(3);

    /// Puts a slice with no-ops of these terms, behind an entry of another term.
    fn put(vault: &MemoryVault, base: (u64, u64), terms: &[u64]) -> (SliceName, u64) {
        let entry = |(n, term): (usize, &u64)| {
            let header = BlockHeader {
                length: BLOCK_HEADER_BYTES as u32,
                batch_count: 0,
                record_count: 0,
                raft_index: EntryIndex(base.0 + 1 + n as u64),
                term: Term(*term),
                first: Index(7),
                durable_upto: 0,
                body_digest: digest_of_bytes(&[b""]),
                kind: Kind::NoOp,
                ..sample_header()
            };
            (header, Bytes::new())
        };
        let entries: Vec<_> = terms.iter().enumerate().map(entry).collect();
        let base = Base { raft: EntryIndex(base.0), term: Term(base.1), next: Index(7) };
        let slice = Slice { log: LOG, base, opening: None, entries };
        let (last, term) = slice.last();
        let name = SliceName { log: LOG, first: base.raft.next(), last, term, begins: false };
        let bytes = slice.encode(name.salt()).concat();
        let size = bytes.len() as u64;
        vault.put(&name.to_string(), &[bytes.into()]).unwrap();
        (name, size)
    }

    #[test]
    fn payload_begins_behind_the_first_entry_of_its_term_alone() {
        let vault = MemoryVault::default();
        let one = put(&vault, (10, 2), &[2, 4]);
        // Raft made others in the middle of the term.
        let two = put(&vault, (12, 4), &[4]);
        let three = put(&vault, (13, 4), &[4, 4]);
        let end = (EntryIndex(15), Term(4));
        let place = |slices: &[(SliceName, u64)]| place_behind(&vault, slices, end, false).unwrap();
        let first = PayloadId { term: Term(4), sequence: 1 };
        assert!(matches!(place(&[one, two, three]), Place::At(id, 72, Index(7)) if id == first));
        // It is not known what is in the one that is missing, or damaged.
        assert!(matches!(place(&[one, three]), Place::Unknown(why) if why.kind() == ErrorKind::NotFound));
        assert!(matches!(place(&[two, three]), Place::Unknown(_)));
        let mut bad = vault.get(&two.0.to_string(), 0..two.1).unwrap().to_vec();
        bad[130] ^= 1;
        vault.put(&two.0.to_string(), &[bad.into()]).unwrap();
        assert!(matches!(place(&[one, two, three]), Place::Unknown(why) if why.kind() == ErrorKind::Corrupt));
    }
}
