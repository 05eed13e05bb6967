//! Older rows: reads rows of objects that are not in the log's own table any more, in the object store.
//!
//! The rows of a run are in the opening of its holder, and in those of the objects around that: each of these began while the table still
//! had the rows. So the loss of the holder, or damage in it, loses no row: another object has the same bytes, and the log says their
//! checksum.
//!
//! Invariant: rows count only if they have the checksum that the log's table says.
//!
//! Must not know: who needs the rows.

use super::names::{Lineage, not_there, object_name, root_name, salt};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::{OBJECT_BYTES, OBJECTS_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::objects::{self, StoredAt};
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::{Opening, digest_of_bytes};
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::ops::Range;
use std::path::Path;

/// How many objects before the holder are tried in its place, and how many behind it.
const OTHERS_BEFORE: u64 = 12;
const OTHERS_BEHIND: u64 = 4;

/// The objects of a run, and whether its holder has their rows. Blocks for the network.
///
/// # Errors
/// `Unavailable` and others of the object store. `Corrupt`: neither the holder nor an object near it has the rows.
pub(crate) fn fetch(vault: &dyn Vault, lineage: &Lineage, run: &RowsRun) -> Result<(Vec<StoredAt>, bool)> {
    let rows = run.rows;
    let at = u64::from(rows.offset);
    let name = object_name(lineage.owner(rows.holder), rows.holder);
    let got =
        vault.get(&name, at..at + rows.rows_bytes()).map_err(|error| is_lost(vault, lineage.log, error));
    let why = match got {
        Ok(got) => match run.objects(&got) {
            Ok(objects) => return Ok((objects, true)),
            Err(why) => Error::corrupt(Path::new(&name), at, why),
        },
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        Err(error) => return Err(error),
    };
    let before = (rows.below..rows.holder).rev().take(OTHERS_BEFORE as usize);
    for other in before.chain(rows.holder + 1..=rows.holder + OTHERS_BEHIND) {
        let found = rows_in(vault, lineage.owner(other), other, rows.first()..rows.below)
            .map_err(|error| is_lost(vault, lineage.log, error));
        match found {
            Ok(Some((_, found))) => {
                if let Ok(objects) = run.objects(&found) {
                    tracing::debug!(%name, other, error = %why, "rows of older objects come from another object");
                    return Ok((objects, false));
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    let what = format!(
        "it should say where objects {} to {} are, and no object near it does: {why}",
        run.number,
        rows.below - 1
    );
    Err(Error::corrupt(Path::new(&name), at, what))
}

/// The rows of these objects in the opening of another one, and where they begin in its file. None: it does not have all of them.
///
/// # Errors
/// Those of the object store. `Corrupt`: its opening cannot be read.
pub(crate) fn rows_in(
    vault: &dyn Vault,
    owner: LogId,
    number: u64,
    of: Range<u64>,
) -> Result<Option<(u32, Bytes)>> {
    let name = object_name(owner, number);
    let Some(bytes) = vault.size(&name)? else { return Ok(None) };
    let body = opening_body(vault, owner, number, &ObjectInfo { name: name.clone(), bytes })?;
    let wrong = |why: Malformed| Error::corrupt(Path::new(&name), SEGMENT_HEADER_BYTES as u64, why);
    let Some(table_at) = Opening::objects_at(&body).map_err(wrong)? else { return Ok(None) };
    let opening = Opening::parse(&body).map_err(wrong)?;
    let (table, _) = objects::decode(&opening.objects).map_err(wrong)?;
    let Some(skipped) = of.start.checked_sub(table.rows_from().0) else { return Ok(None) };
    let count = of.end.saturating_sub(of.start);
    if skipped.saturating_add(count) > table.list.len() as u64 {
        return Ok(None);
    }
    let at = table_at + OBJECTS_HEADER_BYTES + skipped as usize * OBJECT_BYTES;
    let rows = body.slice(at..at + count as usize * OBJECT_BYTES);
    Ok(Some(((SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES + at) as u32, rows)))
}

/// The body of an object's opening.
///
/// # Errors
/// Those of the object store. `Corrupt`: it does not begin with an opening.
pub(crate) fn opening_body(vault: &dyn Vault, log: LogId, number: u64, object: &ObjectInfo) -> Result<Bytes> {
    let at = SEGMENT_HEADER_BYTES as u64;
    let head = at + BLOCK_HEADER_BYTES as u64;
    let corrupt = |why| Error::corrupt(Path::new(&object.name), at, why);
    if object.bytes < head {
        return Err(corrupt("object is cut off"));
    }
    let header =
        BlockHeader::parse(&vault.get(&object.name, at..head)?, salt(log, number)).map_err(corrupt)?;
    let end = at + u64::from(header.length);
    if header.kind != Kind::Opening || end > object.bytes || end < head {
        return Err(corrupt("object does not begin with an opening"));
    }
    let body = vault.get(&object.name, head..end)?;
    match digest_of_bytes(&[&body]) == header.body_digest {
        true => Ok(body),
        false => Err(corrupt("block body checksum does not match")),
    }
}

/// The error of a look into one object: whether that is lost, or the whole object store.
fn is_lost(vault: &dyn Vault, log: LogId, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound if matches!(vault.size(&root_name(log)), Ok(None)) => {
            Error::new(ErrorKind::Unavailable, not_there(&root_name(log)))
        }
        ErrorKind::NotFound | ErrorKind::OutOfRange => Error::new(ErrorKind::Corrupt, error.to_string()),
        _ => error,
    }
}
