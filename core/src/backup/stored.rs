//! Stored: what a log has in an object store, by names: its objects, and of which logs they are. Of a branch that is in the object
//! `branch`, which is made before the branch begins and stays as long as it: the segment file of an object without entries, with the
//! state in which the branch began.
//!
//! Must not know: the network, which object store it is.

use crate::error::{Error, ErrorKind, Result};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::objects;
use crate::store::format::segment::{Footer, HeaderFault, Opening, SegmentHeader};
use crate::store::objects::names::{Lineage, branch_name, folder, object_number, salt};
use crate::store::objects::older_rows::opening_body;
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use std::ops::Range;
use std::path::Path;

/// Objects of a log, by their numbers.
pub(super) type Objects = Vec<(u64, ObjectInfo)>;

/// The beginning of a branch.
pub(super) struct Start {
    /// The owners of its objects.
    pub(super) lineage: Lineage,
    /// The number of its own first object, which begins with the same state.
    pub(super) number: u64,
    /// The object with the state.
    pub(super) object: ObjectInfo,
}

/// The beginning of a branch. None: the log is no branch.
///
/// # Errors
/// `Corrupt`: it is damaged. `Unsupported`: it is of a newer format. Those of [`Vault`].
pub(super) fn start_of(vault: &dyn Vault, log: LogId) -> Result<Option<Start>> {
    let name = branch_name(log);
    let Some(bytes) = vault.size(&name)? else { return Ok(None) };
    let corrupt = |at: usize, why| Error::corrupt(Path::new(&name), at as u64, why);
    if bytes < SEGMENT_HEADER_BYTES as u64 {
        return Err(corrupt(0, "object is cut off"));
    }
    let head = vault.get(&name, 0..SEGMENT_HEADER_BYTES as u64)?;
    let header = SegmentHeader::parse(&head).map_err(|fault| match fault {
        HeaderFault::Malformed(why) => corrupt(0, why),
        HeaderFault::Newer(version) => {
            let what = format!("{name} is of format {version}, which this version does not read");
            Error::new(ErrorKind::Unsupported, what)
        }
    })?;
    let number = header.number.wrapping_sub(1);
    if (header.log, header.id) != (log, salt(log, number)) || u64::from(header.bytes) != bytes {
        return Err(corrupt(0, "it is another object than its name says"));
    }
    let object = (number, ObjectInfo { name: name.clone(), bytes });
    let opening = opening_at(vault, log, &object)?;
    let table = objects::decode(&opening.objects);
    let (table, _) = table.map_err(|why| corrupt(SEGMENT_HEADER_BYTES, why))?;
    let lineage = Lineage { log, ancestors: table.ancestors };
    if number == 0 || lineage.own_from() != number {
        return Err(corrupt(SEGMENT_HEADER_BYTES, "branch does not begin behind its ancestors' objects"));
    }
    Ok(Some(Start { lineage, number, object: object.1 }))
}

/// The owners of a log's objects.
///
/// # Errors
/// Those of [`start_of`].
pub(super) fn lineage_of(vault: &dyn Vault, log: LogId) -> Result<Lineage> {
    Ok(start_of(vault, log)?.map_or_else(|| Lineage::of(log), |start| start.lineage))
}

/// The objects with these numbers that are there, in order.
pub(super) fn list_objects(vault: &dyn Vault, lineage: &Lineage, numbers: &Range<u64>) -> Result<Objects> {
    let own = (lineage.log, lineage.own_from()..u64::MAX);
    let mut objects = Vec::new();
    for (owner, part) in lineage.parts().chain([own]) {
        if part.start < numbers.end && numbers.start < part.end {
            let found = vault.list(&folder(owner))?.into_iter();
            let numbered = found.filter_map(|object| Some((object_number(owner, &object.name)?, object)));
            objects.extend(numbered.filter(|(number, _)| part.contains(number) && numbers.contains(number)));
        }
    }
    objects.sort_unstable_by_key(|(number, _)| *number);
    Ok(objects)
}

/// The opening of an object of this log.
pub(super) fn opening_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<Opening> {
    let (number, object) = object;
    let at = SEGMENT_HEADER_BYTES as u64;
    let body = opening_body(vault, log, *number, object)?;
    Opening::parse(&body).map_err(|why| Error::corrupt(Path::new(&object.name), at, why))
}

/// The footer of an object of this log.
pub(super) fn footer_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<Footer> {
    let (number, object) = object;
    let at = object.bytes.saturating_sub(FOOTER_BYTES as u64);
    let corrupt = |why| Error::corrupt(Path::new(&object.name), at, why);
    let bytes = vault.get(&object.name, at..object.bytes)?;
    let bytes = bytes.first_chunk().ok_or("object is cut off").map_err(corrupt)?;
    Footer::parse(bytes, *number + 1, salt(log, *number)).map_err(corrupt)
}
