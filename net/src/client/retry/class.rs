//! Class: how a client reacts to an error. Pure.

use chiplog::ErrorKind;

/// How a client reacts to an error that a server returned, or that kept it from answering.
///
/// ```
/// use chiplog::ErrorKind;
/// use chiplog_net::client::ErrorClass;
/// assert_eq!(ErrorClass::of(ErrorKind::TooLarge), ErrorClass::Fatal);
/// assert_eq!(ErrorClass::of(ErrorKind::Busy), ErrorClass::Retriable);
/// assert_eq!(ErrorClass::of(ErrorKind::NotLeader), ErrorClass::RefreshMetadata);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same request will fail again.
    Fatal,
    /// The same request can succeed later, at the same server.
    Retriable,
    /// The same request can succeed at another server: the leader has to be found again.
    RefreshMetadata,
}

impl ErrorClass {
    /// The class of a kind of error.
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Busy
            | ErrorKind::Full
            | ErrorKind::Timeout
            | ErrorKind::TooManySessions
            // Damaged in transit: sending it again can succeed.
            | ErrorKind::Corrupt => Self::Retriable,
            ErrorKind::NotLeader
            | ErrorKind::Unavailable
            | ErrorKind::Poisoned
            | ErrorKind::Closed
            | ErrorKind::Removed
            // A server of another log runs at this address.
            | ErrorKind::Diverged
            | ErrorKind::Locked
            | ErrorKind::Io => Self::RefreshMetadata,
            _ => Self::Fatal,
        }
    }
}
