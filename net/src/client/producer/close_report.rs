//! Close report: what a producer's end did with its records.

use bytes::Bytes;
use chiplog::Error;

/// A record that a producer accepted and that was not acknowledged before the producer ended.
///
/// ```
/// # use chiplog_net::client::Unacknowledged;
/// fn to_send_again(left: Vec<Unacknowledged>) -> Vec<bytes::Bytes> {
///     left.into_iter().filter(|u| !u.in_doubt).map(|u| u.record).collect()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Its bytes.
    pub record: Bytes,
    /// The record was sent, and may be in the log. False: it is not in the log.
    pub in_doubt: bool,
}

/// How a producer ended.
///
/// ```
/// # use chiplog_net::client::Closed;
/// fn report(closed: &Closed) {
///     if !closed.all_acknowledged() {
///         eprintln!("{} records are left; {:?}", closed.left.len(), closed.failed);
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it lists records that are not in the log"]
#[non_exhaustive]
pub struct Closed {
    /// The records that were not acknowledged by then, in order. Records that failed earlier are not kept: `failed`
    /// shows that there were some.
    pub left: Vec<Unacknowledged>,
    /// The last error of a record, of these or earlier ones, since the last [`flush`](crate::client::Producer::flush)
    /// by this handle.
    pub failed: Option<Error>,
    /// The number of records that failed earlier, are not in `left`, and were not reported: they were passed to
    /// [`send`](super::Producer::send) or had a delivery whose result was not taken, and no flush followed.
    pub untold: u64,
}

impl Closed {
    /// Whether every record is in the log, except those whose failure a flush by this handle has returned.
    pub fn all_acknowledged(&self) -> bool {
        self.left.is_empty() && self.failed.is_none()
    }
}
