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

/// A client as C holds it.
pub(crate) struct Connected(Client);

/// A watch as C holds it.
pub(crate) struct Watching(Mutex<Watch>);

/// A log over the network. Any thread may use it, many at once. It has a thread of its own, on which callbacks run: in
/// them only what never waits is allowed. In a forked child every call is CHIPLOG_FORKED.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_client_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_client_t is Connected, 10, "client");

/// Tells how a log stands, whenever that changes. One thread at a time: others wait meanwhile.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_watch_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_watch_t is Watching, 11, "watch");

/// Deadlines and limits of a client. Fill it with chiplog_client_options_init, then change what is to be different.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_client_options_t {
    /// sizeof(chiplog_client_options_t), as the caller knows it.
    pub size: usize,
    /// Which log; NULL or empty, the default: the server's only one.
    pub log: *const c_char,
    /// The token that is shown with every call, where servers want one; NULL, the default: none.
    pub token: *const c_char,
    /// TLS: who has to have signed the servers' certificates, PEM. NULL, the default: no TLS.
    pub tls_authority: *const c_void,
    /// Bytes of it.
    pub tls_authority_length: usize,
    /// This client's certificate, PEM, where servers want one; NULL: none.
    pub tls_certificate: *const c_void,
    /// Bytes of it.
    pub tls_certificate_length: usize,
    /// Its private key, PEM.
    pub tls_key: *const c_void,
    /// Bytes of it.
    pub tls_key_length: usize,
    /// How long a call may take with all its attempts, default 30 s.
    pub timeout_ms: u64,
    /// How long one attempt may take, default 10 s.
    pub attempt_timeout_ms: u64,
    /// How long a connection may take to come about, default 2 s.
    pub connect_timeout_ms: u64,
    /// How long a server is waited for when all are asked who leads, default 1 s.
    pub probe_timeout_ms: u64,
    /// The wait after a first failure, default 10 ms; twice as long after each further one.
    pub backoff_min_ms: u64,
    /// The longest such wait, default 1 s.
    pub backoff_max_ms: u64,
    /// After so long without a sign of the other side a connection is tested. Default 5 s.
    pub keep_alive_ms: u64,
    /// Bytes that a server may send ahead on a stream, default 4 MiB.
    pub window_bytes: u32,
    /// Whether the token may go to other machines without TLS: 1 or 0. Default 0: such a server is not asked.
    pub token_in_plain_text: u8,
    /// Not used; 0.
    pub reserved: [u8; 3],
}

impl Sized0 for chiplog_client_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// Read from any replica: what was acknowledged is there a moment later.
pub const CHIPLOG_READ_FROM_ANY: u32 = 0;
/// Read from the leader: what was acknowledged is there at once.
pub const CHIPLOG_READ_FROM_LEADER: u32 = 1;
/// Read from a replica of the zone, if one answers; else from any.
pub const CHIPLOG_READ_FROM_NEAREST: u32 = 2;

/// Where and how a reader reads over the network. Fill it with chiplog_reader_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_reader_options_t {
    /// sizeof(chiplog_reader_options_t), as the caller knows it.
    pub size: usize,
    /// CHIPLOG_READ_FROM_..., default ANY.
    pub from: u32,
    /// Waits at the end for what comes: 1 or 0. Default 1; 0: ends there.
    pub follow: u8,
    /// Not used; 0.
    pub reserved: [u8; 3],
    /// Of CHIPLOG_READ_FROM_NEAREST: which zone.
    pub zone: *const c_char,
    /// A replica that does not have this record yet is waited for. Default 0.
    pub min_index: u64,
    /// How often an idle server says that it is there, default 3 s.
    pub keep_alive_ms: u64,
    /// How long servers are tried before an error is given, default 30 s.
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

/// Rust's options out of what the caller gave.
///
/// # Safety
/// As [`options`], and what it points to as [`text`] and [`bytes`] want it.
unsafe fn client_options(given: *const chiplog_client_options_t) -> Result<ClientOptions> {
    // SAFETY: this function's condition.
    let given = unsafe { options(given, client_defaults()) }?;
    if given.token_in_plain_text > 1 || given.reserved != [0; 3] {
        return Err(invalid("client options: token_in_plain_text has to be 0 or 1, reserved 0"));
    }
    let mut options = ClientOptions::default();
    // SAFETY: this function's condition, thrice.
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
/// Each as [`bytes`] wants it.
pub(crate) unsafe fn tls(authority: Pem, certificate: Pem, key: Pem) -> Result<Option<ClientTls>> {
    if authority.0.is_null() {
        return match (certificate.0.is_null(), key.0.is_null()) {
            (true, true) => Ok(None),
            (false, _) => Err(invalid("tls_certificate is given without tls_authority")),
            _ => Err(invalid("tls_key is given without tls_authority")),
        };
    }
    match (certificate.0.is_null(), key.0.is_null()) {
        (false, true) => return Err(invalid("tls_certificate is given without tls_key")),
        (true, false) => return Err(invalid("tls_key is given without tls_certificate")),
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
/// `servers` is NULL or so many C strings.
pub(crate) unsafe fn addresses(servers: *const *const c_char, count: usize) -> Result<Vec<String>> {
    if count == 0 || servers.is_null() {
        return Err(invalid("no server's address"));
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
/// Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_options_init(options: *mut chiplog_client_options_t, size: usize) {
    // SAFETY: the caller's word.
    plain((), || unsafe { init(options, size, client_defaults()) });
}

/// Fills options with their defaults. `size`: sizeof(chiplog_reader_options_t).
/// Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_options_init(options: *mut chiplog_reader_options_t, size: usize) {
    // SAFETY: the caller's word.
    plain((), || unsafe { init(options, size, reader_defaults()) });
}

/// Finds the cluster that these `count` servers, `host:port`, are part of. One that answers is enough; the others are learnt
/// from it. `options`: NULL for the defaults.
/// Ownership: all borrowed for the call; `*client`: the caller's, to be closed. Any thread. Blocks, for at most timeout_ms.
/// Errors: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, TIMEOUT, NOT_FOUND (no log of that name),
/// UNSUPPORTED, IO.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_connect(
    servers: *const *const c_char,
    count: usize,
    options: *const chiplog_client_options_t,
    client: *mut *mut chiplog_client_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// A producer: gathers records into batches, keeps several under way, sends again what a failure left open. `options`: NULL
/// for the defaults.
/// Ownership: `client`, `options` borrowed for the call; `*producer`: the caller's, to be closed. Any thread. Blocks.
/// Errors: INVALID_ARGUMENT, UNAVAILABLE, TIMEOUT, FORKED, and what the servers refuse with.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_producer(
    client: *const chiplog_client_t,
    options: *const chiplog_producer_options_t,
    producer: *mut *mut chiplog_producer_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// A reader that follows the log over the network from `start` on (CHIPLOG_START_...; `value`: its number, else 0). It
/// connects when it is first asked, and goes on elsewhere when a server fails. `options`: NULL for the defaults.
/// Ownership: `client`, `options` borrowed for the call; `*reader`: the caller's, to be closed; it may outlive the client.
/// Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_reader(
    client: *const chiplog_client_t,
    start: u32,
    value: u64,
    options: *const chiplog_reader_options_t,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let place = out(reader, "reader")?;
            let given = self::options(options, reader_defaults())?;
            if given.follow > 1 || given.reserved != [0; 3] {
                return Err(invalid("reader options: follow has to be 0 or 1, reserved 0"));
            }
            let mut options = ReaderOptions::default();
            options.from = match given.from {
                CHIPLOG_READ_FROM_ANY => ReadFrom::Any,
                CHIPLOG_READ_FROM_LEADER => ReadFrom::Leader,
                CHIPLOG_READ_FROM_NEAREST => ReadFrom::Nearest(text(given.zone, "zone")?.to_owned()),
                other => return Err(invalid(format!("{other} is no CHIPLOG_READ_FROM_..."))),
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

/// How the log stands, with everything that was acknowledged before the call. `info->size` has to be set.
/// Ownership: `client` borrowed; `info` the caller's. Any thread. Blocks, for at most the client's timeout_ms.
/// Errors: TIMEOUT, UNAVAILABLE: no leader answered; what it refuses with; INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info(
    client: *const chiplog_client_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            fill(info, "info", remote_info(&without_sigpipe(|| client.0.info())?))
        })
    }
}

/// As chiplog_client_info, without a majority: what the replicas know. It can be late by an election.
/// Ownership, threads: as there. Errors: as there; UNAVAILABLE: no server answered.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_info_stale(
    client: *const chiplog_client_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            fill(info, "info", remote_info(&without_sigpipe(|| client.0.info_stale())?))
        })
    }
}

/// Discards all records below `first`.
/// Ownership: borrowed. Any thread. Blocks, for at most the client's timeout_ms. Errors: as chiplog_client_info.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_discard(
    client: *const chiplog_client_t,
    first: u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            without_sigpipe(|| client.0.discard(first.into()))
        })
    }
}

/// Opens a session for a producer that is to go on in it after a restart of the program: `*session`, for the producer's
/// options.
/// Ownership: borrowed. Any thread. Blocks, for at most the client's timeout_ms.
/// Errors: as chiplog_client_info; TOO_MANY_SESSIONS.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_open_session(
    client: *const chiplog_client_t,
    session: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let client = get(client)?;
            put(session, without_sigpipe(|| client.0.open_session())?.get());
            Ok(())
        })
    }
}

/// The largest batch that the servers take, in bytes, as they told last: `*bytes`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_batch_bytes_max(
    client: *const chiplog_client_t,
    bytes: *mut usize,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(bytes, get(client)?.0.batch_bytes_max());
            Ok(())
        })
    }
}

/// Watches how the log stands. `interval_ms`: changes that come faster are told together.
/// Ownership: `client` borrowed; `*watch`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_watch(
    client: *const chiplog_client_t,
    interval_ms: u64,
    watch: *mut *mut chiplog_watch_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            let place = out(watch, "watch")?;
            let made = get(client)?.0.watch(Duration::from_millis(interval_ms));
            place.write(handle_table::insert(Watching(Mutex::new(made)))?);
            Ok(())
        })
    }
}

/// Closes a client. Its producers and readers go on. NULL, or one that was closed: nothing happens.
/// Ownership: takes `client`. Any thread. With the last of client, producers, readers and watches the client's thread ends,
/// which is waited for, and what producers had not sent is given up.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_client_close(client: *mut chiplog_client_t) {
    plain((), || drop(handle_table::close::<Connected>(client)));
}

/// How the log stands: at once the first time, then when it has changed; waits for that for at most `timeout_ms`.
/// `info->size` has to be set.
/// Ownership: `watch` borrowed; `info` the caller's. One thread at a time. Blocks.
/// Errors: TIMEOUT: nothing changed; UNAVAILABLE: no server answered in time; INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_watch_next(
    watch: *mut chiplog_watch_t,
    timeout_ms: u64,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// Closes a watch. NULL, or one that was closed: nothing happens.
/// Ownership: takes `watch`. Any thread. Never blocks for long; see chiplog_client_close.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_watch_close(watch: *mut chiplog_watch_t) {
    plain((), || drop(handle_table::close::<Watching>(watch)));
}
