//! The state of a follower.

use crate::abi::error;
use crate::abi::error::chiplog_status_t;
use crate::abi::growing::{Growing, growing};
use crate::abi::values::{fixed, millis};
use chiplog::Error;
use chiplog_net::follower::FollowerStatus;
use std::ffi::c_char;

/// The state of a follower.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
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

growing!(chiplog_follower_status_t);

pub(super) fn shown(now: &FollowerStatus) -> chiplog_follower_status_t {
    let code = |error: &Option<Error>| error.as_ref().map_or(0, error::status);
    chiplog_follower_status_t {
        first: now.first.get(),
        last: now.last.get(),
        source_last: now.source_last.get(),
        connected_for_ms: now.connected_since.map_or(0, |since| millis(since.elapsed())),
        connects: now.connects,
        jumps: now.jumps,
        received_bytes: now.received_bytes,
        received_records: now.received_records,
        server: fixed(now.server.as_deref().unwrap_or_default()),
        last_error: code(&now.last_error),
        stopped: code(&now.stopped),
        fed: now.fed.into(),
        ..Growing::zeros()
    }
}
