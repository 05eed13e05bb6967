//! What is appended: builders, which gather records, and batches, which are encoded and stay as they are.

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

/// A batch that is being built.
pub(crate) struct Building(Mutex<BatchBuilder>);

/// A batch that was built.
pub(crate) struct Built {
    pub(crate) batch: Batch,
}

/// A batch that is being built. Any thread may use it, one call at a time: others wait.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_builder_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_builder_t is Building, 3, "builder");

/// One or more records, encoded and checksummed: the unit of appending. Immutable: any thread may use it, many at once,
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

/// Makes an empty batch to add records to, not compressed and without a session.
/// Ownership: `*builder`: the caller's, to be closed. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_open(
    builder: *mut *mut chiplog_builder_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_codec(
    builder: *mut chiplog_builder_t,
    codec: u32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            get(builder)?.lock().codec(self::codec(codec)?);
            Ok(())
        })
    }
}

/// Stamps the batch as number `sequence` (from 1) of a session. `inflight`: how many earlier numbers the client still has no
/// answer for. chiplog_session_append_batch does this by itself.
/// Ownership: borrowed. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_session(
    builder: *mut chiplog_builder_t,
    session: u64,
    sequence: u64,
    inflight: u16,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            get(builder)?.lock().session(session.into(), sequence.into(), inflight);
            Ok(())
        })
    }
}

/// Adds a record; it may be empty. It is copied.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is as it was.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push(
    builder: *mut chiplog_builder_t,
    data: *const c_void,
    length: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            get(builder)?.lock().push(bytes(data, length)?)?;
            Ok(())
        })
    }
}

/// Adds one record that lies in pieces, in their order.
/// Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is as it was.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_push_pieces(
    builder: *mut chiplog_builder_t,
    pieces: *const chiplog_slice_t,
    count: usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let pieces = slices(pieces, count, "pieces")?;
            let length = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len()));
            if length.is_none_or(|length| length > chiplog::BATCH_BYTES_MAX) {
                let what = "these pieces are more than a batch can hold";
                return Err(chiplog::Error::new(chiplog::ErrorKind::TooLarge, what));
            }
            get(builder)?.lock().push(&pieces.concat())?;
            Ok(())
        })
    }
}

/// Records so far; 0 if `builder` is no open builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_count(builder: *const chiplog_builder_t) -> u32 {
    plain(0, || get(builder).map_or(0, |builder| builder.lock().count()))
}

/// What the batch would measure if it were built now without compression; 0 if `builder` is no open builder.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_encoded_bytes(builder: *const chiplog_builder_t) -> usize {
    plain(0, || get(builder).map_or(0, |builder| builder.lock().encoded_bytes()))
}

/// Encodes and checksums the batch. The builder is empty afterwards, with codec and session as they were.
/// Ownership: `builder` borrowed; `*batch`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT: no records, or a session without a number.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_builder_build(
    builder: *mut chiplog_builder_t,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let place = out(batch, "batch")?;
            let batch = get(builder)?.lock().build()?;
            place.write(handle_table::insert(Built { batch })?);
            Ok(())
        })
    }
}

/// Closes a builder. NULL, or one that was closed: nothing happens.
/// Ownership: takes `builder`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_builder_close(builder: *mut chiplog_builder_t) {
    plain((), || drop(handle_table::close::<Building>(builder)));
}

/// Takes an encoded batch, such as another process sent: checks the checksum and every bound. The bytes are copied.
/// Ownership: `data` borrowed for the call; `*batch`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: CORRUPT: it is not exactly one batch with the right checksum; INVALID_ARGUMENT: it is, and does not unpack.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_decode(
    data: *const c_void,
    length: usize,
    batch: *mut *mut chiplog_batch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let place = out(batch, "batch")?;
            let batch = Batch::decode(Bytes::copy_from_slice(bytes(data, length)?))?;
            place.write(handle_table::insert(Built { batch })?);
            Ok(())
        })
    }
}

/// The encoded bytes, as they will stand in the file. `{NULL, 0}` if `batch` is no open batch.
/// Ownership: `batch` borrowed; the bytes are borrowed until it is closed. Any thread. Never blocks.
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

/// How many records it holds; 0 if `batch` is no open batch.
/// Ownership: borrowed. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_count(batch: *const chiplog_batch_t) -> u32 {
    plain(0, || handle_table::get::<Built>(batch).map_or(0, |built| built.batch.count()))
}

/// How its body is compressed: CHIPLOG_CODEC_... It is NONE also if compression would not have made it smaller.
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

/// The session and the number that it is stamped with; 0 and 0: none. Either may be NULL: not wanted.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_batch_session(
    batch: *const chiplog_batch_t,
    session: *mut u64,
    sequence: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let stamp = handle_table::get::<Built>(batch)?.batch.session();
            put(session, stamp.map_or(0, |(session, _)| session.get()));
            put(sequence, stamp.map_or(0, |(_, sequence)| sequence.get()));
            Ok(())
        })
    }
}

/// Closes a batch. What was submitted of it goes on. NULL, or one that was closed: nothing happens.
/// Ownership: takes `batch`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_batch_close(batch: *mut chiplog_batch_t) {
    plain((), || drop(handle_table::close::<Built>(batch)));
}
