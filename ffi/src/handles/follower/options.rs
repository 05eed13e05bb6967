//! Options of a follower, as the header shows them, and their conversion to Rust's.

use crate::abi::entry::init;
use crate::abi::error::invalid;
use crate::abi::growing;
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::text_or_none;
use crate::abi::values::{duration, millis};
use crate::handles::client::connection::{secret, tls};
use crate::handles::log::options;
use crate::handles::log::options::chiplog_log_options_t;
use chiplog::Result;
use chiplog_net::follower::FollowerOptions;
use std::ffi::{c_char, c_void};

/// Deadlines and limits of a follower. Fill it with chiplog_follower_options_init. Times range from 1 ms to one day,
/// else opening fails with CHIPLOG_INVALID_ARGUMENT. The exception is open_timeout_ms, which has no bounds;
/// CHIPLOG_FOREVER means no limit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_follower_options_t {
    /// sizeof(chiplog_follower_options_t) as the caller was compiled with it.
    pub size: usize,
    /// Options of the copy's own files, retention included. NULL, the default: the defaults. `segment_bytes` must be
    /// at least the servers' if their blocks are that large.
    pub files: *const chiplog_log_options_t,
    /// The name of the log. NULL or empty, the default: the log "default". A named log: the copy has this log alone.
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
    /// Bytes that a server may send ahead, 64 KiB to 2 GiB - 1, default 4 MiB.
    pub window_bytes: u32,
    /// Whether the token may be sent to other machines without TLS: 1 or 0. Default 0.
    pub token_in_plain_text: u8,
    /// Whether the copy reads objects through the servers that it is given, as with an object store in `files`: for a program that
    /// cannot reach the store, or has no credentials. The servers need an object store; `files` must have none. For a named log the
    /// token must reach its whole group. 1 or 0. Default 0.
    pub served_objects: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 2],
}

growing!(chiplog_follower_options_t);

fn defaults() -> chiplog_follower_options_t {
    let d = FollowerOptions::default();
    chiplog_follower_options_t {
        open_timeout_ms: millis(d.open_timeout),
        keep_alive_ms: millis(d.keep_alive),
        compare_interval_ms: millis(d.compare_interval),
        connect_timeout_ms: millis(d.connect_timeout),
        attempt_timeout_ms: millis(d.attempt_timeout),
        probe_timeout_ms: millis(d.probe_timeout),
        backoff_min_ms: millis(d.backoff_min),
        backoff_max_ms: millis(d.backoff_max),
        window_bytes: d.window_bytes,
        ..Growing::zeros()
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As [`growing::options`]. Its pointers are as `text`, `bytes` and `options::read` require.
pub(super) unsafe fn read(given: *const chiplog_follower_options_t) -> Result<FollowerOptions> {
    let given = growing::options(given, defaults())?;
    if given.token_in_plain_text > 1 || given.served_objects > 1 || given.reserved != [0; 2] {
        return Err(invalid(
            "follower options: token_in_plain_text and served_objects must be 0 or 1, and reserved must be 0",
        ));
    }
    let mut options = FollowerOptions::default();
    options.files = options::read(given.files)?;
    options.log = text_or_none(given.log, "log")?;
    options.zone = text_or_none(given.zone, "zone")?;
    options.token = secret(given.token)?;
    options.tls = tls(
        (given.tls_authority, given.tls_authority_length),
        (given.tls_certificate, given.tls_certificate_length),
        (given.tls_key, given.tls_key_length),
    )?;
    options.token_in_plain_text = given.token_in_plain_text == 1;
    options.served_objects = given.served_objects == 1;
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

/// Fills options with their defaults. `size`: sizeof(chiplog_follower_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_follower_options_init(
    options: *mut chiplog_follower_options_t,
    size: usize,
) {
    init(options, size, defaults);
}
