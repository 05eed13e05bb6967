//! The functions of a client, and its watches.

use crate::abi::entry::{entry, entry_handle, entry_struct, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::growing::{Growing, growing};
use crate::abi::values::{fixed, timeout};
use crate::handles::client::connection::addresses;
use crate::handles::client::options;
use crate::handles::client::options::chiplog_client_options_t;
use crate::handles::producer;
use crate::handles::producer::{chiplog_producer_options_t, chiplog_producer_t};
use crate::support::handle_table::{Opaque, get, handle, release};
use crate::support::panic_guard::lock;
use crate::support::threads::{without_signals, without_sigpipe};
use chiplog_net::client::RemoteInfo;
use chiplog_net::client::blocking::{Client, Watch};
use chiplog_net::wire::ids::to_hex;
use std::ffi::c_char;
use std::sync::Mutex;
use std::time::Duration;

/// A log over the network. Many threads may use it at once. It has a thread of its own, which runs the callbacks: a
/// callback may only make calls that never wait. In a forked child each call returns CHIPLOG_FORKED.
pub struct chiplog_client_t {
    _private: Opaque,
}

handle!(chiplog_client_t is Client, 10, "client");

/// Reports the state of a log whenever it changes. One thread at a time: other calls wait.
pub struct chiplog_watch_t {
    _private: Opaque,
}

handle!(chiplog_watch_t is Mutex<Watch>, 11, "watch");

/// The state of a log, from a server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_remote_info_t {
    /// sizeof(chiplog_remote_info_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// The first record that is not discarded. For an empty log: the first one to be appended.
    pub first: u64,
    /// The last committed record. For an empty log: first - 1.
    pub last: u64,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`. 0: none.
    pub bytes_capacity: u64,
    /// The replica that answered.
    pub node: u64,
    /// The leader. 0: unknown.
    pub leader: u64,
    /// The log's permanent name: 32 hexadecimal digits and a NUL. Empty: unknown.
    pub log_id: [c_char; 40],
    /// Where the leader serves clients, `host:port`. Empty: unknown.
    pub leader_address: [c_char; 264],
    /// The first record in the files of that replica. Those before it, from first on, are in the object store: a read fetches them
    /// from there. 0: it did not say.
    pub first_local: u64,
}

growing!(chiplog_remote_info_t);

fn shown(info: RemoteInfo) -> chiplog_remote_info_t {
    chiplog_remote_info_t {
        first: info.first.get(),
        last: info.last.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity.unwrap_or(0),
        node: info.node.get(),
        leader: info.leader.map_or(0, |node| node.get()),
        log_id: fixed(&to_hex(info.log_id.get())),
        leader_address: fixed(info.leader_address.as_deref().unwrap_or_default()),
        first_local: info.first_local.map_or(0, |first| first.get()),
        ..Growing::zeros()
    }
}

/// Connects to the cluster that these `count` servers, `host:port`, belong to. One that answers is enough: the client
/// learns the others from it. `options` may be NULL for the defaults.
/// Ownership: all borrowed for the call; the caller owns `*client` and must close it. Any thread. Blocks for up to
/// timeout_ms.
/// Errors: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, TIMEOUT, NOT_FOUND (no log of that name),
/// UNSUPPORTED, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_connect(
    servers: *const *const c_char,
    count: usize,
    options: *const chiplog_client_options_t,
    client: *mut *mut chiplog_client_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, client, "client", || {
        let (servers, options) = (addresses(servers, count)?, options::read(options)?);
        without_signals(|| Client::connect(servers, options))
    })
}

/// Opens a producer, which collects records into batches, keeps several in flight, and sends again after a failure.
/// `options` may be NULL for the defaults.
/// Ownership: `client`, `options` borrowed for the call; the caller owns `*producer` and must close it. Any thread. Blocks.
/// Errors: INVALID_ARGUMENT, UNAVAILABLE, TIMEOUT, FORKED, and errors of the servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_producer(
    client: *const chiplog_client_t,
    options: *const chiplog_producer_options_t,
    producer: *mut *mut chiplog_producer_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, producer, "producer", || {
        let (options, client) = (producer::read(options)?, get(client)?);
        without_sigpipe(|| client.producer(options))
    })
}

/// Returns the state of the log, including everything that was acknowledged before the call. Set `info->size` first.
/// Ownership: `client` borrowed; the caller owns `info`. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: TIMEOUT, UNAVAILABLE: no leader answered; errors of the leader; INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info(
    client: *const chiplog_client_t,
    info: *mut chiplog_remote_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, info, "info", || {
        let client = get(client)?;
        without_sigpipe(|| client.info()).map(shown)
    })
}

/// As chiplog_client_info, but needs no majority: returns what the replicas know. It can be out of date by one
/// election.
/// Ownership and threads as chiplog_client_info. Errors: the same; UNAVAILABLE: no server answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info_stale(
    client: *const chiplog_client_t,
    info: *mut chiplog_remote_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, info, "info", || {
        let client = get(client)?;
        without_sigpipe(|| client.info_stale()).map(shown)
    })
}

/// Discards all records below `first`.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms. Errors: as chiplog_client_info.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_discard(
    client: *const chiplog_client_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let client = get(client)?;
        without_sigpipe(|| client.discard(first.into()))
    })
}

/// Opens a session for a producer that continues in it after a restart of the program. Pass `*session` in the
/// producer's options.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: as chiplog_client_info; TOO_MANY_SESSIONS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_open_session(
    client: *const chiplog_client_t,
    session: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, session, || {
        let client = get(client)?;
        without_sigpipe(|| client.open_session()).map(|session| session.get())
    })
}

/// Returns the largest batch that the servers accept, in bytes, as last reported by them: `*bytes`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_batch_bytes_max(
    client: *const chiplog_client_t,
    bytes: *mut usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, bytes, || Ok(get(client)?.batch_bytes_max()))
}

/// Opens a watch on the state of the log. Changes within `interval_ms` are reported together.
/// Ownership: `client` borrowed; the caller owns `*watch` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_watch(
    client: *const chiplog_client_t,
    interval_ms: u64,
    watch: *mut *mut chiplog_watch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, watch, "watch", || Ok(get(client)?.watch(Duration::from_millis(interval_ms))))
}

/// Closes a client. Its producers and readers continue. Does nothing if it is NULL or already closed.
/// Ownership: takes `client`. Any thread. Closing the last of the client and its producers, readers and watches ends
/// the client's thread and waits for it. Records that producers had not sent by then are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_client_close(client: *mut chiplog_client_t) {
    release(client);
}

/// Returns the state of the log: at once the first time, then after each change. Waits up to `timeout_ms`. Set
/// `info->size` first.
/// Ownership: `watch` borrowed; the caller owns `info`. One thread at a time. Blocks.
/// Errors: TIMEOUT: nothing changed; UNAVAILABLE: no server answered in time; INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_watch_next(
    watch: *mut chiplog_watch_t,
    timeout_ms: u64,
    info: *mut chiplog_remote_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, info, "info", || {
        let watch = get(watch)?;
        let mut watch = lock(&watch);
        let next = without_sigpipe(|| match timeout(timeout_ms) {
            None => watch.next(),
            Some(limit) => watch.next_within(limit),
        });
        next.map(shown)
    })
}

/// Closes a watch. Does nothing if it is NULL or already closed.
/// Ownership: takes `watch`. Any thread. Does not block for long; see chiplog_client_close.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_watch_close(watch: *mut chiplog_watch_t) {
    release(watch);
}
