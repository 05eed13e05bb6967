//! Refusals: how often a listener refused or ended something, by reason. Counters only grow; relaxed everywhere, for
//! they order nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why something was refused or ended.
///
/// ```
/// use chiplog_net::listener::refusals::{Refusal, Refusals};
/// let refusals = Refusals::default();
/// refusals.count(Refusal::Idle);
/// assert_eq!(refusals.read(Refusal::Idle), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A connection: as many are open as are allowed.
    Connections,
    /// A connection: as many are open from its address as are allowed.
    ConnectionsOfAddress,
    /// A call: its token is shown on as many connections as are allowed.
    ConnectionsOfToken,
    /// A connection that did not finish its handshake in time, or not well.
    Handshake,
    /// A connection on which nothing was asked for too long.
    Idle,
    /// A call whose client did not take its answer, and was ended.
    SlowReader,
    /// A message that is too large.
    MessageBytes,
    /// A message that found no room in time among those under way.
    InflightBytes,
    /// A call: as many are open as are allowed.
    Streams,
    /// A request whose rest did not come in time.
    Stalled,
    /// A call without a token, or with one that nobody knows.
    Unauthenticated,
    /// A call that the token's role does not allow.
    PermissionDenied,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionsOfAddress,
        Self::ConnectionsOfToken,
        Self::Handshake,
        Self::Idle,
        Self::SlowReader,
        Self::MessageBytes,
        Self::InflightBytes,
        Self::Streams,
        Self::Stalled,
        Self::Unauthenticated,
        Self::PermissionDenied,
    ];

    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsOfAddress => "connections_per_address",
            Self::ConnectionsOfToken => "connections_per_token",
            Self::Handshake => "handshake",
            Self::Idle => "idle",
            Self::SlowReader => "slow_reader",
            Self::MessageBytes => "message_bytes",
            Self::InflightBytes => "inflight_bytes",
            Self::Streams => "streams",
            Self::Stalled => "stalled",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
        }
    }
}

/// The counters of a listener. `Send + Sync`.
///
/// ```
/// use chiplog_net::listener::refusals::{Refusal, Refusals};
/// let refusals = Refusals::default();
/// assert!(Refusal::ALL.iter().all(|refusal| refusals.read(*refusal) == 0));
/// ```
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// One more. Returns how many there are now.
    pub fn count(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// So many there were.
    pub fn read(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_counter_of_its_own() {
        let refusals = Refusals::default();
        for (n, refusal) in Refusal::ALL.iter().enumerate() {
            (0..=n).for_each(|_| _ = refusals.count(*refusal));
        }
        let counts = Refusal::ALL.map(|refusal| refusals.read(refusal));
        assert_eq!(counts, std::array::from_fn(|n| n as u64 + 1));
    }
}
