//! Object: reads an object of which a branch copies a part, and sums one of which no opening says enough.
//!
//! Must not know: which object a branch needs.

use crate::backup::PIECE_BYTES;
use crate::backup::downloads::{check, segment_file_of};
use crate::backup::firsts::LogsOfObject;
use crate::backup::stored::footer_at;
use crate::error::{Error, Result};
use crate::follower::message::FollowEntry;
use crate::record::batch::Malformed;
use crate::record::crc::Crc;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::objects::{ObjectState, StoredObject};
use crate::store::format::segment::{Base, Opening};
use crate::store::format::sorted_object::{SortedObjectHeader, is_sorted};
use crate::store::objects::names::salt;
use crate::store::sorted_object::entries_without_records;
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::path::Path;

/// An object that was read.
pub(in crate::backup) struct ReadObject {
    pub(super) opening: (BlockHeader, Bytes),
    pub(super) entries: Vec<FollowEntry>,
    /// The size of its segment file.
    pub(super) bytes: u32,
}

/// The blocks of an object: its opening, and its entries, in their order also if its records are log by log. Every byte of them was
/// checked.
pub(in crate::backup) fn read_object(
    vault: &dyn Vault,
    owner: LogId,
    (number, object): &(u64, ObjectInfo),
) -> Result<ReadObject> {
    let bytes = vault.get(&object.name, 0..object.bytes)?;
    let bytes = segment_file_of(owner, *number, &object.name, bytes)?;
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
    Ok(ReadObject { opening, entries, bytes: bytes.len() as u32 })
}

/// The part of an object of `owner` that says what logs of a shared group begin with. Of an object whose records are log by log these are
/// not fetched, and the logs where it begins only if it is the `oldest` one. Every byte that is fetched was checked: nothing else reads
/// this object before readers do.
pub(super) fn logs_of_object(
    vault: &dyn Vault,
    owner: LogId,
    object: &(u64, ObjectInfo),
    oldest: bool,
) -> Result<LogsOfObject> {
    let (number, ObjectInfo { name, bytes }) = object;
    let wrong = |at: u64, why| Error::corrupt(Path::new(name), at, why);
    let opening_at = SEGMENT_HEADER_BYTES as u64;
    let commands = |entries: &mut dyn Iterator<Item = (Kind, Bytes)>| {
        let commands = entries.filter(|(kind, _)| *kind == Kind::Command);
        let commands = commands.filter_map(|(_, body)| match parse_command(&body) {
            Ok(Command::Log(command)) => Some(Ok(command)),
            Ok(_) => None,
            Err(why) => Some(Err(why)),
        });
        commands.collect::<Result<Vec<_>, Malformed>>().map_err(|why| corrupt(&object.1, why))
    };
    let head = vault.get(name, 0..(*bytes).min(opening_at))?;
    if !is_sorted(&head) {
        let ReadObject { opening, entries, .. } = read_object(vault, owner, object)?;
        let opening = Opening::parse(&opening.1).map_err(|why| corrupt(&object.1, why))?;
        let mut entries = entries.iter().map(|entry| (entry.header.kind, entry.body.concat().into()));
        let commands = commands(&mut entries)?;
        return LogsOfObject::new(Some(&opening), commands).map_err(|why| corrupt(&object.1, why));
    }
    let header = SortedObjectHeader::parse(&head, *bytes as usize).map_err(|why| wrong(0, why))?;
    let (of, id) = ((header.sorted.log, header.sorted.number, header.sorted.id), salt(owner, *number));
    if of != (owner, number + 1, id) {
        return Err(wrong(0, "it is another object than its name says"));
    }
    let at = u64::from(header.skeleton_at);
    let skeleton = vault.get(name, at..header.skeleton_end.into())?;
    let entries = entries_without_records(owner, *number, &skeleton);
    let entries = entries.map_err(|(behind, why)| wrong(at + behind as u64, why))?;
    let commands = commands(&mut entries.into_iter().map(|(header, body)| (header.kind, body)))?;
    if !oldest {
        return LogsOfObject::new(None, commands).map_err(|why| corrupt(&object.1, why));
    }
    let block = vault.get(name, opening_at..header.blocks_at.into())?;
    let parse = || {
        let header = BlockHeader::parse(&block, id)?;
        check_body(&header, &block, true)?;
        let body = block.get(BLOCK_HEADER_BYTES..header.length as usize).ok_or("opening is cut off")?;
        Opening::parse(body)
    };
    let opening = parse().map_err(|why| wrong(opening_at, why))?;
    LogsOfObject::new(Some(&opening), commands).map_err(|why| wrong(opening_at, why))
}

/// The entry in an object table for an object that no table has yet: reads all of the object.
pub(in crate::backup) fn sum_object(
    vault: &dyn Vault,
    owner: LogId,
    object: &(u64, ObjectInfo),
) -> Result<ObjectState> {
    let footer = footer_at(vault, owner, object)?;
    let (name, bytes) = (&object.1.name, object.1.bytes);
    let (mut crc, mut at, mut is_by_log) = (Crc::new(), 0, false);
    while at < bytes {
        let end = (at + PIECE_BYTES as u64).min(bytes);
        let piece = vault.get(name, at..end)?;
        if piece.len() as u64 != end - at {
            return Err(corrupt(&object.1, "object is cut off"));
        }
        is_by_log |= at == 0 && is_sorted(&piece);
        (crc, at) = (crc.add(&piece), end);
    }
    let stored = StoredObject {
        bytes: bytes as u32,
        data_end: footer.data_end,
        // Of an object whose records are log by log the footer is that of its segment file, and it has no index.
        index_count: if is_by_log { 0 } else { footer.index_count },
        index_crc: footer.index_crc,
        crc: crc.sum(),
    };
    let stored = StoredObject::parse(&stored.encode()).map_err(|why| corrupt(&object.1, why))?;
    Ok(ObjectState { end: Base::behind(&footer), timestamp: footer.last_timestamp, stored: Some(stored) })
}

/// An object whose opening is not as it has to be.
pub(super) fn corrupt(object: &ObjectInfo, why: Malformed) -> Error {
    Error::corrupt(Path::new(&object.name), SEGMENT_HEADER_BYTES as u64, why)
}
