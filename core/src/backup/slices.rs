//! The slices of a log in an object store, as a fetch takes them: which of them lead furthest, and that they do.
//!
//! ```text
//!  newest object ──> slice ──> slice ──> ...     or     slice that begins with the log's state ──> slice ──> ...
//! ```
//!
//! Slices may overlap, be left over, missing or damaged. A chain of them is taken as far as each one continues what is before it: it has
//! the entry there with the same term, so it is of the same history. It ends before the first place that no sound slice covers. If both
//! reach as far, a state behind the end of the objects comes first, then the objects, then an older state.
//!
//! A forced change of members leaves slices of the lost majority. Where two slices contradict each other, the one of the later term is of
//! the log, if a chain leads to it.
//!
//! Invariant: nothing is taken on trust. Every byte of a slice was checked before one entry of it is used.
//!
//! Must not know: the network, which object store it is.

use super::payloads::{READS_MAX, is_of_slice};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::state::command::parse_command;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::LOG_BYTES;
use crate::store::format::references::{has_references, resolved_stride};
use crate::store::format::slices::{Slice, SliceFault};
use crate::store::objects::slice_names::{SliceName, chain, slices};
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId, Term};
use crate::vault::Vault;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// How many slices are fetched at a time, and how many before they are looked at.
pub(super) const AT_A_TIME: usize = 8;
pub(super) const PIECE: usize = 64;

/// The entry behind which a chain begins, and its term.
pub(crate) type End = (EntryIndex, Term);

/// The slices that lead furthest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SliceChain {
    /// Whether the first one begins with the state of the log. Then no object is needed: everything before is discarded.
    pub(crate) begins: bool,
    pub(crate) slices: Vec<SliceName>,
    /// The size of all of them.
    pub(crate) bytes: u64,
    /// The largest block in them.
    pub(crate) block_bytes_max: u32,
    /// The largest opening in them, and by how much at most named logs make it larger that are opened in their entries.
    pub(crate) opening_bytes: u32,
    pub(crate) new_logs_bytes: u32,
    /// Slices that are damaged, missing or of another history, and why.
    pub(crate) faults: BTreeMap<String, String>,
    /// Whether slices behind its end lead nowhere: one before them is missing, damaged or of another history.
    pub(crate) is_cut_off: bool,
}

impl SliceChain {
    /// The last entry of the log with this chain, whose newest object ends there.
    pub(crate) fn end(&self, object: Option<End>) -> Option<End> {
        self.slices.last().map(|name| (name.last, name.term)).or(object)
    }
}

/// Whether a slice has entries behind this end of a log. Terms never become smaller in a log: one of an earlier term is of another
/// history, and says nothing about this one.
pub(crate) fn leads_on(name: &SliceName, end: Option<End>) -> bool {
    end.is_none_or(|(raft, term)| name.last > raft && (name.term >= term || planted!(153)))
}

/// The chain information of a slice that was read.
#[derive(Debug)]
pub(super) struct Proof {
    /// The terms of its entries and of the one before: from this entry on.
    terms: Vec<End>,
    last: End,
    pub(super) next: Index,
    block_bytes_max: u32,
    opening_bytes: u32,
    new_logs_bytes: usize,
    /// Whether its entries refer to payload slices.
    pub(super) refers: bool,
}

impl Proof {
    fn of(slice: &Slice) -> Self {
        let mut terms = vec![(slice.base.raft, slice.base.term)];
        for (header, _) in &slice.entries {
            if terms.last().is_none_or(|(_, term)| *term != header.term) {
                terms.push((header.raft_index, header.term));
            }
        }
        let block_bytes_max = slice.entries.iter().map(|(header, body)| resolved_stride(header, body) as u32);
        let block_bytes_max = block_bytes_max.max().unwrap_or(0);
        let opening_bytes = slice.opening.as_ref().map_or(0, |(header, _)| header.length);
        let new_logs_bytes = slice.entries.iter().map(|(header, body)| new_log_bytes(header, body)).sum();
        let refers = slice.entries.iter().any(|(header, body)| has_references(header, body));
        let (last, next) = (slice.last(), slice.next_record());
        Self { terms, last, next, block_bytes_max, opening_bytes, new_logs_bytes, refers }
    }

    /// Whether it continues behind an entry.
    fn continues(&self, (raft, term): End) -> bool {
        let of = self.terms.iter().rev().find(|(from, _)| *from <= raft);
        raft < self.last.0 && of.is_some_and(|(_, here)| *here == term)
    }
}

/// The most by which an entry makes the openings of a shared group larger.
fn new_log_bytes(header: &BlockHeader, body: &[u8]) -> usize {
    if header.kind != Kind::Command {
        return 0;
    }
    match parse_command(body) {
        Ok(Command::Log(LogCommand::Open { .. })) => LOG_BYTES,
        Ok(Command::Log(LogCommand::SetOptions { options, .. })) => options.encoded_bytes(),
        _ => 0,
    }
}

/// The slices of a log by their names, with their sizes.
///
/// # Errors
/// Those of [`Vault`].
pub(crate) fn names(vault: &dyn Vault, log: LogId) -> Result<Vec<(SliceName, u64)>> {
    let found = vault.list(&slices(log))?;
    Ok(found.iter().filter_map(|at| Some((SliceName::parse(log, &at.name)?, at.bytes))).collect())
}

/// Reads a slice and checks every byte. One that came damaged, and may be sound in the object store, is read again.
///
/// # Errors
/// `NotFound`, `OutOfRange`: it is missing, or shorter than listed. `Corrupt`: it is damaged, or another one than its name says.
/// `Unsupported`. Those of [`Vault`].
pub(crate) fn read(vault: &dyn Vault, name: &SliceName, bytes: u64) -> Result<Slice> {
    let mut read = read_once(vault, name, bytes);
    for _ in 1..READS_MAX {
        if !read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
            break;
        }
        read = read_once(vault, name, bytes);
    }
    read
}

fn read_once(vault: &dyn Vault, name: &SliceName, bytes: u64) -> Result<Slice> {
    let text = name.to_string();
    let found = vault.get(&text, 0..bytes)?;
    let slice = Slice::parse(&found, name.salt()).map_err(|fault| match fault {
        SliceFault::Malformed(at, why) => Error::corrupt(Path::new(&text), at as u64, why),
        SliceFault::Newer(version) => {
            let what = format!("{text} is of format {version}, which this version does not read");
            Error::new(ErrorKind::Unsupported, what)
        }
    })?;
    let (last, term) = slice.last();
    let (log, first, begins) = (slice.log, slice.base.raft.next(), slice.opening.is_some());
    if (SliceName { log, first, last, term, begins }) != *name {
        return Err(Error::corrupt(Path::new(&text), 0, "it is another slice than its name says"));
    }
    Ok(slice)
}

/// Slices of a log that were read.
pub(super) struct Reading<'a> {
    vault: &'a dyn Vault,
    pub(super) sizes: HashMap<SliceName, u64>,
    pub(super) proofs: HashMap<SliceName, Proof>,
    damaged: HashSet<SliceName>,
    faults: BTreeMap<String, String>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(vault: &'a dyn Vault, names: &[(SliceName, u64)]) -> Self {
        let sizes = names.iter().copied().collect();
        let (proofs, damaged, faults) = (HashMap::new(), HashSet::new(), BTreeMap::new());
        Self { vault, sizes, proofs, damaged, faults }
    }

    /// Reads those of these slices that were not read yet. Returns whether all are sound.
    pub(super) fn read(&mut self, wanted: &[SliceName], progress: &mut dyn FnMut(u64)) -> Result<bool> {
        let (vault, sizes) = (self.vault, &self.sizes);
        let size = |name: &SliceName| sizes.get(name).copied().unwrap_or(0);
        let new: Vec<_> = wanted.iter().filter(|name| !self.proofs.contains_key(name)).copied().collect();
        let prove = |name: &SliceName| match read(vault, name, size(name)) {
            Ok(slice) => Ok((*name, Ok(Proof::of(&slice)))),
            Err(error) if is_of_slice(&error) => Ok((*name, Err(error.to_string()))),
            Err(error) => Err(error),
        };
        let (proofs, damaged, faults) = (&mut self.proofs, &mut self.damaged, &mut self.faults);
        in_parallel(AT_A_TIME, &new, prove, |(name, proof): (SliceName, _)| {
            progress(size(&name));
            match proof {
                Ok(proof) => _ = proofs.insert(name, proof),
                Err(why) => {
                    damaged.insert(name);
                    faults.insert(name.to_string(), why);
                }
            }
        })?;
        Ok(wanted.iter().all(|name| self.proofs.contains_key(name)))
    }

    /// The longest chain behind the newest object, or from a slice that begins with a state.
    pub(super) fn longest(
        &mut self,
        object: Option<End>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SliceChain> {
        let all: Vec<SliceName> = self.sizes.keys().copied().collect();
        let begins: BTreeSet<SliceName> = all.iter().filter(|name| name.begins).copied().collect();
        // Slices that do not continue what is before them, by the begin of the chain.
        let mut strangers: HashSet<(Option<SliceName>, SliceName)> = HashSet::new();
        loop {
            let from = object.iter().map(|(raft, _)| (None, *raft));
            let from = from.chain(begins.iter().map(|name| (Some(*name), EntryIndex(name.first.0 - 1))));
            let planned = from.filter_map(|(begin, behind)| {
                let is_usable =
                    |name: &SliceName| !self.damaged.contains(name) && !strangers.contains(&(begin, *name));
                let mut planned: Vec<_> = begin.into_iter().collect();
                if !planned.iter().all(is_usable) {
                    return None;
                }
                planned.extend(chain(&all, begin.map_or(behind, |name| name.last), is_usable));
                let reach = planned
                    .last()
                    .map_or(object.map(|(raft, term)| (term, raft)), |l| Some((l.term, l.last)));
                Some((reach, begin, planned))
            });
            // Of two that reach as far, one from a state behind the end of the objects: all records in them are discarded, and payload
            // of entries up to that state may be deleted. Else that behind the objects, which has more records.
            let rank = |begin: &Option<SliceName>| match (begin, object) {
                (Some(begin), Some((raft, _))) if begin.first <= raft || planted!(167) => 0,
                (None, _) => 1,
                (Some(_), _) => 2,
            };
            let best = planned.max_by_key(|(reach, begin, _)| (*reach, rank(begin)));
            let Some((_, begin, planned)) = best else { return Ok(self.taken(object, false, Vec::new())) };
            let mut is_sound = true;
            for piece in planned.chunks(PIECE) {
                is_sound &= self.read(piece, progress)?;
                if !is_sound {
                    break;
                }
            }
            if !is_sound {
                continue;
            }
            let mut end = match begin.and_then(|name| self.proofs.get(&name)?.terms.first().copied()) {
                Some(base) => base,
                None => object.unwrap_or_default(),
            };
            // The last entry of the objects, or of the slice with the state, behind which the others are.
            let base = begin.map_or(end, |name| (name.last, name.term));
            let stranger = planned.iter().position(|name| match self.proofs.get(name) {
                Some(proof) if proof.continues(end) => {
                    end = proof.last;
                    false
                }
                _ => true,
            });
            let may_use = |name: &SliceName| !strangers.contains(&(begin, *name));
            let pair = match stranger {
                Some(at) => Some((at.checked_sub(1).map(|before| planned[before]), planned[at])),
                None => self.later_than(&planned[usize::from(begin.is_some())..], base, may_use),
            };
            let Some((before, name)) = pair else {
                return Ok(self.taken(object, begin.is_some(), planned));
            };
            let earlier = before.filter(|before| Some(*before) != begin && before.term < name.term);
            match earlier {
                // It is of the lost majority: that is no fault of the log.
                Some(before) if self.is_led_to(&name, &before, base, may_use)? => {
                    strangers.insert((begin, before));
                }
                _ => {
                    let why = format!(
                        "it does not continue entry {} of term {}: it is of another history",
                        end.0, end.1
                    );
                    self.faults.entry(name.to_string()).or_insert(why);
                    strangers.insert((begin, name));
                }
            }
        }
    }

    /// A slice that contradicts one of this chain, which begins behind `base`: it ends no later, and is of a later term. Returns the one of
    /// the chain first.
    fn later_than(
        &self,
        planned: &[SliceName],
        (base, _): End,
        may_use: impl Fn(&SliceName) -> bool,
    ) -> Option<(Option<SliceName>, SliceName)> {
        let others = self.sizes.keys().filter(|name| !self.damaged.contains(name) && may_use(name));
        let later = others.filter(|name| name.last > base).filter_map(|name| {
            let at = planned.partition_point(|of| of.last < name.last);
            planned.get(at).filter(|of| of.term < name.term).map(|of| (Some(*of), *name))
        });
        later.max_by_key(|(_, name)| (name.term, name.last))
    }

    /// Whether slices without `without` lead from `base` to `wanted`, each of which continues the one before.
    fn is_led_to(
        &mut self,
        wanted: &SliceName,
        without: &SliceName,
        base: End,
        may_use: impl Fn(&SliceName) -> bool,
    ) -> Result<bool> {
        let mut looked_at: HashSet<SliceName> = HashSet::from([*wanted, *without]);
        let mut next = vec![*wanted];
        while let Some(name) = next.pop() {
            if !self.read(&[name], &mut |_| {})? {
                continue;
            }
            let Some(proof) = self.proofs.get(&name) else { continue };
            if name.first <= base.0.next() && proof.continues(base) {
                return Ok(true);
            }
            let is_before = |of: &&SliceName| {
                of.last > base.0 && of.last.next() >= name.first && proof.continues((of.last, of.term))
            };
            let before = self.sizes.keys().filter(is_before);
            let before =
                before.filter(|of| may_use(of) && !self.damaged.contains(of) && !looked_at.contains(of));
            let before: Vec<SliceName> = before.copied().collect();
            looked_at.extend(&before);
            next.extend(before);
        }
        Ok(false)
    }

    fn taken(&mut self, object: Option<End>, begins: bool, slices: Vec<SliceName>) -> SliceChain {
        for name in &slices {
            self.faults.remove(&name.to_string());
        }
        let end = slices.last().map(|name| (name.last, name.term)).or(object);
        // After a forced change of members such slices are left of the lost majority, until the log outgrows them.
        let is_of_another_history =
            |name: &SliceName| end.is_some_and(|(raft, _)| name.last > raft) && !leads_on(name, end);
        for name in self.sizes.keys().filter(|name| is_of_another_history(name)) {
            self.faults.remove(&name.to_string());
        }
        // Nothing leads to it: what the slices here have instead may be of a lost majority.
        let begin = slices.first().filter(|_| begins).map(|name| name.last);
        let from = begin.or(object.map(|(raft, _)| raft)).unwrap_or_default();
        let is_later = |name: &SliceName| {
            let is_within = |(raft, term): End| from < name.last && name.last <= raft && name.term > term;
            end.is_some_and(is_within)
        };
        let proofs = || slices.iter().filter_map(|name| self.proofs.get(name));
        SliceChain {
            begins,
            bytes: slices.iter().filter_map(|name| self.sizes.get(name)).sum(),
            block_bytes_max: proofs().map(|proof| proof.block_bytes_max).max().unwrap_or(0),
            opening_bytes: proofs().map(|proof| proof.opening_bytes).max().unwrap_or(0),
            new_logs_bytes: proofs()
                .map(|proof| proof.new_logs_bytes)
                .sum::<usize>()
                .try_into()
                .unwrap_or(u32::MAX),
            faults: self.faults.clone(),
            is_cut_off: self.sizes.keys().any(|name| leads_on(name, end) || is_later(name)),
            slices,
        }
    }
}

/// The slices that lead furthest behind the newest object, or from a slice that begins with the log's state. Reads each of them.
///
/// # Errors
/// Those of [`Vault`], and `Unsupported`. Damage is none: the chain ends before it.
pub(crate) fn longest(
    vault: &dyn Vault,
    names: &[(SliceName, u64)],
    object: Option<End>,
    progress: &mut dyn FnMut(u64),
) -> Result<SliceChain> {
    Reading::new(vault, names).longest(object, progress)
}
