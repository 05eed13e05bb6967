//! Geometry: how the bytes of a segment file are divided, and how much fits.
//!
//! ```text
//! 0         4096                                     data_limit                  segment_bytes
//! | header | opening | block | block | ...          | block index | footer     |
//!          `------------- room_of ------------------'`------ tail_reserve -----'
//! ```
//!
//! Must not know: the contents of the bytes.

use super::block::BLOCK_HEADER_BYTES;

/// The offset of the first block.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;
/// The smallest segment that has room for its fixed parts and some blocks.
pub const SEGMENT_BYTES_MIN: u32 = 64 << 10;
/// The largest segment.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;
pub(crate) const FOOTER_BYTES: usize = 128;
pub(crate) const INDEX_ENTRY_BYTES: usize = 32;
/// At least this many bytes of blocks are between two index entries.
pub(crate) const INDEX_STRIDE_BYTES: usize = 32 << 10;

/// Bytes of the session table before its sessions.
pub(crate) const TABLE_HEADER_BYTES: usize = 8;
/// Bytes of a session without its remembered batches.
pub(crate) const SESSION_BYTES: usize = 40;
/// Bytes of one remembered batch.
pub(crate) const REMEMBERED_BYTES: usize = 12;
/// The format's bound on the batches remembered per session; options set lower ones.
pub(crate) const REMEMBERED_MAX: u16 = 1024;

/// Bytes of the log table before its logs.
pub(crate) const LOGS_HEADER_BYTES: usize = 8;
/// Bytes of one log in the log table.
pub(crate) const LOG_BYTES: usize = 56;
/// Bytes of one option that is set for a log.
pub(crate) const LOG_OPTION_BYTES: usize = 16;

/// Bytes of the object table before its objects.
pub(crate) const OBJECTS_HEADER_BYTES: usize = 48;
/// Bytes of one object in the object table.
pub(crate) const OBJECT_BYTES: usize = 56;
/// The size of an ancestor of a branch there, in bytes.
pub(crate) const ANCESTOR_BYTES: usize = 32;

/// Bytes of a run of older rows there.
pub(crate) const OLDER_ROWS_BYTES: usize = 64;

/// Bytes reserved at a segment's end for its index and footer.
pub(crate) const fn tail_reserve(segment_bytes: usize) -> usize {
    (segment_bytes / INDEX_STRIDE_BYTES + 1) * INDEX_ENTRY_BYTES + FOOTER_BYTES
}

/// The offset at which blocks must end in a segment file of this size.
pub(crate) const fn data_limit(segment_bytes: usize) -> usize {
    (segment_bytes - tail_reserve(segment_bytes)) & !(BLOCK_HEADER_BYTES - 1)
}

/// The bytes of blocks that fit into a segment file of this size, including its opening.
pub(crate) const fn room_of(segment_bytes: usize) -> usize {
    data_limit(segment_bytes) - SEGMENT_HEADER_BYTES
}

/// The largest batch that fits into a new segment. An eighth is reserved for the opening block, and some bytes for
/// commands.
pub(crate) const fn batch_room(segment_bytes: u32) -> u32 {
    let blocks = room_of(segment_bytes as usize);
    (blocks - blocks / 8 - 16 * BLOCK_HEADER_BYTES) as u32
}

/// The size of segments that are made of others: as large as their file or object, and with room for this opening and this block.
pub(crate) fn segment_bytes_with(object: u32, opening: u32, block: u32) -> u32 {
    /// Openings of this size have room for the state of most logs.
    const LEAST: u32 = 1 << 20;
    /// An opening takes at most this part of a segment.
    const OPENINGS_SHARE: u32 = 16;
    let mut bytes = object.max(LEAST).max(opening.saturating_mul(OPENINGS_SHARE));
    while batch_room(bytes) < block && bytes <= SEGMENT_BYTES_MAX / 2 {
        bytes *= 2;
    }
    bytes.min(SEGMENT_BYTES_MAX).next_multiple_of(SEGMENT_HEADER_BYTES as u32)
}

/// The room for the session table in an opening block.
pub(crate) const fn opening_room(segment_bytes: u32) -> usize {
    room_of(segment_bytes as usize) / 8 - 4 * BLOCK_HEADER_BYTES
}

/// The size of the segment file whose blocks end at `data_end`: the smallest multiple of 4 KiB that has room for them and
/// for their index.
pub(crate) const fn segment_bytes_for(data_end: usize) -> usize {
    let mut bytes = (data_end + tail_reserve(data_end)).next_multiple_of(SEGMENT_HEADER_BYTES);
    if bytes < SEGMENT_BYTES_MIN as usize {
        bytes = SEGMENT_BYTES_MIN as usize;
    }
    while data_limit(bytes) < data_end {
        bytes += SEGMENT_HEADER_BYTES;
    }
    bytes
}

/// The most bytes that a table of `sessions_max` sessions takes if each remembers `window` batches.
pub(crate) const fn session_table_bytes_max(sessions_max: u32, window: u16) -> usize {
    TABLE_HEADER_BYTES + sessions_max as usize * (SESSION_BYTES + window as usize * REMEMBERED_BYTES)
}

/// The room for the logs of a shared group and their options in an opening block, beside such a session table. Some bytes
/// are kept for the other parts.
pub(crate) const fn logs_room(segment_bytes: u32, sessions_max: u32, window: u16) -> usize {
    let sessions = session_table_bytes_max(sessions_max, window);
    opening_room(segment_bytes).saturating_sub(sessions + LOGS_HEADER_BYTES + 4 * BLOCK_HEADER_BYTES)
}

/// The most objects that an opening has room for, beside such a session table.
pub(crate) const fn objects_max(segment_bytes: u32, sessions_max: u32, window: u16) -> usize {
    logs_room(segment_bytes, sessions_max, window).saturating_sub(OBJECTS_HEADER_BYTES) / OBJECT_BYTES
}
