//! Appending: builders, which collect records, and batches, which are encoded and immutable.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::values::{bytes, chiplog_slice_t, codec, out, put, slices};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use bytes::Bytes;
use chiplog::{Batch, BatchBuilder, Codec, Result};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The builder behind a handle.
pub(crate) struct Building(Mutex<BatchBuilder>);

/// The batch behind a handle.
pub(crate) struct Built {
    pub(crate) batch: Batch,
}

/// A batch under construction. Any thread may use it, one call at a time: other calls wait.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_builder_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_builder_t is Building, 3, "builder");

/// One or more records, encoded and checksummed: the unit of appending. Immutable: many threads may use it at once,
/// and it can be appended any number of times.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_batch_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_batch_t is Built, 4, "batch");

impl Building {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BatchBuilder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn get(builder: *const chiplog_builder_t) -> Result<handle_table::Pinned<Building>> {
    handle_table::get::<Building>(builder)
}

/// Opens an empty builder, without compression and without a session.
/// Ownership: the caller owns `*builder` and must close it. Any thread. Never blocks.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_open(
    builder: *mut *mut chiplog_builder_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(builder, "builder")?;
            place.write(handle_table::insert(Building(Mutex::new(BatchBuilder::new())))?);
            Ok(())
        })
    }
}

/// Sets the compression: CHIPLOG_CODEC_...
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_codec(
    builder: *mut chiplog_builder_t,
    codec: u32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            get(builder)?.lock().codec(self::codec(codec)?);
            Ok(())
        })
    }
}

/// Stamps the batch as number `sequence` (from 1) of a session. `inflight` is the number of earlier appends that the
/// client has no answer for yet. chiplog_session_append_batch does this by itself.
/// Ownership: borrowed. Any thread. Never blocks.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_session(
    builder: *mut chiplog_builder_t,
    session: u64,
    sequence: u64,
    inflight: u16,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            get(builder)?.lock().session(session.into(), sequence.into(), inflight);
            Ok(())
        })
    }
}

/// Adds a record, which may be empty. The bytes are copied.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push(
    builder: *mut chiplog_builder_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            get(builder)?.lock().push(bytes(data, length)?)?;
            Ok(())
        })
    }
}

/// Adds one record that consists of pieces, in their order.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push_pieces(
    builder: *mut chiplog_builder_t,
    pieces: *const chiplog_slice_t,
    count: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let pieces = slices(pieces, count, "pieces")?;
            let length = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len()));
            if length.is_none_or(|length| length > chiplog::limits::BATCH_BYTES_MAX) {
                let what = "the pieces together exceed what a batch can hold";
                return Err(chiplog::Error::new(chiplog::ErrorKind::TooLarge, what));
            }
            get(builder)?.lock().push(&pieces.concat())?;
            Ok(())
        })
    }
}

/// Returns the number of records so far; 0 if `builder` is not an open builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_count(builder: *const chiplog_builder_t) -> u32 {
    plain(0, || get(builder).map_or(0, |builder| builder.lock().count()))
}

/// Returns the size that the batch would have if it were built now without compression; 0 if `builder` is not an open
/// builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_encoded_bytes(builder: *const chiplog_builder_t) -> usize {
    plain(0, || get(builder).map_or(0, |builder| builder.lock().encoded_bytes()))
}

/// Encodes and checksums the batch. The builder is empty afterwards and keeps its codec and session.
/// Ownership: `builder` borrowed; the caller owns `*batch` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT: no records, or a session without a number.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_build(
    builder: *mut chiplog_builder_t,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(batch, "batch")?;
            let batch = get(builder)?.lock().build()?;
            place.write(handle_table::insert(Built { batch })?);
            Ok(())
        })
    }
}

/// Closes a builder. Does nothing if it is NULL or already closed.
/// Ownership: takes `builder`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_close(builder: *mut chiplog_builder_t) {
    plain((), || drop(handle_table::close::<Building>(builder)));
}

/// Makes a batch of encoded bytes, for example from another process. Checks the checksum and every bound. The bytes
/// are copied.
/// Ownership: `data` borrowed for the call; the caller owns `*batch` and must close it. Any thread. Never blocks.
/// Errors: CORRUPT: the bytes are not exactly one batch with the right checksum; INVALID_ARGUMENT: they are, but the
/// batch cannot be decompressed.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_decode(
    data: *const c_void,
    length: usize,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(batch, "batch")?;
            let batch = Batch::decode(Bytes::copy_from_slice(bytes(data, length)?))?;
            place.write(handle_table::insert(Built { batch })?);
            Ok(())
        })
    }
}

/// Returns the encoded bytes, as they are written to the file; `{NULL, 0}` if `batch` is not an open batch.
/// Ownership: `batch` borrowed; the bytes are valid until it is closed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_bytes(batch: *const chiplog_batch_t) -> chiplog_slice_t {
    let nothing = chiplog_slice_t { data: ptr::null(), length: 0 };
    plain(nothing, || {
        handle_table::get::<Built>(batch).map_or(nothing, |built| {
            let bytes = built.batch.as_bytes();
            chiplog_slice_t { data: bytes.as_ptr().cast(), length: bytes.len() }
        })
    })
}

/// Returns the number of records in the batch; 0 if `batch` is not an open batch.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_count(batch: *const chiplog_batch_t) -> u32 {
    plain(0, || handle_table::get::<Built>(batch).map_or(0, |built| built.batch.count()))
}

/// Returns the compression of the body: CHIPLOG_CODEC_... NONE also if compression would not have made it smaller.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_codec(batch: *const chiplog_batch_t) -> u32 {
    plain(0, || {
        handle_table::get::<Built>(batch).map_or(0, |built| match built.batch.codec() {
            Codec::Lz4 => crate::abi::values::CHIPLOG_CODEC_LZ4,
            Codec::Zstd => crate::abi::values::CHIPLOG_CODEC_ZSTD,
            _ => crate::abi::values::CHIPLOG_CODEC_NONE,
        })
    })
}

/// Returns the session and the sequence number that the batch is stamped with; 0 and 0 if there is none. Either
/// pointer may be NULL.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_session(
    batch: *const chiplog_batch_t,
    session: *mut u64,
    sequence: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let stamp = handle_table::get::<Built>(batch)?.batch.session();
            put(session, stamp.map_or(0, |(session, _)| session.get()));
            put(sequence, stamp.map_or(0, |(_, sequence)| sequence.get()));
            Ok(())
        })
    }
}

/// Closes a batch. Submitted appends of it continue. Does nothing if it is NULL or already closed.
/// Ownership: takes `batch`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_close(batch: *mut chiplog_batch_t) {
    plain((), || drop(handle_table::close::<Built>(batch)));
}
