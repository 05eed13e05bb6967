//! The batches to which the entries of slices refer, as a fetch takes them from payload slices.
//!
//! Invariant: entries are returned only with all their batches, and in order: the log ends before the first one whose batches are missing
//! or damaged.
//!
//! Must not know: where the entries go.

use crate::error::{Error, ErrorKind, Result};
use crate::record::reference::PayloadId;
use crate::store::format::references::sound_references;
use crate::store::format::slices::Block;
use crate::store::objects::payloads::{fetch, pick, resolve};
use crate::sync::threads::in_parallel;
use crate::types::LogId;
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::BTreeMap;

/// How many slices are fetched at a time.
const AT_A_TIME: usize = 8;
/// How often a slice is fetched before it counts as damaged.
pub(super) const READS_MAX: usize = 4;

/// A fetched slice, or the reason why it cannot be used.
type Fetched = Result<Bytes, Error>;

/// Passes these entries to `take` with the batches to which they refer, a few at a time. Returns what is wrong if they end early:
/// an entry's batches are missing or damaged.
///
/// # Errors
/// Those of [`Vault`] and of `take`.
pub(super) fn with_payload(
    vault: &dyn Vault,
    log: LogId,
    entries: Vec<Block>,
    mut take: impl FnMut(Vec<Block>) -> Result<()>,
) -> Result<Option<Error>> {
    let mut entries = entries.into_iter().peekable();
    while entries.peek().is_some() {
        let (mut wanted, mut piece) = (BTreeMap::new(), Vec::new());
        while let Some((header, body)) = entries.next_if(|(header, body)| {
            let more =
                sound_references(header, body).filter(|reference| !wanted.contains_key(&reference.slice));
            piece.is_empty() || wanted.len() + more.count().min(1) <= AT_A_TIME
        }) {
            // One that cannot be read fails below.
            wanted.extend(sound_references(&header, &body).map(|reference| (reference.slice, reference)));
            piece.push((header, body));
        }
        let wanted: Vec<_> = wanted.into_values().collect();
        let mut slices: BTreeMap<PayloadId, Fetched> = BTreeMap::new();
        in_parallel(
            AT_A_TIME,
            &wanted,
            |reference| match fetch(vault, log, reference) {
                Err(error) if !is_of_slice(&error) => Err(error),
                fetched => Ok((reference.slice, fetched)),
            },
            |(id, fetched)| _ = slices.insert(id, fetched),
        )?;
        let mut whole = Vec::with_capacity(piece.len());
        for (header, body) in piece {
            let found = resolve(header, body, |header, reference| {
                let mut found = match slices.get(&reference.slice) {
                    Some(Ok(slice)) => pick(log, slice, header, reference),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Error::new(ErrorKind::Corrupt, "not fetched yet")),
                };
                for _ in 1..READS_MAX {
                    // It may have come damaged, and be sound in the object store.
                    if !found
                        .as_ref()
                        .is_err_and(|error| is_of_slice(error) && error.kind() != ErrorKind::NotFound)
                    {
                        break;
                    }
                    found =
                        fetch(vault, log, reference).and_then(|slice| pick(log, &slice, header, reference));
                }
                found
            });
            match found {
                Ok(entry) => whole.push(entry),
                Err(error) if is_of_slice(&error) => {
                    if !whole.is_empty() {
                        take(whole)?;
                    }
                    return Ok(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        take(whole)?;
    }
    Ok(None)
}

/// Whether this error is about the slice, and not about the object store.
pub(super) fn is_of_slice(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Corrupt)
}
