//! The C ABI under random sequences of calls: any handle (open, closed, of another kind or invented) is passed
//! anywhere. Nothing crashes, and a closed handle is never taken for an open one.
#![allow(unsafe_code, reason = "it is the C ABI that is called")]

use chiplog_ffi::*;
use std::ffi::{CString, c_void};
use std::ptr;

/// The most calls of one input: each may need a sync.
const CALLS_MAX: usize = 200;

/// Handles of one kind: all that were ever returned, and whether they are open.
struct Handles<T>(Vec<(*mut T, bool)>);

impl<T> Handles<T> {
    fn new() -> Self {
        Self(vec![(ptr::null_mut(), false), (ptr::without_provenance_mut(0x5_0000_0000_0042), false)])
    }

    fn pick(&self, byte: u8) -> (*mut T, bool) {
        self.0[byte as usize % self.0.len()]
    }

    fn took(&mut self, handle: *mut T) {
        if !handle.is_null() {
            assert!(
                self.0.iter().all(|(old, is_open)| *old != handle || !is_open),
                "a handle was given twice"
            );
            self.0.push((handle, true));
        }
    }

    fn closed(&mut self, handle: *mut T) {
        self.0.iter_mut().filter(|(other, _)| *other == handle).for_each(|(_, is_open)| *is_open = false);
    }

    fn open(&self) -> Vec<*mut T> {
        self.0.iter().filter(|(_, is_open)| *is_open).map(|(handle, _)| *handle).collect()
    }
}

/// The result of a call with a handle that was open or not. Checks the error and frees it.
fn judge(status: chiplog_status_t, is_open: bool, error: *mut chiplog_error_t) {
    assert!((CHIPLOG_OK..=CHIPLOG_UNDECODABLE).contains(&status), "{status}");
    assert_eq!(error.is_null(), status == CHIPLOG_OK);
    if !error.is_null() {
        assert_eq!(chiplog_error_status(error), status);
        assert!(!chiplog_error_message(error).is_null());
        chiplog_error_close(error);
    }
    let refused = [CHIPLOG_CLOSED, CHIPLOG_INVALID_ARGUMENT].contains(&status);
    assert!(is_open || refused, "{status}: a handle that is not open was used");
    assert_ne!(status, CHIPLOG_POISONED, "a bug, or a disk that fails");
}

/// Calls a function whose last argument receives an error.
macro_rules! call {
    ($is_open:expr, $function:ident($($argument:expr),*)) => {{
        let mut error = ptr::null_mut();
        // SAFETY: the pointers are to variables of this function that outlive the call, or handles, which may be
        // anything.
        let status = unsafe { $function($($argument,)* &raw mut error) };
        judge(status, $is_open, error);
        status
    }};
}

/// Two bytes a call: the function, and its argument.
pub fn ffi(input: &[u8]) {
    let Ok(dir) = tempfile::tempdir() else { return };
    let path = |n: u8| {
        let path = dir.path().join(format!("log-{}", n % 2));
        CString::new(path.into_os_string().into_encoded_bytes()).unwrap_or_default()
    };
    let mut logs = Handles::<chiplog_log_t>::new();
    let mut readers = Handles::<chiplog_reader_t>::new();
    let mut records = Handles::<chiplog_records_t>::new();
    let mut tickets = Handles::<chiplog_ticket_t>::new();
    let mut builders = Handles::<chiplog_builder_t>::new();
    let mut batches = Handles::<chiplog_batch_t>::new();
    let mut sessions = Handles::<chiplog_session_t>::new();
    for pair in input.chunks_exact(2).take(CALLS_MAX) {
        let (what, which) = (pair[0], pair[1]);
        let data = &input[..input.len().min(which as usize * 8)];
        let (start, length) = (data.as_ptr().cast::<c_void>(), data.len());
        let (log, log_open) = logs.pick(which);
        let (reader, reader_open) = readers.pick(which);
        let (ticket, ticket_open) = tickets.pick(which);
        let (builder, builder_open) = builders.pick(which);
        let (batch, batch_open) = batches.pick(which);
        let (session, session_open) = sessions.pick(which);
        let (mut number, mut placed) = (0u64, chiplog_appended_t::default());
        match what % 30 {
            0 => {
                let (path, mut new) = (path(which), ptr::null_mut());
                // SAFETY: filled by the next call, which gets its size; all bytes zero are valid.
                let mut options: chiplog_log_options_t = unsafe { std::mem::zeroed() };
                // SAFETY: as above.
                unsafe {
                    chiplog_log_options_for_segments(&raw mut options, size_of_val(&options), 64 << 10)
                };
                call!(true, chiplog_log_open(path.as_ptr(), &raw const options, &raw mut new));
                logs.took(new);
            }
            1 => {
                let status = call!(log_open || log.is_null(), chiplog_log_close(log));
                assert!(log_open || log.is_null() || status != CHIPLOG_OK);
                logs.closed(log);
            }
            2 | 3 => {
                call!(log_open, chiplog_log_append(log, start, length, &raw mut number));
            }
            4 => {
                let mut new = ptr::null_mut();
                call!(log_open, chiplog_log_submit(log, start, length, &raw mut new));
                tickets.took(new);
            }
            5 => {
                let mut new = ptr::null_mut();
                // The first two kinds need no value.
                let kind = u32::from(which % 6);
                let value = if kind < 2 { 0 } else { which.into() };
                call!(log_open, chiplog_log_reader(log, kind, value, &raw mut new));
                readers.took(new);
            }
            6 => {
                let mut new = ptr::null_mut();
                call!(log_open, chiplog_log_read(log, which.into(), &raw mut new));
                records.took(new);
            }
            7 => {
                call!(log_open, chiplog_log_discard(log, which.into()));
            }
            8 => {
                // A caller's structure can be shorter or longer than the library's.
                let mut place = [u64::MAX; 32];
                place[0] = which.into();
                let filled = place.as_mut_ptr().cast::<chiplog_log_status_t>();
                let status = call!(log_open || which < 8, chiplog_log_status(log, filled));
                assert!(status != CHIPLOG_OK || place[0] == u64::from(which));
                let mut bytes = place.iter().flat_map(|word| word.to_ne_bytes());
                assert!(
                    bytes.by_ref().skip(8.max(which.into())).all(|byte| byte == 0xff),
                    "written past its end"
                );
            }
            9 => {
                let mut new = ptr::null_mut();
                call!(log_open, chiplog_log_open_session(log, &raw mut new));
                sessions.took(new);
            }
            10 => {
                let mut record = chiplog_record_t { index: 0, timestamp_ms: 0, data: ptr::null(), length: 0 };
                call!(reader_open, chiplog_reader_next_record(reader, 0, &raw mut record));
            }
            11 | 12 => {
                let mut new = ptr::null_mut();
                call!(reader_open, chiplog_reader_next_run(reader, which as usize * 64, 0, &raw mut new));
                records.took(new);
            }
            13 => {
                call!(reader_open, chiplog_reader_seek(reader, 2, which.into()));
            }
            14 => {
                let mut descriptor = 0;
                let status = call!(reader_open, chiplog_reader_descriptor(reader, &raw mut descriptor));
                assert_eq!(status == CHIPLOG_OK, descriptor >= 0);
            }
            15 => {
                chiplog_reader_close(reader);
                readers.closed(reader);
            }
            16 | 17 => look(records.pick(which)),
            18 => {
                let (old, _) = records.pick(which);
                chiplog_records_close(old);
                records.closed(old);
            }
            19 => {
                call!(ticket_open, chiplog_ticket_wait(ticket, 60_000, &raw mut placed));
            }
            20 => {
                chiplog_ticket_close(ticket);
                tickets.closed(ticket);
            }
            21 => {
                let mut new = ptr::null_mut();
                call!(true, chiplog_builder_open(&raw mut new));
                builders.took(new);
            }
            22 => {
                call!(builder_open, chiplog_builder_push(builder, start, length));
            }
            23 => {
                call!(builder_open || which > 2, chiplog_builder_codec(builder, which.into()));
            }
            24 => {
                let mut new = ptr::null_mut();
                call!(builder_open, chiplog_builder_build(builder, &raw mut new));
                batches.took(new);
            }
            25 => {
                let mut new = ptr::null_mut();
                let bytes = chiplog_batch_bytes(batch);
                let status = call!(true, chiplog_batch_decode(bytes.data, bytes.length, &raw mut new));
                assert_eq!(status == CHIPLOG_OK, batch_open, "what was built is sound");
                batches.took(new);
            }
            26 => {
                call!(log_open && batch_open, chiplog_log_append_batch(log, batch, &raw mut placed));
            }
            27 => {
                call!(session_open, chiplog_session_append(session, start, length, &raw mut number));
            }
            28 => {
                chiplog_session_close(session);
                sessions.closed(session);
                chiplog_builder_close(builder);
                builders.closed(builder);
                chiplog_batch_close(batch);
                batches.closed(batch);
            }
            // A handle of one kind instead of another.
            _ => {
                call!(false, chiplog_log_append(reader.cast(), start, length, &raw mut number));
            }
        }
    }
    // Records that were read stay valid, whatever is closed first.
    logs.open().into_iter().for_each(|log| {
        call!(true, chiplog_log_close(log));
    });
    readers.open().into_iter().for_each(|handle| chiplog_reader_close(handle));
    for handle in records.open() {
        look((handle, true));
        chiplog_records_close(handle);
    }
    tickets.open().into_iter().for_each(|handle| chiplog_ticket_close(handle));
    builders.open().into_iter().for_each(|handle| chiplog_builder_close(handle));
    batches.open().into_iter().for_each(|handle| chiplog_batch_close(handle));
    sessions.open().into_iter().for_each(|handle| chiplog_session_close(handle));
}

/// Reads every byte of records.
fn look((records, is_open): (*mut chiplog_records_t, bool)) {
    let (mut array, mut count) = (ptr::null(), 0);
    let status = call!(is_open, chiplog_records_view(records, &raw mut array, &raw mut count));
    assert_eq!(status == CHIPLOG_OK, count > 0);
    for n in 0..count {
        // SAFETY: the array has `count` views, each with a valid length, as long as the records are open.
        let bytes = unsafe {
            let record = &*array.add(n);
            std::slice::from_raw_parts(record.data.cast::<u8>(), record.length)
        };
        std::hint::black_box(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }
}
