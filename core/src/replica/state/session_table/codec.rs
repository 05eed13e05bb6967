//! The exactly-once table as bytes.
//!
//! Every segment's opening block holds the table, so that it survives restarts and discards.
//! Little-endian; no padding; every byte counts:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | number of sessions | - |
//! | 4 | 4 | 0 | 0; a later format puts here what it adds |
//! | 8 | | the sessions, ascending by id | |
//!
//! A session:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | session id | from 1, ascending |
//! | 8 | 8 | last sequence | 0: it has appended nothing |
//! | 16 | 8 | last activity, ms since 1970 | - |
//! | 24 | 8 | longest idle time, ms | - |
//! | 32 | 4 | number of remembered batches | 0 if last sequence is 0, else 1 to min(last sequence, 1024) |
//! | 36 | 4 | number of its log | 0: the group's own log |
//! | 40 | | the remembered batches, 12 bytes each, oldest first; the newest is that of last sequence | |
//!
//! A remembered batch:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | index of its first record | from 1; beyond the batch before it |
//! | 8 | 4 | number of its records | 1 to 2^20 |
//!
//! Must not know: when what is in the table changes.

use super::{Session, Sessions, end_of};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::store::format::geometry::{REMEMBERED_BYTES, REMEMBERED_MAX, SESSION_BYTES, TABLE_HEADER_BYTES};
use crate::sync::completion::Appended;
use crate::types::{Index, LogNumber, Sequence, SessionId, Timestamp};
use std::collections::VecDeque;

impl Sessions {
    /// The number of bytes that `encode` returns, without encoding.
    pub(crate) fn encoded_bytes(&self) -> usize {
        TABLE_HEADER_BYTES + self.sessions.len() * SESSION_BYTES + self.remembered * REMEMBERED_BYTES
    }

    /// The table as bytes. Equal tables have equal bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut sessions: Vec<_> = self.sessions.iter().collect();
        sessions.sort_unstable_by_key(|(id, _)| **id);
        let mut b = Vec::with_capacity(self.encoded_bytes());
        b.extend_from_slice(&(sessions.len() as u32).to_le_bytes());
        b.extend_from_slice(&[0; 4]);
        for (id, session) in sessions {
            for word in [id.0, session.last.0, session.active.0, session.idle_max_ms] {
                b.extend_from_slice(&word.to_le_bytes());
            }
            b.extend_from_slice(&(session.remembered.len() as u32).to_le_bytes());
            b.extend_from_slice(&session.log.0.to_le_bytes());
            for batch in &session.remembered {
                b.extend_from_slice(&batch.first.0.to_le_bytes());
                b.extend_from_slice(&batch.count.to_le_bytes());
            }
        }
        b
    }

    /// Decodes a table, which must fill `bytes` to the end. Sessions beyond `sessions_max` are kept: they are in the
    /// log. The newest `window` batches of each are remembered, as if the window had been that size from the start.
    pub(crate) fn decode(bytes: &[u8], sessions_max: u32, window: u16) -> Result<Self, Malformed> {
        const SHORT: Malformed = "session table is cut off";
        const NEWER: Malformed = "session table has fields of a newer format";
        let mut table = Self::new(sessions_max, window);
        let (head, mut rest) = bytes.split_at_checked(TABLE_HEADER_BYTES).ok_or(SHORT)?;
        if head[4..8] != [0; 4] {
            return Err(NEWER);
        }
        let count = u32_at(head, 0) as usize;
        if count > rest.len() / SESSION_BYTES {
            return Err(SHORT);
        }
        table.sessions.reserve(count);
        let mut id_before = SessionId(0);
        for _ in 0..count {
            let (fixed, more) = rest.split_at_checked(SESSION_BYTES).ok_or(SHORT)?;
            let remembered = u32_at(fixed, 32);
            let (batches, more) =
                more.split_at_checked(remembered_bytes(remembered, u64_at(fixed, 8))?).ok_or(SHORT)?;
            rest = more;
            let id = SessionId(u64_at(fixed, 0));
            if id <= id_before {
                return Err("session table is out of order");
            }
            id_before = id;
            let mut session = Session {
                last: Sequence(u64_at(fixed, 8)),
                log: LogNumber(u32_at(fixed, 36)),
                active: Timestamp(u64_at(fixed, 16)),
                idle_max_ms: u64_at(fixed, 24),
                remembered: decode_batches(batches)?,
            };
            session.keep_newest(table.window);
            table.remembered += session.remembered.len();
            table.good_until_min = table.good_until_min.min(session.good_until());
            table.sessions.insert(id, session);
        }
        if rest.is_empty() { Ok(table) } else { Err(NEWER) }
    }
}

/// The number of bytes of a session's remembered batches. Fails if that number of batches is impossible.
fn remembered_bytes(remembered: u32, last: u64) -> Result<usize, Malformed> {
    if remembered > REMEMBERED_MAX.into() || u64::from(remembered) > last || (remembered == 0) != (last == 0)
    {
        return Err("session remembers an impossible number of batches");
    }
    Ok(remembered as usize * REMEMBERED_BYTES)
}

fn decode_batches(bytes: &[u8]) -> Result<VecDeque<Appended>, Malformed> {
    let mut batches = VecDeque::with_capacity(bytes.len() / REMEMBERED_BYTES);
    let mut next = 1;
    for batch in bytes.chunks_exact(REMEMBERED_BYTES) {
        let (first, count) = (u64_at(batch, 0), u32_at(batch, 8));
        next = end_of(next, first, count).ok_or("session remembers an impossible batch")?;
        batches.push_back(Appended::new(Index(first), count));
    }
    Ok(batches)
}
