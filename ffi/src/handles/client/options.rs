//! Options of a client, as the header shows them, and their conversion to Rust's.

use crate::abi::entry::init;
use crate::abi::error::invalid;
use crate::abi::growing;
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::text_or_none;
use crate::abi::values::{duration, millis};
use crate::handles::client::connection::{secret, tls};
use chiplog::Result;
use chiplog_net::client::ClientOptions;
use std::ffi::{c_char, c_void};

/// Deadlines and limits of a client. Fill it with chiplog_client_options_init, then set the fields that should
/// differ.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_client_options_t {
    /// sizeof(chiplog_client_options_t) as the caller was compiled with it.
    pub size: usize,
    /// The name of the log. NULL or empty, the default: the log "default".
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
    /// Bytes that a server may send ahead on a stream, 64 KiB to 2 GiB - 1, default 4 MiB.
    pub window_bytes: u32,
    /// Whether the token may be sent to other machines without TLS: 1 or 0. Default 0: the client does not use such a
    /// server.
    pub token_in_plain_text: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 3],
}

growing!(chiplog_client_options_t);

fn defaults() -> chiplog_client_options_t {
    let d = ClientOptions::default();
    chiplog_client_options_t {
        timeout_ms: millis(d.timeout),
        attempt_timeout_ms: millis(d.attempt_timeout),
        connect_timeout_ms: millis(d.connect_timeout),
        probe_timeout_ms: millis(d.probe_timeout),
        backoff_min_ms: millis(d.backoff_min),
        backoff_max_ms: millis(d.backoff_max),
        keep_alive_ms: millis(d.keep_alive),
        window_bytes: d.window_bytes,
        ..Growing::zeros()
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As [`growing::options`]. Its pointers are as `text` and `bytes` require.
pub(super) unsafe fn read(given: *const chiplog_client_options_t) -> Result<ClientOptions> {
    let given = growing::options(given, defaults())?;
    if given.token_in_plain_text > 1 || given.reserved != [0; 3] {
        return Err(invalid("client options: token_in_plain_text must be 0 or 1, and reserved must be 0"));
    }
    let mut options = ClientOptions::default();
    options.log = text_or_none(given.log, "log")?;
    options.token = secret(given.token)?;
    options.tls = tls(
        (given.tls_authority, given.tls_authority_length),
        (given.tls_certificate, given.tls_certificate_length),
        (given.tls_key, given.tls_key_length),
    )?;
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

/// Fills options with their defaults. `size`: sizeof(chiplog_client_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_options_init(options: *mut chiplog_client_options_t, size: usize) {
    init(options, size, defaults);
}
