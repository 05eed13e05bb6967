//! The client: a log over the network. Options, calls, readers, watches.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::{
    Sized0, bytes_of, duration, fill, fixed, init, millis, options, out, put, start, text, text_or_none,
    timeout,
};
use crate::handles::log::chiplog_info_t;
use crate::handles::producer;
use crate::handles::producer::{Producing, chiplog_producer_options_t, chiplog_producer_t};
use crate::handles::reader::{Reading, chiplog_reader_t};
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::{without_signals, without_sigpipe};
use chiplog::Result;
use chiplog_net::client::blocking::{Client, Watch};
use chiplog_net::client::{ClientOptions, ClientTls, ReadFrom, ReaderOptions, RemoteInfo, Secret};
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The client behind a handle.
pub(crate) struct Connected(Client);

/// The watch behind a handle.
pub(crate) struct Watching(Mutex<Watch>);

/// A log over the network. Many threads may use it at once. It has a thread of its own, which runs the callbacks: a
/// callback may only make calls that never wait. In a forked child each call returns CHIPLOG_FORKED.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_client_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_client_t is Connected, 10, "client");

/// Reports the state of a log whenever it changes. One thread at a time: other calls wait.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_watch_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_watch_t is Watching, 11, "watch");

/// Deadlines and limits of a client. Fill it with chiplog_client_options_init, then set the fields that should
/// differ.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_client_options_t {
    /// sizeof(chiplog_client_options_t) as the caller was compiled with it.
    pub size: usize,
    /// The name of the log. NULL or empty, the default: the server's only log.
    pub log: *const c_char,
    /// The token that is sent with every call, if the servers require one. NULL, the default: none.
    pub token: *const c_char,
    /// TLS: the authority that signed the servers' certificates, PEM. NULL, the default: no TLS.
    pub tls_authority: *const c_void,
    /// Its length in bytes.
    pub tls_authority_length: usize,
    /// This client's certificate, PEM, if the servers require one. NULL: none.
    pub tls_certificate: *const c_void,
    /// Its length in bytes.
    pub tls_certificate_length: usize,
    /// The private key of the certificate, PEM.
    pub tls_key: *const c_void,
    /// Its length in bytes.
    pub tls_key_length: usize,
    /// Time limit of a call with all its attempts, default 30 s.
    pub timeout_ms: u64,
    /// Time limit of one attempt, default 10 s.
    pub attempt_timeout_ms: u64,
    /// Time limit for opening a connection, default 2 s.
    pub connect_timeout_ms: u64,
    /// Time limit for one server's answer when the client asks all of them for the leader, default 1 s.
    pub probe_timeout_ms: u64,
    /// The wait after the first failure, default 10 ms. It doubles after each further failure.
    pub backoff_min_ms: u64,
    /// The longest wait after a failure, default 1 s.
    pub backoff_max_ms: u64,
    /// A connection is tested after this long without data from the other side. Default 5 s.
    pub keep_alive_ms: u64,
    /// Bytes that a server may send ahead on a stream, default 4 MiB.
    pub window_bytes: u32,
    /// Whether the token may be sent to other machines without TLS: 1 or 0. Default 0: the client does not use such a
    /// server.
    pub token_in_plain_text: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 3],
}

impl Sized0 for chiplog_client_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// Read from any replica: acknowledged records become visible after a moment.
pub const CHIPLOG_READ_FROM_ANY: u32 = 0;
/// Read from the leader: acknowledged records are visible at once.
pub const CHIPLOG_READ_FROM_LEADER: u32 = 1;
/// Read from a replica of the zone if one answers, else from any replica.
pub const CHIPLOG_READ_FROM_NEAREST: u32 = 2;

/// Where and how a reader reads over the network. Fill it with chiplog_reader_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_reader_options_t {
    /// sizeof(chiplog_reader_options_t) as the caller was compiled with it.
    pub size: usize,
    /// CHIPLOG_READ_FROM_..., default ANY.
    pub from: u32,
    /// Whether the reader waits at the end for new records: 1 or 0. Default 1. With 0 it ends there.
    pub follow: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 3],
    /// The zone of CHIPLOG_READ_FROM_NEAREST.
    pub zone: *const c_char,
    /// The reader waits for a replica that does not have this record yet. Default 0.
    pub min_index: u64,
    /// The interval at which an idle server sends a sign of life, default 3 s.
    pub keep_alive_ms: u64,
    /// How long servers are tried before the reader returns an error, default 30 s.
    pub timeout_ms: u64,
}

impl Sized0 for chiplog_reader_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

fn client_defaults() -> chiplog_client_options_t {
    let d = ClientOptions::default();
    chiplog_client_options_t {
        size: size_of::<chiplog_client_options_t>(),
        log: std::ptr::null(),
        token: std::ptr::null(),
        tls_authority: std::ptr::null(),
        tls_authority_length: 0,
        tls_certificate: std::ptr::null(),
        tls_certificate_length: 0,
        tls_key: std::ptr::null(),
        tls_key_length: 0,
        timeout_ms: millis(d.timeout),
        attempt_timeout_ms: millis(d.attempt_timeout),
        connect_timeout_ms: millis(d.connect_timeout),
        probe_timeout_ms: millis(d.probe_timeout),
        backoff_min_ms: millis(d.backoff_min),
        backoff_max_ms: millis(d.backoff_max),
        keep_alive_ms: millis(d.keep_alive),
        window_bytes: d.window_bytes,
        token_in_plain_text: 0,
        reserved: [0; 3],
    }
}

fn reader_defaults() -> chiplog_reader_options_t {
    let d = ReaderOptions::default();
    chiplog_reader_options_t {
        size: size_of::<chiplog_reader_options_t>(),
        from: CHIPLOG_READ_FROM_ANY,
        follow: 1,
        reserved: [0; 3],
        zone: std::ptr::null(),
        min_index: 0,
        keep_alive_ms: millis(d.keep_alive),
        timeout_ms: millis(d.timeout),
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As [`options`]. Its pointers are as [`text`] and [`bytes`] require.
unsafe fn client_options(given: *const chiplog_client_options_t) -> Result<ClientOptions> {
    // SAFETY: this function's condition.
    let given = unsafe { options(given, client_defaults()) }?;
    if given.token_in_plain_text > 1 || given.reserved != [0; 3] {
        return Err(invalid("client options: token_in_plain_text must be 0 or 1, and reserved must be 0"));
    }
    let mut options = ClientOptions::default();
    // SAFETY: this function's condition; also below.
    options.log = unsafe { text_or_none(given.log, "log") }?;
    // SAFETY: as above.
    options.token = unsafe { secret(given.token) }?;
    // SAFETY: as above.
    options.tls = unsafe {
        tls(
            (given.tls_authority, given.tls_authority_length),
            (given.tls_certificate, given.tls_certificate_length),
            (given.tls_key, given.tls_key_length),
        )
    }?;
    options.timeout = duration(given.timeout_ms);
    options.attempt_timeout = duration(given.attempt_timeout_ms);
    options.connect_timeout = duration(given.connect_timeout_ms);
    options.probe_timeout = duration(given.probe_timeout_ms);
    options.backoff_min = duration(given.backoff_min_ms);
    options.backoff_max = duration(given.backoff_max_ms);
    options.keep_alive = duration(given.keep_alive_ms);
    options.window_bytes = given.window_bytes;
    options.token_in_plain_text = given.token_in_plain_text == 1;
    Ok(options)
}

/// # Safety
/// `token` is NULL or a C string.
pub(crate) unsafe fn secret(token: *const c_char) -> Result<Option<Secret>> {
    // SAFETY: this function's condition.
    let token = unsafe { text_or_none(token, "token") }?;
    Ok((!token.is_empty()).then(|| token.into()))
}

type Pem = (*const c_void, usize);

/// # Safety
/// Each is as [`bytes`] requires.
pub(crate) unsafe fn tls(authority: Pem, certificate: Pem, key: Pem) -> Result<Option<ClientTls>> {
    if authority.0.is_null() {
        return match (certificate.0.is_null(), key.0.is_null()) {
            (true, true) => Ok(None),
            (false, _) => Err(invalid("tls_certificate is set without tls_authority: set both")),
            _ => Err(invalid("tls_key is set without tls_authority: set both")),
        };
    }
    match (certificate.0.is_null(), key.0.is_null()) {
        (false, true) => return Err(invalid("tls_certificate is set without tls_key: set both")),
        (true, false) => return Err(invalid("tls_key is set without tls_certificate: set both")),
        _ => {}
    }
    let given_certificate = certificate.0;
    // SAFETY: this function's condition.
    let [authority, certificate, key] = unsafe {
        let pem = |(data, length): Pem, name: &str| {
            bytes_of(data, length, || (name.to_owned(), format!("{name}_length"))).map(<[u8]>::to_vec)
        };
        [pem(authority, "tls_authority")?, pem(certificate, "tls_certificate")?, pem(key, "tls_key")?]
    };
    let has_identity = !given_certificate.is_null();
    if authority.is_empty() || has_identity && (certificate.is_empty() || key.is_empty()) {
        return Err(invalid("tls_authority, tls_certificate or tls_key is empty"));
    }
    Ok(Some(ClientTls { authority, identity: has_identity.then_some((certificate, key)) }))
}

/// # Safety
/// `servers` is NULL or points to `count` C strings.
pub(crate) unsafe fn addresses(servers: *const *const c_char, count: usize) -> Result<Vec<String>> {
    if count == 0 || servers.is_null() {
        return Err(invalid("no address of a server: pass at least one host:port"));
    }
    // SAFETY: this function's condition.
    (0..count).map(|n| unsafe { text(*servers.add(n), "a server's address") }.map(str::to_owned)).collect()
}

fn remote_info(told: &RemoteInfo) -> chiplog_info_t {
    chiplog_info_t {
        size: 0,
        first: told.first.get(),
        last: told.last.get(),
        durable: told.last.get(),
        bytes_used: told.bytes_used,
        bytes_capacity: told.bytes_capacity.unwrap_or(0),
        segments: 0,
        sessions: 0,
        last_timestamp_ms: 0,
        node: told.node.get(),
        leader: told.leader.map_or(0, |node| node.get()),
        log_id: fixed(&chiplog_net::wire::ids::to_hex(told.log_id.get())),
        directory_id: [0; 40],
        leader_address: fixed(told.leader_address.as_deref().unwrap_or_default()),
        follows: 0,
        reserved: [0; 7],
    }
}

fn get(client: *const chiplog_client_t) -> Result<handle_table::Pinned<Connected>> {
    handle_table::get::<Connected>(client)
}

/// Fills options with their defaults. `size`: sizeof(chiplog_client_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_options_init(options: *mut chiplog_client_options_t, size: usize) {
    // SAFETY: this function's condition.
    plain((), || unsafe { init(options, size, client_defaults()) });
}

/// Fills options with their defaults. `size`: sizeof(chiplog_reader_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_options_init(options: *mut chiplog_reader_options_t, size: usize) {
    // SAFETY: this function's condition.
    plain((), || unsafe { init(options, size, reader_defaults()) });
}

/// Connects to the cluster that these `count` servers, `host:port`, belong to. One that answers is enough: the client
/// learns the others from it. `options` may be NULL for the defaults.
/// Ownership: all borrowed for the call; the caller owns `*client` and must close it. Any thread. Blocks for up to
/// timeout_ms.
/// Errors: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, TIMEOUT, NOT_FOUND (no log of that name),
/// UNSUPPORTED, IO.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_connect(
    servers: *const *const c_char,
    count: usize,
    options: *const chiplog_client_options_t,
    client: *mut *mut chiplog_client_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(client, "client")?;
            let (servers, options) = (addresses(servers, count)?, client_options(options)?);
            let connected = without_signals(|| Client::connect(servers, options))?;
            place.write(handle_table::insert(Connected(connected))?);
            Ok(())
        })
    }
}

/// Opens a producer, which collects records into batches, keeps several in flight, and sends again after a failure.
/// `options` may be NULL for the defaults.
/// Ownership: `client`, `options` borrowed for the call; the caller owns `*producer` and must close it. Any thread. Blocks.
/// Errors: INVALID_ARGUMENT, UNAVAILABLE, TIMEOUT, FORKED, and errors of the servers.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_producer(
    client: *const chiplog_client_t,
    options: *const chiplog_producer_options_t,
    producer: *mut *mut chiplog_producer_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(producer, "producer")?;
            let options = producer::read(options)?;
            let client = get(client)?;
            let made = without_sigpipe(|| client.0.producer(options))?;
            place.write(handle_table::insert(Producing::new(made))?);
            Ok(())
        })
    }
}

/// Opens a reader that follows the log over the network from `start` on (CHIPLOG_START_...; `value`: its number, else
/// 0). It connects at the first read and switches to another server when one fails. `options` may be NULL for the
/// defaults.
/// Ownership: `client`, `options` borrowed for the call; the caller owns `*reader` and must close it; it may outlive the client.
/// Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_reader(
    client: *const chiplog_client_t,
    start: u32,
    value: u64,
    options: *const chiplog_reader_options_t,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(reader, "reader")?;
            let given = self::options(options, reader_defaults())?;
            if given.follow > 1 || given.reserved != [0; 3] {
                return Err(invalid("reader options: follow must be 0 or 1, and reserved must be 0"));
            }
            let mut options = ReaderOptions::default();
            options.from = match given.from {
                CHIPLOG_READ_FROM_ANY => ReadFrom::Any,
                CHIPLOG_READ_FROM_LEADER => ReadFrom::Leader,
                CHIPLOG_READ_FROM_NEAREST => ReadFrom::Nearest(text(given.zone, "zone")?.to_owned()),
                other => return Err(invalid(format!("{other} is not one of CHIPLOG_READ_FROM_..."))),
            };
            options.follow = given.follow == 1;
            options.min_index = given.min_index.into();
            options.keep_alive = duration(given.keep_alive_ms);
            options.timeout = duration(given.timeout_ms);
            let made = get(client)?.0.reader_with(self::start(start, value)?, options);
            place.write(handle_table::insert(Reading::remote(made))?);
            Ok(())
        })
    }
}

/// Returns the state of the log, including everything that was acknowledged before the call. Set `info->size` first.
/// Ownership: `client` borrowed; the caller owns `info`. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: TIMEOUT, UNAVAILABLE: no leader answered; errors of the leader; INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info(
    client: *const chiplog_client_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            fill(info, "info", remote_info(&without_sigpipe(|| client.0.info())?))
        })
    }
}

/// As chiplog_client_info, but needs no majority: returns what the replicas know. It can be out of date by one
/// election.
/// Ownership and threads as chiplog_client_info. Errors: the same; UNAVAILABLE: no server answered.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info_stale(
    client: *const chiplog_client_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            fill(info, "info", remote_info(&without_sigpipe(|| client.0.info_stale())?))
        })
    }
}

/// Discards all records below `first`.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms. Errors: as chiplog_client_info.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_discard(
    client: *const chiplog_client_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            without_sigpipe(|| client.0.discard(first.into()))
        })
    }
}

/// Opens a session for a producer that continues in it after a restart of the program. Pass `*session` in the
/// producer's options.
/// Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
/// Errors: as chiplog_client_info; TOO_MANY_SESSIONS.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_open_session(
    client: *const chiplog_client_t,
    session: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            put(session, without_sigpipe(|| client.0.open_session())?.get());
            Ok(())
        })
    }
}

/// Returns the largest batch that the servers accept, in bytes, as last reported by them: `*bytes`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_batch_bytes_max(
    client: *const chiplog_client_t,
    bytes: *mut usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(bytes, get(client)?.0.batch_bytes_max());
            Ok(())
        })
    }
}

/// Opens a watch on the state of the log. Changes within `interval_ms` are reported together.
/// Ownership: `client` borrowed; the caller owns `*watch` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_watch(
    client: *const chiplog_client_t,
    interval_ms: u64,
    watch: *mut *mut chiplog_watch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(watch, "watch")?;
            let made = get(client)?.0.watch(Duration::from_millis(interval_ms));
            place.write(handle_table::insert(Watching(Mutex::new(made)))?);
            Ok(())
        })
    }
}

/// Closes a client. Its producers and readers continue. Does nothing if it is NULL or already closed.
/// Ownership: takes `client`. Any thread. Closing the last of the client and its producers, readers and watches ends
/// the client's thread and waits for it. Records that producers had not sent by then are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_client_close(client: *mut chiplog_client_t) {
    plain((), || drop(handle_table::close::<Connected>(client)));
}

/// Returns the state of the log: at once the first time, then after each change. Waits up to `timeout_ms`. Set
/// `info->size` first.
/// Ownership: `watch` borrowed; the caller owns `info`. One thread at a time. Blocks.
/// Errors: TIMEOUT: nothing changed; UNAVAILABLE: no server answered in time; INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_watch_next(
    watch: *mut chiplog_watch_t,
    timeout_ms: u64,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let watching = handle_table::get::<Watching>(watch)?;
            let mut watch = watching.0.lock().unwrap_or_else(PoisonError::into_inner);
            let told = without_sigpipe(|| match timeout(timeout_ms) {
                None => watch.next(),
                Some(limit) => watch.next_within(limit),
            })?;
            fill(info, "info", remote_info(&told))
        })
    }
}

/// Closes a watch. Does nothing if it is NULL or already closed.
/// Ownership: takes `watch`. Any thread. Does not block for long; see chiplog_client_close.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_watch_close(watch: *mut chiplog_watch_t) {
    plain((), || drop(handle_table::close::<Watching>(watch)));
}
