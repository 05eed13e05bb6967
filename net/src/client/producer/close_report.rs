//! Closed: what a producer leaves behind when it ends.

use bytes::Bytes;
use chiplog::Error;

/// A record that a producer was given and that was not acknowledged before it ended.
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
    /// It was sent, and can be in the log. False: it surely is not.
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
    /// The records that were not acknowledged by then, in their order. Those that had failed before are not kept:
    /// `failed` tells that there were some.
    pub left: Vec<Unacknowledged>,
    /// Why records failed, these or earlier ones, since the last [`flush`](crate::client::Producer::flush) by this handle.
    pub failed: Option<Error>,
    /// How many records failed earlier, are not in `left`, and nobody was told of: given by
    /// [`send`](super::Producer::send), or with a delivery whose result nobody took, and no flush has told since.
    pub untold: u64,
}

impl Closed {
    /// Whether every record is in the log, except for those whose failure a flush by this handle has told.
    pub fn all_acknowledged(&self) -> bool {
        self.left.is_empty() && self.failed.is_none()
    }
}
