//! Followers: a copy of a log in the program, kept up to date from any server.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, hand_out, invalid};
use crate::abi::once_callback::Gate;
use crate::abi::values::{
    Context, Sized0, chiplog_notify_fn, duration, fill, fixed, init, millis, out, put, start, text_or_none,
};
use crate::handles::client::{addresses, secret, tls};
use crate::handles::log::{Opened, chiplog_log_t, path};
use crate::handles::options;
use crate::handles::options::chiplog_log_options_t;
use crate::handles::reader;
use crate::handles::reader::chiplog_reader_t;
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_signals;
use chiplog::{Error, ErrorKind, Result, Signal};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use std::ffi::{c_char, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The follower behind a handle.
pub(crate) struct Following {
    follower: Follower,
    watched: Mutex<Watched>,
    /// The current callback.
    gate: Mutex<Option<Gate>>,
}

/// The follower's event descriptor. Once handed out, it stays open.
#[derive(Default)]
struct Watched {
    /// Raised while there may be an event.
    signal: Option<Signal>,
    /// Whether the hook raises the descriptor, instead of a callback.
    is_hook: bool,
}

/// A copy of a log in this process, kept up to date from any server of its cluster. It does not vote, and the cluster
/// need not know of it. Many threads may use it at once. It has threads of its own. In a forked child each call
/// returns CHIPLOG_FORKED.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_follower_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_follower_t is Following, 13, "follower");

/// Deadlines and limits of a follower. Fill it with chiplog_follower_options_init. Times range from 1 ms to one day,
/// else opening fails with CHIPLOG_INVALID_ARGUMENT. The exception is open_timeout_ms, which has no bounds;
/// CHIPLOG_FOREVER means no limit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_follower_options_t {
    /// sizeof(chiplog_follower_options_t) as the caller was compiled with it.
    pub size: usize,
    /// Options of the copy's own files, retention included. NULL, the default: the defaults. `segment_bytes` must be
    /// at least the servers' if their blocks are that large.
    pub files: *const chiplog_log_options_t,
    /// The name of the log. NULL or empty, the default: the servers' only log.
    pub log: *const c_char,
    /// The zone whose servers are preferred. NULL or empty, the default: no zone.
    pub zone: *const c_char,
    /// The token to send to servers, if they require one. NULL, the default: none.
    pub token: *const c_char,
    /// TLS: the authority that signed the servers' certificates, PEM. NULL, the default: no TLS.
    pub tls_authority: *const c_void,
    /// Its length in bytes.
    pub tls_authority_length: usize,
    /// This follower's certificate, PEM, if the servers require one. NULL: none.
    pub tls_certificate: *const c_void,
    /// Its length in bytes.
    pub tls_certificate_length: usize,
    /// The private key of the certificate, PEM.
    pub tls_key: *const c_void,
    /// Its length in bytes.
    pub tls_key_length: usize,
    /// How long opening an empty directory waits for a server, default 30 s. A directory with a copy needs no server.
    pub open_timeout_ms: u64,
    /// The interval at which an idle server sends a sign of life, default 3 s.
    pub keep_alive_ms: u64,
    /// The interval at which the follower asks another server for its position, default 10 s.
    pub compare_interval_ms: u64,
    /// Time limit for opening a connection, default 2 s.
    pub connect_timeout_ms: u64,
    /// Time limit for a server to begin to send, default 10 s.
    pub attempt_timeout_ms: u64,
    /// Time limit for a server's answer about itself, default 1 s.
    pub probe_timeout_ms: u64,
    /// The wait after the second failure in a row, default 10 ms. It doubles after each further failure.
    pub backoff_min_ms: u64,
    /// The longest wait after a failure, default 2 s.
    pub backoff_max_ms: u64,
    /// Bytes that a server may send ahead, default 4 MiB.
    pub window_bytes: u32,
    /// Whether the token may be sent to other machines without TLS: 1 or 0. Default 0.
    pub token_in_plain_text: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 3],
}

impl Sized0 for chiplog_follower_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// The state of a follower.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_follower_status_t {
    /// sizeof(chiplog_follower_status_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// The first record here. For an empty copy: the first one to be received.
    pub first: u64,
    /// The last record here. For an empty copy: first - 1.
    pub last: u64,
    /// The last record that a server is known to have. source_last - last is how far the follower is behind.
    pub source_last: u64,
    /// How long the current server has sent to it, in milliseconds; 0 without a server.
    pub connected_for_ms: u64,
    /// How often a server began to send.
    pub connects: u64,
    /// How often it skipped records that all servers had discarded.
    pub jumps: u64,
    /// Bytes of blocks received from servers.
    pub received_bytes: u64,
    /// Records received from servers.
    pub received_records: u64,
    /// The server that sends to it, `host:port`. Empty: it is looking for one.
    pub server: [c_char; 264],
    /// The status of the last failure, which is being retried. CHIPLOG_OK: there was none.
    pub last_error: chiplog_status_t,
    /// The status of the reason why it ended by itself. CHIPLOG_OK: it has not.
    pub stopped: chiplog_status_t,
    /// Whether that server is up to date itself: 1 or 0.
    pub fed: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 7],
}

impl Sized0 for chiplog_follower_status_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// A server sends; the first one since the follower was opened: `server`.
pub const CHIPLOG_EVENT_CONNECTED: u32 = 1;
/// Another server than before sends: `before`, `server`.
pub const CHIPLOG_EVENT_SWITCHED: u32 = 2;
/// Records are missing here because all servers had discarded them. Rebuild from record `to`; record `from` was
/// expected.
pub const CHIPLOG_EVENT_JUMPED: u32 = 3;
/// Records below `to` were discarded.
pub const CHIPLOG_EVENT_DISCARDED: u32 = 4;
/// The stream from `server` broke, or, if `server` is empty, no server could be reached: `cause`. The follower keeps
/// trying.
pub const CHIPLOG_EVENT_FAILED: u32 = 5;
/// The follower ended by itself; this is the last event: `cause`.
pub const CHIPLOG_EVENT_STOPPED: u32 = 6;
/// `to` events were dropped because the program did not take them in time.
pub const CHIPLOG_EVENT_MISSED: u32 = 7;

/// An event of a follower.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_event_t {
    /// sizeof(chiplog_event_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// CHIPLOG_EVENT_..., which says which other fields are set. Later versions may add kinds: ignore unknown ones.
    pub kind: u32,
    /// The status of `cause`, else CHIPLOG_OK.
    pub cause: chiplog_status_t,
    /// See the kinds.
    pub from: u64,
    /// See the kinds.
    pub to: u64,
    /// See the kinds.
    pub server: [c_char; 264],
    /// See the kinds.
    pub before: [c_char; 264],
}

impl Sized0 for chiplog_event_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

fn defaults() -> chiplog_follower_options_t {
    let d = FollowerOptions::default();
    let (none, nothing) = (std::ptr::null(), std::ptr::null());
    chiplog_follower_options_t {
        size: size_of::<chiplog_follower_options_t>(),
        files: std::ptr::null(),
        log: none,
        zone: none,
        token: none,
        tls_authority: nothing,
        tls_authority_length: 0,
        tls_certificate: nothing,
        tls_certificate_length: 0,
        tls_key: nothing,
        tls_key_length: 0,
        open_timeout_ms: millis(d.open_timeout),
        keep_alive_ms: millis(d.keep_alive),
        compare_interval_ms: millis(d.compare_interval),
        connect_timeout_ms: millis(d.connect_timeout),
        attempt_timeout_ms: millis(d.attempt_timeout),
        probe_timeout_ms: millis(d.probe_timeout),
        backoff_min_ms: millis(d.backoff_min),
        backoff_max_ms: millis(d.backoff_max),
        window_bytes: d.window_bytes,
        token_in_plain_text: 0,
        reserved: [0; 3],
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As `values::options`. Its pointers are as `text`, `bytes` and `options::read` require.
unsafe fn read(given: *const chiplog_follower_options_t) -> Result<FollowerOptions> {
    // SAFETY: this function's condition.
    let given = unsafe { crate::abi::values::options(given, defaults()) }?;
    if given.token_in_plain_text > 1 || given.reserved != [0; 3] {
        return Err(invalid("follower options: token_in_plain_text must be 0 or 1, and reserved must be 0"));
    }
    let mut options = FollowerOptions::default();
    // SAFETY: this function's condition, for each.
    unsafe {
        options.files = options::read(given.files)?;
        options.log = text_or_none(given.log, "log")?;
        options.zone = text_or_none(given.zone, "zone")?;
        options.token = secret(given.token)?;
        options.tls = tls(
            (given.tls_authority, given.tls_authority_length),
            (given.tls_certificate, given.tls_certificate_length),
            (given.tls_key, given.tls_key_length),
        )?;
    }
    options.token_in_plain_text = given.token_in_plain_text == 1;
    options.open_timeout = duration(given.open_timeout_ms);
    options.keep_alive = duration(given.keep_alive_ms);
    options.compare_interval = duration(given.compare_interval_ms);
    options.connect_timeout = duration(given.connect_timeout_ms);
    options.attempt_timeout = duration(given.attempt_timeout_ms);
    options.probe_timeout = duration(given.probe_timeout_ms);
    options.backoff_min = duration(given.backoff_min_ms);
    options.backoff_max = duration(given.backoff_max_ms);
    options.window_bytes = given.window_bytes;
    Ok(options)
}

fn get(follower: *const chiplog_follower_t) -> Result<handle_table::Pinned<Following>> {
    handle_table::get::<Following>(follower)
}

impl Following {
    /// Returns the next event. If there is none and there is a descriptor, arms the descriptor.
    fn next_event(&self, limit: Duration) -> Result<FollowerEvent> {
        let next = self.follower.next_event(limit);
        if next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout)
            && let Watched { signal: Some(signal), is_hook: true } = &*self.watched()
        {
            self.arm(signal);
        }
        next
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self, signal: &Signal) {
        signal.lower();
        let signal = signal.clone();
        self.follower.on_event(move || signal.raise());
    }
}

/// Fills options with their defaults. `size`: sizeof(chiplog_follower_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_options_init(
    options: *mut chiplog_follower_options_t,
    size: usize,
) {
    // SAFETY: this function's condition.
    plain((), || unsafe { init(options, size, defaults()) });
}

/// Opens the copy in `directory`, or creates one there. `servers`: `count` addresses, `host:port`; one that runs is
/// enough. A new copy begins at `start` (CHIPLOG_START_...; `value`: its number, else 0), with the block that holds
/// that record. `options` may be NULL for the defaults.
/// Ownership: all borrowed for the call; the caller owns `*follower` and must close it. Any thread. An existing copy
/// is opened without a server. A new copy needs one: the call blocks for up to open_timeout_ms.
/// Errors: INVALID_ARGUMENT, LOCKED, CORRUPT, UNSUPPORTED, IO; for a new copy also DISCARDED, OUT_OF_RANGE,
/// UNAVAILABLE, TIMEOUT, and errors of the servers.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_open(
    directory: *const c_char,
    servers: *const *const c_char,
    count: usize,
    start: u32,
    value: u64,
    options: *const chiplog_follower_options_t,
    follower: *mut *mut chiplog_follower_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(follower, "follower")?;
            let (directory, servers) = (path(directory, "directory")?, addresses(servers, count)?);
            let (start, options) = (self::start(start, value)?, read(options)?);
            let follower = without_signals(|| Follower::open(directory, servers, start, options))?;
            place.write(handle_table::insert(Following {
                follower,
                watched: Mutex::default(),
                gate: Mutex::new(None),
            })?);
            Ok(())
        })
    }
}

/// Returns the copy as a log, for reading and for its state. Appends and commands fail with NOT_LEADER. Closing the
/// log does not change the follower.
/// Ownership: `follower` borrowed; the caller owns `*log` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_log(
    follower: *const chiplog_follower_t,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(log, "log")?;
            place.write(handle_table::insert(Opened::new(get(follower)?.follower.log().clone(), false))?);
            Ok(())
        })
    }
}

/// Opens a reader of the copy. It contacts no server. At the end of the copy it waits for new records; it returns
/// CLOSED once the follower was closed or ended by itself. At a jump it returns DISCARDED: open a new reader at
/// CHIPLOG_START_FIRST.
/// Ownership: `follower` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_reader.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_reader(
    follower: *const chiplog_follower_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            reader::hand_out(reader, || get(follower)?.follower.reader(self::start(start, value)?))
        })
    }
}

/// Blocks until record `index` is here, or is known to be discarded.
/// Ownership: borrowed. Any thread. Blocks for up to `timeout_ms`.
/// Errors: TIMEOUT, CLOSED, FORKED; the reason why the follower ended by itself.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_wait_for(
    follower: *const chiplog_follower_t,
    index: u64,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || get(follower)?.follower.wait_for(index.into(), duration(timeout_ms))) }
}

/// Returns the state. Set `status->size` first. `*cause` (may be NULL) is the reason why the follower ended by
/// itself, or else the last failure, or NULL if there is neither.
/// Ownership: `follower` borrowed; the caller owns `status`; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_status(
    follower: *const chiplog_follower_t,
    status: *mut chiplog_follower_status_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: this function's condition. One place cannot hold both pointers.
        return unsafe { entry(error, || Err(invalid("cause and error must not point to the same place"))) };
    }
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(cause, std::ptr::null_mut());
            let now = get(follower)?.follower.status();
            let code = |error: &Option<Error>| error.as_ref().map_or(0, crate::abi::error::status);
            let shown = chiplog_follower_status_t {
                size: 0,
                first: now.first.get(),
                last: now.last.get(),
                source_last: now.source_last.get(),
                connected_for_ms: now.connected_since.map_or(0, |since: Instant| millis(since.elapsed())),
                connects: now.connects,
                jumps: now.jumps,
                received_bytes: now.received_bytes,
                received_records: now.received_records,
                server: fixed(now.server.as_deref().unwrap_or_default()),
                last_error: code(&now.last_error),
                stopped: code(&now.stopped),
                fed: now.fed.into(),
                reserved: [0; 7],
            };
            fill(status, "status", shown)?;
            if let (false, Some(why)) = (cause.is_null(), now.stopped.or(now.last_error)) {
                put(cause, hand_out(&why));
            }
            Ok(())
        })
    }
}

/// Returns the events since the last call, one at a time. Waits up to `timeout_ms` for one. Each event is returned to
/// one caller only. Up to 1,024 events wait to be taken; beyond that the oldest are dropped. Set `event->size` first.
/// `*cause` (may be NULL) is set as the kinds describe, else to NULL.
/// Ownership: `follower` borrowed; the caller owns `event`; the caller owns `*cause` and must close it. Any thread. Blocks.
/// Errors: TIMEOUT: there is no event; CLOSED: there will be no more; INVALID_ARGUMENT, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_next_event(
    follower: *mut chiplog_follower_t,
    timeout_ms: u64,
    event: *mut chiplog_event_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: this function's condition. One place cannot hold both pointers.
        return unsafe { entry(error, || Err(invalid("cause and error must not point to the same place"))) };
    }
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(cause, std::ptr::null_mut());
            let mut shown = chiplog_event_t {
                size: 0,
                kind: 0,
                cause: 0,
                from: 0,
                to: 0,
                server: [0; 264],
                before: [0; 264],
            };
            // Checked before an event is taken.
            fill(event, "event", shown)?;
            let mut why = None;
            match get(follower)?.next_event(duration(timeout_ms))? {
                FollowerEvent::Connected { server } => {
                    (shown.kind, shown.server) = (CHIPLOG_EVENT_CONNECTED, fixed(&server));
                }
                FollowerEvent::Switched { from, to } => {
                    shown.kind = CHIPLOG_EVENT_SWITCHED;
                    (shown.before, shown.server) = (fixed(&from), fixed(&to));
                }
                FollowerEvent::Jumped { from, to } => {
                    (shown.kind, shown.from, shown.to) = (CHIPLOG_EVENT_JUMPED, from.get(), to.get());
                }
                FollowerEvent::Discarded { first } => {
                    (shown.kind, shown.to) = (CHIPLOG_EVENT_DISCARDED, first.get());
                }
                FollowerEvent::Failed { server, error } => {
                    shown.kind = CHIPLOG_EVENT_FAILED;
                    shown.server = fixed(server.as_deref().unwrap_or_default());
                    why = Some(error);
                }
                FollowerEvent::Stopped { error } => {
                    shown.kind = CHIPLOG_EVENT_STOPPED;
                    why = Some(error);
                }
                FollowerEvent::Missed { events } => (shown.kind, shown.to) = (CHIPLOG_EVENT_MISSED, events),
                // A kind of a later version of this workspace: a number that the header says to ignore.
                _ => shown.kind = u32::MAX,
            }
            shown.cause = why.as_ref().map_or(0, crate::abi::error::status);
            fill(event, "event", shown)?;
            if let (false, Some(why)) = (cause.is_null(), why) {
                put(cause, hand_out(&why));
            }
            Ok(())
        })
    }
}

/// Calls `callback` once, when there is an event to take or there will be no more. If that is so already, the
/// callback runs at once on this thread, else on the follower's thread. A follower has one callback: a new callback,
/// or a descriptor, replaces the last. A descriptor that was handed out stays open, but does not change until
/// chiplog_follower_descriptor is called again.
/// Ownership: `context` is borrowed until the callback was called or replaced, or the follower has ended. Any thread.
/// Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_on_event(
    follower: *mut chiplog_follower_t,
    callback: chiplog_notify_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
            let following = get(follower)?;
            {
                let mut watched = following.watched();
                watched.is_hook = false;
                watched.signal.iter().for_each(Signal::lower);
            }
            // SAFETY: the caller promised that the callback may be called once with the context; the follower keeps
            // the gate until then.
            let gate = Gate::new(callback, context);
            let hook = gate.hook();
            let last = following.gate.lock().unwrap_or_else(PoisonError::into_inner).replace(gate);
            drop(last); // without the lock: the callback that it waits for may set the next callback
            following.follower.on_event(hook);
            Ok(())
        })
    }
}

/// Returns a descriptor that is readable (poll, epoll, select) while there may be an event. When it is readable, take
/// events with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there will be no more
/// events.
/// Ownership: the follower owns `*descriptor`, which is the same each time: do not read from it or close it; it is
/// closed with the follower. Any thread. Never blocks. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_descriptor(
    follower: *mut chiplog_follower_t,
    descriptor: *mut i32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(descriptor, -1);
            let following = get(follower)?;
            let mut watched = following.watched();
            let signal = match &watched.signal {
                Some(signal) => signal.clone(),
                None => watched.signal.insert(Signal::new()?).clone(),
            };
            if !std::mem::replace(&mut watched.is_hook, true) {
                following.arm(&signal);
            }
            put(descriptor, signal.as_raw_fd());
            Ok(())
        })
    }
}

/// Stops following, makes the received records durable, unlocks the directory, and closes the handle, whatever the
/// status. Does not wait for a server. Readers continue to the end of the copy.
/// Ownership: takes `follower`; NULL: CHIPLOG_OK. Any thread. Blocks for the disk.
/// Errors: POISONED: an earlier write failed; CLOSED: it is already closed; FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_close(
    follower: *mut chiplog_follower_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if follower.is_null() {
                return Ok(());
            }
            handle_table::close::<Following>(follower)?.follower.close()
        })
    }
}
