//! Appending: builders, which collect records, and batches, which are encoded and immutable.

use crate::abi::entry::{entry, entry_handle};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::pointers::{bytes, put, slices};
use crate::abi::values;
use crate::abi::values::{CHIPLOG_CODEC_LZ4, CHIPLOG_CODEC_NONE, CHIPLOG_CODEC_ZSTD, chiplog_slice_t};
use crate::support::handle_table::{Opaque, get, handle, query, release};
use crate::support::panic_guard::lock;
use bytes::Bytes;
use chiplog::{Batch, BatchBuilder, Codec, Error, ErrorKind};
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

/// A batch under construction. Any thread may use it, one call at a time: other calls wait.
pub struct chiplog_builder_t {
    _private: Opaque,
}

handle!(chiplog_builder_t is Mutex<BatchBuilder>, 3, "builder");

/// One or more records, encoded and checksummed: the unit of appending. Immutable: many threads may use it at once,
/// and it can be appended any number of times.
pub struct chiplog_batch_t {
    _private: Opaque,
}

handle!(chiplog_batch_t is Batch, 4, "batch");

/// Opens an empty builder, without compression and without a session.
/// Ownership: the caller owns `*builder` and must close it. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_open(
    builder: *mut *mut chiplog_builder_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, builder, "builder", || Ok(BatchBuilder::new()))
}

/// Sets the compression: CHIPLOG_CODEC_...
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_codec(
    builder: *mut chiplog_builder_t,
    codec: u32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        lock(&*get(builder)?).codec(values::codec(codec)?);
        Ok(())
    })
}

/// Stamps the batch as number `sequence` (from 1) of a session. `inflight` is the number of earlier appends that the
/// client has no answer for yet. chiplog_session_append_batch does this by itself.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_session(
    builder: *mut chiplog_builder_t,
    session: u64,
    sequence: u64,
    inflight: u16,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        lock(&*get(builder)?).session(session.into(), sequence.into(), inflight);
        Ok(())
    })
}

/// Adds a record, which may be empty. The bytes are copied.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push(
    builder: *mut chiplog_builder_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || lock(&*get(builder)?).push(bytes(data, length)?).map(drop))
}

/// Adds one record that consists of pieces, in their order.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push_pieces(
    builder: *mut chiplog_builder_t,
    pieces: *const chiplog_slice_t,
    count: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let pieces = slices(pieces, count, "pieces")?;
        let length = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len()));
        if length.is_none_or(|length| length > chiplog::limits::BATCH_BYTES_MAX) {
            let what = "the pieces together exceed what a batch can hold";
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        lock(&*get(builder)?).push(&pieces.concat()).map(drop)
    })
}

/// Returns the number of records so far; 0 if `builder` is not an open builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_count(builder: *const chiplog_builder_t) -> u32 {
    query(builder, 0, |builder| lock(&builder).count())
}

/// Returns the size that the batch would have if it were built now without compression; 0 if `builder` is not an open
/// builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_encoded_bytes(builder: *const chiplog_builder_t) -> usize {
    query(builder, 0, |builder| lock(&builder).encoded_bytes())
}

/// Encodes and checksums the batch. The builder is empty afterwards and keeps its codec and session.
/// Ownership: `builder` borrowed; the caller owns `*batch` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT: no records, or a session without a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_build(
    builder: *mut chiplog_builder_t,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, batch, "batch", || lock(&*get(builder)?).build())
}

/// Closes a builder. Does nothing if it is NULL or already closed.
/// Ownership: takes `builder`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_close(builder: *mut chiplog_builder_t) {
    release(builder);
}

/// Makes a batch of encoded bytes, for example from another process. Checks the checksum and every bound. The bytes
/// are copied.
/// Ownership: `data` borrowed for the call; the caller owns `*batch` and must close it. Any thread. Never blocks.
/// Errors: CORRUPT: the bytes are not exactly one batch with the right checksum; INVALID_ARGUMENT: they are, but the
/// batch cannot be decompressed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_decode(
    data: *const c_void,
    length: usize,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, batch, "batch", || Batch::decode(Bytes::copy_from_slice(bytes(data, length)?)))
}

/// Returns the encoded bytes, as they are written to the file; `{NULL, 0}` if `batch` is not an open batch.
/// Ownership: `batch` borrowed; the bytes are valid until it is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_bytes(batch: *const chiplog_batch_t) -> chiplog_slice_t {
    let nothing = chiplog_slice_t { data: ptr::null(), length: 0 };
    query(batch, nothing, |batch| {
        let bytes = batch.as_bytes();
        chiplog_slice_t { data: bytes.as_ptr().cast(), length: bytes.len() }
    })
}

/// Returns the number of records in the batch; 0 if `batch` is not an open batch.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_count(batch: *const chiplog_batch_t) -> u32 {
    query(batch, 0, |batch| batch.count())
}

/// Returns the compression of the body: CHIPLOG_CODEC_... NONE also if compression would not have made it smaller.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_codec(batch: *const chiplog_batch_t) -> u32 {
    query(batch, CHIPLOG_CODEC_NONE, |batch| match batch.codec() {
        Codec::Lz4 => CHIPLOG_CODEC_LZ4,
        Codec::Zstd => CHIPLOG_CODEC_ZSTD,
        _ => CHIPLOG_CODEC_NONE,
    })
}

/// Returns the session and the sequence number that the batch is stamped with; 0 and 0 if there is none. Either
/// pointer may be NULL.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_session(
    batch: *const chiplog_batch_t,
    session: *mut u64,
    sequence: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let stamp = get(batch)?.session();
        put(session, stamp.map_or(0, |(session, _)| session.get()));
        put(sequence, stamp.map_or(0, |(_, sequence)| sequence.get()));
        Ok(())
    })
}

/// Closes a batch. Submitted appends of it continue. Does nothing if it is NULL or already closed.
/// Ownership: takes `batch`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_close(batch: *mut chiplog_batch_t) {
    release(batch);
}
