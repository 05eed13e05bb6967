//! Object: reads an object of which a branch copies a part, and sums one of which no opening says enough.
//!
//! Must not know: which object a branch needs.

use crate::backup::PIECE_BYTES;
use crate::backup::downloads::check;
use crate::backup::stored::footer_at;
use crate::error::{Error, Result};
use crate::follower::message::FollowEntry;
use crate::record::batch::Malformed;
use crate::record::crc::Crc;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::objects::{ObjectState, StoredObject};
use crate::store::format::segment::{Base, Footer};
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::path::Path;

/// The blocks of an object: its opening, and its entries. Every byte of them was checked.
pub(super) fn read_object(
    vault: &dyn Vault,
    owner: LogId,
    (number, object): &(u64, ObjectInfo),
) -> Result<((BlockHeader, Bytes), Vec<FollowEntry>)> {
    let bytes = vault.get(&object.name, 0..object.bytes)?;
    let footer = check(owner, *number, &object.name, &bytes)?;
    let wrong = |at: usize, why: Malformed| Error::corrupt(Path::new(&object.name), at as u64, why);
    let (mut opening, mut entries, mut at) = (None, Vec::new(), SEGMENT_HEADER_BYTES);
    while at < footer.data_end as usize {
        let rest = bytes.get(at..footer.data_end as usize).unwrap_or_default();
        if rest.len() < BLOCK_HEADER_BYTES {
            return Err(wrong(at, "block is cut off"));
        }
        let header = BlockHeader::parse(rest, footer.id).map_err(|why| wrong(at, why))?;
        check_body(&header, rest, true).map_err(|why| wrong(at, why))?;
        let body = bytes.slice(at + BLOCK_HEADER_BYTES..at + header.length as usize);
        match header.kind {
            Kind::Opening if opening.is_none() => opening = Some((header, body)),
            _ if opening.is_some() && header.kind.is_entry() => {
                let body = Some(body).filter(|body| !body.is_empty()).into_iter().collect();
                entries.push(FollowEntry { header, body });
            }
            _ => return Err(wrong(at, "object has another block than an opening and entries")),
        }
        at += header.stride();
    }
    let opening = opening.ok_or_else(|| wrong(at, "object does not begin with an opening"))?;
    let end = entries.last().map_or(footer.base_raft, FollowEntry::raft);
    if end != footer.last_raft {
        return Err(wrong(at, "object has other entries than its footer says"));
    }
    Ok((opening, entries))
}

/// The entry in an object table for an object that no table has yet: reads all of the object.
pub(super) fn sum_object(vault: &dyn Vault, owner: LogId, object: &(u64, ObjectInfo)) -> Result<ObjectState> {
    let footer = footer_at(vault, owner, object)?;
    let (name, bytes) = (&object.1.name, object.1.bytes);
    let (mut crc, mut at) = (Crc::new(), 0);
    while at < bytes {
        let end = (at + PIECE_BYTES as u64).min(bytes);
        let piece = vault.get(name, at..end)?;
        if piece.len() as u64 != end - at {
            return Err(corrupt(&object.1, "object is cut off"));
        }
        (crc, at) = (crc.add(&piece), end);
    }
    let stored = StoredObject {
        bytes: bytes as u32,
        data_end: footer.data_end,
        index_count: footer.index_count,
        index_crc: footer.index_crc,
        crc: crc.sum(),
    };
    let stored = StoredObject::parse(&stored.encode()).map_err(|why| corrupt(&object.1, why))?;
    Ok(ObjectState { end: end_of(&footer), timestamp: footer.last_timestamp, stored: Some(stored) })
}

/// The position behind an object.
pub(super) fn end_of(footer: &Footer) -> Base {
    Base { raft: footer.last_raft, term: footer.last_term, next: footer.next }
}

/// An object whose opening is not as it has to be.
pub(super) fn corrupt(object: &ObjectInfo, why: Malformed) -> Error {
    Error::corrupt(Path::new(&object.name), SEGMENT_HEADER_BYTES as u64, why)
}
