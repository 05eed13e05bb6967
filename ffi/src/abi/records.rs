//! Records: an array of views into the log's files, or into buffers of what the network delivered.
//!
//! Invariant: the bytes of the views do not change while the records are open: the records hold the batches, and the
//! batches hold their segments.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::chiplog_record_t;
use crate::support::handle_table::{Opaque, get, handle, release};
use chiplog::{OwnedRecord, Record, RecordBatch};
use std::ptr;

/// The owner of the bytes.
#[expect(dead_code, reason = "held, not read")]
enum Held {
    Batches(Vec<RecordBatch>),
    One(OwnedRecord),
}

/// Records as C holds them.
pub(crate) struct Records {
    views: Vec<chiplog_record_t>,
    _held: Held,
}

// SAFETY: the views point into batches that are held here, are `Send + Sync` and do not change.
unsafe impl Send for Records {}
// SAFETY: as above.
unsafe impl Sync for Records {}

/// Records that were read: views into the log's files, without a copy if the batch is not compressed. They keep their
/// files alive, even if those are discarded or the log is closed. Immutable: many threads may use them at once.
pub struct chiplog_records_t {
    _private: Opaque,
}

handle!(chiplog_records_t is Records, 6, "records");

pub(crate) fn view(record: Record<'_>) -> chiplog_record_t {
    chiplog_record_t {
        index: record.index.get(),
        timestamp_ms: record.timestamp.get(),
        data: record.data.as_ptr().cast(),
        length: record.data.len(),
    }
}

/// Records that are being collected.
pub(crate) struct Run {
    views: Vec<chiplog_record_t>,
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl Run {
    /// Allocates capacity for this number of records and batches.
    pub(crate) fn with_room(records: usize, batches: usize) -> Self {
        Self { views: Vec::with_capacity(records), batches: Vec::with_capacity(batches), bytes: 0 }
    }

    pub(crate) fn push(&mut self, batch: RecordBatch) {
        for record in batch.iter() {
            self.bytes += record.data.len();
            self.views.push(view(record));
        }
        // The bytes do not move: batches refer to them.
        self.batches.push(batch);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// The number of records and of batches.
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.views.len(), self.batches.len())
    }
}

impl From<RecordBatch> for Run {
    fn from(batch: RecordBatch) -> Self {
        let mut run = Self::with_room(batch.count() as usize, 1);
        run.push(batch);
        run
    }
}

impl From<OwnedRecord> for Records {
    fn from(record: OwnedRecord) -> Self {
        let shown = Record { index: record.index, timestamp: record.timestamp, data: &record.data };
        Self { views: vec![view(shown)], _held: Held::One(record) }
    }
}

impl From<Run> for Records {
    fn from(run: Run) -> Self {
        Self { views: run.views, _held: Held::Batches(run.batches) }
    }
}

/// Returns the records in order: `*count` of them, at least one, in `*array`.
/// Ownership: `records` is borrowed; the array and its bytes are valid until `records` is closed. Any thread. Never
/// blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_records_view(
    records: *const chiplog_records_t,
    array: *mut *const chiplog_record_t,
    count: *mut usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        if array.is_null() || count.is_null() {
            return Err(invalid("array or count is NULL"));
        }
        array.write(ptr::null());
        count.write(0);
        let records = get(records)?;
        array.write(records.views.as_ptr());
        count.write(records.views.len());
        Ok(())
    })
}

/// Closes records: their views become invalid. Does nothing if it is NULL or already closed.
/// Ownership: takes `records`. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_records_close(records: *mut chiplog_records_t) {
    release(records);
}
