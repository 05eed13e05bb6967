//! Followers: a copy of a log in the program, kept up to date from any server.

use crate::abi::entry::{entry, entry_cause, entry_handle, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::growing::{Growing, fill};
use crate::abi::once_callback::Gate;
use crate::abi::pointers::{path, put};
use crate::abi::values;
use crate::abi::values::{chiplog_notify_fn, duration};
use crate::handles::client::connection::addresses;
use crate::handles::follower::events;
use crate::handles::follower::events::chiplog_event_t;
use crate::handles::follower::hook::{EventHook, Hook};
use crate::handles::follower::options;
use crate::handles::follower::options::chiplog_follower_options_t;
use crate::handles::follower::status;
use crate::handles::follower::status::chiplog_follower_status_t;
use crate::handles::log::open::{Opened, chiplog_log_t};
use crate::handles::reader::state::chiplog_reader_t;
use crate::support::handle_table;
use crate::support::handle_table::{Opaque, get, handle};
use crate::support::threads::without_signals;
use chiplog::{ErrorKind, Result};
use chiplog_net::follower::{Follower, FollowerEvent};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// The follower behind a handle.
pub(crate) struct Following {
    follower: Follower,
    hook: EventHook,
}

impl From<Follower> for Following {
    fn from(follower: Follower) -> Self {
        Self { follower, hook: EventHook::default() }
    }
}

/// A copy of a log in this process, kept up to date from any server of its cluster. It does not vote, and the cluster
/// need not know of it. Many threads may use it at once. It has threads of its own. In a forked child each call
/// returns CHIPLOG_FORKED.
pub struct chiplog_follower_t {
    _private: Opaque,
}

handle!(chiplog_follower_t is Following, 13, "follower");

impl Following {
    /// Returns the next event. If there is none and there is a descriptor, arms the descriptor.
    fn next_event(&self, limit: Duration) -> Result<FollowerEvent> {
        let next = self.follower.next_event(limit);
        if next.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) {
            self.hook.rearm(|hook| self.register(hook));
        }
        next
    }

    fn register(&self, hook: Hook) {
        self.follower.on_event(hook);
    }
}

/// Opens the copy in `directory`, or creates one there. `servers`: `count` addresses, `host:port`; one that runs is
/// enough. A new copy begins at `start` (CHIPLOG_START_...; `value`: its number, else 0), with the block that holds
/// that record. `options` may be NULL for the defaults.
/// Ownership: all borrowed for the call; the caller owns `*follower` and must close it. Any thread. An existing copy
/// is opened without a server. A new copy needs one: the call blocks for up to open_timeout_ms.
/// Errors: INVALID_ARGUMENT, LOCKED, CORRUPT, UNSUPPORTED, IO; for a new copy also DISCARDED, OUT_OF_RANGE,
/// UNAVAILABLE, TIMEOUT, and errors of the servers.
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
    entry_handle(error, follower, "follower", || {
        let (directory, servers) = (path(directory, "directory")?, addresses(servers, count)?);
        let (start, options) = (values::start(start, value)?, options::read(options)?);
        without_signals(|| Follower::open(directory, servers, start, options))
    })
}

/// Returns the copy as a log, for reading and for its state. Appends and commands fail with NOT_LEADER. Closing the
/// log does not change the follower.
/// Ownership: `follower` borrowed; the caller owns `*log` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_log(
    follower: *const chiplog_follower_t,
    log: *mut *mut chiplog_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, log, "log", || Ok(Opened::new(get(follower)?.follower.log().clone(), false)))
}

/// Opens a reader of the copy. It contacts no server. At the end of the copy it waits for new records; it returns
/// CLOSED once the follower was closed or ended by itself. At a jump it returns DISCARDED: open a new reader at
/// CHIPLOG_START_FIRST.
/// Ownership: `follower` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_reader(
    follower: *const chiplog_follower_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, reader, "reader", || get(follower)?.follower.reader(values::start(start, value)?))
}

/// Blocks until record `index` is here, or is known to be discarded.
/// Ownership: borrowed. Any thread. Blocks for up to `timeout_ms`.
/// Errors: TIMEOUT, CLOSED, FORKED; the reason why the follower ended by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_wait_for(
    follower: *const chiplog_follower_t,
    index: u64,
    timeout_ms: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || get(follower)?.follower.wait_for(index.into(), duration(timeout_ms)))
}

/// Returns the state. Set `status->size` first. `*cause` (may be NULL) is the reason why the follower ended by
/// itself, or else the last failure, or NULL if there is neither.
/// Ownership: `follower` borrowed; the caller owns `status`; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_status(
    follower: *const chiplog_follower_t,
    status: *mut chiplog_follower_status_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_cause(error, cause, || {
        let now = get(follower)?.follower.status();
        fill(status, "status", status::shown(&now))?;
        Ok(now.stopped.or(now.last_error))
    })
}

/// Returns the events since the last call, one at a time. Waits up to `timeout_ms` for one. Each event is returned to
/// one caller only. Up to 1,024 events wait to be taken; beyond that the oldest are dropped. Set `event->size` first.
/// `*cause` (may be NULL) is set as the kinds describe, else to NULL.
/// Ownership: `follower` borrowed; the caller owns `event`; the caller owns `*cause` and must close it. Any thread. Blocks.
/// Errors: TIMEOUT: there is no event; CLOSED: there will be no more; INVALID_ARGUMENT, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_next_event(
    follower: *mut chiplog_follower_t,
    timeout_ms: u64,
    event: *mut chiplog_event_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_cause(error, cause, || {
        fill(event, "event", chiplog_event_t::zeros())?; // checked before an event is taken
        let (shown, why) = events::shown(get(follower)?.next_event(duration(timeout_ms))?);
        fill(event, "event", shown)?;
        Ok(why)
    })
}

/// Calls `callback` once, when there is an event to take or there will be no more. If that is so already, the
/// callback runs at once on this thread, else on the follower's thread. A follower has one callback: a new callback,
/// or a descriptor, replaces the last. A descriptor that was handed out stays open, but does not change until
/// chiplog_follower_descriptor is called again.
/// Ownership: `context` is borrowed until the callback was called or replaced, or the follower has ended. Any thread.
/// Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_on_event(
    follower: *mut chiplog_follower_t,
    callback: chiplog_notify_fn,
    context: *mut c_void,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let gate = Gate::new(callback, context)?;
        let following = get(follower)?;
        following.hook.set_callback(gate, |hook| following.register(hook));
        Ok(())
    })
}

/// Returns a descriptor that is readable (poll, epoll, select) while there may be an event. When it is readable, take
/// events with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there will be no more
/// events.
/// Ownership: the follower owns `*descriptor`, which is the same each time: do not read from it or close it; it is
/// closed with the follower. Any thread. Never blocks. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_descriptor(
    follower: *mut chiplog_follower_t,
    descriptor: *mut i32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, descriptor, || {
        put(descriptor, -1);
        let following = get(follower)?;
        following.hook.descriptor(|hook| following.register(hook))
    })
}

/// Stops following, makes the received records durable, unlocks the directory, and closes the handle, whatever the
/// status. Does not wait for a server. Readers continue to the end of the copy.
/// Ownership: takes `follower`; NULL: CHIPLOG_OK. Any thread. Blocks for the disk.
/// Errors: POISONED: an earlier write failed; CLOSED: it is already closed; FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_close(
    follower: *mut chiplog_follower_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        if follower.is_null() {
            return Ok(());
        }
        handle_table::close(follower)?.follower.close()
    })
}
