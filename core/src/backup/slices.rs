//! The slices of a log in an object store, as a fetch takes them: which of them lead furthest, and that they do.
//!
//! ```text
//!  newest object ──> slice ──> slice ──> ...     or     slice that begins with the log's state ──> slice ──> ...
//! ```
//!
//! Slices may overlap, be left over, missing or damaged. A chain of them is taken as far as each one continues what is before it: it has
//! the entry there with the same term, so it is of the same history. It ends before the first place that no sound slice covers.
//!
//! Invariant: nothing is taken on trust. Every byte of a slice was checked before one entry of it is used.
//!
//! Must not know: the network, which object store it is.

use crate::error::{Error, ErrorKind, Result};
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
    /// The largest block in them, and the largest opening.
    pub(crate) block_bytes_max: u32,
    pub(crate) opening_bytes: u32,
    /// Slices that are damaged, missing or of another history, and why.
    pub(crate) faults: BTreeMap<String, String>,
}

/// A summary of the slices that a log has in an object store.
///
/// ```
/// # let vault = chiplog::vault::MemoryVault::default();
/// let found = chiplog::backup::Backup::slices_in(&vault, chiplog::LogId(7), &mut |_bytes| {})?;
/// assert_eq!((found.slices, found.last, found.faults.len()), (0, None, 0));
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SliceSummary {
    /// How many there are, with those that objects have overtaken and that are not deleted yet.
    pub slices: u64,
    /// Their size.
    pub bytes: u64,
    /// How many of them a fetch would take.
    pub used: u64,
    /// The last record in those. None: it would take none.
    pub last: Option<Index>,
    /// Slices that are missing or damaged: the name of each, and why. One that is not needed can be among them.
    pub faults: Vec<(String, String)>,
    /// Whether a fault keeps entries from a fetch: a slice behind it is not reached.
    pub is_cut_off: bool,
}

/// The chain information of a slice that was read.
#[derive(Debug)]
struct Proof {
    /// The terms of its entries and of the one before: from this entry on.
    terms: Vec<End>,
    last: End,
    next: Index,
    block_bytes_max: u32,
    opening_bytes: u32,
}

impl Proof {
    fn of(slice: &Slice) -> Self {
        let mut terms = vec![(slice.base.raft, slice.base.term)];
        for (header, _) in &slice.entries {
            if terms.last().is_none_or(|(_, term)| *term != header.term) {
                terms.push((header.raft_index, header.term));
            }
        }
        let block_bytes_max = slice.entries.iter().map(|(header, _)| header.length).max().unwrap_or(0);
        let opening_bytes = slice.opening.as_ref().map_or(0, |(header, _)| header.length);
        Self { terms, last: slice.last(), next: slice.next_record(), block_bytes_max, opening_bytes }
    }

    /// Whether it continues behind an entry.
    fn continues(&self, (raft, term): End) -> bool {
        let of = self.terms.iter().rev().find(|(from, _)| *from <= raft);
        raft < self.last.0 && of.is_some_and(|(_, here)| *here == term)
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

/// Reads a slice and checks every byte.
///
/// # Errors
/// `NotFound`, `OutOfRange`: it is missing, or shorter than listed. `Corrupt`: it is damaged, or another one than its name says.
/// `Unsupported`. Those of [`Vault`].
pub(crate) fn read(vault: &dyn Vault, name: &SliceName, bytes: u64) -> Result<Slice> {
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

/// Whether this error is about the slice, and not about the object store.
fn is_of_slice(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Corrupt)
}

/// Slices of a log that were read.
struct Reading<'a> {
    vault: &'a dyn Vault,
    sizes: HashMap<SliceName, u64>,
    proofs: HashMap<SliceName, Proof>,
    damaged: HashSet<SliceName>,
    faults: BTreeMap<String, String>,
}

impl<'a> Reading<'a> {
    fn new(vault: &'a dyn Vault, names: &[(SliceName, u64)]) -> Self {
        let sizes = names.iter().copied().collect();
        let (proofs, damaged, faults) = (HashMap::new(), HashSet::new(), BTreeMap::new());
        Self { vault, sizes, proofs, damaged, faults }
    }

    /// Reads those of these slices that were not read yet. Returns whether all are sound.
    fn read(&mut self, wanted: &[SliceName], progress: &mut dyn FnMut(u64)) -> Result<bool> {
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
    fn longest(&mut self, object: Option<End>, progress: &mut dyn FnMut(u64)) -> Result<SliceChain> {
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
            // Of two that reach as far, that behind the objects has more records.
            let best = planned.max_by_key(|(reach, begin, _)| (*reach, begin.is_none()));
            let Some((_, begin, planned)) = best else { return Ok(self.taken(false, Vec::new())) };
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
            let stranger = planned.iter().find(|name| match self.proofs.get(name) {
                Some(proof) if proof.continues(end) => {
                    end = proof.last;
                    false
                }
                _ => true,
            });
            match stranger {
                None => return Ok(self.taken(begin.is_some(), planned)),
                Some(name) => {
                    let why = format!(
                        "it does not continue entry {} of term {}: it is of another history",
                        end.0, end.1
                    );
                    self.faults.insert(name.to_string(), why);
                    strangers.insert((begin, *name));
                }
            }
        }
    }

    fn taken(&mut self, begins: bool, slices: Vec<SliceName>) -> SliceChain {
        for name in &slices {
            self.faults.remove(&name.to_string());
        }
        let proofs = || slices.iter().filter_map(|name| self.proofs.get(name));
        SliceChain {
            begins,
            bytes: slices.iter().filter_map(|name| self.sizes.get(name)).sum(),
            block_bytes_max: proofs().map(|proof| proof.block_bytes_max).max().unwrap_or(0),
            opening_bytes: proofs().map(|proof| proof.opening_bytes).max().unwrap_or(0),
            faults: self.faults.clone(),
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

/// Reads all slices of a log, whose newest object ends there.
///
/// # Errors
/// Those of [`Vault`], and `Unsupported`.
pub(super) fn summary(
    vault: &dyn Vault,
    names: &[(SliceName, u64)],
    object: Option<End>,
    progress: &mut dyn FnMut(u64),
) -> Result<SliceSummary> {
    let mut reading = Reading::new(vault, names);
    let mut all: Vec<SliceName> = names.iter().map(|(name, _)| *name).collect();
    all.sort_unstable();
    for piece in all.chunks(PIECE) {
        reading.read(piece, progress)?;
    }
    let chain = reading.longest(object, progress)?;
    let last = chain.slices.last();
    let end = last.map(|name| name.last).into_iter().chain(object.map(|(raft, _)| raft)).max();
    Ok(SliceSummary {
        slices: names.len() as u64,
        bytes: names.iter().map(|(_, bytes)| bytes).sum(),
        used: chain.slices.len() as u64,
        last: last.and_then(|name| reading.proofs.get(name)).map(|proof| proof.next.previous()),
        is_cut_off: all.iter().any(|name| end.is_none_or(|end| name.last > end)),
        faults: chain.faults.into_iter().collect(),
    })
}
