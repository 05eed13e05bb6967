//! Refusals: counts what a listener rejected or ended, by reason. Counters only grow. Relaxed ordering: they
//! synchronize nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reason of a rejection or an end.
///
/// ```
/// use chiplog_net::served::refusals::{Refusal, Refusals};
/// let refusals = Refusals::default();
/// refusals.count(Refusal::Idle);
/// assert_eq!(refusals.read(Refusal::Idle), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A connection: the limit of open connections was reached.
    Connections,
    /// A connection: the limit of its address was reached.
    ConnectionsOfAddress,
    /// A call: the limit of its token's connections was reached.
    ConnectionsOfToken,
    /// A call: its token has its share of the calls that wait for a log, or are about named logs.
    CallsOfToken,
    /// A connection whose handshake failed or took too long.
    Handshake,
    /// A connection without a call for too long.
    Idle,
    /// A call that was ended because its client did not read the answer.
    SlowReader,
    /// A message that is too large.
    MessageBytes,
    /// A message that found no room in time.
    InflightBytes,
    /// A call: the limit of open calls was reached.
    Streams,
    /// A request whose rest did not arrive in time.
    Stalled,
    /// A call without a token, or with an unknown one.
    Unauthenticated,
    /// A call that the token's role does not allow.
    PermissionDenied,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Connections,
        Self::ConnectionsOfAddress,
        Self::ConnectionsOfToken,
        Self::CallsOfToken,
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

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsOfAddress => "connections_per_address",
            Self::ConnectionsOfToken => "connections_per_token",
            Self::CallsOfToken => "calls_per_token",
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
/// use chiplog_net::served::refusals::{Refusal, Refusals};
/// let refusals = Refusals::default();
/// assert!(Refusal::ALL.iter().all(|refusal| refusals.read(*refusal) == 0));
/// ```
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts one more. Returns the new number.
    pub fn count(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number so far.
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
