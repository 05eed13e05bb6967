//! Found: the objects and slices that a log has in an object store, and the objects that it is made of.
//!
//! Invariant: slices are listed before objects. One that goes meanwhile is in an object that is found then.
//!
//! Must not know: the network, which object store it is; what is made of them.

use crate::backup::slices::{End, names};
use crate::backup::stored::{Objects, Start, footer_at, list_objects, opening_at, start_of};
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::objects;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::Lineage;
use crate::store::objects::slice_names::SliceName;
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use std::path::Path;

/// A log's slices and objects in an object store.
pub(crate) struct Found {
    pub(crate) lineage: Lineage,
    pub(crate) slices: Vec<(SliceName, u64)>,
    pub(crate) objects: Vec<(u64, ObjectInfo)>,
    /// The reason why these objects are not the log without slices, which lead from them to where it was, or begin with its state.
    /// None: they are.
    pub(crate) lacking: Option<Error>,
    /// The newest object, if it was to be left out.
    pub(super) left_out: Option<(u64, ObjectInfo)>,
}

/// The slices and the objects of a log. Slices first: one that goes meanwhile is in an object that is found then.
pub(crate) fn find(vault: &dyn Vault, log: LogId) -> Result<Found> {
    find_without(vault, log, None)
}

/// The same without this object, if it is the newest one.
pub(super) fn find_without(vault: &dyn Vault, log: LogId, without: Option<u64>) -> Result<Found> {
    let slices = names(vault, log)?;
    Ok(Found { slices, ..find_objects(vault, log, without)? })
}

/// The number of the newest object of a log, as in [`find`]. Reads none.
pub(super) fn newest_object(vault: &dyn Vault, log: LogId) -> Result<Option<u64>> {
    let start = start_of(vault, log)?;
    let lineage = start.as_ref().map_or_else(|| Lineage::of(log), |start| start.lineage.clone());
    let newest = list_objects(vault, &lineage, &(0..u64::MAX))?.last().map(|(number, _)| *number);
    let Some(Start { number, .. }) = start else { return Ok(newest) };
    Ok(match newest_begin(vault, log)?.is_some_and(|said| said > number) {
        true => newest.filter(|newest| *newest >= number),
        false => newest.max(Some(number)),
    })
}

/// The last entry of an object of this log, as its footer says.
pub(crate) fn end_of(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<End> {
    let footer = footer_at(vault, log, object)?;
    Ok((footer.last_raft, footer.last_term))
}

/// The objects of a log that are needed, by their numbers, without a gap. Objects whose records are known to be discarded are not:
/// they may be deleted, or have never been stored.
/// Of a branch without an object of its own the last one is the state in which it began.
pub(crate) fn made_of(vault: &dyn Vault, log: LogId) -> Result<(Lineage, Objects)> {
    let Found { lineage, objects, lacking, .. } = find_objects(vault, log, None)?;
    lacking.map_or(Ok((lineage, objects)), Err)
}

/// The same as [`made_of`], and the reason why they are not the log without slices; without the newest object, if it has this number.
fn find_objects(vault: &dyn Vault, log: LogId, without: Option<u64>) -> Result<Found> {
    let start = start_of(vault, log)?;
    let lineage = start.as_ref().map_or_else(|| Lineage::of(log), |start| start.lineage.clone());
    let mut objects = list_objects(vault, &lineage, &(0..u64::MAX))?;
    let left_out = objects.pop_if(|(number, _)| Some(*number) == without);
    // The begin is read after the lists: objects may be deleted once it is there.
    let said = newest_begin(vault, log)?.unwrap_or(0);
    match start {
        Some(start) if said > start.number => objects.retain(|(number, _)| *number >= start.number),
        Some(start) if objects.last().is_none_or(|(number, _)| *number < start.number) => {
            objects.push((start.number, start.object));
        }
        _ => {}
    }
    let mut lacking = None;
    let Some(last) = objects.last() else {
        return Ok(Found { lineage, slices: Vec::new(), objects, lacking: Some(no_objects(log)), left_out });
    };
    let oldest = if said <= last.0 {
        said.max(oldest_at(vault, lineage.owner(last.0), last)?)
    } else {
        // The records of all of them are discarded. The newest ones still tell how far the log was.
        let behind_gap =
            objects.windows(2).rev().find(|pair| pair[0].0 + 1 != pair[1].0).map(|pair| pair[1].0);
        let oldest = behind_gap.or(objects.first().map(|(number, _)| *number)).unwrap_or(0);
        if said > last.0 + 1 {
            // How far the log was cannot be seen: newer objects were deleted, and a pin keeps these, or kept them; or the next one
            // was never stored.
            let what = format!(
                "all records of log {:032x} in objects below number {said} are discarded, and of these the newest that is left is \
                 {}: it cannot be seen how far the log was. `fetch` what pins keep of it",
                log.0, last.0
            );
            lacking = Some(Error::new(ErrorKind::Discarded, what));
        }
        oldest
    };
    objects.retain(|(number, _)| *number >= oldest);
    let numbers = objects.iter().map(|(number, _)| *number);
    if let Some((missing, next)) = (oldest..).zip(numbers).find(|(wanted, number)| wanted != number) {
        let what = format!(
            "object {missing} of log {:032x} is missing in the object store: the next one there is {next}, and no discard is \
             known that would explain it",
            lineage.owner(missing).0
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(Found { lineage, slices: Vec::new(), objects, lacking, left_out })
}

/// The number of the oldest object whose records were not all discarded when this one began, as its opening says.
fn oldest_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<u64> {
    let opening = opening_at(vault, log, object)?;
    if opening.objects.is_empty() {
        return Ok(0);
    }
    let at = SEGMENT_HEADER_BYTES as u64;
    let (objects, _) = objects::decode(&opening.objects)
        .map_err(|why| Error::corrupt(Path::new(&object.1.name), at, why))?;
    Ok(objects.number.min(object.0))
}

/// The error of a log without objects.
pub(super) fn no_objects(log: LogId) -> Error {
    Error::new(ErrorKind::NotFound, format!("log {:032x} has no objects in the object store", log.0))
}
