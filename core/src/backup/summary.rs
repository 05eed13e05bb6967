//! A summary of what a log has in an object store behind its newest object, as a fetch would take it: slices, the payload to which they
//! refer, and payload behind them. Nothing is made of it: it is to say what is there, and what is damaged.
//!
//! Invariant: what is said to be sound was read, to the last byte.
//!
//! Must not know: the network, which object store it is.

use crate::backup::fetch::LOOKS_MAX;
use crate::backup::found::end_of;
use crate::backup::payloads::with_payload;
use crate::backup::slices::{End, PIECE, Reading, names, read};
use crate::backup::stored::start_of;
use crate::backup::tail::{PayloadNames, payload_names};
use crate::backup::{Backup, tail};
use crate::error::{ErrorKind, Result};
use crate::store::objects::names::{folder, object_number};
use crate::store::objects::slice_names::SliceName;
use crate::types::{EntryIndex, Index, LogId};
use crate::vault::Vault;
use std::thread::sleep;
use std::time::Duration;

/// In how many looks in a row a gap between slices has to be at the same place to count, and how many there are at most.
const GAP_LOOKS: u32 = 3;
const GAP_LOOKS_MAX: u32 = 5;
/// The time between such looks: longer than that between two attempts to put a slice.
const GAP_PAUSE: Duration = Duration::from_secs(6);

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
    /// Records in payload behind all slices that a fetch would take, too, of a log with the durability class `object`. Retries within a
    /// session count again.
    pub tail_records: u64,
    /// Bytes of their batches.
    pub tail_bytes: u64,
    /// Why a fetch would end before payload there that was stored.
    pub tail_fault: Option<String>,
}

impl Backup {
    /// Reads all slices that a log has in an object store, and the payload behind them, and says which of them [`Self::fetch`] would take.
    /// `progress` is called with the bytes of each slice. Blocks for the network, and up to half a minute longer if a slice is missing before
    /// others: a server may be putting it.
    ///
    /// # Errors
    /// `Corrupt`: the end of the newest object cannot be read. Those of [`Vault`], and `Unsupported`.
    pub fn slices_in(vault: &dyn Vault, log: LogId, progress: &mut dyn FnMut(u64)) -> Result<SliceSummary> {
        let (mut tries, mut lost, mut gaps) = (0, None, Gaps::default());
        loop {
            let Look { names, mut found, end } = match Look::take(vault, log, progress) {
                // A slice, or an object, was deleted after it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound && tries < LOOKS_MAX => {
                    tries += 1;
                    continue;
                }
                found => found?,
            };
            if found.faults.is_empty() && found.tail_fault.is_none() {
                if !found.is_cut_off || gaps.is_lasting(end) {
                    return Ok(found);
                }
                if gaps.looks == GAP_LOOKS_MAX {
                    found.is_cut_off = false; // each look found another one: all of them were being put
                    return Ok(found);
                }
                sleep(GAP_PAUSE);
                continue;
            }
            // A server may have deleted slices meanwhile, because an object has them.
            let now = self::names(vault, log)?;
            found.faults.retain(|(name, _)| now.iter().any(|(there, _)| there.to_string() == *name));
            tries += 1;
            let is_same = now == names;
            // A fault that each look finds at another place is of slices that go.
            let is_lasting = is_same || found.tail_fault == lost;
            lost = found.tail_fault.take();
            if is_lasting {
                found.tail_fault.clone_from(&lost);
            }
            if is_same || tries == LOOKS_MAX {
                return Ok(found);
            }
        }
    }
}

/// Gaps before slices that lead nowhere, as the looks find them. Several slices are put at a time, and a put that fails is repeated: so a
/// later one can be there first.
#[derive(Default)]
struct Gaps {
    looks: u32,
    /// The end of the log before the gap, and how many looks in a row have found it there.
    last: Option<(Option<End>, u32)>,
}

impl Gaps {
    /// A look has found a gap behind `end`. Whether it counts: a slice that is being put is there by now.
    fn is_lasting(&mut self, end: Option<End>) -> bool {
        self.looks += 1;
        let before = self.last.filter(|(at, _)| *at == end).map_or(0, |(_, looks)| looks);
        self.last = Some((end, before + 1));
        before + 1 == GAP_LOOKS
    }
}

/// One look at what is behind the newest object.
struct Look {
    /// The slices that are there, with their sizes.
    names: Vec<(SliceName, u64)>,
    found: SliceSummary,
    /// Where the log ends.
    end: Option<End>,
}

impl Look {
    /// # Errors
    /// `NotFound`: a slice or an object was deleted after it was listed. Those of [`Backup::slices_in`].
    fn take(vault: &dyn Vault, log: LogId, progress: &mut dyn FnMut(u64)) -> Result<Self> {
        let payloads = payload_names(vault, log)?;
        let names = names(vault, log)?;
        let newest = vault.list(&folder(log))?.into_iter();
        let newest = newest.filter_map(|at| Some((object_number(log, &at.name)?, at)));
        let newest = match newest.max_by_key(|(number, _)| *number) {
            None => start_of(vault, log)?.map(|start| (start.number, start.object)),
            newest => newest,
        };
        let end = newest.map(|newest| end_of(vault, log, &newest)).transpose()?;
        let (found, end) = summary(vault, log, &names, &payloads, end, progress)?;
        Ok(Self { names, found, end })
    }
}

/// Reads all slices of a log, whose newest object ends there, and the payload slices that a fetch would take. Returns also where the log ends.
///
/// # Errors
/// Those of [`Vault`], and `Unsupported`.
fn summary(
    vault: &dyn Vault,
    log: LogId,
    names: &[(SliceName, u64)],
    payloads: &PayloadNames,
    object: Option<End>,
    progress: &mut dyn FnMut(u64),
) -> Result<(SliceSummary, Option<End>)> {
    let mut reading = Reading::new(vault, names);
    let mut all: Vec<SliceName> = names.iter().map(|(name, _)| *name).collect();
    all.sort_unstable();
    for piece in all.chunks(PIECE) {
        reading.read(piece, progress)?;
    }
    let chain = reading.longest(object, progress)?;
    let (last, log_end) = (chain.slices.last(), chain.end(object));
    let mut summary = SliceSummary {
        slices: names.len() as u64,
        bytes: names.iter().map(|(_, bytes)| bytes).sum(),
        used: chain.slices.len() as u64,
        last: last.and_then(|name| reading.proofs.get(name)).map(|proof| proof.next.previous()),
        is_cut_off: chain.is_cut_off,
        faults: chain.faults.clone().into_iter().collect(),
        ..SliceSummary::default()
    };
    let mut behind = object.filter(|_| !chain.begins).map_or(EntryIndex(0), |(raft, _)| raft);
    for name in &chain.slices {
        if reading.proofs.get(name).is_some_and(|proof| proof.refers) {
            let slice = read(vault, name, reading.sizes.get(name).copied().unwrap_or(0))?;
            let entries =
                slice.entries.into_iter().filter(|(header, _)| header.raft_index > behind).collect();
            if let Some(error) = with_payload(vault, log, entries, |_| Ok(()))? {
                let why = format!("it refers to payload that cannot be read: {error}");
                summary.faults.push((name.to_string(), why));
                return Ok((summary, log_end));
            }
        }
        behind = behind.max(name.last);
    }
    let tail = tail::behind(vault, log, payloads, names, &chain, object)?;
    (summary.tail_records, summary.tail_bytes) = (tail.records, tail.bytes);
    summary.is_cut_off &= !tail.fills_gap; // nothing is lost there
    summary.tail_fault = tail.fault.map(|error| error.to_string());
    Ok((summary, log_end))
}
