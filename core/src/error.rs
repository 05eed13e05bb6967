//! The one error type of the crate: a numbered kind, a message that says what, where and what to do.
//!
//! The kinds' numbers are shared with C, Python and the wire: a number is never changed and a retired one
//! never used again. I/O errors carry the path; corruption carries the file and the offset.

use std::path::{Path, PathBuf};
use std::{fmt, io, sync::Arc};

/// What went wrong, as a number that stays the same in every language and version.
///
/// ```
/// use chiplog::ErrorKind;
/// assert_eq!(ErrorKind::Full.code(), 4);
/// assert!(ErrorKind::Full.is_retryable());
/// assert!(ErrorKind::Poisoned.is_fatal());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum ErrorKind {
    /// The operating system refused or failed a call. The message names the path.
    Io = 1,
    /// Stored bytes fail their checksum or contradict each other. Nothing corrupt is ever served.
    Corrupt = 2,
    /// A write or a sync failed earlier: the log takes nothing more until it is opened again. Appends
    /// that were under way have an unknown outcome.
    Poisoned = 3,
    /// The configured capacity is used up, or the disk is. Nothing was written; discard to make room.
    Full = 4,
    /// The queue of waiting appends stayed at its limit for as long as the caller would wait.
    Busy = 5,
    /// The time-out passed. A submitted append may still become durable.
    Timeout = 6,
    /// The record is below the first index: it was discarded.
    Discarded = 7,
    /// There is no such record yet: the index is beyond the last one.
    OutOfRange = 8,
    /// An argument or option is out of its bounds.
    InvalidArgument = 9,
    /// A record or batch exceeds its size limit.
    TooLarge = 10,
    /// Another handle or process has the directory open for writing.
    Locked = 11,
    /// The handle was closed.
    Closed = 12,
    /// The handle was made before `fork` and used in the child.
    Forked = 13,
    /// There is no log at this place.
    NotFound = 14,
    /// The files were written by a newer version of the format.
    Unsupported = 15,
    /// The session is not known: it was never opened, was closed, or was idle for too long.
    SessionExpired = 16,
    /// A sequence number skips one or more that the log has not seen.
    SequenceGap = 17,
    /// The sequence number was used so long ago that the log no longer remembers its indexes. Where an append is
    /// repeated this is good news: the record **is in the log**, once, and durable; only where it stands is
    /// forgotten. Do not append it again under another number; go on with the next one.
    SequenceForgotten = 18,
    /// As many sessions are open as the log allows.
    TooManySessions = 19,
    /// This replica is not the leader; the message says who is, if that is known. This attempt did not get into the
    /// log; of an earlier one that ended as `Unavailable` or `Poisoned` it says nothing.
    NotLeader = 20,
    /// No answer could be had from a majority in time: an election is under way, or too many replicas are down.
    /// Of an append: the lead was lost before its outcome was known; it may or may not be in the log.
    Unavailable = 21,
    /// This replica was removed from the cluster, or its directory is not the one the cluster knows. Its data
    /// can still be read.
    Removed = 22,
    /// A change of membership that cannot be made now or at all; the message says why.
    Membership = 23,
    /// Two logs are not the same: what is fed is of another log than what stands here, or of another history of it.
    /// Nothing of it was taken. The cluster is another one, or one of the two was damaged or set back.
    Diverged = 24,
    /// The server wants a token and got none, or one that it does not know.
    Unauthenticated = 25,
    /// The token's role does not allow this call.
    PermissionDenied = 26,
    /// A batch in the log is as it was appended, and does not unpack: the program that made it was wrong. No damage, the
    /// same on every replica, and nothing mends it. Readers go on behind it with `skip_batch`, or seek.
    Undecodable = 27,
    /// Somebody ended what this call waited for: see [`Canceller`](crate::Canceller). Nothing was read, and nothing is lost.
    Cancelled = 28,
}

impl ErrorKind {
    /// The number that C, Python and the wire use.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The kind of a number; None for one of a later version.
    ///
    /// ```
    /// use chiplog::ErrorKind;
    /// assert_eq!(ErrorKind::from_code(4), Some(ErrorKind::Full));
    /// assert_eq!(ErrorKind::from_code(0), None);
    /// ```
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// All kinds, by their numbers.
    const ALL: &[Self] = &[
        Self::Io,
        Self::Corrupt,
        Self::Poisoned,
        Self::Full,
        Self::Busy,
        Self::Timeout,
        Self::Discarded,
        Self::OutOfRange,
        Self::InvalidArgument,
        Self::TooLarge,
        Self::Locked,
        Self::Closed,
        Self::Forked,
        Self::NotFound,
        Self::Unsupported,
        Self::SessionExpired,
        Self::SequenceGap,
        Self::SequenceForgotten,
        Self::TooManySessions,
        Self::NotLeader,
        Self::Unavailable,
        Self::Removed,
        Self::Membership,
        Self::Diverged,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::Undecodable,
        Self::Cancelled,
    ];

    /// The kind's name in lower case with underscores, as command-line output and metrics use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Corrupt => "corrupt",
            Self::Poisoned => "poisoned",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Discarded => "discarded",
            Self::OutOfRange => "out_of_range",
            Self::InvalidArgument => "invalid_argument",
            Self::TooLarge => "too_large",
            Self::Locked => "locked",
            Self::Closed => "closed",
            Self::Forked => "forked",
            Self::NotFound => "not_found",
            Self::Unsupported => "unsupported",
            Self::SessionExpired => "session_expired",
            Self::SequenceGap => "sequence_gap",
            Self::SequenceForgotten => "sequence_forgotten",
            Self::TooManySessions => "too_many_sessions",
            Self::NotLeader => "not_leader",
            Self::Unavailable => "unavailable",
            Self::Removed => "removed",
            Self::Membership => "membership",
            Self::Diverged => "diverged",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::Undecodable => "undecodable",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the same call can succeed later without anybody mending anything but room or load.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Full
                | Self::Busy
                | Self::Timeout
                | Self::Locked
                | Self::TooManySessions
                | Self::NotLeader
                | Self::Unavailable
        )
    }

    /// Whether the handle is of no more use for appending.
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::Poisoned | Self::Closed | Self::Forked | Self::Unsupported | Self::Removed)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error of the log. Cheap to clone: many waiters get the same one.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let error = chiplog::ReadOnlyLog::open(dir.path().join("nothing-here")).unwrap_err();
/// assert_eq!(error.kind(), chiplog::ErrorKind::NotFound);
/// println!("{error}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
    /// Of corruption: the file, and where in it.
    place: Option<(PathBuf, u64)>,
    /// Of corruption: nobody can repair it.
    lasting: bool,
}

#[derive(Debug)]
enum Source {
    System(io::Error),
    Earlier(Error),
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// With a message that says what, where and what to do. For code around the log that shares its kinds: the
    /// network's client, a transport, a binding.
    ///
    /// ```
    /// use chiplog::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, "no server answered within 5 s");
    /// assert!(error.is_retryable());
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::made(kind, message.into(), None, None)
    }

    /// An I/O error, with what was being done to which path.
    pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> Self {
        let message = format!("cannot {doing} {}: {source}", path.display());
        Self::made(ErrorKind::Io, message, Some(Source::System(source)), None)
    }

    /// An error that follows from an earlier one, which is its source, and whose error number it keeps.
    pub fn with_source(kind: ErrorKind, message: impl Into<String>, cause: &Self) -> Self {
        let source = Some(Source::Earlier(cause.clone()));
        Self::made(kind, message.into(), source, None)
    }

    /// Corruption, with the file and the offset of the first wrong byte range.
    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl fmt::Display) -> Self {
        let message = format!("{} is corrupt at offset {offset}: {what}", path.display());
        let place = Some((path.to_path_buf(), offset));
        Self::made(ErrorKind::Corrupt, message, None, place)
    }

    fn made(kind: ErrorKind, message: String, source: Option<Source>, place: Option<(PathBuf, u64)>) -> Self {
        Self(Arc::new(Inner { kind, message, source, place, lasting: false }))
    }

    /// The same in other words: of the same kind, at the same place.
    pub(crate) fn retold(&self, message: String) -> Self {
        let place = self.0.place.clone();
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message,
            source: Some(Source::Earlier(self.clone())),
            place,
            lasting: self.0.lasting,
        }))
    }

    /// Marks corruption as what nobody can repair: see [`Self::is_lasting`]. For code that passes errors on.
    ///
    /// ```
    /// use chiplog::{Error, ErrorKind};
    /// assert!(Error::new(ErrorKind::Corrupt, "record 7: all replicas have it damaged").into_lasting().is_lasting());
    /// ```
    #[must_use]
    pub fn into_lasting(self) -> Self {
        let Inner { kind, message, place, .. } = &*self.0;
        let (kind, message, place) = (*kind, message.clone(), place.clone());
        let source = Some(Source::Earlier(self));
        Self(Arc::new(Inner { kind, message, source, place, lasting: true }))
    }

    /// Of corruption: whether nobody can repair it, as far as this replica knows: the log has no other replica, or all other
    /// voters have the same entries damaged. Reading again does not help. False where it is being repaired, and of every other
    /// error.
    pub fn is_lasting(&self) -> bool {
        self.0.lasting
    }

    /// Of corruption that was found in a file here: the file, and where in it. None of corruption that a server told of.
    pub fn location(&self) -> Option<(&Path, u64)> {
        self.0.place.as_ref().map(|(path, offset)| (path.as_path(), *offset))
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// See [`ErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// See [`ErrorKind::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        self.0.kind.is_fatal()
    }

    /// The operating system's error number, when it was one that failed.
    pub fn os_error(&self) -> Option<i32> {
        match self.0.source.as_ref()? {
            Source::System(error) => error.raw_os_error(),
            Source::Earlier(error) => error.os_error(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.source.as_ref()? {
            Source::System(error) => Some(error),
            Source::Earlier(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_number() {
        for (n, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(kind.code() as usize, n + 1);
            assert_eq!(ErrorKind::from_code(kind.code()), Some(*kind));
        }
        assert_eq!(ErrorKind::from_code(ErrorKind::ALL.len() as u32 + 1), None);
    }
}
