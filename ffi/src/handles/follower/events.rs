//! The events of a follower.

use crate::abi::error;
use crate::abi::error::chiplog_status_t;
use crate::abi::growing::{Growing, growing};
use crate::abi::values::fixed;
use chiplog::Error;
use chiplog_net::follower::FollowerEvent;
use std::ffi::c_char;

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

growing!(chiplog_event_t);

/// Returns an event as the header shows it, and its cause.
pub(super) fn shown(event: FollowerEvent) -> (chiplog_event_t, Option<Error>) {
    let (mut shown, mut why) = (chiplog_event_t::zeros(), None);
    match event {
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
    shown.cause = why.as_ref().map_or(0, error::status);
    (shown, why)
}
