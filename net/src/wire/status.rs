//! Status: the log's errors as gRPC statuses, and back. The status code is for every gRPC client; the kind's number in
//! the metadata is for chiplog's own.

use crate::wire::connect_error;
use crate::wire::connect_error::TlsMismatch;
#[cfg(feature = "server")]
use bytes::Bytes;
use chiplog::{Error, ErrorKind, NodeId};
#[cfg(feature = "server")]
use http::HeaderMap;
#[cfg(feature = "server")]
use http_body::Frame;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Metadata of a failed call: the number of the error kind.
pub const KIND: &str = "chiplog-kind";
/// Metadata of a failed call: the leader's address for clients, `host:port`.
pub const LEADER: &str = "chiplog-leader";
/// Metadata of a call of `chiplog.v1.Log`: the id of the log that the call is for, in hexadecimal.
pub const LOG_ID: &str = "chiplog-log-id";
/// Metadata of a read below the log's first record: the index of the first record.
pub const FIRST: &str = "chiplog-first";

/// Metadata of a failed read, of kind corrupt or unavailable: `1` if waiting does not help, because the damage cannot be repaired, or the
/// server has no object store.
pub const LASTING: &str = "chiplog-lasting";

/// Metadata of a failed call of `AppendTogether`: `1` if none of its batches is in a log. Without it that is unknown.
pub const NOT_APPENDED: &str = "chiplog-not-appended";

/// Metadata of a call that was ended under way, because its token lost its right: `1`. Whether it took effect is unknown.
pub const ENDED: &str = "chiplog-ended";

/// Metadata of a failed call, of kind busy: how long to wait before it is made again, in milliseconds.
pub const RETRY_AFTER: &str = "chiplog-retry-after-ms";

/// The gRPC code for a kind of error.
pub fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Corrupt | ErrorKind::Undecodable => Code::DataLoss,
        ErrorKind::Full | ErrorKind::Busy | ErrorKind::TooManySessions => Code::ResourceExhausted,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::Discarded | ErrorKind::OutOfRange => Code::OutOfRange,
        ErrorKind::InvalidArgument | ErrorKind::TooLarge => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::SessionExpired
        | ErrorKind::SequenceGap
        | ErrorKind::SequenceForgotten
        | ErrorKind::NotLeader
        | ErrorKind::Removed
        | ErrorKind::Membership
        | ErrorKind::Diverged
        | ErrorKind::Locked
        | ErrorKind::Sealed => Code::FailedPrecondition,
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Poisoned => Code::Unavailable,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::Cancelled => Code::Cancelled,
        _ => Code::Internal,
    }
}

/// Whether a submitted append that failed with this kind may be in the log. With any other kind it is not.
pub(crate) fn leaves_unknown(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Poisoned | ErrorKind::Closed | ErrorKind::Timeout | ErrorKind::Io
    )
}

/// The most bytes of a status's message. It can repeat what a client sent, and no budget counts it.
const MESSAGE_BYTES_MAX: usize = 2 << 10;

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or_default());
        message.push('…');
    }
    message
}

/// Converts an error into a status, with the leader's client address if it is given.
///
/// ```
/// use chiplog::{Error, ErrorKind};
/// use chiplog_net::wire::status::{from_status, to_status};
/// let status = to_status(&Error::new(ErrorKind::Full, "capacity is used up"), None);
/// assert_eq!(status.code(), tonic::Code::ResourceExhausted);
/// assert_eq!(from_status(&status).kind(), ErrorKind::Full);
/// ```
pub fn to_status(error: &Error, leader: Option<&str>) -> Status {
    let mut status = Status::new(code_of(error.kind()), cut(error.to_string()));
    let metadata = status.metadata_mut();
    metadata.insert(KIND, MetadataValue::from(error.kind().code()));
    if error.is_lasting() {
        metadata.insert(LASTING, MetadataValue::from_static("1"));
    }
    if let Some(time) = error.retry_after() {
        metadata.insert(RETRY_AFTER, MetadataValue::from(millis(time)));
    }
    if let Some(leader) = leader.and_then(|l| l.parse().ok()) {
        metadata.insert(LEADER, leader);
    }
    status
}

/// Marks the status of a call of which no batch is in a log.
#[cfg(feature = "server")]
pub(crate) fn not_appended(mut status: Status) -> Status {
    status.metadata_mut().insert(NOT_APPENDED, MetadataValue::from_static("1"));
    status
}

/// Marks the status of a call that was ended under way.
#[cfg(feature = "server")]
pub(crate) fn ended(mut status: Status) -> Status {
    status.metadata_mut().insert(ENDED, MetadataValue::from_static("1"));
    status
}

/// Whether a call was ended under way.
pub(crate) fn was_ended(status: &Status) -> bool {
    status.metadata().get(ENDED).is_some_and(|value| value == "1")
}

/// Whether a failed call of `AppendTogether` certainly appended nothing: the server says so, or never got it.
pub(crate) fn has_appended_nothing(status: &Status) -> bool {
    let is_said = status.metadata().get(NOT_APPENDED).is_some_and(|value| value == "1");
    let is_unsent = || std::error::Error::source(status).is_some_and(connect_error::is_unsent);
    is_said || is_stranger(status) || is_unsent()
}

/// Converts a status into the log's error. A foreign status, such as that of a broken connection, is mapped by its
/// code.
pub fn from_status(status: &Status) -> Error {
    let number = |key| status.metadata().get(key)?.to_str().ok()?.parse::<u64>().ok();
    let code = number(KIND).and_then(|code| u32::try_from(code).ok());
    let kind = code.and_then(ErrorKind::from_code).unwrap_or(match status.code() {
        Code::InvalidArgument => ErrorKind::InvalidArgument,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::DeadlineExceeded | Code::Cancelled => ErrorKind::Timeout,
        Code::ResourceExhausted => ErrorKind::Busy,
        Code::OutOfRange => ErrorKind::OutOfRange,
        Code::Unimplemented => ErrorKind::Unsupported,
        Code::DataLoss => ErrorKind::Corrupt,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    });
    let error = reported(kind, message_of(status), number(RETRY_AFTER).unwrap_or_default());
    match status.metadata().get(LASTING) {
        Some(value) if value == "1" && matches!(kind, ErrorKind::Corrupt | ErrorKind::Unavailable) => {
            error.into_lasting()
        }
        _ => error,
    }
}

/// Whole milliseconds, at least this long.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// An error that a server reported. `retry_after`: in milliseconds; 0: unknown.
pub(crate) fn reported(kind: ErrorKind, message: String, retry_after: u64) -> Error {
    match retry_after {
        0 => Error::new(kind, message),
        time => Error::retry_in(kind, message, Duration::from_millis(time)),
    }
}

/// Whether the answer to the first call shows that the server is not a chiplog server for clients: every version knows
/// that call. As the answer to a later call it means that the server has an earlier version.
///
/// ```
/// use chiplog_net::wire::status::{is_stranger, to_status};
/// use chiplog::{Error, ErrorKind};
/// assert!(is_stranger(&tonic::Status::unimplemented("")));
/// assert!(!is_stranger(&to_status(&Error::new(ErrorKind::Unsupported, "too new"), None)));
/// ```
pub fn is_stranger(status: &Status) -> bool {
    status.code() == Code::Unimplemented && status.metadata().get(KIND).is_none()
}

/// The error of the first call of a server: as [`from_status`], but `Unavailable` with an explanation for a foreign
/// server.
pub fn from_first_status(status: &Status) -> Error {
    if !is_stranger(status) {
        return from_status(status);
    }
    let what = "this address does not serve chiplog clients: ports for peers and for probes are separate, and a follower's port only serves reads";
    Error::new(ErrorKind::Unavailable, what)
}

/// The same error with another text.
pub(crate) fn with_message(error: &Error, what: String) -> Error {
    let with_message = Error::new(error.kind(), what);
    if error.is_lasting() { with_message.into_lasting() } else { with_message }
}

/// The last frame of an answer that ends with this status.
#[cfg(feature = "server")]
pub(crate) fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
}

/// The text of the status. A status that was created on this side also gets its cause. TLS errors get their own text:
/// the original one describes misinterpreted bytes.
fn message_of(status: &Status) -> String {
    let message = status.message();
    if message.is_empty() && status.code() == Code::Unimplemented {
        return "the server does not know this call: it runs an earlier version".into();
    }
    let mut text = if message.is_empty() { format!("{:?}", status.code()) } else { message.to_owned() };
    let Some(source) = std::error::Error::source(status) else { return text };
    let deepest = connect_error::deepest(source);
    match TlsMismatch::of(source) {
        Some(TlsMismatch::OtherHost) => return format!("{}: {deepest}", TlsMismatch::OtherHost), // names the hosts
        Some(mismatch) => return mismatch.to_string(),
        None => {}
    }
    if connect_error::is_unconnected(source) {
        return format!("cannot connect: {deepest}");
    }
    if !text.contains(&deepest) {
        text = format!("{text}: {deepest}");
    }
    text
}

/// The leader's address for clients, if the status contains it.
pub fn leader_of(status: &Status) -> Option<String> {
    status.metadata().get(LEADER)?.to_str().ok().map(str::to_owned)
}

/// The error text for a server without a replica that a cluster calls; `member init` would create another cluster at
/// its address.
pub fn without_replica(server: &str, called_as: NodeId) -> String {
    format!(
        "{server} has no replica, but a cluster has node {called_as} at its address; check whether its directory was emptied or is not mounted, and use another server of that cluster"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_survive_the_wire() {
        for kind in (1..).map_while(ErrorKind::from_code) {
            let status = to_status(&Error::new(kind, "what, where"), Some("a:1"));
            let back = from_status(&status);
            assert_eq!((back.kind(), back.to_string().as_str()), (kind, "what, where"));
            assert_eq!(leader_of(&status).as_deref(), Some("a:1"));
        }
    }

    #[test]
    fn time_to_wait_survives_the_wire() {
        for (time, back) in [(1, 1), (1_000, 1), (1_001, 2), (5_000_000, 5_000)] {
            let error = Error::retry_in(ErrorKind::Busy, "quota", Duration::from_micros(time));
            let back_after = from_status(&to_status(&error, None)).retry_after();
            assert_eq!(back_after, Some(Duration::from_millis(back)), "{time} us");
        }
        assert_eq!(from_status(&to_status(&Error::new(ErrorKind::Busy, "x"), None)).retry_after(), None);
        let mut foreign = Status::unavailable("x");
        foreign.metadata_mut().insert(RETRY_AFTER, MetadataValue::from_static("-1"));
        assert_eq!(from_status(&foreign).retry_after(), None);
    }

    #[test]
    fn lasting_errors_survive_the_wire() {
        let error = Error::new(ErrorKind::Corrupt, "record 7");
        assert!(!from_status(&to_status(&error, None)).is_lasting());
        assert!(from_status(&to_status(&error.into_lasting(), None)).is_lasting());
        let elsewhere = Error::new(ErrorKind::Unavailable, "record 7 is in the object store alone");
        assert!(!from_status(&to_status(&elsewhere, None)).is_lasting());
        assert!(from_status(&to_status(&elsewhere.into_lasting(), None)).is_lasting());
    }

    /// A port for peers, for probes or of another program was reported as "needs another version of chiplog".
    #[test]
    fn foreign_server_is_unavailable_not_another_version() {
        for words in ["", "grpc-status header missing, mapped from HTTP status code 404"] {
            let error = from_first_status(&Status::unimplemented(words));
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let text = error.to_string();
            assert!(
                text.contains("does not serve chiplog clients") && !text.contains("grpc-status"),
                "{text}"
            );
        }
        let ours = to_status(&Error::new(ErrorKind::Unsupported, "member 2 is too old"), None);
        assert_eq!(from_first_status(&ours).kind(), ErrorKind::Unsupported);
        let later = from_status(&Status::unimplemented(""));
        assert_eq!(later.kind(), ErrorKind::Unsupported);
        assert!(later.to_string().contains("earlier version"), "{later}");
    }

    #[test]
    fn foreign_status_has_a_kind() {
        assert_eq!(from_status(&Status::unavailable("refused")).kind(), ErrorKind::Unavailable);
        assert_eq!(from_status(&Status::unknown("")).kind(), ErrorKind::Unavailable);
    }
}
