//! Messages about objects, as bytes: the leader's request to store one, and the answer; and those by which replicas skip what is stored.
//!
//! Little-endian. A request has the object's number, 8 bytes. An answer has it too, then what is stored, 20 bytes, or zeros: the
//! sender could not store it. The leader's message that entries may be skipped has its term and how many bytes these
//! are, 8 bytes each; the answer the same term and the last entry of its sender.

use crate::record::batch::{Malformed, u64_at};
use crate::replica::wire::raft_message::{HeadKind, head};
use crate::store::format::objects::{STORED_BYTES, StoredObject};
use crate::types::{EntryIndex, Term};
use bytes::Bytes;

/// The request to store an object.
pub(crate) fn encode_request(number: u64) -> Bytes {
    head(HeadKind::StoreObject, &number.to_le_bytes())
}

/// # Errors
/// The request has another length.
pub(crate) fn parse_request(body: &[u8]) -> Result<u64, Malformed> {
    let body: &[u8; 8] = body.try_into().map_err(|_| "request for an object has an unexpected length")?;
    Ok(u64::from_le_bytes(*body))
}

/// The answer: what is stored. None: nothing.
pub(crate) fn encode_answer(number: u64, stored: Option<StoredObject>) -> Bytes {
    let stored = stored.map_or([0; STORED_BYTES], |stored| stored.encode());
    head(HeadKind::ObjectStored, &[&number.to_le_bytes()[..], &stored].concat())
}

/// # Errors
/// The answer has another length, or impossible sizes.
pub(crate) fn parse_answer(body: &[u8]) -> Result<(u64, Option<StoredObject>), Malformed> {
    let (number, stored) = body.split_first_chunk::<8>().ok_or("answer about an object is cut off")?;
    let stored: &[u8; STORED_BYTES] =
        stored.try_into().map_err(|_| "answer about an object has an unexpected length")?;
    let stored = if *stored == [0; STORED_BYTES] { None } else { Some(StoredObject::parse(stored)?) };
    Ok((u64_at(number, 0), stored))
}

/// The message of the leader of `term` to a replica that is far behind: it may skip this many bytes of entries that are stored.
pub(crate) fn encode_may_skip(term: Term, bytes: u64) -> Bytes {
    head(HeadKind::MaySkip, &[term.0.to_le_bytes(), bytes.to_le_bytes()].concat())
}

/// # Errors
/// The message has another length.
pub(crate) fn parse_may_skip(body: &[u8]) -> Result<(Term, u64), Malformed> {
    let body: &[u8; 16] =
        body.try_into().map_err(|_| "message about entries to skip has an unexpected length")?;
    Ok((Term(u64_at(body, 0)), u64_at(body, 8)))
}

/// The message of a replica that reads stored entries from the object store, to the leader of `term`. `last` is the last entry that
/// the replica has.
pub(crate) fn encode_reads_stored(term: Term, last: EntryIndex) -> Bytes {
    head(HeadKind::ReadsStored, &[term.0.to_le_bytes(), last.0.to_le_bytes()].concat())
}

/// # Errors
/// The message has another length.
pub(crate) fn parse_reads_stored(body: &[u8]) -> Result<(Term, EntryIndex), Malformed> {
    let body: &[u8; 16] =
        body.try_into().map_err(|_| "message about stored entries has an unexpected length")?;
    Ok((Term(u64_at(body, 0)), EntryIndex(u64_at(body, 8))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::wire::raft_message::parse_head;

    #[test]
    fn messages_survive_encoding_and_every_cut_is_an_error() {
        let object = StoredObject { bytes: 1 << 20, data_end: 5000, index_count: 3, index_crc: 4, crc: 5 };
        let (kind, body) = parse_head(&encode_request(7)).unwrap();
        assert_eq!((kind, parse_request(&body)), (HeadKind::StoreObject, Ok(7)));
        assert!((0..body.len()).all(|cut| parse_request(&body[..cut]).is_err()));
        let (kind, body) = parse_head(&encode_reads_stored(Term(9), EntryIndex(8))).unwrap();
        assert_eq!((kind, parse_reads_stored(&body)), (HeadKind::ReadsStored, Ok((Term(9), EntryIndex(8)))));
        assert!((0..body.len()).all(|cut| parse_reads_stored(&body[..cut]).is_err()));
        let (kind, body) = parse_head(&encode_may_skip(Term(9), 8)).unwrap();
        assert_eq!((kind, parse_may_skip(&body)), (HeadKind::MaySkip, Ok((Term(9), 8))));
        assert!((0..body.len()).all(|cut| parse_may_skip(&body[..cut]).is_err()));
        for stored in [None, Some(object)] {
            let (kind, body) = parse_head(&encode_answer(7, stored)).unwrap();
            assert_eq!((kind, parse_answer(&body)), (HeadKind::ObjectStored, Ok((7, stored))));
            assert!((0..body.len()).all(|cut| parse_answer(&body[..cut]).is_err()));
        }
    }
}
