//! The one error type of the crate: a numbered kind, and a message that says what happened, where, and what to do.
//!
//! C, Python and the wire use the same numbers. A number never changes, and a retired number is never used again. I/O
//! errors contain the path; corruption contains the file and the offset.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io, sync::Arc};

/// The kind of an error, as a number that is the same in every language and version.
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
    /// The operating system refused or failed a call. The message contains the path.
    Io = 1,
    /// Stored bytes fail their checksum or contradict each other. Corrupt bytes are never returned.
    Corrupt = 2,
    /// A write or a sync failed earlier. The log accepts no more appends until it is opened again. Appends that were in
    /// progress have an unknown outcome.
    Poisoned = 3,
    /// The configured capacity is used up, or the disk is full. Nothing was written. Discard records to make room.
    Full = 4,
    /// The queue of waiting appends stayed at its limit until the caller's time-out, or the log has used up the bytes that
    /// may be appended to it in a second: see [`Error::retry_after`].
    Busy = 5,
    /// The time-out passed. A submitted append may still become durable.
    Timeout = 6,
    /// The record was discarded: its index is below the first one.
    Discarded = 7,
    /// The record does not exist yet: its index is above the last one.
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
    /// There is no log in this directory.
    NotFound = 14,
    /// A newer version of the format wrote the files.
    Unsupported = 15,
    /// The session is not known: it was never opened, was closed, or was idle for too long.
    SessionExpired = 16,
    /// The sequence number skips at least one number that the log has not seen.
    SequenceGap = 17,
    /// The session used this sequence number so long ago that the log no longer remembers its indexes. For a repeated
    /// append this is a success: the record **is in the log**, once, and durable; only its index is forgotten. Do not
    /// append it again under another number; continue with the next one.
    SequenceForgotten = 18,
    /// The log has its maximum number of open sessions.
    TooManySessions = 19,
    /// This replica is not the leader. The message names the leader if it is known. This attempt did not get into the
    /// log; an earlier attempt that ended as `Unavailable` or `Poisoned` may have.
    NotLeader = 20,
    /// No majority of replicas answered in time: an election is in progress, or too many replicas are down. For an
    /// append: the leader stepped down before the outcome was known, so the append may or may not be in the log.
    Unavailable = 21,
    /// This replica was removed from the cluster, or its directory is not the one that the cluster knows. Its data can
    /// still be read.
    Removed = 22,
    /// The membership cannot be changed this way, or not now. The message gives the reason.
    Membership = 23,
    /// The entries to copy belong to another log than this one, or to another history of it. The entry that the message
    /// names was not taken, nor any after it. The source is another cluster, or one of the two logs was damaged or
    /// reset to an earlier state.
    Diverged = 24,
    /// The server requires a token and got none, or one that it does not know.
    Unauthenticated = 25,
    /// The token's role does not allow this call.
    PermissionDenied = 26,
    /// A batch is stored exactly as it was appended, but cannot be decoded: the program that built it was wrong. The
    /// files are not damaged. The batch is the same on every replica, and repair cannot fix it. Readers continue after
    /// it with `skip_batch`, or seek.
    Undecodable = 27,
    /// The wait was cancelled: see [`Canceller`](crate::Canceller). Nothing was read, and nothing is lost.
    Cancelled = 28,
    /// A log of this name exists already.
    AlreadyExists = 29,
    /// The log is sealed: it takes no more appends, and no discard beyond its end. Its records can still be read.
    Sealed = 30,
}

impl ErrorKind {
    /// The number that C, Python and the wire use.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The kind with this number; None for a number of a later version.
    ///
    /// ```
    /// use chiplog::ErrorKind;
    /// assert_eq!(ErrorKind::from_code(4), Some(ErrorKind::Full));
    /// assert_eq!(ErrorKind::from_code(0), None);
    /// ```
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// All kinds, in the order of their numbers.
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
        Self::AlreadyExists,
        Self::Sealed,
    ];

    /// The kind's name in lower case with underscores, as the command line and metrics show it.
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
            Self::AlreadyExists => "already_exists",
            Self::Sealed => "sealed",
        }
    }

    /// Whether the same call can succeed later by itself, for example once there is room, less load, or a leader.
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

    /// Whether the handle can append nothing more.
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::Poisoned | Self::Closed | Self::Forked | Self::Unsupported | Self::Removed)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error of the log. Cheap to clone: many waiters can get the same one.
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
    /// For corruption: the file and the offset in it.
    place: Option<(PathBuf, u64)>,
    /// Waiting does not help.
    lasting: bool,
    /// A limit of one named log has caused it.
    of_one_log: bool,
    /// When a new attempt can succeed.
    retry_after: Option<Duration>,
}

#[derive(Debug)]
enum Source {
    System(io::Error),
    Earlier(Error),
    /// An error of another library.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. The message should say what happened, where, and what to do. For code around the log that
    /// shares its kinds: a network client, a transport, a binding.
    ///
    /// ```
    /// use chiplog::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, "no server answered within 5 s");
    /// assert!(error.is_retryable());
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::made(kind, message.into(), None, None)
    }

    /// An I/O error: `doing` says what was being done to `path`.
    pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> Self {
        let message = format!("cannot {doing} {}: {source}", path.display());
        Self::made(ErrorKind::Io, message, Some(Source::System(source)), None)
    }

    /// An error that follows from an earlier one. The earlier error becomes its source; the system's error number is
    /// kept.
    pub fn with_source(kind: ErrorKind, message: impl Into<String>, cause: &Self) -> Self {
        let source = Some(Source::Earlier(cause.clone()));
        Self::made(kind, message.into(), source, None)
    }

    /// An error that follows from one of another library, which becomes its source; the system's error number is kept. For code
    /// around the log: a vault, a transport.
    ///
    /// ```
    /// use chiplog::{Error, ErrorKind};
    /// let cause = std::fs::File::open("/nothing-here").unwrap_err();
    /// let error = Error::with_cause(ErrorKind::Io, format!("cannot read the token: {cause}"), cause);
    /// assert_eq!(error.os_error(), Some(2));
    /// ```
    pub fn with_cause(
        kind: ErrorKind,
        message: impl Into<String>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::made(kind, message.into(), Some(Source::Other(cause.into())), None)
    }

    /// Corruption, with the file and the offset of the first wrong byte range.
    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl fmt::Display) -> Self {
        let message = format!("{} is corrupt at offset {offset}: {what}", path.display());
        let place = Some((path.to_path_buf(), offset));
        Self::made(ErrorKind::Corrupt, message, None, place)
    }

    fn made(kind: ErrorKind, message: String, source: Option<Source>, place: Option<(PathBuf, u64)>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message,
            source,
            place,
            lasting: false,
            of_one_log: false,
            retry_after: None,
        }))
    }

    /// An error that a limit of one named log has caused: see [`Self::is_of_one_log`].
    pub(crate) fn of_one_log(kind: ErrorKind, message: String) -> Self {
        let (source, place) = (None, None);
        Self(Arc::new(Inner {
            kind,
            message,
            source,
            place,
            lasting: false,
            of_one_log: true,
            retry_after: None,
        }))
    }

    /// Whether a limit of one named log has caused it: other logs of its group are not affected.
    #[doc(hidden)]
    pub fn is_of_one_log(&self) -> bool {
        self.0.of_one_log
    }

    /// The same error with another message: the kind and the location are kept.
    pub(crate) fn with_message(&self, message: String) -> Self {
        let place = self.0.place.clone();
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message,
            source: Some(Source::Earlier(self.clone())),
            place,
            lasting: self.0.lasting,
            of_one_log: self.0.of_one_log,
            retry_after: self.0.retry_after,
        }))
    }

    /// Marks an error as lasting, which waiting does not change: see [`Self::is_lasting`]. For code that passes errors on.
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
        Self(Arc::new(Inner {
            kind,
            message,
            source,
            place,
            lasting: true,
            of_one_log: false,
            retry_after: None,
        }))
    }

    /// Whether reading again does not help, as far as this replica knows. `Corrupt`: the damage cannot be repaired, because the log has
    /// no other replica, is a follower's copy, or all other voters have the same entries damaged. `Unavailable`: the record is in an
    /// object store alone, and the log was opened without one; another replica may have it. False while repair is in progress, and for
    /// every other error.
    pub fn is_lasting(&self) -> bool {
        self.0.lasting
    }

    /// The error of a call that can succeed after this time: see [`Self::retry_after`]. For code that passes errors on.
    ///
    /// ```
    /// use chiplog::{Error, ErrorKind};
    /// use std::time::Duration;
    /// let error = Error::retry_in(ErrorKind::Busy, "the quota is used up", Duration::from_secs(2));
    /// assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    /// ```
    pub fn retry_in(kind: ErrorKind, message: impl Into<String>, time: Duration) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            source: None,
            place: None,
            lasting: false,
            of_one_log: false,
            retry_after: Some(time),
        }))
    }

    /// How long to wait before the call is made again, if that is known: for a log that has used up its
    /// [`AppendBytesPerSecond`](crate::LogOption::AppendBytesPerSecond), and for a record of which a copy has yet to learn which
    /// object has it.
    ///
    /// ```
    /// use chiplog::{Log, LogOption, Options};
    /// # use std::time::Duration;
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    /// log.set_log_options(&[(LogOption::AppendBytesPerSecond, Some(100))], Duration::from_secs(5))?;
    /// log.append(&[0; 1000])?; // one append of any size may exceed what is left
    /// let refused = log.try_submit(b"one more").unwrap_err();
    /// assert!(refused.retry_after().unwrap() > Duration::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The file and the offset of corruption that was found in a local file. None for corruption that a server
    /// reported.
    pub fn location(&self) -> Option<(&Path, u64)> {
        self.0.place.as_ref().map(|(path, offset)| (path.as_path(), *offset))
    }

    /// The error's kind.
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

    /// The operating system's error number, if a system call failed.
    pub fn os_error(&self) -> Option<i32> {
        match self.0.source.as_ref()? {
            Source::System(error) => error.raw_os_error(),
            Source::Earlier(error) => error.os_error(),
            Source::Other(error) => {
                let first: &(dyn std::error::Error + 'static) = &**error;
                let mut chain = std::iter::successors(Some(first), |error| error.source());
                chain.find_map(|error| error.downcast_ref::<io::Error>())?.raw_os_error()
            }
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
            Source::Other(error) => Some(&**error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_code_finds_every_kind() {
        for (n, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(kind.code() as usize, n + 1);
            assert_eq!(ErrorKind::from_code(kind.code()), Some(*kind));
        }
        assert_eq!(ErrorKind::from_code(ErrorKind::ALL.len() as u32 + 1), None);
    }
}
